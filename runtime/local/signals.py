"""The events that end a local run from outside: Ctrl-C, and the end of the process that launched it."""

from __future__ import annotations

import os
import signal

STATES = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended"}


class EndSignals:
    """Remembers the first SIGINT or SIGTERM.

    The handler only sets a flag, so it cannot interrupt the supervisor while it updates its table of
    processes.
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent  # 0 where the run may outlive it
        self._number: signal.Signals | None = None

    def listen(self) -> None:
        """Takes over SIGINT and SIGTERM of this process."""
        for number in STATES:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._number = self._number or signal.Signals(number)

    def __call__(self) -> tuple[str, str] | None:
        """Returns the state and the cause with which the run is to end, None before any signal."""
        if self._number is None:
            return None
        if self._number == signal.SIGINT:
            cause = "by Ctrl-C"
        elif self._parent and os.getppid() != self._parent:
            cause = "the process that launched it is gone"
        else:
            cause = f"it was told to, by {self._number.name}"
        return STATES[self._number], cause


def as_before() -> None:
    """Gives SIGINT and SIGTERM their usual effect again, in a process forked from one that listens."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
