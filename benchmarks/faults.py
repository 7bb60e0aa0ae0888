"""Faults on a real SLURM cluster, and a soak of kills here: what each costs, and what is left behind.

Every fault of the table happens to a job of two ranks on a cluster of this machine's own daemons. Its losses are then
held against a run that nothing happened to, to the bit. The soak kills random ranks of a local run again and again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.harness import Cell, Result, Table, above, main
from benchmarks.launch import gated, test_cluster
from planner.plan import yaml as plans
from runtime import checkpoint as checkpoints
from runtime.launch import Handle, launch_inline, launch_local
from runtime.runfolder import Paths, losses_of, outcome
from runtime.slurm import state
from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import Gate, hurt, launch, paced_plan, task, until, until_step, until_stopping
from tests.slurm.warm import Warm

STEPS = 8
SOAK_S, QUICK_SOAK_S = 1500.0, 60.0
Fault = Callable[[Cluster, Handle, Gate], None]


def job_of(cluster: Cluster, run: Handle, rank: int) -> int:
    """Returns the number of the node where a rank runs."""
    return int(task(run.paths, rank).host.removeprefix("n"))


def processes(words: bytes) -> list[int]:
    """Returns the processes of this machine whose command line holds some words."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if words in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def stop_in_checkpoint(cluster: Cluster, run: Handle, gate: Gate) -> None:
    gate.open()
    until(lambda: list(run.paths.checkpoints.glob("*.partial")), "a checkpoint is being written")
    hurt(cluster, run, 1, signal.SIGSTOP)


def stop(cluster: Cluster, run: Handle, gate: Gate) -> None:
    hurt(cluster, run, 0, signal.SIGSTOP)
    gate.open()


def kill_slurmd(cluster: Cluster, run: Handle, gate: Gate) -> None:
    """The daemon alone: what runs on its node goes on, until SLURM gives the node up."""
    words = f"slurmd\0-D\0-N\0n{job_of(cluster, run, 1)}\0-f\0{cluster.root}".encode()
    for pid in processes(words):
        os.kill(pid, signal.SIGKILL)
    gate.open()


def cut_link(cluster: Cluster, run: Handle, gate: Gate) -> None:
    """For longer than SLURM waits for a node."""
    number = job_of(cluster, run, 1)
    cluster._network("hub", f"ip link set v{number} down")
    gate.open()
    time.sleep(15)
    cluster._network("hub", f"ip link set v{number} up")


def drain(cluster: Cluster, run: Handle, gate: Gate) -> None:
    node = f"n{job_of(cluster, run, 1)}"
    cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    cluster.run("scontrol", "requeue", str(run.job))
    gate.open()
    until(lambda: outcome.outcome_of(run.paths) is not None, "the run has ended")
    cluster.run("scontrol", "update", f"nodename={node}", "state=resume")


def requeue(cluster: Cluster, run: Handle, gate: Gate) -> None:
    cluster.run("scontrol", "requeue", str(run.job))
    gate.open()


def kill_supervisor(cluster: Cluster, run: Handle, gate: Gate) -> None:
    for pid in processes(f"runtime.slurm.supervisor\0{run.paths.root}".encode()):
        os.kill(pid, signal.SIGKILL)
    gate.open()


def signals(cluster: Cluster, run: Handle, gate: Gate) -> None:
    """The signal that comes before a time limit, as often as the job may begin anew and once more."""
    for again in range(4):
        until(lambda again=again: _standing(run, again), "ranks of this start")  # type: ignore[misc]
        cluster.run("scancel", "--batch", "--signal=USR1", str(run.job))
        if not again:
            until_stopping(run)
            gate.open()
    until(lambda: outcome.outcome_of(run.paths) is not None or run.state == "queued", "the last signal")


def preempt(cluster: Cluster, run: Handle, gate: Gate) -> None:
    """Five times, by jobs that need all nodes."""
    gate.open()
    for again in range(5):
        until(lambda again=again: _standing(run, again) or _over(run), "ranks of this start")  # type: ignore[misc]
        if _over(run):
            return
        words = ("-p", "urgent", "-N4", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
        cluster.run("sbatch", "--parsable", *words)
        until(lambda: run.state == "queued" or _over(run), "it was preempted")


def spoil_index(cluster: Cluster, run: Handle, gate: Gate) -> None:
    hurt(cluster, run, 0, signal.SIGSTOP)
    index = checkpoints.complete(run.paths.checkpoints)[-1] / "index.json"
    index.write_text(index.read_text().replace('"step"', '"stop"'))
    hurt(cluster, run, 0, signal.SIGKILL)
    gate.open()


def cancel_and_again(cluster: Cluster, run: Handle, gate: Gate) -> None:
    cluster.run("scancel", str(run.job))
    gate.open()
    until(lambda: state.of(run.job or 0).state == "cancelled", "SLURM knows")
    cluster.run("sbatch", str(run.paths.script))
    until(lambda: outcome.outcome_of(run.paths) is not None, "the job by hand")


FAULTS: dict[str, tuple[Fault, str]] = {
    "SIGSTOP": (stop, "itself"),
    "SIGSTOP in a checkpoint": (stop_in_checkpoint, "itself"),
    "supervisor killed": (kill_supervisor, "itself"),
    "slurmd killed": (kill_slurmd, "itself"),
    "link down for 15 s": (cut_link, "itself"),
    "requeued": (requeue, "itself"),
    "drained and requeued": (drain, "itself"),
    "time limit four times": (signals, "itself"),
    "preempted five times": (preempt, "itself"),
    "index of a checkpoint spoiled": (spoil_index, "itself"),
    "scancel, and submitted again": (cancel_and_again, "sbatch"),
}
QUICK = ("SIGSTOP", "supervisor killed", "index of a checkpoint spoiled")


def _standing(run: Handle, requeues: int) -> bool:
    tries = outcome.attempts(run.paths)
    return bool(tries) and tries[-1].requeues >= requeues and not tries[-1].state


def _over(run: Handle) -> bool:
    return outcome.outcome_of(run.paths) is not None


def suffered(
    cluster: Cluster, warm: Warm, folder: Path, name: str, calm: dict[int, float]
) -> tuple[Cell, ...]:
    """Has a fault happen to a run. Returns its row: how it ended, its losses, its causes, and processes left."""
    fault, goes_on = FAULTS[name]
    gate = gated(folder)
    options: dict[str, object] = (
        {"partition": "spot", "sbatch": {"exclusive": ""}} if fault is preempt else {}
    )
    run = launch(warm, paced_plan(), folder, steps=STEPS, save_every=2, deadline_s=6.0, options=options)
    begin = time.monotonic()
    try:
        until_step(run, 3)
        fault(cluster, run, gate)
        ended = run.outcome(240).state
    except (AssertionError, TimeoutError) as error:
        ended = str(error)
    took = time.monotonic() - begin
    same = losses_of(run.paths) == calm
    causes = "; ".join(each.cause for each in outcome.attempts(run.paths) if each.cause)
    shutil.rmtree(folder, ignore_errors=True)
    cluster.clear()
    return name, ended, goes_on, same, took, causes[:160]


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _newer(paths: Paths, step: int) -> bool:
    return checkpoints.newest(paths.checkpoints) > step


def soak(folder: Path, seconds: float, seed: int = 0) -> tuple[Cell, ...]:
    """Kills a random rank again and again. Returns kills, and what the supervisor and the folder hold early and late."""
    draw, plan = Random(seed), plans.load(Path("plans/mlp-two-stages.yaml"))
    run = launch_local(plan, folder / "run", steps=10**6, save_every=5, restarts=3)
    pid, kills, end = run.backend.process.pid, 0, time.monotonic() + seconds  # type: ignore[attr-defined]
    held: list[tuple[float, int, int]] = []
    try:
        while time.monotonic() < end:
            newest = checkpoints.newest(run.paths.checkpoints)
            until(partial(_newer, run.paths, newest), "a new checkpoint")
            held.append((resident_mib(pid), descriptors(pid), sum(1 for _ in run.paths.root.rglob("*"))))
            time.sleep(draw.random() * 0.5)
            ranks = json.loads(run.paths.pids.read_text())
            with suppress(ProcessLookupError):  # it has fallen with the one that was killed before
                os.kill(ranks[str(draw.randrange(len(ranks)))], signal.SIGKILL)
                kills += 1
    finally:
        run.cancel()
    found = losses_of(run.paths)
    alone = launch_inline(plan, folder / "alone", steps=min(len(found), 200)).losses
    same = all(found[step] == alone[step] for step in alone)
    third = max(1, len(held) // 3)
    early, late = held[:third], held[-third:]
    cells = [(median(row[i] for row in part)) for i in range(3) for part in (early, late)]
    return kills, len(found), same, *cells


def run(quick: bool) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        soaked = soak(Path(folder), QUICK_SOAK_S if quick else SOAK_S)
    columns = (
        "kills",
        "steps",
        "losses equal",
        "MiB early",
        "late",
        "descriptors early",
        "late",
        "files early",
        "late",
    )
    tables = [
        Table(
            title="Soak: random ranks of a local run are killed",
            columns=columns,
            rows=[soaked],
            notes=(
                "of the supervisor and the run folder; early and late are medians of the first and last third",
            ),
        )
    ]
    rows: list[tuple[Cell, ...]] = []
    if missing := clusters.missing():
        tables[0] = Table(**{**vars(tables[0]), "notes": (*tables[0].notes, f"no SLURM here: {missing}")})
    else:
        with test_cluster() as (cluster, warm, folder):
            calm = (
                launch(warm, paced_plan(), folder / "calm", steps=STEPS, save_every=2).wait().check().losses
            )
            for at, name in enumerate(QUICK if quick else FAULTS):
                rows.append(suffered(cluster, warm, folder / f"fault-{at}", name, calm))
        heads = ("fault", "ended", "goes on by", "losses equal to the bit", "s", "causes named")
        tables.append(Table(title="Faults of a job", columns=heads, rows=rows))
    changed = [(str(row[0]), int(not (row[1] == "done" and row[3]))) for row in rows]
    return Result(
        name="faults",
        claim="Every fault costs steps and no job: the run is done in the end, with losses equal to the bit.",
        tables=tables,
        missed=above("The number of runs that a fault ended or changed", changed, 0),
    )


if __name__ == "__main__":
    main(run)
