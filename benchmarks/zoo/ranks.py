"""Trains models by the plan that the free solver chose for this machine: two local ranks beside one process.

No degree, schedule or micro-batch is fixed. Two steps of both have to give the same losses, parameters and buffers.
"""

from __future__ import annotations

import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from benchmarks.zoo import FAMILIES
from benchmarks.zoo.check import APART, LOSS_APART, PLACED, PLANNED_BATCH, STEPS, Differs, close, workload_of
from benchmarks.zoo.parts import Case, Make, squares
from planner.capture import capture
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.measure import profile
from planner.milp import Question, solve
from planner.plan import Plan
from planner.verify import violations
from planner.workload import Workload
from runtime import checkpoint as checkpoints
from runtime.cli import backward_split
from runtime.launch import launch_inline
from runtime.runfolder import Paths, steps_of
from runtime.train import Model, job_of, prepare, train_rank

MICROS = (1, 2, 4)
# Links of hardly any cost, since else small models are fastest on one device.
TWO = Cluster(
    name="two-ranks",
    nodes=(NodeGroup(count=1, device="cpu", devices_per_node=2),),
    links=Links(node=Link(latency_s=1e-8, bandwidth_bytes_per_s=1e13)),
)


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
        together = _ranks(plan, workload, Path(folder) / "together")
        alone = Path(folder) / "alone"
        launch_inline(plan, alone, steps=STEPS, workload=workload)
        _compare(together, Paths(alone))
    return plan


def _ranks(plan: Plan, workload: Workload, folder: Path) -> Paths:
    """Trains in a process for each rank; each is forked, since the workload lives in this one alone."""
    model = Model(plan, workload, capture(workload, micro=MICROS))
    paths, job = prepare(model, folder, job_of(plan, STEPS, {}))
    left = {_forked(partial(train_rank, paths, job, model, rank)) for rank in range(len(plan.places))}
    while left:
        done, status = os.wait()
        left.discard(done)
        if status:
            for other in left:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            raise Differs("a rank failed under the plan of the free solver")
    return paths


def _forked(run: Callable[[], None]) -> int:
    """Returns the number of a process that runs a function and ends; its status is 1 where that raises."""
    child = os.fork()
    if not child:
        try:
            run()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def _compare(together: Paths, alone: Paths) -> None:
    losses = [[row.loss for row in steps_of(paths).values()] for paths in (together, alone)]
    for step, (a, b) in enumerate(zip(*losses, strict=True), 1):
        if abs(a - b) > PLACED * LOSS_APART * max(abs(b), 1e-3):
            raise Differs(f"the loss of step {step} is {a:.9g}, in one process {b:.9g}")
    states = [checkpoints.latest(paths.checkpoints) for paths in (together, alone)]
    assert states[0] is not None and states[1] is not None, "a run leaves a checkpoint"
    close("two ranks", "after two steps,", states[0].whole(), states[1].whole(), PLACED * APART)
