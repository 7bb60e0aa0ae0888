"""Replicas share what a group has in parts: state, gradients or parameters, among those at the same place of it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
import torch

from planner.plan import Plan, refused_cuts
from planner.plan.sharding import refused_shards
from runtime.checkpoint import complete
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.draws import part
from tests.pool import Pool
from tests.runtime.compare import apart, expected, run
from tests.runtime.layout.test_checkpoints import COPIED, SAVED
from tests.runtime.layout.test_plans import HEADS, SEQUENCE, STORED, VOCABULARY, WORDS, in_parts, plan_of
from tests.runtime.sharding.test_wire import states

SHARED = ("state", "gradients", "parameters")
SHAPES: Mapping[str, tuple[Mapping[str, str], tuple[int, ...], dict[str, object]]] = {
    "one stage": (HEADS, (2,), {"workers": 1, "micros": 2}),
    "a tied weight in parts": (VOCABULARY, (2,), {"workers": 1, "micros": 2}),
    "weights that rest in parts": (STORED, (2,), {"workers": 1, "micros": 2}),
    "two axes": (
        {"blocks.*.attention": "heads+heads", "blocks.*.feedforward": "hidden+samples"},
        (2, 2),
        {"workers": 1, "micros": 1},
    ),
    "recomputed": (SEQUENCE, (2,), {"workers": 1, "micros": 2, "recompute": (0,)}),
    "two stages": (SEQUENCE, (2,), {"workers": 2, "micros": 2}),
    "split backward": (HEADS, (2,), {"workers": 2, "micros": 2, "family": "zb-h1"}),
    "chimera": (HEADS, (2,), {"workers": 2, "micros": 2, "family": "chimera"}),
    "two copies": (HEADS, (2,), {"workers": 1, "micros": 1, "data": 4, "ranks": 2}),
}
DRAWN = 4


def shared(name: str, what: str) -> Plan:
    lines, mesh, shape = SHAPES[name]
    if what == "state":
        shape = {key: x for key, x in shape.items() if key != "ranks"}
    return plan_of(lines, mesh, **({"data": 2} | shape | {"sharing": what}))


@pytest.mark.parametrize(("name", "what"), part(product(SHAPES, SHARED), DRAWN))
def test_replicas_that_share_what_a_group_has_in_parts_train_as_one_process(
    name: str, what: str, pool: Pool, tmp_path: Path
) -> None:
    plan = shared(name, what)
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False, clip_norm=0.5)
    want = expected(plan, tmp_path, steps=3, clip_norm=0.5)
    assert max(abs(a - b) for a, b in zip(want.losses, have.losses, strict=True)) < 1e-10
    for one, other in zip(want.after, have.after, strict=True):
        assert one.keys() == other.keys()
        assert max(apart(one[x], other[x]) for x in one) < 1e-10


def prepared(plan: Plan, folder: Path) -> Path:
    prepare(Model(plan, *captured_of(WORDS, {}, 2)), folder, job_of(plan, 2, {}))
    return folder


@pytest.mark.parametrize(("what", "then"), [*zip(SHARED, (*SHARED[1:], SHARED[0]), strict=True)])
def test_what_they_save_any_other_plan_reads_to_the_bit(
    what: str, then: str, pool: Pool, tmp_path: Path
) -> None:
    first = shared("a tied weight in parts", what)
    before = prepared(first, tmp_path / "first")
    pool.run(SAVED, 4, folder=str(before), steps=2)
    begun = states(complete(before / "checkpoints")[-1])
    assert any("/" in name for name in begun)
    one = in_parts(plan_of(HEADS, (1,), workers=1, micros=2), {}, (1,))
    for name, plan in {"one": one, "another": shared("two stages", then), "back": first}.items():
        again = prepared(plan, tmp_path / name)
        source = complete(before / "checkpoints")[-1]
        shutil.copytree(source, again / "checkpoints" / source.name)
        step = int(source.name.rpartition("-")[2]) + 1
        pool.run(COPIED, len(plan.places), folder=str(again), step=step)
        copied, before = states(complete(again / "checkpoints")[-1]), again
        assert copied.keys() == begun.keys()
        assert all(torch.equal(copied[key], begun[key]) for key in begun), name


def test_they_share_among_replicas_alone() -> None:
    """More ranks than there are replicas are refused, however large the group is."""
    plan, graph = (
        plan_of(HEADS, (2,), workers=1, data=2, sharing="parameters"),
        captured_of(WORDS, {}, 2)[1].graph,
    )
    assert not [*refused_cuts(plan, graph), *refused_shards(plan, graph)]
    stage = plan.stages[0]
    assert stage.shard is not None
    more = stage.model_copy(update={"shard": stage.shard.model_copy(update={"ranks": 4})})
    (found,) = refused_shards(plan.model_copy(update={"stages": (more,)}), graph)
    assert "among 4 ranks, but the stage has 2 data replicas" in found.message
