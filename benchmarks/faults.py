"""Faults on a real SLURM cluster, and a soak of kills here: what each costs, and what is left behind.

Every fault of the table happens to a job of two ranks on a cluster of this machine's own daemons. Its losses are then
held against a run that nothing happened to, to the bit. The soak kills random ranks of a local run again and again.

    python -m benchmarks faults --journal=faults.jsonl --seconds=500 --soak=600     goes on where it was stopped
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.harness import Cell, Journal, Result, Table, above, main
from benchmarks.launch import gated, test_cluster
from planner.errors import BadInput
from planner.plan import yaml as plans
from runtime import checkpoint as checkpoints
from runtime.launch import Handle, launch_inline, launch_local
from runtime.runfolder import Paths, attempts, losses_of, outcome_of
from runtime.slurm import rank_records, state
from tests.runtime.sharding.test_faults import KILLED
from tests.runtime.test_equality import plan_of
from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import Gate, hurt, launch, paced_plan, task, until, until_step, until_stopping
from tests.slurm.warm import Warm

STEPS, LONG_STEPS = 8, 40
SOAK_S, QUICK_SOAK_S = 1500.0, 60.0
STOPS, QUICK_STOPS, STOP_DEADLINE_S = 20, 3, 3.0
GATHERS, QUICK_GATHERS, OTHERS_END_S = 10, 3, 1.0
ENDS_S = 420.0
LEFT_S = 30.0  # until the last process of a run is gone
HOUR_S = 3600

# Every Python that the linker starts with this has a clock set back by an hour once a file exists. Programs of SLURM
# keep theirs: they refuse each other's messages where clocks differ.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long back(void) {
    const char *mark = getenv("CLOCK_BACK");
    int ours = strncmp(program_invocation_short_name, "python", 6) == 0;
    return ours && mark && access(mark, F_OK) == 0 ? %(hour)d : 0;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int said = real(id, at);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) at->tv_sec -= back();
    return said;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


@dataclass
class Scene:
    """A run on a cluster, the gate that it stands before, and what it takes to launch it again."""

    cluster: Cluster
    warm: Warm
    folder: Path
    gate: Gate
    settings: Mapping[str, object]
    run: Handle = field(init=False)
    said: str = ""  # the cause, where the run folder cannot say it

    def __post_init__(self) -> None:
        self.run = self.launch()

    def launch(self) -> Handle:
        """Launches the run in its folder, where it may go on."""
        settings = {"steps": STEPS, "save_every": 2, "deadline_s": 6.0} | dict(self.settings)
        plan = paced_plan(pace_s=float(settings.pop("pace_s", 0.02)))  # type: ignore[arg-type]
        return launch(self.warm, plan, self.folder, **settings)  # type: ignore[arg-type]

    def node(self, rank: int) -> int:
        """Returns the number of the node where a rank runs."""
        return int(task(self.run.paths, rank).host.removeprefix("n"))

    def is_over(self) -> bool:
        return outcome_of(self.run.paths) is not None

    def ended(self) -> str:
        """Waits for the end of the run. Returns its state."""
        return self.run.outcome(ENDS_S).state


def processes(words: bytes) -> list[int]:
    """Returns the processes of this machine whose command line holds some words."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if words in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def kill(scene: Scene, rank: int) -> None:
    hurt(scene.cluster, scene.run, rank, signal.SIGKILL)
    scene.gate.open()


def stop(scene: Scene, rank: int) -> None:
    hurt(scene.cluster, scene.run, rank, signal.SIGSTOP)
    scene.gate.open()


def stop_in_checkpoint(scene: Scene, rank: int) -> None:
    scene.gate.open()
    until(
        lambda: list(scene.run.paths.checkpoints.glob("*.partial")),
        "a checkpoint is being written",
        run=scene.run,
    )
    hurt(scene.cluster, scene.run, rank, signal.SIGSTOP)


def stop_before_it_begins(scene: Scene) -> None:
    """The first rank of the second start, before it has met the others."""
    kill(scene, 1)
    until(lambda: len(attempts(scene.run.paths)) > 1, "the second start", run=scene.run)
    until(lambda: rank_records.read(scene.run.paths, 0, 1) is not None, "its first rank", run=scene.run)
    hurt(scene.cluster, scene.run, 0, signal.SIGSTOP)


def crash(scene: Scene) -> None:
    number = scene.node(1)
    scene.cluster.kill_node(number)
    scene.gate.open()
    scene.ended()
    scene.cluster.start_node(number)


def kill_slurmd(scene: Scene, rank: int) -> None:
    """The daemon alone: what runs on its node goes on, until SLURM gives the node up. It comes back later."""
    number = scene.node(rank)
    for pid in processes(f"slurmd\0-D\0-N\0n{number}\0-f\0{scene.cluster.root}".encode()):
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(attempts(scene.run.paths)) > 1, "SLURM has started the job again", run=scene.run)
    scene.gate.open()
    scene.ended()
    scene.cluster.start_slurmd(number)


def cut_link(scene: Scene, rank: int) -> None:
    """For longer than SLURM waits for a node."""
    number = scene.node(rank)
    scene.cluster._network("hub", f"ip link set v{number} down")
    time.sleep(15)
    scene.gate.open()
    scene.cluster._network("hub", f"ip link set v{number} up")


def drain(scene: Scene) -> None:
    node = f"n{scene.node(1)}"
    scene.cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    requeue(scene)
    scene.ended()
    scene.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")


def requeue(scene: Scene) -> None:
    scene.cluster.run("scontrol", "requeue", str(scene.run.job))
    scene.gate.open()


def kill_supervisor(scene: Scene) -> None:
    for pid in processes(f"runtime.slurm.supervisor\0{scene.run.paths.root}".encode()):
        os.kill(pid, signal.SIGKILL)
    scene.gate.open()


def signals(scene: Scene) -> None:
    """The signal that comes before a time limit, before any new step can be done, once more often than is allowed."""
    scene.cluster.run("scancel", "--batch", "--signal=USR1", str(scene.run.job))
    until_stopping(scene.run)
    scene.gate.open()


def wait_for_limits(scene: Scene) -> None:
    """Of one minute, which SLURM enforces; the run needs four of them."""
    scene.gate.open()


def preempt(scene: Scene) -> None:
    """Five times, by jobs that need all nodes; each time after a new checkpoint."""
    scene.gate.open()
    for again in range(5):
        until(lambda again=again: _goes_on(scene, again), "a new checkpoint of this start")  # type: ignore[misc]
        words = ("-p", "urgent", "-N4", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
        scene.cluster.run("sbatch", "--parsable", *words)
        until(lambda: scene.run.state == "queued" or scene.is_over(), "it was preempted")


def _goes_on(scene: Scene, requeues: int) -> bool:
    tries = attempts(scene.run.paths)
    begun = bool(tries) and tries[-1].requeues >= requeues and not tries[-1].state
    return scene.is_over() or (
        begun and checkpoints.newest(scene.run.paths.checkpoints) > tries[-1].checkpoint
    )


def spoil(scene: Scene, name: str, change: Callable[[bytes], bytes]) -> None:
    hurt(scene.cluster, scene.run, 0, signal.SIGSTOP)
    file = checkpoints.complete(scene.run.paths.checkpoints)[-1] / name
    file.write_bytes(change(file.read_bytes()))
    kill(scene, 0)
    scene.ended()
    said = re.search("checkpoint .* is spoiled[^\n]*", scene.run.logs())
    scene.said = said[0] if said else ""


def cancel_and_again(scene: Scene) -> None:
    scene.cluster.run("scancel", str(scene.run.job))
    scene.gate.open()
    until(lambda: state.of(scene.run.job or 0).state == "cancelled", "SLURM knows")
    scene.said = scene.run.state
    scene.cluster.run("sbatch", str(scene.run.paths.script))
    until(scene.is_over, "the job by hand")


def remove_folder(scene: Scene) -> None:
    """It is nowhere else: the next launch begins with the first step."""
    gone = scene.folder.rename(scene.folder.with_suffix(".gone"))  # at once, whatever is being written there
    shutil.rmtree(gone)
    scene.gate.open()
    scene.said = scene.run.outcome(ENDS_S).cause
    until(lambda: state.of(scene.run.job or 0).state == "failed", "the job has ended by itself")
    scene.run = scene.launch()


def launch_twice(scene: Scene) -> None:
    try:
        scene.launch()
    except BadInput as error:
        scene.said = str(error)
    second = int(scene.cluster.run("sbatch", "--parsable", str(scene.run.paths.script)))
    log = scene.run.paths.slurm_log(second)
    until(lambda: log.exists() and "trains in this folder" in log.read_text(), "the second job is refused")
    scene.gate.open()


def fill_disk(scene: Scene) -> None:
    """The run folder is on a disk of two megabytes. Somebody makes room, and launches again."""
    filler = scene.folder.parent / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    scene.gate.open()
    scene.said = scene.run.outcome(ENDS_S).cause
    until(lambda: state.of(scene.run.job or 0).state == "failed", "SLURM knows")
    filler.unlink()
    scene.run = scene.launch()


def set_clock_back(scene: Scene) -> None:
    """By an hour, for the supervisor and the ranks, between two steps; then a rank is killed."""
    before = time.time()
    (scene.folder.parent / "clock-back").touch()
    kill(scene, 1)
    scene.ended()
    jump_s = before - attempts(scene.run.paths)[-1].begin_s
    scene.said = f"began {jump_s:.0f} s before" if jump_s > HOUR_S / 2 else ""


def _clock(folder: Path) -> dict[str, object]:
    """Returns the options of a job whose processes have a clock of their own, made with the C compiler of this machine."""
    library = folder.parent / "clock.so"
    source = library.with_suffix(".c")
    source.write_text(CLOCK % {"hour": HOUR_S})
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    (library.parent / "clock-back").unlink(missing_ok=True)
    env = {"LD_PRELOAD": str(library), "CLOCK_BACK": str(library.parent / "clock-back")}
    return {"options": {"env": env, "python": sys.executable}, "deadline_s": 60.0}


def _plainly(folder: Path) -> dict[str, object]:
    return {}


@dataclass(frozen=True)
class Fault:
    """What happens to a run, the words that are to name it, and who has to do something then."""

    happen: Callable[[Scene], None]
    cause: str  # a pattern of what the run folder says
    by: str = "itself"
    settings: Callable[[Path], dict[str, object]] = _plainly
    disk: bool = False  # the run folder is on a small one


def _flip(content: bytes) -> bytes:
    return content[:-7] + bytes([content[-7] ^ 16]) + content[-6:]


def _patient(folder: Path) -> dict[str, object]:
    """SLURM sees it before the ranks do."""
    return {"deadline_s": 60.0}


def _steady(folder: Path) -> dict[str, object]:
    options = {"partition": "spot", "sbatch": {"exclusive": ""}}
    return {"steps": LONG_STEPS, "pace_s": 0.25, "deadline_s": 60.0, "options": options}


def _limited(folder: Path) -> dict[str, object]:
    return {"steps": LONG_STEPS, "pace_s": 0.9, "deadline_s": 60.0, "options": {"time": 1}}


PART = "part-00000.safetensors"
ENDED = "ended by SLURM|ended without a word"
FAULTS: dict[str, Fault] = {
    "first rank killed": Fault(partial(kill, rank=0), "rank 0 on n. was killed by SIGKILL"),
    "last rank killed": Fault(partial(kill, rank=1), "rank 1 on n. was killed by SIGKILL"),
    "node crashed": Fault(crash, r"lost n\d|rank 1 on n\d vanished"),
    "slurmd of the first node killed": Fault(
        partial(kill_slurmd, rank=0), r"lost n\d|vanished|no rank was started", settings=_patient
    ),
    "slurmd of the last node killed": Fault(
        partial(kill_slurmd, rank=1), r"lost n\d|vanished", settings=_patient
    ),
    "requeued": Fault(requeue, f"told to stop|{ENDED}"),
    "supervisor killed": Fault(kill_supervisor, "the supervisor of the job was killed"),
    "link of the first node down for 15 s": Fault(
        partial(cut_link, rank=0), r"lost n\d|messages between n., n. do not arrive"
    ),
    "link of the last node down for 15 s": Fault(
        partial(cut_link, rank=1), r"lost n\d|messages between n., n. do not arrive"
    ),
    "checkpoint cut short": Fault(partial(spoil, name=PART, change=lambda x: x[:-7]), "is spoiled"),
    "bit of a checkpoint flipped": Fault(partial(spoil, name=PART, change=_flip), "is spoiled"),
    "index of a checkpoint spoiled": Fault(
        partial(spoil, name="index.json", change=lambda x: x.replace(b'"step"', b'"stop"')), "is spoiled"
    ),
    "first rank stopped (SIGSTOP)": Fault(
        partial(stop, rank=0), "rank 0 on n. made no .*stopped by a signal"
    ),
    "last rank stopped (SIGSTOP)": Fault(partial(stop, rank=1), "rank 1 on n. made no .*stopped by a signal"),
    "first rank stopped in a checkpoint": Fault(
        partial(stop_in_checkpoint, rank=0), "rank 0 on n. made no .*stopped by a signal"
    ),
    "last rank stopped in a checkpoint": Fault(
        partial(stop_in_checkpoint, rank=1), "rank 1 on n. made no .*stopped by a signal"
    ),
    "rank stopped before it begins": Fault(
        stop_before_it_begins, "rank 0 on n. made no .*stopped by a signal"
    ),
    "preempted five times": Fault(preempt, f"told to stop|{ENDED}", settings=_steady),
    "node drained, job requeued": Fault(drain, f"told to stop|{ENDED}"),
    "scancel, and submitted again": Fault(cancel_and_again, "cancelled", by="sbatch"),
    "folder removed": Fault(remove_folder, "somebody has removed", by="launch, from the first step"),
    "two launches": Fault(launch_twice, "is queued or running"),
    "signal before the time limit": Fault(signals, "told to stop"),
    "time limit three times over": Fault(wait_for_limits, "told to stop", settings=_limited),
    "disk full": Fault(fill_disk, "No space left on device.*make room", by="room and launch", disk=True),
    "clock set back by an hour": Fault(set_clock_back, "began [0-9]+ s before", settings=_clock),
}
QUICK = ("last rank stopped (SIGSTOP)", "supervisor killed", "index of a checkpoint spoiled")


def suffered(
    cluster: Cluster, warm: Warm, folder: Path, name: str, calm: Mapping[int, float]
) -> tuple[Cell, ...]:
    """Has a fault happen to a run. Returns its row: how it ended, its losses, its causes, and processes left."""
    fault = FAULTS[name]
    gate = gated(warm.python.parent / folder.name)
    scene = Scene(cluster, warm, folder, gate, fault.settings(folder))
    begin = time.monotonic()
    try:
        until_step(scene.run, 3)
        fault.happen(scene)
        ended = scene.ended()
    except (AssertionError, TimeoutError, OSError) as error:
        ended = f"{type(error).__name__}: {error}"
    took = time.monotonic() - begin
    paths = scene.run.paths
    tries = attempts(paths)
    found = losses_of(paths)
    same = bool(found) and found == {step: calm[step] for step in range(1, max(found) + 1)}
    whole = len(found) == (scene.settings.get("steps") or STEPS)
    causes = "; ".join([*([scene.said] if scene.said else []), *(each.cause for each in tries if each.cause)])
    named = bool(re.search(fault.cause, causes))
    left = _left(str(paths.root).encode())
    shutil.rmtree(folder, ignore_errors=True)
    cluster.clear()
    return name, ended, fault.by, same and whole, named, left, len(tries), took, causes[:200]


def _left(words: bytes) -> int:
    """Returns how many processes of a run are there long after its end."""
    end = time.monotonic() + LEFT_S
    while (found := processes(words)) and time.monotonic() < end:
        time.sleep(0.2)
    return len(found)


def mount_small_disk(folder: Path) -> None:
    """Mounts a disk of two megabytes in a folder, before the nodes of a cluster are made, so that all see it."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)


def all_suffered(names: Sequence[str]) -> Generator[tuple[Cell, ...], None, None]:
    """Has faults happen on one cluster, one after the other. Yields a row of each."""
    with tempfile.TemporaryDirectory() as inline:
        calm = launch_inline(paced_plan(pace_s=0.0), Path(inline) / "calm", steps=LONG_STEPS).losses
    with test_cluster(mount_small_disk) as (cluster, warm, folder):
        for at, name in enumerate(names):
            home = folder / "disk" if FAULTS[name].disk else folder
            yield suffered(cluster, warm, home / f"fault-{at}", name, calm)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def files_in(folder: Path) -> int:
    """Counts files and folders; a checkpoint's may vanish meanwhile, which a walk takes for nothing to see."""
    return sum(len(folders) + len(names) for _, folders, names in os.walk(folder))


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
            held.append((resident_mib(pid), descriptors(pid), files_in(run.paths.root)))
            time.sleep(draw.random() * 0.5)
            ranks = json.loads(run.paths.pids.read_text())
            with suppress(ProcessLookupError):  # it has fallen with the one that was killed before
                os.kill(ranks[str(draw.randrange(len(ranks)))], signal.SIGKILL)
                kills += 1
    finally:
        run.cancel()
    found = losses_of(run.paths)
    alone = launch_inline(plan, folder / "alone", steps=min(len(found), 200)).losses
    same = all(
        found.get(step, loss) == loss for step, loss in alone.items()
    )  # a long run keeps some of the first
    third = max(1, len(held) // 3)
    early, late = held[:third], held[-third:]
    cells = [(median(row[i] for row in part)) for i in range(3) for part in (early, late)]
    return kills, len(found), same, *cells


def stopped(folder: Path, stops: int, seed: int = 0) -> tuple[Cell, ...]:
    """Stops a random rank of a local run again and again, at any moment since its start, in a checkpoint too.

    Returns: stops, those that were named, whether losses are equal, and the seconds from a stop to the next start.
    """
    draw, plan = Random(seed), plans.load(Path("plans/mlp-two-stages.yaml"))
    run = launch_local(
        plan, folder / "run", steps=10**6, save_every=5, restarts=stops, deadline_s=STOP_DEADLINE_S
    )
    named, took_s = 0, []
    try:
        for stop in range(stops):
            until(lambda n=stop: len(attempts(run.paths)) > n, "the next start")  # type: ignore[misc]
            until(partial(_ranks_are_new, run.paths, stop), "its ranks")
            time.sleep(draw.random() ** 2 * 3.0)
            rank = draw.choice(list(ranks := json.loads(run.paths.pids.read_text())))
            os.kill(ranks[rank], signal.SIGSTOP)
            begin = time.monotonic()
            until(lambda n=stop: bool(attempts(run.paths)[n].state), "an end of this try")  # type: ignore[misc]
            took_s.append(time.monotonic() - begin)
            named += bool(re.match(f"rank {rank} .*stopped by a signal", attempts(run.paths)[stop].cause))
    finally:
        run.cancel()
    found = losses_of(run.paths)
    alone = launch_inline(plan, folder / "alone", steps=max(1, min(len(found), 200))).losses
    same = all(found.get(step, loss) == loss for step, loss in alone.items())
    return stops, named, len(found), same, median(took_s), max(took_s)


def _ranks_are_new(paths: Paths, stop: int) -> bool:
    """Returns whether the ranks of a start are there: those of the one before have ended."""
    begun = attempts(paths)[stop].begin_s
    return paths.pids.exists() and paths.pids.stat().st_mtime >= begun


def fallen(folder: Path, kills: int, ranks: int = 4) -> tuple[Cell, ...]:
    """Kills one of several ranks that share parameters, each time within a gather, and measures how long others live.

    Returns: ranks, kills, the seconds until all others have ended, and whether runs that go on are equal to the bit.
    """
    file, steps = folder / "killed.py", 5
    file.write_text(KILLED)
    marker = file.with_suffix(".fell")
    marker.touch()
    plan = plan_of(
        str(file), {}, family="1f1b", workers=1, micros=2, micro=2, data=ranks, sharing="parameters"
    )
    whole = launch_local(plan, folder / "whole", steps=steps, save_every=1).wait(ENDS_S).check().losses
    took_s, same = [], 0
    for kill in range(kills):
        marker.unlink()
        run = launch_local(plan, folder / str(kill), steps=steps, save_every=1, restarts=1)
        until(run.paths.pids.exists, "its ranks")
        others = [pid for rank, pid in json.loads(run.paths.pids.read_text()).items() if rank != "1"]
        until(marker.exists, "the kill")
        while any(map(_lives, others)):
            time.sleep(0.001)
        took_s.append(time.time() - marker.stat().st_mtime)
        same += run.wait(ENDS_S).check().losses == whole
    return ranks, kills, median(took_s), max(took_s), same == kills


def _lives(pid: int) -> bool:
    """Returns whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class FaultJournal(Journal):
    """The rows that were measured so far."""

    def known(self) -> dict[str, tuple[Cell, ...]]:
        return {name: tuple(row) for name, row in super().known().items()}

    def once(self, name: str, measure: Callable[[Path], tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
        """Returns the row of a name, measured now where it was not; none where the time is over."""
        if (row := self.known().get(name)) is not None:
            return [row]
        if self.over:
            return []
        with tempfile.TemporaryDirectory() as folder:
            return [self.note(name, measure(Path(folder)))]

    def faults(self, names: Sequence[str]) -> list[tuple[Cell, ...]]:
        """Returns the rows of faults, as far as there is time."""
        known = self.known()
        left = [name for name in names if name not in known]
        if left and not self.over:
            with closing(all_suffered(left)) as rows:
                for row in rows:
                    known[str(row[0])] = self.note(str(row[0]), row)
                    if self.over:
                        break
        return [
            (*known[name][:-1], _without_folders(str(known[name][-1]))) for name in names if name in known
        ]


def _without_folders(text: str) -> str:
    """Returns what was said without the folders of this machine."""
    text = text.replace(f"{Path(__file__).parents[1]}/", "")
    return re.sub(r"/\S*?/((disk/)?fault-\d)", r"…/\1", text)


def run(quick: bool) -> Result:
    return result_of(quick, QUICK_SOAK_S if quick else SOAK_S, FaultJournal())


def result_of(quick: bool, soak_s: float, journal: FaultJournal) -> Result:
    """Returns what was measured; a part of it where the time of the journal was over before."""
    soaked = journal.once("soak", partial(soak, seconds=soak_s))
    halted = journal.once("stops", partial(stopped, stops=QUICK_STOPS if quick else STOPS))
    gathering = journal.once("gathers", partial(fallen, kills=QUICK_GATHERS if quick else GATHERS))
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
            rows=soaked,
            notes=(
                f"of the supervisor and the run folder in {soak_s / 60:g} minutes; early and late are medians of the "
                "first and last third",
                *(
                    [
                        "rows were measured in pieces, on one day; the seconds and the load below are those of the last piece"
                    ]
                    if journal.path
                    else []
                ),
            ),
        )
    ]
    tables.append(
        Table(
            title="Random ranks of a local run are stopped (SIGSTOP) at random moments",
            columns=("stops", "named", "steps", "losses equal", "s until its end, median", "largest"),
            rows=halted,
            notes=(f"from the moment when its ranks are forked on; the deadline is {STOP_DEADLINE_S:g} s",),
        )
    )
    tables.append(
        Table(
            title="One rank of several that share parameters is killed while it gathers them",
            columns=("ranks", "kills", "s until the others ended, median", "largest", "losses equal"),
            rows=gathering,
            notes=(f"from the kill until the last of the others is gone; the aim is {OTHERS_END_S:g} s",),
        )
    )
    rows: list[tuple[Cell, ...]] = []
    if missing := clusters.missing():
        tables[0] = Table(**{**vars(tables[0]), "notes": (*tables[0].notes, f"no SLURM here: {missing}")})
    else:
        names = QUICK if quick else tuple(FAULTS)
        rows = journal.faults(names)
        heads = (
            "fault",
            "ended",
            "goes on by",
            "losses equal to the bit",
            "cause named",
            "processes left",
            "starts",
            "s",
            "what was said",
        )
        tables.append(
            Table(title="Faults of a job of two ranks on the test cluster", columns=heads, rows=rows)
        )
    changed = [
        (str(row[0]), int(not (row[1] == "done" and row[3] and row[4] and not row[5]))) for row in rows
    ]
    return Result(
        name="faults",
        claim="Every fault costs steps and no job: the run is done in the end, with losses equal to the bit.",
        tables=tables,
        missed=(
            *above(
                "The number of runs that a fault ended or changed, or whose cause was not named", changed, 0
            ),
            *above(
                "The end of ranks whose neighbour fell in a gather",
                [("", row[3]) for row in gathering],
                OTHERS_END_S,
                " s",
            ),
        ),
        part=not (soaked and halted and gathering and (missing or len(rows) == len(names))),
    )


def command(argv: Sequence[str]) -> None:
    """Runs the benchmark; with options of its own, from a journal and for a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--journal", type=Path, help="rows as they come; those in it are not measured again")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="after which nothing further is begun"
    )
    parser.add_argument("--soak", type=float, default=0.0, help="seconds of the soak")
    options, rest = parser.parse_known_args(argv)
    journal = FaultJournal(options.journal, time.monotonic() + options.seconds)
    if len(rest) < len(argv):
        usual = QUICK_SOAK_S if "--quick" in rest else SOAK_S
        main(lambda quick: result_of(quick, options.soak or usual, journal), rest)
    else:
        main(run)


if __name__ == "__main__":
    command(sys.argv[1:])
