"""A supervised run without torch, for the tests of supervision: `python -m tests.runtime.supervised FOLDER HOW`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from runtime.local import supervise
from runtime.runfolder import Heartbeat, Paths, tell

RANKS = 4
DEADLINE_S = 0.8


def rank_main(paths: Paths, how: str, rank: int) -> None:
    heart = Heartbeat(paths.heartbeat, rank, RANKS)
    if how.endswith("before it begins"):
        _never_begin(how, rank)
    for step in range(10**6 if how != "well" else 20):
        heart.beat(False)
        if step == 0 and rank == 3 and how == "raise":
            _start_a_loader(paths)
        if step == 10 and rank == 2:
            heart.beat(how == "stop while it waits")
            _misbehave(how)
        if step > 10 and how != "well":
            _follow(heart, how, rank)
        time.sleep(0.01)


def _never_begin(how: str, rank: int) -> None:
    """The others wait for the stopped one where they meet: for ever, or until their timeout, which comes first."""
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    if how.startswith("time out"):
        time.sleep(0.3)
        raise RuntimeError("Timed out waiting 120000ms for recv operation to complete")
    time.sleep(1000)


def _start_a_loader(paths: Paths) -> None:
    """As a rank does whose samples are loaded by processes."""
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    (paths.root / "loader").write_text(str(pid))


def _misbehave(how: str) -> None:
    if how == "raise":
        raise ValueError("the second layer is odd")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(7)
    if how == "leave":
        raise SystemExit(5)
    if how == "hang":
        time.sleep(1000)
    if how.startswith("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)


def _follow(heart: Heartbeat, how: str, rank: int) -> None:
    """What the others do then: lose their connection, or wait for ever."""
    heart.beat(True)
    if how in ("raise", "kill") and rank == 1:
        raise RuntimeError("recv: Connection closed by peer [127.0.0.1]")
    time.sleep(1000)


if __name__ == "__main__":
    where = Paths(Path(sys.argv[1])).make()
    done = supervise(where, RANKS, DEADLINE_S, lambda rank: rank_main(where, sys.argv[2], rank))
    tell(where, done)
    sys.exit(done.status)
