"""Processes are watched by a clock that stands while the watch does, and a stopped one is told from one that waits."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.runfolder import StopWatch, WatchClock
from runtime.runfolder.holder import LOOK_S


def test_a_watch_that_was_suspended_counts_no_time_of_those_that_were_suspended_with_it() -> None:
    times = iter([100.0, 100.1, 104.0, 5000.0, 5000.5])
    clock = WatchClock(lambda: next(times))
    assert [round(clock.now(), 1) for _ in range(4)] == [100.1, 104.0, 104.0, 104.5]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_stopped_from_when_it_was_first_seen_so_until_it_goes_on(
    sleeper: subprocess.Popen[bytes],
) -> None:
    watch = StopWatch(sleeper.pid)
    assert watch.seconds(0.0) == 0.0
    sleeper.send_signal(signal.SIGSTOP)
    _until(sleeper.pid, "T")
    assert watch.seconds(LOOK_S / 2) == 0.0  # nobody has looked
    assert watch.seconds(1.0) == 0.0
    assert watch.seconds(4.0) == 3.0
    sleeper.send_signal(signal.SIGCONT)
    _until(sleeper.pid, "S")
    assert watch.seconds(9.0) == 0.0


def _until(pid: int, state: str) -> None:
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").read_text().split()[2] != state and time.monotonic() < end:
        time.sleep(0.01)
