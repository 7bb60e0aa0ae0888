"""What a model does not allow of a plan, with its cause, from the tables of the model alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.model import Buffer, ModelGraph, one_holder, refusals
from tests.planner import graphs


def with_buffer(**changes: object) -> ModelGraph:
    buffer = Buffer(
        name="ema",
        users=(),
        shape=(2,),
        dtype="float32",
        bytes=8,
        mutated=True,
        **changes,  # type: ignore[arg-type]
    )
    return replace(graphs.chain(), buffers=(buffer,))


@pytest.mark.parametrize("holders", [{"data": 2}, {"spatial": 2}, {"pipes": 2}])
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"remembered": True, "update": "samples"}, "writes and reads 'ema', which depends on the samples"),
        ({"update": "samples"}, "writes 'ema', which depends on the samples"),
        ({"remembered": True}, "in a way that its file does not say.* or a new profile"),
    ],
)
def test_a_buffer_that_holders_cannot_keep_equal_has_one_of_them(
    row: dict[str, object], said: str, holders: dict[str, int]
) -> None:
    (found,) = refusals(with_buffer(**row), **holders)
    assert found.rule == "state"
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(found.message)
    assert not list(refusals(with_buffer(**row)))


@pytest.mark.parametrize("row", [{}, {"remembered": True, "update": "own"}, {"update": "own"}])
def test_a_buffer_that_holders_keep_equal_may_have_many(row: dict[str, object]) -> None:
    graph = with_buffer(**row)
    assert one_holder(graph) is None
    assert not list(refusals(graph, data=2, spatial=2, pipes=2))
