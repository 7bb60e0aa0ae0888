"""Calls the user's functions on steps, evaluations, checkpoints and failures, on the first rank.

Where one raises, all ranks learn of it at the same step. They write a checkpoint, and the run ends with its traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from planner.workload import CALLBACKS, Workload
from runtime.world import World


class CallbackRaised(RuntimeError):
    """Ends a rank because a callback raised on the first one."""

    secondary = True  # it follows from another rank's end


@dataclass(frozen=True, kw_only=True)
class Happened:
    """One event as a callback is told of it. What does not belong to its event is None or empty."""

    step: int
    folder: Path  # of the run
    loss: float | None = None  # of the step
    seconds: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)  # of an evaluation: loss and metrics
    best: bool = False  # whether that evaluation is the best so far
    checkpoint: Path | None = None
    error: BaseException | None = None  # of a failure


class Callbacks:
    """The user's functions of one training."""

    def __init__(self, workload: Workload, world: World) -> None:
        self._functions = {role: workload.functions[role] for role in CALLBACKS if role in workload.functions}
        self._world = world

    def wants(self, role: str) -> bool:
        """Returns whether the user has a function for an event, such as `on_step`."""
        return role in self._functions

    def call(self, role: str, happened: Happened) -> BaseException | None:
        """Calls the user's function where there is one. All ranks call this.

        Returns: what it raised, on the first rank; CallbackRaised on the others.
        """
        if role not in self._functions:
            return None
        error: BaseException | None = None
        if self._world.rank == 0:
            try:
                self._functions[role](happened)
            except (Exception, SystemExit) as raised:
                error = raised
        if self._world.group is None:
            return error
        flag = torch.tensor([float(error is not None)])
        dist.all_reduce(flag, group=self._world.group)
        return error or (CallbackRaised(f"{role} raised on rank 0") if flag.item() else None)

    def forget(self, role: str) -> None:
        """Calls the user no more on an event."""
        self._functions.pop(role, None)

    def failed(self, happened: Happened) -> None:
        """Calls `on_failure` on the rank whose error ends the run."""
        if "on_failure" in self._functions:
            self._functions["on_failure"](happened)
