"""What a place to run offers a launched run, whether it is processes of this machine or a job of SLURM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from runtime.runfolder import Outcome


class Backend(Protocol):
    """One run at the place where it goes on."""

    def state(self) -> tuple[str, str]:
        """Returns the state of a run without an outcome, and the reason for it."""

    def wait(self, timeout_s: float | None = None, look: Callable[[], None] | None = None) -> Outcome:
        """Waits until the run has ended, through all its restarts.

        Args: `look` is called now and then while the run goes on.
        Returns: the outcome that everybody sees.
        Raises: TimeoutError after `timeout_s`.
        """

    def cancel(self) -> None:
        """Ends the run; it can be resumed from its last complete checkpoint."""
