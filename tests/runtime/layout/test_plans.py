"""Plans whose groups have tensors in parts train as one process does, with data and pipeline axes beside."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

import pytest

from planner.plan import Axes, CutLine, Place, Plan, coordinates, world_size
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.plans import plan_for

WORDS = "tests/runtime/layout/workloads/words.py"
HEADS = {"blocks.*.attention": "heads", "blocks.*.feedforward": "hidden"}
SEQUENCE = HEADS | {"token": "sequence", "blocks.*": "sequence", "norm": "sequence"}
VOCABULARY = HEADS | {"token": "vocabulary", "head": "out"}
LLAMA = {"model.layers.*.self_attn": "heads", "model.layers.*.mlp": "hidden"}


def in_parts(plan: Plan, lines: Mapping[str, str], mesh: tuple[int, ...]) -> Plan:
    """The same plan with groups that have tensors in parts; a line is for the stages that have its layers."""
    axes = Axes(data=plan.axes.data, pipeline=plan.axes.pipeline, spatial=prod(mesh))
    cut = tuple(
        CutLine(layers=layers, **dict(zip("xyz", factors.split("+"), strict=False)))
        for layers, factors in lines.items()
    )
    places = tuple(
        Place(rank=r, node=0, slot=r, **coordinates(axes, r)._asdict()) for r in range(world_size(axes))
    )
    own = mesh if len(mesh) > 1 else ()
    stages = tuple(stage.model_copy(update={"cut": cut, "mesh": own}) for stage in plan.stages)
    return plan.model_copy(update={"axes": axes, "stages": stages, "places": places})


def plan_of(lines: Mapping[str, str], mesh: tuple[int, ...], **shape: object) -> Plan:
    arguments = shape.pop("arguments", {})
    assert isinstance(arguments, dict)
    _, captured = captured_of(WORDS, arguments, 2)
    plain = plan_for(captured.graph, WORDS, arguments=arguments, **shape)  # type: ignore[arg-type]
    return in_parts(plain, lines, mesh)


SHAPES: Mapping[str, tuple[Mapping[str, str], tuple[int, ...], dict[str, object]]] = {
    "heads and columns": (HEADS, (2,), {"workers": 1}),
    "sequence": (SEQUENCE, (2,), {"workers": 1}),
    "vocabulary": (VOCABULARY, (2,), {"workers": 1}),
    "Llama": (LLAMA, (2,), {"workers": 1, "arguments": {"model": "llama"}}),
    "two axes": (
        {"blocks.*.attention": "heads+heads", "blocks.*.feedforward": "hidden+samples"},
        (2, 2),
        {"workers": 1},
    ),
    "data beside": (VOCABULARY, (2,), {"workers": 1, "data": 2}),
    "pipeline beside": (HEADS, (2,), {"workers": 2}),
    "a tied weight on two stages": (SEQUENCE, (2,), {"workers": 2}),
    "split backward": (HEADS, (2,), {"workers": 2, "family": "zb-h1"}),
    "recomputed": (SEQUENCE, (2,), {"workers": 2, "recompute": (0,)}),
    "chimera": (HEADS, (2,), {"workers": 2, "family": "chimera"}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_with_tensors_in_parts_trains_as_one_process_does(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    lines, mesh, shape = SHAPES[name]
    plan = plan_of(lines, mesh, **{"micros": 2, **shape})
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() < 1e-10, found
