"""What ends a local run from outside, so that it leaves a word: Ctrl-C, and the end of the process that launched it."""

from __future__ import annotations

import os
import signal

STATES = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended"}


class EndSignals:
    """A signal only leaves a mark: between two lines that take notes of processes nothing may be torn."""

    def __init__(self, parent: int) -> None:
        self._parent = parent  # 0 where the run may outlive it
        self._number: signal.Signals | None = None

    def listen(self) -> None:
        for number in STATES:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._number = self._number or signal.Signals(number)

    def __call__(self) -> tuple[str, str] | None:
        """State and cause, once there is one."""
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
    """In a process that was forked from one which listens."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
