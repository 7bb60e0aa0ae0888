"""A live model of transformers with its own loader trains in bf16 on two ranks as in a loop of plain torch."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from benchmarks import loop
from planner.capture import LiveLoop, capture
from runtime.data.live import live_workload
from runtime.runfolder import evaluations_of, steps_of
from runtime.train import Model, job_of, prepare
from tests.pool import Pool
from tests.runtime.plans import plan_for

STEPS, EVERY = 8, 4


def test_a_short_training_is_the_plain_loop_within_rounding_of_bf16(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(loop, "EVERY", EVERY)
    model = loop.llama(layers=1)
    plain = copy.deepcopy(model)
    loader = DataLoader(loop.Text(50, 1), batch_size=loop.BATCH, drop_last=True)
    valid = DataLoader(loop.Text(21, 2), batch_size=loop.BATCH)
    around = LiveLoop(
        optimizer=torch.optim.AdamW(model.parameters(), lr=loop.RATE),
        lr_schedule=functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=STEPS),
    )
    workload = live_workload(model, None, None, loader, around, tmp_path / "llama.model", valid=valid)
    captured = capture(workload)
    plan = plan_for(captured.graph, workload.name, workers=1, micros=1, micro=8, data=2, precision="bf16")
    settings: dict[str, object] = {"eval_every": EVERY, "clip_norm": loop.CLIP, "drop_last": True}
    paths, _ = prepare(Model(plan, workload, captured), tmp_path / "run", job_of(plan, STEPS, settings))
    pool.run("tests.runtime.jobs:whole_run", 2, folder=str(paths.root))
    hand = loop.by_hand(plain, loader, valid, STEPS, 8)
    assert [row.loss for row in steps_of(paths).values()] == pytest.approx(hand.losses, rel=1e-3)
    found = {each.step: each.values["loss"] for each in evaluations_of(paths)}
    assert found == pytest.approx(hand.evaluations, rel=1e-3)
    assert hand.losses[0] - hand.losses[-1] > 0.1
