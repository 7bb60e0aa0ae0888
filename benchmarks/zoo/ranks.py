"""Trains models by the plan that the free solver chose for this machine: two local ranks beside one process.

No degree, schedule or micro-batch is fixed. Two steps of both have to give the same losses, parameters and buffers.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from benchmarks.zoo import FAMILIES
from benchmarks.zoo.check import PLANNED_BATCH, STEPS, workload_of
from benchmarks.zoo.followed import TWO, Differs, by_ranks, compare_runs
from benchmarks.zoo.parts import Case, Make, squares
from planner.measure import profile
from planner.milp import Question, solve
from planner.plan import Plan
from planner.verify import violations
from runtime.cli import backward_split
from runtime.launch import launch_inline
from runtime.runfolder import Paths

MICROS = (1, 2, 4)


class Unused(nn.Module):
    """Has a parameter that no layer uses, as speech models have one for masked frames."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.idle = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(self.a(x).relu())
        return made


def _unused() -> Case:
    return Unused(), lambda n: (torch.randn(n, 8), torch.randn(n, 8)), squares


def _spectral() -> Case:
    module = nn.Sequential(spectral_norm(nn.Linear(8, 16)), nn.ReLU(), spectral_norm(nn.Linear(16, 8)))
    return module, lambda n: (torch.randn(n, 8), torch.randn(n, 8)), squares


OWN: dict[str, Make] = {"an unused parameter": _unused, "spectral norm": _spectral}
OTHERS = (
    ("transformers", "wav2vec2 ctc, as advised"),
    ("diffusers", "UNet2DModel"),
    ("timm", "test_resnet"),
    ("peft", "LoRA and head"),
    ("torchvision", "swin_t"),
    ("examples", "lstm"),
)


def cases() -> dict[str, Make]:
    """Returns the cases whose libraries are installed here, by name."""
    found = dict(OWN)
    for family, name in OTHERS:
        if not FAMILIES[family].missing():
            found[f"{family} {name}"] = partial(_case, family, name)
    return found


def _case(family: str, name: str) -> Case:
    return FAMILIES[family].cases()[name]()


def trained_by_ranks(name: str, make: Make) -> Plan:
    """Trains two steps by the plan of the free solver, in two processes and in one.

    Returns: the plan.
    Raises: Differs where a loss, a parameter or a buffer differs, or the plan does not verify.
    """
    workload = workload_of(name, make)
    costs = profile(workload, "roofline:cpu", micros=MICROS, split=backward_split())
    plan = solve(Question(profile=costs, cluster=TWO, batch=PLANNED_BATCH))
    if found := violations(plan, profile=costs, cluster=TWO):
        raise Differs(f"the plan that plan gives, verify refuses: {found[0]}")
    with tempfile.TemporaryDirectory() as folder:
        together = by_ranks(plan, workload, Path(folder) / "together", STEPS)
        alone = Path(folder) / "alone"
        launch_inline(plan, alone, steps=STEPS, workload=workload)
        compare_runs("two ranks", together, Paths(alone))
    return plan
