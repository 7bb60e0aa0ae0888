"""How long faults are unseen, how long until training goes on, and what launching costs over plain srun.

Under --local every process is a cold one. Under SLURM a cluster of this machine's own daemons is used, where root and
the daemons are there; ranks are forked from a warm process, so that starting Python is not part of the figures.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.harness import Cell, Result, Table, above, main
from runtime.launch import launch_inline, launch_local
from runtime.runfolder import Paths, outcome, steps_of
from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster
from tests.slurm.folders import own
from tests.slurm.jobs import Gate, launch, paced_plan, task, until, until_step
from tests.slurm.plans import plan_over
from tests.slurm.warm import Warm

STEPS = 8
AIM_KNOWN_S, AIM_AGAIN_S = 1, 10
Row = tuple[Cell, ...]


def seconds_until(what: Callable[[], object], name: str) -> float:
    begin = time.monotonic()
    until(what, name)
    return time.monotonic() - begin


def steps_in(paths: Paths, generation: int) -> bool:
    """Whether a step was done after so many restarts."""
    return any(
        json.loads(line)["generation"] >= generation
        for path in paths.all_metrics()
        for line in path.read_text().splitlines()
    )


def local_death(folder: Path) -> tuple[float, float]:
    """Seconds until a killed rank is known, and until the first step after it."""
    run = launch_local(paced_plan(), folder, steps=STEPS, save_every=2, restarts=1)
    until(lambda: max(steps_of(run.paths), default=0) >= 3, "step 3")
    os.kill(json.loads(run.paths.pids.read_text())["0"], signal.SIGKILL)
    begin = time.monotonic()
    seen = seconds_until(lambda: outcome.attempts(run.paths)[0].state, "the cause")
    until(lambda: steps_in(run.paths, 1), "a step after the restart")
    again = time.monotonic() - begin
    run.wait().check()
    return seen, again


def gated(folder: Path) -> Gate:
    """Paced runs queued from now on wait in their seventh step, so that none ends before it is hurt."""
    gate = Gate(folder.with_suffix(".gate"))
    os.environ |= {"PACED_GATE": str(gate.path), "PACED_GATE_AT": str(6 * paced_plan().batch.samples)}
    return gate


def slurm_death(
    cluster: Cluster, warm: Warm, folder: Path, seed: int
) -> tuple[float, float, dict[int, float]]:
    """The same for a seeded rank and moment of a job; and its losses."""
    draw = Random(seed)
    gate = gated(folder)
    run = launch(warm, paced_plan(), folder, steps=STEPS, save_every=2)
    until_step(run, draw.randrange(1, STEPS - 1))
    time.sleep(draw.random() * 0.1)
    victim = task(run.paths, draw.randrange(2))
    node = cluster.first_process(int(victim.host.removeprefix("n")))
    cluster.run("nsenter", f"--target={node}", "--pid", "kill", "-9", str(victim.pid))
    gate.open()
    begin = time.monotonic()
    seen = seconds_until(lambda: outcome.attempts(run.paths)[0].state, "the cause")
    until(lambda: len(outcome.attempts(run.paths)) > 1 and steps_in(run.paths, 1), "a step after the restart")
    again = time.monotonic() - begin
    return seen, again, run.wait().check().losses


def node_death(cluster: Cluster, warm: Warm, folder: Path) -> tuple[float, float]:
    """Seconds until SLURM has the job queued again after a node has died, and until the first step after it."""
    gate = gated(folder)
    run = launch(warm, paced_plan(), folder, steps=STEPS, save_every=2)
    until_step(run, 3)
    node = int(task(run.paths, 1).host.removeprefix("n"))
    cluster.kill_node(node)
    gate.open()
    begin = time.monotonic()
    show = ("scontrol", "show", "job", str(run.job))
    queued = seconds_until(lambda: "Restarts=1" in cluster.run(*show), "the job is queued again")
    until(lambda: outcome.attempts(run.paths)[-1].requeues == 1, "the supervisor is back")
    generation = outcome.attempts(run.paths)[-1].generation
    until(lambda: steps_in(run.paths, generation), "a step after the restart")
    again = time.monotonic() - begin
    run.wait().check()
    cluster.start_node(node)
    cluster.await_nodes()
    return queued, again


def overhead(cluster: Cluster, warm: Warm, folder: Path) -> tuple[float, float]:
    """Seconds of a plain srun of two tasks, and from queueing a job until srun is called for its ranks."""
    begin = time.monotonic()
    cluster.run("srun", "-N2", "-n2", "true")
    plain = time.monotonic() - begin
    run = launch(warm, paced_plan(), folder, steps=1)
    queued = json.loads(run.paths.slurm.read_text())["submitted_s"]
    run.wait().check()
    return plain, outcome.attempts(run.paths)[0].begin_s - queued


def whole_gpt2(warm: Warm, folder: Path) -> Row:
    """Returns the largest relative difference of two losses on four nodes from one process's, and the aim."""
    shape = {"family": "1f1b", "workers": 2, "micros": 2, "data": 2, "micro": 1}
    plan = plan_over("gpt2", arguments={"seq": "8"}, ranks_a_node=1, **shape)  # all weights, and short texts
    done = launch(warm, plan, folder / "gpt2", steps=2, deadline_s=600.0).wait(600.0).check().losses
    alone = launch_inline(plan, folder / "inline", steps=2).losses
    return len(done), max(abs(done[step] / alone[step] - 1) for step in alone)


@contextmanager
def test_cluster(
    before: Callable[[Path], object] = Path.exists, nodes: int = 4
) -> Iterator[tuple[Cluster, Warm, Path]]:
    """Yields a cluster, a warm process and their folder, to which `before` may do something at first."""
    old = dict(os.environ)
    with own() as folder:
        before(folder)
        with Cluster(folder, nodes=nodes) as cluster:
            os.environ.update(cluster.variables)
            warm = Warm(folder)
            try:
                yield cluster, warm, folder
            finally:
                warm.close()
                os.environ.clear()
                os.environ.update(old)


def local_table(folder: Path, repeats: int) -> Table:
    rows = [local_death(folder / f"local-{number}") for number in range(repeats)]
    seen, again = zip(*rows, strict=True)
    return Table(
        title="A rank of a local run is killed",
        columns=("runs", "known after s (median)", "worst", "first step again after s (median)", "worst"),
        rows=[(repeats, median(seen), max(seen), median(again), max(again))],
    )


def slurm_tables(repeats: int) -> list[Table]:
    with test_cluster() as (cluster, warm, folder):
        os.environ.pop("PACED_GATE", None)
        calm = launch(warm, paced_plan(), folder / "calm", steps=STEPS, save_every=2).wait().check().losses
        deaths = [slurm_death(cluster, warm, folder / f"run-{seed}", seed) for seed in range(repeats)]
        queued, again = node_death(cluster, warm, folder / "node")
        del os.environ["PACED_GATE"]
        plain, supervised = overhead(cluster, warm, folder / "plain")
        gpt2 = whole_gpt2(warm, folder)
    seen, restarted, losses = zip(*deaths, strict=True)
    same = sum(found == calm for found in losses)
    killed: Row = (repeats, same, median(seen), max(seen), median(restarted), max(restarted))
    return [
        Table(
            title="A rank of a job is killed, at a random moment",
            columns=(
                "runs",
                "losses equal to the bit",
                "known after s (median)",
                "worst",
                "first step again after s (median)",
                "worst",
            ),
            rows=[killed],
            notes=("ranks are forked from a process with torch loaded",),
        ),
        Table(
            title="A node dies",
            columns=("queued again by SLURM after s", "first step again after s"),
            rows=[(queued, again)],
            notes=("SlurmdTimeout is 5 s; a job that is queued again waits at least 5 s",),
        ),
        Table(
            title="Launching",
            columns=("plain srun, there and back, s", "from sbatch until srun is called for the ranks, s"),
            rows=[(plain, supervised)],
        ),
        Table(
            title="GPT-2 small on four nodes, in replicas and stages, beside one process",
            columns=("steps", "largest relative difference of a loss"),
            rows=[gpt2],
            notes=("its four ranks hold 8 GiB",),
        ),
    ]


def missed(local: Row, jobs: Sequence[Row]) -> tuple[str, ...]:
    """Returns what was missed, by the worst run: of a killed local rank, and of a job's, none where SLURM is missing."""
    known = [("local", local[2]), *(("a job", row[3]) for row in jobs)]
    again = [("local", local[4]), *(("a job", row[5]) for row in jobs)]
    changed = [int(row[0] or 0) - int(row[1] or 0) for row in jobs]
    return (
        *above("The time until a dead rank is known", known, AIM_KNOWN_S, " s"),
        *above("The time until the first step again", again, AIM_AGAIN_S, " s"),
        *above("The number of faults that changed the losses", [("a job", each) for each in changed], 0),
    )


def run(quick: bool) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        tables = [local_table(Path(folder), 1 if quick else 5)]
    missing, jobs = clusters.missing(), list[Row]()
    if missing:
        tables.append(Table(title="SLURM", columns=("not measured",), rows=[(missing,)]))
    else:
        tables += slurm_tables(2 if quick else 50)
        jobs = tables[1].rows
    return Result(
        name="launch",
        claim="A dead local rank known in 1 s, the first step again in 10 s; every fault leaves the losses as they were.",
        missed=missed(tables[0].rows[0], jobs),
        tables=tables,
    )


if __name__ == "__main__":
    main(run)
