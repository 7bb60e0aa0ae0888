"""The records that ranks under SLURM leave in the run folder, the watch over their step, and the outcome of both.

The step is srun with all ranks. A signal that comes before the supervisor listens is lost, so the watch looks at the mark
of a cancelled run as well. srun waits without end for a node that went away with its ranks and was back before SLURM
noticed, so the watch gives it up. SLURM tells a step once that others need its nodes, and a step whose ranks are only
being started does not hear it, so the watch asks when they listen, and tells them again.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from planner.errors import BadInput
from planner.files import find_record
from runtime.runfolder import Outcome, Paths, read_cause, write_durably
from runtime.slurm import commands

WORDLESS = "vanished without a word"
GAVE_WAY = "SLURM needed its nodes, and it gave way at once"
POLL_S = 0.05
LOOK_S = 1.0  # at marks in the run folder
ENDS_S = 90.0  # from a rank's bad end on; SLURM's KillWait is 30
GIVES_S = 1.0  # from when a rank gave way on, while others wait for its nodes


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """One rank's record: where it runs or ran, and how it ended."""

    rank: int
    generation: int
    host: str
    node: int  # of the job, counting up
    pid: int  # of the rank, on its host
    state: str = (
        "running"  # done | stopped | failed | hung | gave way | ended: by its keeper, after another's end
    )
    status: int = 0  # exit status; the negative of the signal that killed it
    waiting: bool = False  # for another rank, when it ended
    stopped: bool = False  # by a signal, when it ended
    still_s: float = 0.0  # without progress, when it ended
    at: str = ""  # the line where it stood still

    def write(self, paths: Paths) -> None:
        """Writes the record in the run folder, on a full disk too."""
        write_durably(paths, paths.task(self.rank), json.dumps(asdict(self)))


def read(paths: Paths, rank: int, generation: int) -> RankRecord | None:
    """Returns the record of a rank, None where the rank was not started in this generation.

    Args: `generation` counts the starts of the run.
    """
    try:
        found = find_record(RankRecord, paths.task(rank))
    except BadInput:
        return None
    return found if found is not None and found.generation == generation else None


# of srun whose ranks have ended: the signal of a preemption may come after them
_OVER = (0, 128 + signal.SIGTERM)


def outcome(paths: Paths, hosts: Sequence[str], generation: int, code: int) -> Outcome:
    """Returns how one attempt to run the ranks ended.

    Args: `hosts` has the host of each rank; `code` is the exit status of srun.
    Returns: the state, and the rank to blame with its cause where the state is not "done" or "stopped".
    """
    records = [read(paths, rank, generation) for rank in range(len(hosts))]
    exits = tuple(record.status if record else 0 for record in records)
    states = {record.state if record else "lost" for record in records}
    if code in _OVER and states == {"done"}:
        return Outcome("done", exits=exits)
    if code in _OVER and states <= {"stopped", "done"}:
        return Outcome("stopped", cause="told to stop, with a checkpoint", exits=exits)
    return _failed(paths, hosts, records, exits, code)


def _failed(
    paths: Paths,
    hosts: Sequence[str],
    records: Sequence[RankRecord | None],
    exits: tuple[int, ...],
    code: int,
) -> Outcome:
    """Returns the outcome with the rank to blame.

    The order of blame is: an error of a rank's own, a kill, one that is stopped, a standstill, an exit without a cause, a rank
    that vanished, an error that follows from another rank's end.
    """
    causes = [cause for rank in range(len(hosts)) if (cause := read_cause(paths.cause(rank))) is not None]
    own = sorted((cause for cause in causes if not cause.secondary), key=lambda cause: cause.time_ns)
    if own:
        return Outcome("failed", own[0].rank, f"{own[0].what} (on {hosts[own[0].rank]})", exits)
    found = [record for record in records if record is not None]
    for record in found:
        if record.state == "failed" and record.status < 0:
            how = f"was killed by {signal.Signals(-record.status).name}"
            return Outcome("failed", record.rank, f"rank {record.rank} on {record.host} {how}", exits)
    if any(record.state == "hung" or record.stopped for record in found):
        still = [r for r in found if r.state in ("hung", "ended")]
        first = min(still, key=lambda r: (not r.stopped, r.waiting, -r.still_s))
        where = ", ".join(sorted(set(hosts)))
        doing = "waits for another rank" if first.waiting else "is in a call of its own"
        if all(record.waiting for record in found):
            doing = f"waits as all ranks do: messages between {where} do not arrive"
        what = f"rank {first.rank} on {first.host} made no progress for {first.still_s:.1f} s and {doing}{first.at}; the stacks of all ranks are in their logs"
        return Outcome("hung", first.rank, what, exits)
    if any(record.state == "gave way" for record in found):
        return Outcome("interrupted", cause=GAVE_WAY, exits=exits)
    for record in found:
        if record.state == "failed" and not any(c.rank == record.rank for c in causes):
            what = f"rank {record.rank} on {record.host} exited with {record.status}"
            return Outcome("failed", record.rank, what, exits)
    return _lost(hosts, records, exits, code) or Outcome(
        "failed",
        causes[0].rank if causes else None,
        causes[0].what if causes else f"srun ended with {code}",
        exits,
    )


def _lost(
    hosts: Sequence[str], records: Sequence[RankRecord | None], exits: tuple[int, ...], code: int
) -> Outcome | None:
    gone = [rank for rank, record in enumerate(records) if record is None or record.state == "running"]
    if not gone:
        return None
    where = ", ".join(sorted({hosts[rank] for rank in gone}))
    if all(records[rank] is None for rank in gone) and len(gone) == len(hosts):
        return Outcome("failed", None, f"no rank was started on {where}: srun ended with {code}", exits)
    words = f"rank {gone[0]}" if len(gone) == 1 else f"ranks {', '.join(map(str, gone))}"
    how = f"vanished with srun, which was killed by {signal.Signals(-code).name}" if code < 0 else WORDLESS
    return Outcome("lost", gone[0], f"{words} on {where} {how}", exits)


def by_slurm(outcome: Outcome, nodes: Sequence[str]) -> Outcome:
    """Returns the outcome of a job that SLURM is ending. A rank that SLURM has ended first is not to blame.

    Args: `outcome` is that of the attempt; `nodes` are those of the job.
    Returns: "interrupted", with the nodes that are lost, or the outcome itself where a rank is to blame.
    """
    blamed = outcome.rank is not None and outcome.exits[outcome.rank] not in (0, -signal.SIGTERM)
    if outcome.state not in ("failed", "lost") or blamed:
        return outcome
    cause = who_ended(nodes, "ended by SLURM: cancelled, preempted, requeued, or out of time")
    return Outcome("interrupted", cause=cause, exits=outcome.exits)


def who_ended(nodes: Sequence[str], otherwise: str) -> str:
    """Returns which nodes of a job are lost, or other words where none is."""
    gone = commands.unwell(nodes)
    return f"lost {', '.join(gone)}" if gone else otherwise


@dataclass
class StepWatch:
    """The watch over one step; `gone` says that srun was given up, since some of its nodes do not answer."""

    paths: Paths
    generation: int
    ranks: int
    asked: Callable[[], bool]  # whether ranks are to stop
    gone: bool = False
    # whether others need the nodes: SLURM tells ranks so, of which none may be left that could hear it
    wanted: Callable[[], bool] = lambda: False
    again: Callable[[], None] = lambda: None  # tells the ranks so once more
    _heard: bool = False  # whether all ranks have heard what SLURM told the step before they listened
    _told: bool = False
    _cancelled: bool = False
    _look_s: float = 0.0
    _end_s: float = field(default=float("inf"))  # when srun is given up

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
            if time.monotonic() > self._end_s:
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
        if not self._heard and self._listening():
            self._heard = True
            if self.wanted():
                self.again()
        mark = self.paths.failed(self.generation)
        if mark.exists():
            soon = mark.read_text() == "gave way" or self.wanted()
            self._end_s = min(self._end_s, now + (GIVES_S if soon else ENDS_S))

    def _listening(self) -> bool:
        """Returns whether all ranks have started. The signal would end a rank that does not listen to it yet."""
        return all(read(self.paths, rank, self.generation) for rank in range(self.ranks))
