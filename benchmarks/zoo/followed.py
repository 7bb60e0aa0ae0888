"""Trains a case as its user would under a plan: profiled, planned for two ranks, run by both, beside a plain loop.

The plain loop is what the author wrote: the module, its loss, its optimizer, one process. Nothing of it comes from a
capture. Random numbers of a run are others on purpose, so that a module that draws some is compared with one process.
"""

from __future__ import annotations

import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from planner.capture import capture
from planner.capture.traced_graph import call
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.measure import profile
from planner.milp import Question, solve
from planner.plan import Plan
from planner.profile import Profile
from planner.verify import violations
from planner.workload import Workload
from runtime import checkpoint as checkpoints
from runtime.cli import backward_split
from runtime.launch import launch_inline
from runtime.runfolder import Paths, steps_of
from runtime.train import Model, job_of, prepare, train_rank
from tests.runtime.reference import batch_of

MICRO, BATCH, STEPS = 2, 4, 3
SHAPES = ("data", "pipeline")  # each of two ranks
LOSS_APART, APART = 2e-5, 2e-4  # relative; sums of two ranks are in another order
# Links of hardly any cost, since else small models are fastest on one device.
TWO = Cluster(
    name="two-ranks",
    nodes=(NodeGroup(count=1, device="cpu", devices_per_node=2),),
    links=Links(node=Link(latency_s=1e-8, bandwidth_bytes_per_s=1e13)),
)


class Differs(Exception):
    """Two trainings or evaluations that should be the same are not."""


@dataclass
class Plain:
    """What a plain loop comes to: the loss of each step, and all tensors that the module has then."""

    losses: list[float] = field(default_factory=list)
    before: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    draws: bool = False  # random numbers


def plain_loop(workload: Workload) -> Plain:
    """Trains the module by a loop of its author's, on the samples that a run would read."""
    module, found = workload.build().train(), Plain()
    optimizer = workload.optimizer([(n, p) for n, p in module.named_parameters() if p.requires_grad])
    found.before = _tensors(module)
    for step in range(STEPS):
        optimizer.zero_grad()
        sums = []
        for m in range(BATCH // MICRO):
            inputs, targets = batch_of(workload, 0, step * BATCH + m * MICRO, MICRO)
            torch.manual_seed(step)
            state = torch.get_rng_state()
            made = workload.loss(call(module, _copy(inputs)), _copy(targets))
            found.draws |= not torch.equal(state, torch.get_rng_state())
            parts = made if isinstance(made, tuple) else (made, torch.ones(()))
            parts[0].backward()
            sums.append([float(x.detach()) for x in parts])
        count = sum(row[1] for row in sums)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad /= count
        optimizer.step()
        found.losses.append(sum(row[0] for row in sums) / count)
    found.after = _tensors(module)
    return found


def _copy(tree: object) -> object:
    return pytree.tree_map_only(Tensor, Tensor.clone, tree)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: x.detach().clone() for name, x in held.items()}


def costs_of(workload: Workload) -> Profile:
    """Returns costs that are reckoned, not measured."""
    return profile(workload, "roofline:cpu", micros=(MICRO,), split=backward_split())


def follow(workload: Workload, costs: Profile, want: Plain, shape: str) -> None:
    """Trains by a plan of two replicas or of two stages, a process each.

    Raises: Differs where a loss or a tensor is not that of the plain loop, or the plan does not verify.
    """
    plan = solve(Question(profile=costs, cluster=TWO, batch=BATCH, fix={shape: 2}))
    if found := violations(plan, profile=costs, cluster=TWO):
        raise Differs(f"{shape} 2: the plan that plan gives, verify refuses: {found[0]}")
    with tempfile.TemporaryDirectory() as folder:
        paths = by_ranks(plan, workload, Path(folder) / "together", STEPS)
        if not want.draws:
            _beside(shape, paths, want)
            return
        alone = Path(folder) / "alone"
        launch_inline(plan, alone, steps=STEPS, workload=workload)
        compare_runs(f"{shape} 2", paths, Paths(alone))


def by_ranks(plan: Plan, workload: Workload, folder: Path, steps: int) -> Paths:
    """Trains in a process for each rank; each is forked, since the workload lives in this one alone."""
    model = Model(plan, workload, capture(workload, micro=plan.batch.micro))
    paths, job = prepare(model, folder, job_of(plan, steps, {}))
    left = {_forked(partial(train_rank, paths, job, model, rank)) for rank in range(len(plan.places))}
    while left:
        done, status = os.wait()
        left.discard(done)
        if status:
            for other in left:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            raise Differs(f"a rank failed under a plan that verifies: {_said(folder)}")
    return paths


def _said(folder: Path) -> str:
    """Returns the last line that a rank left in the folder."""
    lines = [
        x for path in sorted(folder.glob("failed-*")) for x in path.read_text().splitlines() if x.strip()
    ]
    return lines[-1][:300] if lines else "without a word"


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


def _beside(shape: str, paths: Paths, want: Plain) -> None:
    _losses(f"{shape} 2", [row.loss for row in steps_of(paths).values()], want.losses)
    last = checkpoints.latest(paths.checkpoints)
    assert last is not None, "a run leaves a checkpoint"
    have = last.whole()
    moved = {n for n, x in want.after.items() if not torch.equal(x, want.before[n])}
    if lost := sorted(moved - have.keys()):
        raise Differs(f"{shape} 2: '{lost[0]}' moves in a plain loop and is in no checkpoint")
    close(f"{shape} 2", have, {n: x for n, x in want.after.items() if n in have})


def compare_runs(who: str, together: Paths, alone: Paths) -> None:
    """Raises Differs where two runs differ in a loss or in what they leave."""
    _losses(who, *([row.loss for row in steps_of(paths).values()] for paths in (together, alone)))
    states = [checkpoints.latest(paths.checkpoints) for paths in (together, alone)]
    assert states[0] is not None and states[1] is not None, "a run leaves a checkpoint"
    close(who, states[0].whole(), states[1].whole())


def _losses(who: str, have: list[float], want: list[float]) -> None:
    for step, (a, b) in enumerate(zip(have, want, strict=True), 1):
        if not abs(a - b) <= LOSS_APART * max(abs(b), 1e-3):
            raise Differs(f"{who}: the loss of step {step} is {a:.9g}, by itself {b:.9g}")


def close(who: str, have: Mapping[str, Tensor], want: Mapping[str, Tensor], apart: float = APART) -> None:
    """Raises Differs at the first tensor that is too far apart.

    A tensor counts as at least a hundredth of the largest, since the gradient of a bias before a normalisation is
    nothing but rounding.
    """
    numbers = {n: x.to_dense() for n, x in want.items() if x.numel()}
    largest = max((float(x.abs().max()) for x in numbers.values()), default=0.0)
    for name, b in numbers.items():
        a, kind = have[name].to_dense(), torch.complex128 if b.is_complex() else torch.double
        scale = max(float(b.abs().max()), 1e-2 * largest)
        far = float((a.to(kind) - b.to(kind)).abs().max())
        if not far <= apart * scale:
            raise Differs(f"{who}: '{name}' is {far / max(scale, 1e-30):.2g} apart")
