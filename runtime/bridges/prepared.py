"""A live module that is trained by a plan while a loop of the user's follows the steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from planner.errors import BadInput
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime.launch import Handle, launch_local
from runtime.runfolder import MetricLines, unused

LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """One step that all ranks have trained: its number, its mean loss, and how long it took."""

    number: int
    loss: float
    seconds: float
    gradient_norm: float | None = None  # before clipping, where it was taken


class Prepared:
    """A training by a plan, to be iterated over: every step once. Afterwards, the module has the trained weights."""

    def __init__(
        self, model: nn.Module, plan: Plan, *, steps: int, folder: Path | None, settings: dict[str, object]
    ) -> None:
        """Starts nothing yet.

        Args: `settings` are fields of Job; `folder` is that of the run, a new one below `runs/` by default.
        """
        self.model, self.plan, self.steps = model, plan, steps
        self.run: Handle | None = None
        self.finished = False  # whether the module has the trained weights
        self._folder, self._settings = folder, settings

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[TrainedStep]:
        """Trains on the ranks of this machine, and yields each step as soon as all of them have told of it.

        A loop that is left early ends the run. Its steps are then in the run folder, and the module is as it was.
        Raises: BadInput where it is iterated over twice; what `check()` of a run raises where the run failed.
        """
        if self.run is not None:
            said = "this training has been started"
            raise BadInput(said, where="prepare", allowed="one loop over it; another sw.prepare(...)")
        folder = self._folder or unused(Path(self.plan.model.workload).stem or "training")
        self.run = launch_local(self.plan, folder, steps=self.steps, **self._settings)  # type: ignore[arg-type]
        try:
            yield from _told(self.run)
        except GeneratorExit:
            self.run.cancel()
            raise
        self.run.wait().check()
        found = checkpoints.latest(self.run.paths.checkpoints)
        if found is None or found.facts.step != self.steps:
            raise BadInput("has no checkpoint of its last step", where=str(self.run.folder))
        self.model.load_state_dict(_named_alike(self.model, found.whole()))
        self.finished = True


class Prepare(Protocol):
    """Plans a model as it stands, and returns its training: `shardwright.prepare` with the machines given."""

    def __call__(
        self, model: nn.Module, optimizer: object, loader: object, *, steps: int, **more: object
    ) -> Prepared: ...


def _named_alike(model: nn.Module, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns trained tensors under all names of a module: a tied weight has several, and is trained under one."""
    own = model.state_dict(keep_vars=True)
    by_place = {(own[name].data_ptr(), own[name].shape): name for name in trained if name in own}
    places = {name: by_place.get((own[name].data_ptr(), own[name].shape)) for name in own}
    return {**trained, **{name: trained[place] for name, place in places.items() if place is not None}}


def _told(run: Handle) -> Iterator[TrainedStep]:
    """Yields the steps of a run in their order; one that a restart does again counts once."""
    lines, last = MetricLines(run.paths), 0
    while True:
        going = run.state in ("queued", "running")
        rows = sorted(lines.complete(), key=lambda told: told[:2])
        for _, number, row in rows:
            if number > last:
                last = number
                norm = None if math.isnan(row.gradient_norm) else row.gradient_norm
                yield TrainedStep(number=number, loss=row.loss, seconds=row.seconds, gradient_norm=norm)
        if not going:
            return
        time.sleep(LOOK_S)
