"""Operations of a stranger's file: each is held against the model, and tried on the rules, before it is reckoned with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import BadInput
from planner.layout import Wish, operations_at
from planner.layout.wishes import granted
from planner.model import ModelGraph
from planner.spatial import GETITEM, INPUT, STATE, Operation, Ref, read_operations, to_text
from tests.planner import plan_examples


def graph(*operations: Operation) -> ModelGraph:
    """A model of which nothing but its operations counts."""
    whole = replace(plan_examples.graph(), values=())
    return replace(whole, operations=tuple(map(to_text, operations)))


def made(
    name: str, kind: str, *shapes: tuple[int, ...], samples: tuple[int, ...] = (), **arguments: object
) -> Operation:
    layer = "" if kind in (INPUT, STATE) else "down"
    return Operation(name, layer, kind, arguments, shapes, samples)  # type: ignore[arg-type]


GIVEN = (made("x", INPUT, (2, 6), samples=(0,)), made("w", STATE, (8, 6)))
LINEAR = made("y", "aten.linear", (2, 8), input=Ref("x"), weight=Ref("w"))


def test_what_a_capture_writes_is_taken() -> None:
    halves = made("halves", "aten.chunk", (2, 4), (2, 4), self=Ref("y"), chunks=2, dim=-1)
    first = made("first", GETITEM, (2, 4), self=Ref("halves"), index=0)
    turned = made("turned", "aten.transpose", (8, 2), self=Ref("y"), dim0=0, dim1=1)
    found = graph(*GIVEN, LINEAR, halves, first, turned)
    assert operations_at(found, 2) == read_operations(found)


def test_a_dimension_of_one_element_that_goes_becomes_no_other() -> None:
    one = made("one", "aten.unsqueeze", (2, 1, 8), self=Ref("y"), dim=1)
    found = graph(*GIVEN, LINEAR, one, made("gone", "aten.squeeze", (2, 8), self=Ref("one"), dim=(-2,)))
    assert operations_at(found, 2) == read_operations(found)


@pytest.mark.parametrize("turned", [False, True])
def test_a_line_that_names_a_module_goes_before_one_with_a_star_wherever_it_stands(turned: bool) -> None:
    lines = [Wish("*", 0, "sequence"), Wish("down", 0, "out")]
    asked = granted(lines[::-1] if turned else lines, [*GIVEN, LINEAR])
    assert [factor for factor, _ in asked(LINEAR, 0)] == ["out", "sequence"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(LINEAR, name="x"), "made twice"),
        (replace(LINEAR, layer="nowhere"), "belongs to a layer"),
        (replace(LINEAR, arguments={"input": Ref("y")}), "reads 'y'"),
        (replace(LINEAR, outputs=()), "has results of shapes"),
        (replace(LINEAR, outputs=((-1, 8),)), "has results of shapes"),
        (replace(LINEAR, outputs=((2**40, 2**40),)), "has results of shapes"),
        (replace(LINEAR, samples=(7,)), "has its samples along"),
        (made("z", INPUT, (0, 6), samples=(0,)), "has no samples"),
        (made("state:table", STATE, (3, 3)), "in one place and"),
    ],
)
def test_operations_that_do_not_agree_are_refused(wrong: Operation, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_operations(graph(*GIVEN, wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(LINEAR, outputs=((2, 9),)),
        replace(LINEAR, outputs=((3, 2, 8),)),
        replace(LINEAR, arguments={"weight": Ref("w")}),
        made("v", "aten.view", (3, 5), self=Ref("x"), size=(3, 5)),
        made("t", "aten.transpose", (6, 2), self=Ref("x"), dim0="a", dim1=1),
        made("g", GETITEM, (2, 6), self=Ref("x"), index=3),
        made("g", GETITEM, (2, 5), self=Ref("x"), index=0),
    ],
)
def test_arguments_and_shapes_that_torch_would_not_give_are_refused(wrong: Operation) -> None:
    with pytest.raises(BadInput, match=f"'{wrong.name}'.*profile the model again"):
        operations_at(graph(*GIVEN, wrong), 2)
