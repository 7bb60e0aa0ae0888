"""What a group with tensors in parts saves, any other plan reads to the bit: parameters and state of the optimizer."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest
import torch

from planner.errors import BadPlan
from planner.plan import Plan, refused_cuts
from runtime.checkpoint import complete
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.layout.test_plans import HEADS, STORED, VOCABULARY, WORDS, in_parts, plan_of
from tests.runtime.sharding.test_wire import states

SAVED, COPIED = (f"tests.runtime.sharding.wire:{name}" for name in ("saved", "copied"))


def prepared(plan: Plan, folder: Path) -> Path:
    prepare(Model(plan, *captured_of(WORDS, {}, 2)), folder, job_of(plan, 2, {}))
    return folder


def test_a_checkpoint_of_a_group_is_read_to_the_bit_under_any_other_plan(pool: Pool, tmp_path: Path) -> None:
    """From one plan to the next, and back to the group in the end."""
    first = plan_of(VOCABULARY, (4,), workers=1, micros=2)
    before = prepared(first, tmp_path / "group of 4")
    pool.run(SAVED, 4, folder=str(before), steps=2)
    begun = states(complete(before / "checkpoints")[-1])
    assert any("/" in name for name in begun)
    others = {
        "one": in_parts(first, {}, (1,)),
        "group of 2": plan_of(VOCABULARY, (2,), workers=1, micros=2),
        "data 4": in_parts(plan_of(HEADS, (1,), workers=1, micros=1, data=4), {}, (1,)),
        "pipeline 2": in_parts(plan_of(HEADS, (1,), workers=2, micros=2), {}, (1,)),
        "weights that rest in parts": plan_of(STORED, (2,), workers=1, micros=2),
        "two axes": plan_of({"blocks.*.attention": "heads+heads"}, (2, 2), workers=1, micros=2),
        "back": first,
    }
    for name, plan in others.items():
        again = prepared(plan, tmp_path / name)
        source = complete(before / "checkpoints")[-1]
        copytree(source, again / "checkpoints" / source.name)
        step = int(source.name.rpartition("-")[2]) + 1
        pool.run(COPIED, len(plan.places), folder=str(again), step=step)
        copied, before = states(complete(again / "checkpoints")[-1]), again
        assert copied.keys() == begun.keys()
        assert all(torch.equal(copied[key], begun[key]) for key in begun), name


def test_heads_that_a_group_cannot_share_evenly_are_refused_by_name(tmp_path: Path) -> None:
    plan = plan_of(HEADS, (3,), workers=1, micros=2)
    (found,) = refused_cuts(plan, captured_of(WORDS, {}, 2)[1].graph)
    assert "blocks.0.attention.qkv: aten.linear" in found.message and "in 3 parts do not fit" in found.message
    with pytest.raises(BadPlan, match="in 3 parts do not fit"):
        prepared(plan, tmp_path / "run")
