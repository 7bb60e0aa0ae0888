"""Starts the ranks of a local run, watches them, and ends all where one fails or stands still.

The supervisor imports torch once and forks the ranks, so that sixteen ranks start in the time of one. A rank
dies with the supervisor. Each rank leads its own process group, which is ended with it.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from runtime.runfolder import (
    BEAT,
    LOG_LOOK_S,
    START_S,
    Outcome,
    Paths,
    StopWatch,
    WatchClock,
    die_with_parent,
    is_stopped,
    log_end,
    read_cause,
    stands_at,
    write_cause,
    write_whole,
)

POLL_S = 0.05
GRACE_S = 1.0  # after the first failure, for causes that are still being written
STACKS_S = 0.5  # until ranks have written their stacks

Asked = Callable[[], tuple[str, str] | None]  # whether all is to end: state and cause


@dataclass
class _Rank:
    pid: int
    stop: StopWatch
    status: int | None = None
    count: int = 0
    waiting: bool = False
    since_s: float = 0.0  # when the count last changed


class RankWatch:
    """A watch over the processes of one run, by rank."""

    def __init__(self, paths: Paths, pids: Mapping[int, int], deadline_s: float, told: Asked) -> None:
        self._clock = WatchClock()
        now = self._clock.now()
        self._told = told
        self._paths, self._deadline_s = paths, deadline_s
        self._look_s = 0.0
        self._ranks = {rank: _Rank(pid, StopWatch(pid), since_s=now) for rank, pid in pids.items()}
        with paths.heartbeat.open("r+b") as file:
            self._beats = mmap.mmap(file.fileno(), BEAT.size * len(pids))

    def until_the_end(self) -> Outcome:
        """Watches until all ranks are done, one has failed or stands still, or the run is told to end.

        Returns: how the run ended; no process of a rank is left.
        """
        while True:
            failed = self._reap()
            if failed is not None:
                return self._failed(failed)
            if all(rank.status == 0 for rank in self._ranks.values()):
                return Outcome("done", exits=self._exits())
            told = self._told()
            if told is not None:
                self._end_all()
                return Outcome(told[0], cause=told[1], exits=self._exits())
            hung = self._hung()
            if hung is not None:
                cause = self._stood_still(hung) + self._say_stacks(hung)
                self._end_all()
                return Outcome("hung", hung, cause, self._exits())
            if time.monotonic() > self._look_s:
                self._look_s = time.monotonic() + LOG_LOOK_S
                self._paths.bound_logs()
            time.sleep(POLL_S)

    def _stood_still(self, hung: int) -> str:
        doing = "waits for another rank" if self._waits(hung) else "is in a call of its own"
        return f"rank {hung} made no progress for {self._deadline_s:.1f} s and {doing}"

    def _waits(self, number: int) -> bool:
        return self._ranks[number].waiting and not self._ranks[number].stop.seconds(self._clock.now())

    def _say_stacks(self, hung: int) -> str:
        """Has all ranks write in their logs where they stand, and returns where the rank to blame does."""
        logs = [self._paths.log(rank) for rank in self._ranks]
        at = log_end(self._paths.log(hung))
        for rank in self._ranks.values():
            if rank.status is None:
                os.kill(rank.pid, signal.SIGUSR2)
        time.sleep(STACKS_S)
        return (
            f"{stands_at(self._paths.log(hung), at, self._ranks[hung].pid)}; "
            f"the stacks of {len(logs)} ranks are in {logs[0].parent}"
        )

    def _reap(self) -> int | None:
        """Notes the ranks that have ended, and returns the first one that ended badly."""
        bad = None
        for number, rank in self._ranks.items():
            if rank.status is not None:
                continue
            pid, status = os.waitpid(rank.pid, os.WNOHANG)
            if pid:
                rank.status = os.waitstatus_to_exitcode(status)
                if rank.status and bad is None:
                    bad = number
        return bad

    def _failed(self, first: int) -> Outcome:
        """Ends all ranks and finds the rank to blame.

        Several ranks fail within moments of each other. The order of blame is: an error of a rank's own, a
        kill, a rank that is stopped, an exit without a cause, an error that follows from another rank's end.
        """
        self._settle()
        ended = {n: rank.status for n, rank in self._ranks.items() if rank.status}
        stopped = [n for n, rank in self._ranks.items() if rank.status is None and is_stopped(rank.pid)]
        self._end_all()
        causes = [cause for n in self._ranks if (cause := read_cause(self._paths.cause(n))) is not None]
        causes.sort(key=lambda cause: (cause.secondary, cause.time_ns))
        told = {cause.rank for cause in causes}
        killed = [n for n, status in ended.items() if status < 0]
        mute = killed or stopped or [n for n in ended if n not in told]
        if causes and not (causes[0].secondary and mute):
            return Outcome("failed", causes[0].rank, causes[0].what, self._exits())
        blamed = mute[0] if mute else first
        if blamed in stopped:
            what = f"rank {blamed} was stopped by a signal, and those that waited for it have ended"
            return Outcome("hung", blamed, what, self._exits())
        status = self._ranks[blamed].status
        assert status is not None
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"
        return Outcome("failed", blamed, f"rank {blamed} {how}", self._exits())

    def _settle(self) -> None:
        """Waits a moment, so that failing ranks can write their causes."""
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end and any(rank.status is None for rank in self._ranks.values()):
            self._reap()
            time.sleep(POLL_S)

    def _hung(self) -> int | None:
        now, view = self._clock.now(), memoryview(self._beats).cast("q")
        for number, rank in self._ranks.items():
            count, waiting = view[2 * number], bool(view[2 * number + 1])
            if count != rank.count:
                rank.count, rank.waiting, rank.since_s = count, waiting, now
        view.release()
        alive = {n: rank for n, rank in self._ranks.items() if rank.status is None}
        stopped = {n: rank.stop.seconds(now) for n, rank in alive.items()}
        if max(stopped.values(), default=0.0) > self._deadline_s:  # however others beat
            return max(stopped, key=lambda n: stopped[n])
        limit = {n: self._deadline_s if rank.count else START_S for n, rank in alive.items()}
        if any(now - rank.since_s <= limit[n] for n, rank in alive.items()):
            return None  # who waits for one that still moves, be it slowly, does not hang
        # Who waits is stopped by who does not; among equals the one that stood still first.
        return min(alive, key=lambda n: (self._waits(n), alive[n].since_s))

    def _end_all(self) -> None:
        """Kills the ranks and the processes that they have started, such as those that load samples."""
        for rank in self._ranks.values():
            if rank.status is None:
                os.kill(rank.pid, signal.SIGKILL)  # it may not lead a group yet
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
        for rank in self._ranks.values():
            if rank.status is None:
                _, status = os.waitpid(rank.pid, 0)
                rank.status = os.waitstatus_to_exitcode(status)

    def _exits(self) -> tuple[int, ...]:
        return tuple(rank.status or 0 for _, rank in sorted(self._ranks.items()))


def fork_ranks(paths: Paths, ranks: int, main: Callable[[int], None]) -> dict[int, int]:
    """Forks one process for each rank.

    Args: `main` is called with the rank in its process.
    Returns: rank -> process number.
    """
    for old in paths.causes():  # of ranks that were started before
        old.unlink(missing_ok=True)
    paths.heartbeat.write_bytes(bytes(BEAT.size * ranks))
    pids: dict[int, int] = {}
    parent = os.getpid()
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            _be_a_rank(paths, rank, parent, main)
        pids[rank] = pid
    write_whole(paths.pids, json.dumps(pids))
    return pids


def _be_a_rank(paths: Paths, rank: int, parent: int, main: Callable[[int], None]) -> NoReturn:
    def run() -> int:
        os.setpgid(0, 0)
        as_before()
        main(rank)
        return 0

    be_a_rank(paths, rank, parent, run)


def be_a_rank(
    paths: Paths,
    rank: int,
    parent: int,
    main: Callable[[], int],
    is_followed: Callable[[], bool] = lambda: False,
) -> NoReturn:
    """Runs `main` as a rank and ends this process with its exit status, whatever happens.

    Standard output and errors go to the rank's log. An exception is written down as the rank's cause, on a
    full disk too.
    Args: `parent` is the process with which this one dies; `is_followed` says whether the files are those of ranks that
      came after.
    """
    status = 1
    try:
        die_with_parent(parent)
        log = os.open(paths.log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        say_stacks()
        status = main()
    except SystemExit as end:
        status = _status_of(end)
        if status:
            _note(paths, rank, end, is_followed)
    except BaseException as error:
        _note(paths, rank, error, is_followed)
        traceback.print_exception(error)
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _note(paths: Paths, rank: int, error: BaseException, is_followed: Callable[[], bool]) -> None:
    """Writes down what ends a rank. Where the run folder is gone, nobody is left to read it."""
    with suppress(OSError):
        if not is_followed():
            write_cause(paths, rank, error)


def say_stacks() -> None:
    """Has this process write the stacks of its threads to standard error at SIGUSR2, or when it crashes.

    It writes them in a call that never returns too, unless the process is stopped.
    """
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)


def _status_of(end: SystemExit) -> int:
    """Returns the exit status of a SystemExit as the system reports it, except that a failure never becomes
    0.
    """
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return code & 0xFF or int(code != 0)


def supervise(
    paths: Paths, ranks: int, deadline_s: float, main: Callable[[int], None], told: Asked = lambda: None
) -> Outcome:
    """Runs `main(rank)` in one process for each rank, until all are done or the run is ended.

    Args: `deadline_s` is how long a rank may make no progress; `told` is asked all the time and returns state
      and cause to end the run.
    Returns: how the run ended; no process of a rank is left.
    """
    pids = fork_ranks(paths, ranks, main)
    return RankWatch(paths, pids, deadline_s, told).until_the_end()


def as_before() -> None:
    """Gives SIGINT and SIGTERM their usual effect again, in a process forked from one that listens."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
