"""The status and the logs of a run, read from its folder alone, while it runs and after it has ended.

Nothing here needs torch, so that `status`, `logs` and `cancel` answer at once.

The runs of a folder, as a list that shows itself as a table.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from planner import plan as plans
from planner.errors import BadInput, ShardwrightError
from planner.plan import awaited_ns, with_store
from planner.shown import Shown, one_line
from planner.simulate import RunRecord
from planner.units import format_clock, format_duration
from runtime import checkpoint as checkpoints
from runtime import runfolder, slurm
from runtime.backend import Backend
from runtime.launch import finished, status
from runtime.local import LocalBackend
from runtime.runfolder import (
    JUDGED_STEPS,
    Paths,
    Recent,
    open_run,
    outcome_of,
    outside_bars,
    readers_of,
    recent,
    usual_s,
)

ENOUGH = ("running", "done", "unknown")
_OPTIONS = [
    "seed",
    "samples",
    "save_every",
    "keep",
    "keep_every",
    "restarts",
    "device",
    "clip_norm",
    "clip_by",
    "rendezvous",
]
MOST_TRIES = 20  # the last ones are shown
RECENT = 20  # steps that the time left is judged by


@dataclass(frozen=True, kw_only=True)
class Status:
    """The state of a run, its progress and its speed."""

    run: str
    backend: str  # local | slurm
    job: int | None
    state: str  # queued | running | done | stopped | failed | hung | lost | cancelled | interrupted | ... | ended
    reason: str  # the cause where it ended badly, why it waits where it waits
    step: int
    steps: int
    loss: float | None
    samples_per_s: float | None
    measured_step_s: float | None
    predicted_step_s: float
    predicted_wait_s: float  # of it, for samples
    left_s: float | None
    checkpoint: int | None  # step of the last complete one
    go_on: str  # what to type, where a run of this machine ended before its last step
    machine: str  # where other work took processors from the ranks
    drift: str  # where steps leave the error bars of the prediction
    history: list[str]  # tries before, and how each ended


def of(folder: Path) -> Status:
    """Returns the status of a run.

    Args: `folder` is a run folder; the run may go on anywhere.
    Raises: BadInput where `folder` is no run folder.
    """
    paths = open_run(folder)
    job = runfolder.read(paths)
    plan = with_store(plans.load(paths.plan), job.store)
    steps = recent(paths)
    workers = readers_of(job)
    queued = slurm.Queued.read(paths)
    state, reason = _state(paths)
    step_s = usual_s(steps.seconds, steps.waits) if steps.seconds else None
    last = _last_checkpoint(paths)
    return Status(
        run=str(paths.root),
        backend="slurm" if queued else "local",
        job=queued.job if queued else None,
        state=state,
        reason=reason,
        step=steps.done,
        steps=job.steps,
        loss=steps.loss,
        samples_per_s=plan.batch.samples / step_s if step_s else None,
        measured_step_s=step_s,
        predicted_step_s=awaited_ns(plan, workers) * 1e-9,
        predicted_wait_s=(awaited_ns(plan, workers) - plan.prediction.step_ns) * 1e-9,
        left_s=_left_s(job, steps) if state == "running" else None,
        checkpoint=last,
        go_on=_go_on(paths, job) if queued is None and last is not None and state not in ENOUGH else "",
        machine=steps.machine,
        drift=outside_bars(plan, step_s * 1e9, workers, run=str(paths.root), busy=bool(steps.machine))
        if step_s and len(steps.seconds) >= JUDGED_STEPS
        else "",
        history=_history(paths),
    )


def backend_of(paths: Paths) -> Backend:
    """Returns the backend where a run goes on, by what its folder says.

    Args: a run without a queued job belongs to this machine.
    """
    return slurm.backend_of(paths) or LocalBackend(paths)


def _state(paths: Paths) -> tuple[str, str]:
    if (found := outcome_of(paths)) is not None:
        cancelled = found.state != "done" and paths.cancelled.exists()
        return ("cancelled", "") if cancelled else (found.state, found.cause)
    return backend_of(paths).state()


def _last_checkpoint(paths: Paths) -> int | None:
    found = checkpoints.complete(paths.checkpoints)
    return int(found[-1].name.removeprefix(checkpoints.PREFIX)) if found else None


def _go_on(paths: Paths, job: runfolder.Job) -> str:
    usual = runfolder.Job(steps=job.steps)
    words = ["shardwright", "launch", str(paths.plan), f"--run={paths.root}", "--local", "--wait"]
    words.append(f"--steps={job.steps}")
    for name in (*_OPTIONS, "copies"):
        if getattr(job, name) != getattr(usual, name):
            option = "checkpoints" if name == "copies" else name.replace("_", "-")
            words.append(f"--{option}={getattr(job, name)}")
    return shlex.join([*words, *(["--", *job.script] if job.script else [])])


def _history(paths: Paths) -> list[str]:
    """Returns a line for each earlier attempt that ended badly. The last attempt ended as the run did."""
    tries = runfolder.attempts(paths)
    before = tries[:-1] if outcome_of(paths) is not None else tries
    rows = [attempt for attempt in before if attempt.state not in ("", "done")][-MOST_TRIES:]
    return [f"{format_clock(row.end_s)} {row.state}: {row.cause}" for row in rows]


def _left_s(job: runfolder.Job, steps: Recent) -> float | None:
    """Returns how long the steps that are missing take at the speed of the last ones."""
    return (job.steps - steps.done) * median(steps.seconds[-RECENT:]) if steps.seconds else None


def cancel(folder: Path) -> None:
    """Ends a run, wherever it goes on. It can be resumed from its last complete checkpoint.

    Args: `folder` is the run folder.
    Raises: BadInput where the run does not go on.
    """
    backend_of(open_run(folder)).cancel()


def status_text(status: Status) -> str:
    """Returns a status as lines of text.

    Args: `status` is what `of` has returned.
    """
    where = f"job {status.job}" if status.job is not None else "on this machine"
    lines = [
        f"{status.run}: {status.state}" + (f" ({status.reason})" if status.reason else "") + f", {where}"
    ]
    loss = f", loss {status.loss:.6g}" if status.loss is not None else ""
    lines.append(f"step {status.step} of {status.steps}{loss}")
    if status.measured_step_s is not None and status.samples_per_s is not None:
        waits = f", {format_duration(status.predicted_wait_s * 1e9)} of it for samples"
        predicted = format_duration(status.predicted_step_s * 1e9) + waits * (status.predicted_wait_s > 0)
        lines.append(
            f"{format_duration(status.measured_step_s * 1e9)} a step (predicted {predicted}), "
            f"{status.samples_per_s:.4g} samples a second"
            + (f", {format_duration(status.left_s * 1e9)} left" if status.left_s is not None else "")
        )
    lines += [status.machine] if status.machine else []
    lines += [status.drift] if status.drift else []
    lines += [f"goes on after step {status.checkpoint} with: {status.go_on}"] if status.go_on else []
    return "\n".join([*lines, *(f"  {row}" for row in status.history)])


_HEADS = ("", "run", "state", "step", "loss", "predicted", "measured")


@dataclass(frozen=True, repr=False)
class Runs(Shown):
    """Several runs, the newest first. `runs[0]` is the record of the newest."""

    folders: tuple[Path, ...]  # the newest first

    def __len__(self) -> int:
        return len(self.folders)

    def __repr__(self) -> str:
        return super().__repr__() if self.folders else "no runs"

    def __getitem__(self, at: int) -> RunRecord:
        return finished.record(self.folders[at])

    def to_rows(self) -> list[dict[str, object]]:
        """Returns the status of each run as a dictionary."""
        return [
            {"run": str(folder), "error": found} if isinstance(found, str) else asdict(found)
            for folder, found in self._read()
        ]

    def _read(self) -> Iterator[tuple[Path, Status | str]]:
        """Yields the status of each folder, or in words why it has none."""
        for folder in self.folders:
            try:
                yield folder, status.of(folder)
            except (ShardwrightError, OSError) as error:
                yield folder, one_line(str(error))

    def to_dict(self) -> dict[str, object]:
        return {"runs": self.to_rows()}

    def heads(self) -> tuple[str, ...]:
        return _HEADS

    def lines(self) -> list[tuple[str, ...]]:
        return [
            (
                str(at),
                folder.name,
                *(("unreadable", found, "", "", "") if isinstance(found, str) else _cells(found)),
            )
            for at, (folder, found) in enumerate(self._read())
        ]


def _cells(found: Status) -> tuple[str, ...]:
    return (
        found.state,
        f"{found.step} of {found.steps}",
        "" if found.loss is None else f"{found.loss:.4f}",
        format_duration(found.predicted_step_s * 1e9),
        "" if found.measured_step_s is None else format_duration(found.measured_step_s * 1e9),
    )


def runs(folder: Path) -> Runs:
    """Finds the run folders in a folder.

    Args: `folder` holds run folders directly, or is one itself.
    Raises: BadInput where there is no such folder.
    """
    if not folder.is_dir():
        raise BadInput("no such folder", where=str(folder), allowed="one that holds run folders")
    inside = [folder, *(path for path in folder.iterdir() if path.is_dir())]
    found = [path for path in inside if Paths(path).job.exists()]
    return Runs(tuple(sorted(found, key=lambda path: Paths(path).job.stat().st_mtime_ns, reverse=True)))
