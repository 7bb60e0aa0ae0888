"""A plan for GPUs trains on GPUs, unless somebody says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planner import plan as plans
from planner.plan import Plan
from runtime.launch import device_for

PLAN = Path(__file__).parents[3] / "plans" / "mlp-two-stages.yaml"


def costs_of(device: str) -> Plan:
    plan = plans.load(PLAN)
    return plan.model_copy(
        update={"provenance": plan.provenance.model_copy(update={"profile": f"{device} (roofline)"})}
    )


def test_a_job_for_gpus_asks_for_gpus_and_one_for_processors_does_not() -> None:
    assert device_for(costs_of("A100-40GB"), "slurm") == "cuda"
    assert device_for(costs_of("cpu"), "slurm") == "cpu"


@pytest.mark.parametrize("there", [True, False])
def test_ranks_of_this_machine_train_on_its_gpus_where_it_has_them(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert device_for(costs_of("A100-40GB"), "local") == ("cuda" if there else "cpu")
    assert device_for(costs_of("cpu"), "local") == "cpu"
