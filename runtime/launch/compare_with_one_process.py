"""Trains two steps by a plan and in one process, and compares the losses."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from math import isclose
from pathlib import Path

from planner.errors import BadInput
from planner.plan import Plan
from planner.terminal import Report
from runtime.launch.handle import device_for, launch_inline, launch_local
from runtime.runfolder import Result

STEPS = 2
MOST_RANKS = 64
TOLERANCE = {"fp32": 1e-6, "bf16": 1e-2, "fp16": 1e-2}  # relative; one pipe agrees to the bit
A_PROCESS_BYTES = 400 * 2**20  # torch itself, and the captured model


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The losses of both trainings, by step."""

    together: tuple[float, ...]  # loss of each step, by the plan
    alone: tuple[float, ...]  # in one process
    tolerance: float

    @property
    def agree(self) -> bool:
        """Returns whether the losses of all steps agree within the tolerance."""
        pairs = zip(self.together, self.alone, strict=True)
        return all(isclose(a, b, rel_tol=self.tolerance) for a, b in pairs)


def checked(plan: Plan) -> Checked:
    """Trains two steps by a plan in processes of this machine, and the same two steps in one process.

    Args: `plan` has at most 64 ranks, which together fit into the free memory.
    Returns: the losses of both.
    Raises: BadInput for a larger plan.
    """
    _refuse_large(plan)
    device = device_for(plan, "local")
    with (
        tempfile.TemporaryDirectory(prefix="shardwright-check-") as folder,
        Report(f"check {plan.model.workload}") as report,
    ):
        with report.step(0.0, "two steps in one process"):
            alone = launch_inline(plan, Path(folder) / "alone", steps=STEPS, device=device)
        with report.step(0.5, f"two steps by the plan, in {len(plan.places)} processes"):
            together = (
                launch_local(plan, Path(folder) / "together", steps=STEPS, device=device).wait().check()
            )
    return Checked(together=_losses(together), alone=_losses(alone), tolerance=TOLERANCE[plan.precision])


def _losses(run: Result) -> tuple[float, ...]:
    return tuple(run.losses[step] for step in range(1, STEPS + 1))


def _refuse_large(plan: Plan) -> None:
    from runtime.execute import free_bytes  # torch is slow to load

    ranks = len(plan.places)
    if ranks > MOST_RANKS:
        raise BadInput(
            f"{ranks} ranks", where="rehearse --check", allowed=f"at most {MOST_RANKS} on one machine"
        )
    workers = {place.rank: place.pipeline for place in plan.places}
    needed = sum(plan.prediction.memory[worker].total + A_PROCESS_BYTES for worker in workers.values())
    if needed > (free := free_bytes()):
        raise BadInput(
            f"the ranks need about {needed / 2**30:.1f} GiB together, {free / 2**30:.1f} are free here",
            where="rehearse --check",
            allowed="a plan of a smaller model",
        )


def check_text(found: Checked) -> str:
    """Returns the losses and the verdict as lines of text.

    Args: `found` is what `checked` has returned.
    """
    lines = [
        f"step {step}: loss {a!r} by the plan, {b!r} in one process"
        for step, (a, b) in enumerate(zip(found.together, found.alone, strict=True), 1)
    ]
    verdict = "they agree" if found.agree else "they differ"
    same = ", to the bit" if found.together == found.alone else f", within {found.tolerance:g} of each other"
    return "\n".join([*lines, verdict + (same if found.agree else f" by more than {found.tolerance:g}")])
