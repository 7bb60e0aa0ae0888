"""Plans whose groups have tensors in parts train as one process does, with data and pipeline axes beside."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import product
from math import prod
from pathlib import Path

import pytest
import torch
from torch import Tensor

from planner.plan import Axes, CutLine, Place, Plan, coordinates, world_size
from runtime import checkpoint as checkpoints
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.draws import part
from tests.pool import Pool
from tests.runtime.compare import Run, distance, expected, run
from tests.runtime.layout.cut_models import MODELS
from tests.runtime.plans import plan_for

WORDS = "tests/runtime/layout/workloads/words.py"
HEADS = {"blocks.*.attention": "heads", "blocks.*.feedforward": "hidden"}
SEQUENCE = HEADS | {"token": "sequence", "blocks.*": "sequence", "norm": "sequence"}
RING = {"blocks.*.attention": "ring", "token": "sequence", "blocks.*": "sequence", "norm": "sequence"}
VOCABULARY = HEADS | {"token": "vocabulary", "head": "out"}
STORED = {"*": "samples", "blocks.*.attention": "stored", "blocks.*.feedforward": "stored", "token": "stored"}
SQUARE = {"*": "samples", "blocks.*.attention": "stored+heads", "blocks.*.feedforward": "stored+hidden"}
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
    "a ring": (RING, (2,), {"workers": 1}),
    "a ring, split backward": (RING, (2,), {"workers": 2, "family": "zb-h1"}),
    "chimera": (HEADS, (2,), {"workers": 2, "family": "chimera"}),
    "weights that rest in parts": (STORED, (2,), {"workers": 1}),
    "weights that rest in parts, split backward": (STORED, (2,), {"workers": 2, "family": "zb-h1"}),
    "weights that rest in parts, chimera": (STORED, (2,), {"workers": 2, "family": "chimera"}),
    "2-D, recomputed": (SQUARE, (2, 2), {"workers": 1, "recompute": (0,)}),
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


LIBRARY = "tests/runtime/layout/workloads/library.py"
NAMES = ("BERT", "ViT", "Whisper", "transformers GPT-2")
KINDS = (("heads",), ("heads", "sequence"), ("heads", "vocabulary"))
IN_PROCESSES = 2


@pytest.mark.parametrize(("model", "kinds"), part(product(NAMES, KINDS), IN_PROCESSES))
def test_models_of_a_library_train_in_parts_as_in_one_process(
    model: str, kinds: tuple[str, ...], pool: Pool, tmp_path: Path
) -> None:
    arguments = {"model": model}
    _, captured = captured_of(LIBRARY, arguments, 2)
    plain = plan_for(captured.graph, LIBRARY, arguments=arguments, workers=1, micros=2)
    lines = {pattern: factor for kind in kinds for pattern, factor in MODELS[model][1][kind].items()}
    plan = in_parts(plain, lines, (2,))
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False)
    want = expected(plan, tmp_path, steps=3)
    assert max(abs(a - b) for a, b in zip(want.losses, have.losses, strict=True)) < 1e-12
    for one, other in ((want.grads, have.grads), *zip(want.after, have.after, strict=True)):
        assert one.keys() == other.keys()
        assert [x for x in one if not torch.allclose(one[x], other[x], rtol=0, atol=1e-12)] == []


def apart(a: Run, b: Run) -> float:
    """The largest difference of a loss, and of a parameter after any step."""
    found = [abs(x - y) for x, y in zip(a.losses, b.losses, strict=True)]
    for x, y in zip(a.after, b.after, strict=True):
        assert x.keys() == y.keys()
        found += [float((x[n] - y[n]).abs().max()) for n in x]
    return max(found)


ULYSSES = RING | {"blocks.*.attention": "ulysses"}
ONE = {"workers": 1, "micros": 2}
DROPPED: Mapping[str, tuple[Mapping[str, str], tuple[int, ...], dict[str, object]]] = {
    **{
        f"{name} by {ranks}": (lines, (ranks,), ONE)
        for name, lines in (("heads", HEADS), ("sequence", SEQUENCE), ("vocabulary", VOCABULARY))
        for ranks in (2, 4)
    },
    **{f"{name} by 2": (lines, (2,), ONE) for name, lines in (("ulysses", ULYSSES), ("ring", RING))},
    "2-D": (SQUARE, (2, 2), ONE),
    "pipeline beside": (SEQUENCE, (2,), {"workers": 2, "micros": 2}),
    "data beside": (HEADS, (2,), {"workers": 1, "data": 2, "micros": 1}),
    "micro-batches of 1": (HEADS, (2,), {"workers": 1, "micros": 4, "micro": 1}),
    "a micro-batch of 4": (SEQUENCE, (4,), {"workers": 1, "micros": 1, "micro": 4}),
    "samples cut": (STORED, (2,), {"workers": 1, "micros": 1, "micro": 4}),
    "replicas of 1": ({}, (1,), {"workers": 1, "data": 4, "micros": 1, "micro": 1}),
    "a pipeline of 1": (VOCABULARY, (2,), {"workers": 2, "micros": 4, "micro": 1}),
    "chimera": (HEADS, (2,), {"family": "chimera", "workers": 2, "micros": 2}),
    "chimera of 1": ({}, (1,), {"family": "chimera", "workers": 2, "micros": 4, "micro": 1}),
    "a split backward": (HEADS, (2,), {"family": "zb-h1", "workers": 2, "micros": 4, "micro": 1}),
}


@pytest.mark.parametrize("name", part(DROPPED, 5))
def test_dropout_drops_the_same_whatever_the_plan(name: str, pool: Pool, tmp_path: Path) -> None:
    lines, mesh, shape = DROPPED[name]
    wet = {"arguments": {"dropout": "0.1"}}
    whole = in_parts(plan_of({}, (1,), **ONE, **wet), {}, (1,))
    one = run(pool, whole, tmp_path / "whole", steps=3)
    cut = plan_of(lines, mesh, **shape, **wet)
    assert apart(one, run(pool, cut, tmp_path / "cut", steps=3, compare_holders=False)) < 1e-12
    dry = in_parts(plan_of({}, (1,), **ONE), {}, (1,))
    assert apart(one, run(pool, dry, tmp_path / "dry", steps=3)) > 1e-3


@pytest.mark.parametrize("lines", [HEADS, VOCABULARY], ids=["heads", "vocabulary"])
def test_an_optimizer_that_groups_by_size_is_told_the_sizes_of_whole_weights(
    lines: Mapping[str, str], pool: Pool, tmp_path: Path
) -> None:
    cut = plan_of(lines, (2,), workers=1, micros=2, arguments={"kind": "sized"})
    have = run(pool, cut, tmp_path, steps=3, compare_holders=False)
    found = distance(expected(cut, tmp_path, steps=3), have)
    assert found.loss < 1e-10 and max(found.after.values()) < 1e-10


def train(pool: Pool, plan: Plan, folder: Path, steps: int) -> dict[str, Tensor]:
    """The parameters of a run's last checkpoint, and their averages."""
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    paths, _ = prepare(model, folder, job_of(plan, steps, {"ema": 0.5}))
    pool.run("tests.runtime.jobs:whole_run", len(plan.places), folder=str(paths.root))
    found = checkpoints.latest(folder / "checkpoints")
    assert found is not None and found.facts.step == steps
    averages = {f"average of {name}": x for name, x in found.whole(averaged=True).items()}
    return {**found.whole(), **averages}


@pytest.mark.parametrize("begun", [(2,), (4,)], ids=["group 2", "group 4"])
def test_any_plan_goes_on_with_what_a_group_began(begun: tuple[int, ...], pool: Pool, tmp_path: Path) -> None:
    cut = plan_of(VOCABULARY, begun, workers=1, micros=2)
    others = {
        "group": cut,
        "one": in_parts(cut, {}, (1,)),
        "replicas": in_parts(plan_of(HEADS, (1,), workers=1, micros=1, data=2), {}, (1,)),
        "axes": plan_of({"blocks.*.attention": "heads+heads"}, (2, 2), workers=1, micros=2),
    }
    whole = train(pool, others["one"], tmp_path / "whole", 4)
    train(pool, cut, tmp_path / "begun", 2)
    for name, plan in others.items():
        shutil.copytree(tmp_path / "begun", tmp_path / name)
        found = train(pool, plan, tmp_path / name, 4)
        assert found.keys() == whole.keys()
        assert max(float((found[x] - whole[x]).abs().max()) for x in whole) < 1e-12, name
    uninterrupted = train(pool, cut, tmp_path / "uninterrupted", 4)
    again = checkpoints.latest(tmp_path / "group" / "checkpoints")
    assert again is not None and all(torch.equal(uninterrupted[x], y) for x, y in again.whole().items())


def test_clipping_counts_every_element_once(pool: Pool, tmp_path: Path) -> None:
    cut = plan_of(VOCABULARY, (2,), workers=1, micros=2, data=2)
    have = run(pool, cut, tmp_path, steps=3, compare_holders=False, clip_norm=0.1)
    found = distance(expected(cut, tmp_path, steps=3, clip_norm=0.1), have)
    assert found.loss < 1e-10 and max(found.after.values()) < 1e-10
