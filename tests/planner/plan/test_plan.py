"""The plan's own arithmetic: ranks and coordinates; and the example of its module."""

from __future__ import annotations

import doctest
import sys
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.plan import Axes, Plan, coordinates, rank_of, world_size
from planner.plan.derive import Coordinates
from tests.planner import plan_examples as examples

ORDERS = list(permutations(("data", "pipeline", "spatial")))


@given(st.tuples(*[st.integers(1, 5)] * 3), st.sampled_from(ORDERS))
def test_a_rank_has_one_place_on_the_mesh(degrees: tuple[int, int, int], order: tuple[str, str, str]) -> None:
    data, pipeline, spatial = degrees
    axes = Axes.model_validate({"data": data, "pipeline": pipeline, "spatial": spatial, "order": order})
    ranks = range(world_size(axes))
    everywhere = {coordinates(axes, rank) for rank in ranks}
    assert everywhere == {
        Coordinates(d, p, s) for d in range(data) for p in range(pipeline) for s in range(spatial)
    }
    assert [rank_of(axes, coordinates(axes, rank)) for rank in ranks] == list(ranks)


def test_the_last_axis_of_the_order_counts_fastest() -> None:
    axes = Axes(data=2, pipeline=3, order=("data", "spatial", "pipeline"))
    assert [coordinates(axes, rank).pipeline for rank in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_plan_does_not_change() -> None:
    plan = examples.plan()
    with pytest.raises(ValidationError, match="frozen"):
        plan.optimizer = "sgd"  # type: ignore[misc]


@pytest.mark.parametrize("field", ["batch.micro", "times.0.forward_ns"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "3", None, 2**63])
def test_counts_are_whole_numbers_and_nothing_else(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        examples.edited(examples.plan(), {field: value})


def test_arguments_keep_their_types() -> None:
    arguments = {"size": "xl", "layers": 3, "rate": 1.0, "causal": True}
    plan = examples.edited(examples.plan(), {"model.arguments": arguments})
    kept = Plan.model_validate(plan.model_dump()).model.arguments
    assert {name: type(value) for name, value in kept.items()} == {
        "size": str,
        "layers": int,
        "rate": float,
        "causal": bool,
    }


def test_the_example_of_the_module_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    done = doctest.testmod(sys.modules[Plan.__module__])
    assert done.attempted > 0
    assert done.failed == 0
