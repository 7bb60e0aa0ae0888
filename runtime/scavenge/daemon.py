"""The loop: what SLURM says, a size for every job, the changes, and waiting."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner import plan as plans
from planner import scavenge
from planner.errors import BadInput, ShardwrightError
from planner.units import plural
from runtime import launch, slurm
from runtime.runfolder import Paths, outcome_of, recent
from runtime.scavenge import partition
from runtime.scavenge.journal import Asked, IdleJournal, Note

LOOK_S = 1.0  # at first steps, between two decisions
GRANT_S = 30.0  # for which a job that was just queued counts as if it had its nodes
OVER = ("done", "aside")
HARMLESS = ("cancelled", "stopped", "preempted", "out of time")


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Where a job stands now."""

    job: str
    state: str  # runs | waits | rests | ends | done | aside
    nodes: int  # that it has, or waits for
    step: int
    reason: str = ""
    fresh: bool = False  # it was queued a moment ago

    @property
    def held(self) -> int:
        """Returns the nodes that are the job's now."""
        return self.nodes if self.state == "runs" else 0


class Scavenger:
    """All jobs of a folder, trained on the idle nodes of a partition."""

    def __init__(self, asked: Asked, root: Path, options: slurm.Options, tell: Callable[[str], None]) -> None:
        """Reads the plans, and refuses a partition whose jobs do not give way.

        Args: `root` is the folder that remembers; `options` are those of every job; `tell` gets a line for people.
        Raises: BadInput for whatever can be known before the first job is queued.
        """
        partition.check_gives_way(asked.partition)
        self.asked, self.journal, self._tell = asked, IdleJournal(root), tell
        self.plans = scavenge.plans_in(Path(asked.jobs))
        self.jobs = {
            job.name: replace(
                job, curve=job.curve.in_units(asked.unit), weight=asked.weights.get(job.name, 1.0)
            )
            for job in scavenge.jobs_in(Path(asked.jobs))
        }
        if unknown := sorted(set(asked.weights) - set(self.jobs)):
            raise BadInput(f"'{unknown[0]}' is no job", where="--weight", allowed=", ".join(self.jobs))
        whole = {"exclusive": ""} | dict(options.sbatch)  # an idle node is a whole one
        self._options = slurm.over(options, {"partition": asked.partition, "sbatch": whole})
        self.journal.open(asked)

    def paths(self, job: str) -> Paths:
        """Returns the run folder of a job."""
        return Paths(self.journal.root / job)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the folder while the context lasts, so that no second process decides in it.

        Raises: BadInput where another one does.
        """
        handle = os.open(self.journal.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadInput("another process decides here", where=str(self.journal.root)) from None
            yield
        finally:
            os.close(handle)

    def run(self, every_s: float, *, once: bool = False) -> list[Tally]:
        """Decides again and again until every job is done or was set aside.

        Args: `every_s` are the seconds between two decisions; with `once`, there is one decision.
        Returns: where every job stood at the last decision.
        Raises: SlurmError where SLURM does not answer and there is one decision.
        """
        with self.alone():
            while True:
                begin = time.monotonic()
                try:
                    tallies = self.tick()
                except slurm.SlurmError as error:  # a controller may be away for a while
                    if once:
                        raise
                    self._tell(f"{error}; the next decision is in {every_s:g} s")
                    tallies = []
                if once or (tallies and all(tally.state in OVER for tally in tallies)):
                    return tallies
                while time.monotonic() < begin + every_s:
                    time.sleep(min(LOOK_S, every_s))
                    self._note_first_steps()

    def tick(self) -> list[Tally]:
        """Decides once: shrinks first, so that its nodes are there for those that grow.

        Returns: where every job stood before.
        """
        self._note_first_steps()
        known = partition.jobs_below(self.journal.root)
        tallies = {name: self._tally(name, known) for name in self.jobs}
        chosen = self._sizes(tallies, len(partition.idle_nodes(self.asked.partition)))
        for name in sorted(chosen, key=lambda name: chosen[name] - tallies[name].held):
            self._change(tallies[name], chosen[name])
        return list(tallies.values())

    def _sizes(self, tallies: Mapping[str, Tally], idle: int) -> dict[str, int]:
        """Returns the number of nodes of every job that may be changed now.

        Args: `idle` nodes are nobody's. A job that was just queued keeps what it waits for.
        """
        free = idle + sum(tally.held for tally in tallies.values())
        free = min(free, self.asked.most or free)
        free -= sum(tally.nodes for tally in tallies.values() if tally.fresh)
        movable = [
            tally for tally in tallies.values() if tally.state not in (*OVER, "ends") and not tally.fresh
        ]
        if not movable:
            return {}
        holdings = [self._holding(tally) for tally in movable]
        sizes = scavenge.knapsack(holdings, max(0, free), self.asked.look_ahead_s)
        return {tally.job: size for tally, size in zip(movable, sizes, strict=True)}

    def _holding(self, tally: Tally) -> scavenge.Holding:
        job, journal = self.jobs[tally.job], self.journal
        timed = replace(
            job,
            up_s=journal.rescale_s(tally.job, up=True, otherwise=job.up_s),
            down_s=journal.rescale_s(tally.job, up=False, otherwise=job.down_s),
        )
        return scavenge.Holding(job=timed, nodes=tally.held, worth=timed.worth(tally.held))

    def _tally(self, name: str, known: Mapping[Path, tuple[int, str]]) -> Tally:
        """Returns where a job stands, by what SLURM and its run folder say."""
        paths, last = self.paths(name), self.journal.of(name, "aside")
        if last:
            return Tally(job=name, state="aside", nodes=0, step=last[-1].step, reason=last[-1].why)
        if not paths.job.exists():
            failed = self.journal.of(name, "failed")
            if self.journal.tired(name):
                return self._aside(name, 0, failed[-1].why)
            return Tally(job=name, state="rests", nodes=0, step=0, reason=failed[-1].why if failed else "")
        step, outcome = recent(paths).done, outcome_of(paths)
        if outcome is not None and outcome.state == "done":
            return Tally(job=name, state="done", nodes=0, step=step)
        number, word = known.get(paths.root, (0, ""))
        queued = slurm.Queued.read(paths)
        if number and (queued is None or queued.job < number):  # who queued it died before writing that down
            queued = slurm.Queued(job=number, submitted_s=time.time())
            queued.write(paths)
        if queued is None or partition.is_over(word):
            return self._ended(name, step)
        if queued.left == "withdrawn":  # whoever wanted that died before it was done
            replace(queued, left="").write(paths)
        nodes = len({place.node for place in plans.load(paths.plan).places})
        if word == "COMPLETING":
            return Tally(job=name, state="ends", nodes=0, step=step)
        if word != "PENDING":
            return Tally(job=name, state="runs", nodes=nodes, step=step)
        fresh = time.time() - queued.submitted_s < GRANT_S
        return Tally(job=name, state="waits", nodes=nodes, step=step, fresh=fresh)

    def _ended(self, name: str, step: int) -> Tally:
        """Returns where a job stands of which no job of SLURM waits or runs, and that is not done."""
        status = launch.of(self.paths(name).root)
        if slurm.somebody_cancelled(self.paths(name)):
            return self._aside(name, step, "somebody cancelled it")
        reason = "" if status.state in HARMLESS else status.reason or f"it ended as {status.state}"
        if reason and self.journal.tired(name):
            return self._aside(name, step, reason)
        return Tally(job=name, state="rests", nodes=0, step=step, reason=reason)

    def _aside(self, name: str, step: int, why: str) -> Tally:
        self._write(name, "aside", step=step, why=why)
        self._tell(f"{name} is set aside: {why}")
        return Tally(job=name, state="aside", nodes=0, step=step, reason=why)

    def _change(self, tally: Tally, nodes: int) -> None:
        """Gives a job another size, which is written down before anything is done."""
        if nodes == tally.nodes:
            return  # it runs on so many, or waits for as many
        begin = time.time()
        facts = {"nodes": nodes, "before": tally.held, "step": tally.step}
        self._write(tally.job, "asked", why=tally.reason, **facts)
        left = tally.state == "waits" and not nodes
        size = "leaves the queue" if left else f"{tally.held} -> {plural(nodes, 'node')}"
        self._tell(f"{tally.job}: {size}, after step {tally.step}")
        try:
            self._move(tally, nodes)
        except ShardwrightError as error:
            self._write(tally.job, "failed", why=str(error), **facts)
            self._tell(f"{tally.job}: {error}")
            return
        took = time.time() - begin
        self._write(tally.job, "queued" if nodes else "stopped", why=tally.reason, took_s=took, **facts)

    def _move(self, tally: Tally, nodes: int) -> None:
        paths = self.paths(tally.job)
        if not nodes:
            slurm.stop(paths)
            return
        plan = plans.load(self.plans[tally.job][nodes])
        if tally.state in ("runs", "waits"):
            launch.rescale(launch.handle_of(paths.root), plan, options=self._options)
        elif paths.job.exists():
            launch.go_on(paths.root, plan, options=self._options)
        else:
            job: dict[str, Any] = {
                "save_every": self.asked.save_every,
                "device": launch.device_for(plan, "slurm"),
                "gives_way": "checkpoint" if self.asked.grace else "at once",
            }
            launch.launch_slurm(
                plan, paths.root, steps=self.asked.steps, name=tally.job, options=self._options, **job
            )

    def _note_first_steps(self) -> None:
        """Writes down how long a change of size took, from what was asked to the first step."""
        for name in self.jobs:
            told = self.journal.of(name, "asked", "queued", "stopped", "trained", "failed")
            if len(told) < 2 or told[-1].what != "queued" or told[-2].what != "asked":
                continue
            if recent(self.paths(name)).done > told[-1].step:
                took = time.time() - told[-2].time_s
                self._write(name, "trained", nodes=told[-1].nodes, before=told[-1].before, took_s=took)

    def _write(self, job: str, what: str, **facts: object) -> Note:
        return self.journal.write(Note(time_s=time.time(), job=job, what=what, **facts))  # type: ignore[arg-type]
