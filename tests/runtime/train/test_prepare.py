"""A plan whose ranks would wait for each other for ever is refused before anything of the run is written."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from planner.errors import BadPlan
from planner.plan import Plan, load
from planner.program import Program
from runtime.execute import program_of
from runtime.runfolder import Job
from runtime.train import Model, prepare, prepare_folder
from runtime.world import World

PLAN = load(Path("plans/mlp-two-stages.yaml"))
JOB = Job(steps=1)
REST = "F2 {0}B2 {0}F3 {0}B3 {0}F4 {0}B4 {0}F5 {0}B5 {0}F6 {0}B6 {0}F7 {0}B7 {0}SYNC {0}STEP"
CIRCLE = (f"0F0 0B0 0F1 0B1 0{REST.format(0)}", f"1F1 1B1 1F0 1B0 1{REST.format(1)}")


def with_orders(orders: tuple[str, ...]) -> Plan:
    return PLAN.model_copy(update={"schedule": PLAN.schedule.model_copy(update={"orders": orders})})


def test_orders_that_wait_for_each_other_are_refused_with_their_picture(tmp_path: Path) -> None:
    edited = with_orders(CIRCLE)
    for begin in (
        lambda folder: prepare(Model.of(edited), folder, JOB),
        lambda f: prepare_folder(edited, f, JOB),
    ):
        with pytest.raises(BadPlan, match="deadlock") as raised:
            begin(tmp_path / "run")
        assert "1F1" in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_program_whose_ranks_disagree_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(plan: Plan, world: World) -> Program:
        first, *others = program_of(plan, world).ranks
        sent = next(each for each in first if each.op == "send")
        return Program(ranks=((*(each for each in first if each != sent), sent), *others))

    monkeypatch.setattr(importlib.import_module("runtime.train.prepare"), "program_of", spoiled)
    with pytest.raises(BadPlan, match="disagree on the order"):
        prepare_folder(PLAN, tmp_path / "run", JOB)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_sound_plan_is_prepared_for_either_device(device: str, tmp_path: Path) -> None:
    paths, _ = prepare_folder(PLAN, tmp_path / "run", Job(steps=1, device=device))  # type: ignore[arg-type]
    assert paths.plan.exists()
