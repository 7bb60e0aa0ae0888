"""Stops all ranks after the same step. It costs nothing until somebody asks for it.

A rank that is told to stop says which step it is in. No rank goes further than the largest step that any rank
has said. After a rank has said its step, it begins no other before it knows what all ranks have said. The
others may be one step ahead and wait for its messages; so they get what they need, and all stop after the
same step.
"""

from __future__ import annotations

import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Protocol

ANSWER_S = 60.0  # every rank is told within moments of the first


class Stop(Protocol):
    """An answer to whether a training goes on, asked before each step."""

    def before(self, step: int) -> bool:
        """Returns whether the training is to stop before a step.

        Args: `step` is the step that would begin next.
        """


class _NoStop:
    def before(self, step: int) -> bool:
        return False


NO_STOP = _NoStop()


class NoPulse:
    """A pulse that nobody watches."""

    def beat(self, waiting: bool) -> None: ...


class Agreed:
    """One rank's side of the vote. `vote` is called by another thread than the one that trains."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self._path, self._rank, self._ranks = path, rank, ranks
        self._begun = 0
        self._said = False
        self._known = threading.Event()
        self._last: int | None = None
        self._lock = threading.Lock()

    def before(self, step: int) -> bool:
        """Returns whether the training is to stop before a step; once this rank has voted, it waits for all
        votes first.

        Raises: TimeoutError where a rank does not vote.
        """
        with self._lock:
            if not self._said:
                self._begun = step
                return False
        self._known.wait()
        if self._last is None:
            raise TimeoutError("told to stop, but not every rank answered")
        return step > self._last

    def vote(self) -> int | None:
        """Tells all ranks to stop, by a vote.

        Returns: the step that all ranks stop after; None where this rank has voted before.
        Raises: an error of the store where a rank does not vote in time.
        """
        with self._lock:
            if self._said:
                return None
            self._said = True
        try:
            from torch._C._distributed_c10d import FileStore

            votes = FileStore(str(self._path), self._ranks)
            votes.set_timeout(timedelta(seconds=ANSWER_S))
            votes.set(str(self._rank), str(self._begun))
            self._last = max(int(votes.get(str(rank))) for rank in range(self._ranks))
            return self._last
        finally:
            self._known.set()


def listen(stop: Agreed) -> None:
    """Starts a thread that votes when this process gets USR1.

    The signal must be blocked in every thread, so that a rank that waits for a message answers too.
    Args: `stop` is the vote of this rank.
    """

    def wait() -> None:
        signal.sigwait({signal.SIGUSR1})
        last = stop.vote()
        if last is not None:
            print(f"told to stop: every rank stops after step {last}", flush=True)

    threading.Thread(target=wait, daemon=True, name="stop").start()


def block() -> None:
    """Makes this thread, and those that it starts, block USR1. It is called before any thread is made."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
