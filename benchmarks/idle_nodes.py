"""Jobs that train on idle nodes of a SLURM cluster, disturbed thirty times: is every sample trained once, does anybody wait?

The cluster is one of this machine's own daemons. Others' jobs come and go in a partition that takes nodes from ours;
nodes die; the process that decides is killed and started again. Losses are held against runs that nothing happened to.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.harness import Cell, Result, Table, above, main
from benchmarks.launch import test_cluster
from planner import plan as plans
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime.launch import launch_inline
from runtime.runfolder import Paths, losses_of, outcome_of
from runtime.scavenge import Asked, IdleJournal, Note
from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PACED, launch, until
from tests.slurm.plans import plan_over
from tests.slurm.warm import Warm

JOBS = ("first", "second")
KINDS = COMES, DIES, KILLED = "a job of somebody comes", "a node dies", "the process is killed"
BACK_S = 8.0  # that SLURM takes at most to have a node back
NODES = 8
STEPS, QUICK_STEPS = 1500, 100
TIMES, QUICK_TIMES = 30, 4
REPEATS, QUICK_REPEATS = 7, 1
EVERY_S, AIM_RESCALE_S = 2.0, 15.0
ENDS_S = 1500.0
CLOSE = (
    1e-6  # sums of two replicas are added up in another order, and this training does not make more of that
)


def plan(data: int, pace_s: str) -> Plan:
    arguments = {"pace_s": pace_s, "leaves": "-1", "lr": "0.001"}
    made = plan_over(
        PACED, arguments=arguments, ranks_a_node=1, family="1f1b", workers=1, micros=4 // data, data=data
    )
    provenance = made.provenance.model_copy(update={"profile": "cpu, paced"})
    return made.model_copy(update={"provenance": provenance})


def write_plans(folder: Path) -> Path:
    for job in JOBS:
        (folder / job).mkdir(parents=True)
        for nodes in (1, 2, 4):
            (folder / job / f"devices-{nodes:05}.yaml").write_text(plans.dump(plan(nodes, "0.1")))
    return folder


class Decider:
    """The process of `scavenge run`, which may be killed and started again."""

    def __init__(self, words: list[str], log: Path) -> None:
        self._words, self._log = words, log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "shardwright", *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def deciding(folder: Path, warm: Warm, steps: int) -> Iterator[Decider]:
    site = folder / "site.yaml"
    site.write_text(f"version: 1\npython: {warm.python}\nrequeues: 100\n")
    words = ["scavenge", "run", f"--jobs={folder / 'jobs'}", f"--state={folder / 'idle'}", f"--steps={steps}"]
    words += ["--save-every=20", f"--every={EVERY_S}", "--partition=spot", f"--site={site}"]
    found = Decider(words, folder / "decider.log")
    try:
        yield found
    finally:
        found.kill()


@dataclass(frozen=True)
class Event:
    """Something that happens to the cluster at a fixed time, whoever has jobs there."""

    kind: str
    at_s: float  # after the first one
    number: int  # of nodes that a job takes, or of the node that dies
    lasts_s: float  # a job, or until the node or process is started again


@dataclass(frozen=True)
class Wait:
    """A job of somebody: how long it has waited for its nodes, and whether a node was dead or coming back meanwhile."""

    waited_s: float
    touched: bool


def events(times: int) -> list[Event]:
    """Returns what happens, which is the same each time. Each node is back before anything else happens."""
    draw, at_s, found = Random(0), 0.0, list[Event]()
    for number in range(times):
        kind = KINDS[draw.choice((0, 0, 1, 2)) if number > 2 else number]
        lasts_s = (
            draw.randint(2, 8)
            if kind == COMES
            else draw.uniform(1, 6)
            if kind == DIES
            else draw.uniform(0, 2)
        )
        found.append(Event(kind=kind, at_s=at_s, number=draw.randint(1, NODES), lasts_s=lasts_s))
        at_s += draw.uniform(1, 7) + (lasts_s + BACK_S if kind == DIES else 0.0)
    return found


class Others:
    """Jobs of somebody, and how long each has waited for its nodes; SLURM forgets them after some minutes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._jobs = cluster, list[str]()
        self._spans: dict[str, tuple[float, float]] = {}
        self.deaths: list[tuple[float, float]] = []

    def comes(self, event: Event) -> None:
        """Submits a job for some of the nodes, and some seconds."""
        size = [f"-N{event.number}", "--exclusive", "--no-requeue", f"--wrap=sleep {event.lasts_s:g}"]
        self._jobs.append(
            self._cluster.run("sbatch", "--parsable", "-p", "main", "--output=/dev/null", *size)
        )

    def dies(self, event: Event) -> None:
        """Kills a node, starts it again, and waits until SLURM has it back."""
        begin_s = time.time()
        self._cluster.kill_node(event.number)
        time.sleep(event.lasts_s)
        self._cluster.start_node(event.number)
        self._cluster.await_nodes()
        self.deaths.append((begin_s, time.time()))

    def look(self) -> bool:
        """Notes the jobs that have started, and returns whether all have."""
        for job in [job for job in self._jobs if job not in self._spans]:
            said = self._cluster.run("scontrol", "show", "job", "-o", job)
            found = dict(re.findall(r" (SubmitTime|StartTime|JobState)=(\S+)", said))
            if found["JobState"] != "PENDING":
                begin, start = (datetime.fromisoformat(found[key]) for key in ("SubmitTime", "StartTime"))
                self._spans[job] = begin.timestamp(), start.timestamp()
        return len(self._spans) == len(self._jobs)

    @property
    def waits(self) -> list[Wait]:
        """Returns the waits of all jobs in the order in which they came."""
        spans = [self._spans[job] for job in self._jobs]
        return [
            Wait(start - begin, any(begin <= back + 1 and died <= start + 1 for died, back in self.deaths))
            for begin, start in spans
        ]


def disturb(found: Sequence[Event], others: Others, decider: Decider | None) -> None:
    """Lets jobs come, nodes die and the process be killed, each at its time.

    Args: without `decider`, all else happens at the same times as with it, where nobody but others has jobs.
    """
    begin_s = time.monotonic()
    for event in found:
        while time.monotonic() < begin_s + event.at_s:
            time.sleep(min(1.0, max(0.0, begin_s + event.at_s - time.monotonic())))
            others.look()
        if event.kind == COMES:
            others.comes(event)
        elif event.kind == DIES:
            others.dies(event)
        elif decider is not None:
            decider.kill()
            time.sleep(event.lasts_s)
            decider.start()
    until(others.look, "all jobs of others have started", 120)


def start_s(cluster: Cluster, mark: Path) -> float:
    """Returns the seconds from the submission of a job for all nodes to its first line, and lets it end."""
    begin_s = time.time()
    line = f"date +%s.%N > {mark}.part && mv {mark}.part {mark}; sleep 1"
    wanted = [
        "-p",
        "main",
        f"-N{NODES}",
        "--exclusive",
        "--no-requeue",
        "--output=/dev/null",
        f"--wrap={line}",
    ]
    job = cluster.run("sbatch", "--parsable", *wanted)
    until(mark.exists, "the job of somebody has all nodes", 120)
    until(
        lambda: not cluster.run("squeue", "-h", "-t", "R,CG", "-j", job, "-o", "%i"), "that job has ended", 60
    )
    return float(mark.read_text()) - begin_s


def starts(folder: Path, cluster: Cluster, warm: Warm, repeats: int) -> Table:
    """Returns how soon a job for all nodes starts: on idle ones, and where others that give way have them."""
    found: dict[str, list[float]] = {
        name: [] for name in ("nobody", "two of `srun sleep`, which ends at once", "two of ours")
    }
    idle, slept, ours = found.values()
    options = {"partition": "spot", "requeues": 100}
    for number in range(repeats):
        cluster.clear()
        idle.append(start_s(cluster, folder / f"idle-{number}"))
        words = ["-p", "spot", f"-N{NODES // 2}", "--exclusive", "--requeue", "--output=/dev/null"]
        for _ in JOBS:
            cluster.run("sbatch", *words, "--wrap=srun sleep 600")
        until(lambda: cluster.run("squeue", "-h", "-s", "-o", "%i").count(".0") == len(JOBS), "two steps")
        slept.append(start_s(cluster, folder / f"slept-{number}"))
        cluster.clear()
        runs = [
            launch(
                warm,
                plan(4, "0.1"),
                folder / f"{name}-{number}",
                steps=STEPS,
                options=options,
                save_every=20,
                gives_way="at once",
            )
            for name in JOBS
        ]
        until(lambda runs=runs: all(len(losses_of(run.paths)) > 4 for run in runs), "steps of both")
        ours.append(start_s(cluster, folder / f"ours-{number}"))
        for run in runs:
            run.cancel()
    cluster.clear()
    return Table(
        title=f"A job of somebody for all {NODES} nodes: seconds from sbatch to its first line",
        columns=("who has the nodes", "times", "median s", "worst s"),
        rows=[(name, *_spread(each)) for name, each in found.items()],
        notes=(
            "SLURM looks for work once a second. What it takes to hand over the nodes of steps that end at its signal is "
            "its own; what ours take longer is the end of their processes.",
        ),
    )


def disturbed(
    folder: Path, cluster: Cluster, warm: Warm, steps: int, times: int
) -> tuple[list[Table], float]:
    """Disturbs two jobs again and again until they are done, and returns what came of it and the median rescale."""
    paths = [Paths(folder / "idle" / job) for job in JOBS]
    alone = launch_inline(plan(1, "0"), folder / "alone", steps=steps).check().losses
    write_plans(folder / "jobs")
    happens = events(times)
    others, without = Others(cluster), Others(cluster)
    disturb(happens, without, None)
    with deciding(folder, warm, steps) as decider:
        until(lambda: all(losses_of(each) for each in paths), "first steps")
        disturb(happens, others, decider)
        until(lambda: decider.process.poll() is not None, "all jobs are done", ENDS_S)
    states = [outcome_of(each) for each in paths]
    notes = [each for job in JOBS for each in _notes(folder / "idle", job)]
    took = {
        up: [n.took_s for n in notes if n.what == "trained" and (n.nodes > n.before) == up]
        for up in (True, False)
    }
    rows: list[tuple[Cell, ...]] = []
    for each, state in zip(paths, states, strict=True):
        losses, last = losses_of(each), checkpoints.latest(each.checkpoints)
        same = sorted(losses) == sorted(alone)
        far = max(
            (abs(losses[step] / alone[step] - 1) for step in losses if step in alone), default=float("nan")
        )
        samples = last.facts.sample if last is not None else 0
        rows.append(
            (each.root.name, state.state if state else "", len(losses), same and far <= CLOSE, far, samples)
        )
    assert all(
        row[1] == "done" and row[3] and row[5] == steps * plan(1, "0").batch.samples for row in rows
    ), rows
    table = Table(
        title=f"Two jobs of {steps} steps on {cluster.nodes} nodes, disturbed {times} times",
        columns=("job", "ended", "steps", "losses as undisturbed", "largest difference", "samples trained"),
        rows=rows,
        notes=(
            ", ".join(f"{kind}: {sum(x.kind == kind for x in happens)}" for kind in KINDS) + ".",
            f"Losses differ by the order in which two replicas add; each job trains {rows[0][5]} samples of its stream.",
        ),
    )
    seconds = [x for found in took.values() for x in found]
    changes = Table(
        title="What a change takes",
        columns=("what", "times", "median s", "worst s"),
        rows=[
            ("a job gets more nodes, or any: decided to first step", *_spread(took[True])),
            ("a job gets fewer nodes: decided to first step", *_spread(took[False])),
        ],
        notes=(
            "A job of ours ends at once when others need its nodes, and does the steps since its last checkpoint again. "
            "First steps are seen once a second.",
            "Ranks are forked from a warm process, so that starting Python is not part of the figures.",
        ),
    )
    return [table, changes, waiting(without.waits, others.waits)], median(seconds) if seconds else float(
        "nan"
    )


def waiting(without: Sequence[Wait], beside: Sequence[Wait]) -> Table:
    """Returns how long each job of somebody has waited for its nodes without ours and beside them."""
    rows: list[tuple[Cell, ...]] = []
    pairs = list(zip(without, beside, strict=True))
    for name, touched in (("no node was dead meanwhile", False), ("a node was dead or coming back", True)):
        own = [(a.waited_s, b.waited_s) for a, b in pairs if (a.touched or b.touched) == touched]
        if own:
            more = [b - a for a, b in own]
            alone, ours = ([pair[i] for pair in own] for i in (0, 1))
            rows.append(
                (name, len(own), median(alone), max(alone), median(ours), max(ours), median(more), max(more))
            )
    return Table(
        title="How long jobs of others wait for their nodes, by the start times of SLURM",
        columns=(
            "jobs",
            "times",
            "without ours, median s",
            "worst",
            "beside ours",
            "worst",
            "longer by",
            "worst",
        ),
        rows=rows,
        notes=(
            "The same jobs come at the same times, and the same nodes die. SLURM counts in whole seconds.",
            "Jobs wait for one another, too. What a dead node makes them wait depends on whom SLURM finds on it, "
            "so that these jobs stand apart.",
        ),
    )


def _notes(root: Path, job: str) -> list[Note]:
    journal = IdleJournal(root)
    journal.open(Asked(**json.loads(journal.asked_file.read_text())))
    return journal.of(job)


def _spread(found: list[float]) -> tuple[Cell, Cell, Cell]:
    return (len(found), median(found), max(found)) if found else (0, None, None)


def run(quick: bool) -> Result:
    if reason := clusters.missing():
        tables, rescale_s = (
            [Table(title="Idle nodes", columns=("",), rows=[("not run",)], notes=(reason,))],
            0.0,
        )
    else:
        with test_cluster(nodes=NODES) as (cluster, warm, folder):
            sizes = (QUICK_STEPS, QUICK_TIMES) if quick else (STEPS, TIMES)
            first = starts(folder, cluster, warm, QUICK_REPEATS if quick else REPEATS)
            tables, rescale_s = disturbed(folder, cluster, warm, *sizes)
            tables = [*tables, first]
    return Result(
        name="idle_nodes",
        claim="Whatever happens to nodes, jobs and the process that decides, each sample is trained once and losses are "
        f"those of an undisturbed run; a change of size takes at most {AIM_RESCALE_S:g} s.",
        missed=above("A change of size", [("median", rescale_s)], AIM_RESCALE_S, " s"),
        tables=tables,
    )


if __name__ == "__main__":
    main(run)
