"""The protocol of a backend: a place where a launched run goes on, such as this machine or a SLURM job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from runtime.runfolder import Outcome


class Backend(Protocol):
    """One run at the place where it goes on."""

    def state(self) -> tuple[str, str]:
        """Returns the state of a run that has no outcome yet, and the reason for that state.

        Returns: a word such as "running" or "queued"; the reason is empty where there is nothing to say.
        """

    def wait(self, timeout_s: float | None = None, look: Callable[[], None] | None = None) -> Outcome:
        """Waits until the run has ended, through all its restarts.

        Args: `look` is called now and then while the run goes on.
        Returns: the outcome that everybody sees.
        Raises: TimeoutError after `timeout_s`.
        """

    def cancel(self) -> None:
        """Ends the run. It can be resumed from its last complete checkpoint.

        Raises: BadInput where the run does not go on, or cannot be ended from this host.
        """
