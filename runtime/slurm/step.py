"""The step of a job, which is srun with all ranks: watched until it ends, told to stop, given up where it cannot end.

A signal that comes before the supervisor listens is lost, so the mark of a cancelled run is looked at as well. srun
waits without end for a node that went away with its ranks and was back before SLURM noticed.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.runfolder import Paths
from runtime.slurm import rank_records

POLL_S = 0.05
LOOK_S = 1.0  # at marks in the run folder
ENDS_S = 90.0  # from a rank's bad end on; SLURM's KillWait is 30


@dataclass
class StepWatch:
    """The watch over one step; `gone` says that srun was given up, since some of its nodes do not answer."""

    paths: Paths
    generation: int
    ranks: int
    asked: Callable[[], bool]  # whether ranks are to stop
    gone: bool = False
    _told: bool = False
    _cancelled: bool = False
    _look_s: float = 0.0
    _failed_s: float = field(default=float("inf"))

    def wait(self, step: subprocess.Popen[bytes], number: int) -> int:
        """Waits until a step has ended, and hands a signal on to it once.

        Args: `number` is the signal that tells ranks to stop with a checkpoint.
        Returns: the exit status of srun; 1 where it was given up.
        """
        while (code := step.poll()) is None:
            self._look()
            if not self._told and (self._cancelled or self.asked()) and self._listening():
                self._told = True
                step.send_signal(number)
            if time.monotonic() > self._failed_s + ENDS_S:
                step.kill()
                step.wait()
                self.gone = True
                return 1
            time.sleep(POLL_S)
        return code

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._look_s:
            return
        self._look_s = now + LOOK_S
        self._cancelled = self.paths.cancelled.exists()
        if self.paths.failed(self.generation).exists():
            self._failed_s = min(self._failed_s, now)

    def _listening(self) -> bool:
        """Returns whether all ranks have started. The signal would end a rank that does not listen to it yet."""
        return all(rank_records.read(self.paths, rank, self.generation) for rank in range(self.ranks))
