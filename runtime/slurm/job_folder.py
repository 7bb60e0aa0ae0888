"""What a SLURM job does with its run folder: it takes the lock, and writes a plan for the nodes that it has got.

One job at a time trains in a folder, whoever submitted the jobs. A lock is a numbered file. It is over when its file
is gone or its job has ended. The next job then takes the next number, and only one of several jobs succeeds.

A plan anew is made from the run's own profile and for the same samples a step. The solver is another program to the
runtime. It is called by its command, with files of the run folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from planner import cluster as clusters
from planner import plan as plans
from planner.cluster import Cluster
from planner.errors import BadInput, Infeasible
from planner.files import find_record, write_whole
from planner.plan import Plan
from runtime import runfolder
from runtime.runfolder import Paths, RunProcess
from runtime.slurm import state

ENDING_S = 60.0  # for a job that SLURM is about to end
LOOK_S = 0.5


class FolderBusy(BadInput):
    """Another job trains in the folder."""

    def __init__(self, job: str, paths: Paths) -> None:
        super().__init__(
            f"job {job} trains in this folder", where=str(paths.root), allowed="one job at a time"
        )
        self.job = job


@dataclass(frozen=True, kw_only=True)
class FolderLock:
    """The job that holds the lock of a run folder, and its supervisor process."""

    job: str  # as SLURM names it: 12, or 12_3 for a task of an array
    holder: RunProcess  # its supervisor

    @classmethod
    def read(cls, path: Path) -> FolderLock | None:
        """Returns the lock in a file, None where it was released meanwhile.

        Args: `path` is a file of the folder of locks.
        """
        return find_record(cls, path)

    def over(self, job: str) -> bool:
        """Returns whether the lock's job has ended. It waits up to a minute for a job that SLURM is ending.

        Args: `job` is the job that asks; its own lock is over where it was queued again.
        """
        if self.holder.alive:
            return False
        end = time.monotonic() + ENDING_S
        while self.job != job and (word := state.word(self.job)) not in state.OVER:
            if word not in ("COMPLETING", state.UNKNOWN) or time.monotonic() > end:
                return False
            time.sleep(LOOK_S)
        return True


@contextmanager
def taken(paths: Paths, job: str) -> Iterator[Callable[[], bool]]:
    """Holds the lock of a run folder while the context lasts.

    SLURM may start a job again while its first node cannot be reached, and a supervisor there goes on. It loses the lock.
    Args: `job` is this job, as SLURM names it.
    Yields: a function that says whether the lock is still held.
    Raises: FolderBusy where another job holds the lock.
    """

    busy = ""

    def over(last: Path) -> bool | None:
        nonlocal busy
        turn = FolderLock.read(last)
        busy = turn.job if turn is not None else ""
        return None if turn is None else turn.over(job)

    paths.turns.mkdir(exist_ok=True)
    mine = FolderLock(job=job, holder=runfolder.of(os.getpid()))
    path = runfolder.take_number(paths.turns, json.dumps(asdict(mine)), over)
    if path is None:
        raise FolderBusy(busy, paths)
    for old in paths.turns.iterdir():
        if old.name.isdecimal() and int(old.name) < int(path.name):
            old.unlink(missing_ok=True)

    def is_held() -> bool:
        return FolderLock.read(path) == mine

    try:
        yield is_held
    finally:
        if is_held():
            path.unlink(missing_ok=True)


def refuse(paths: Paths) -> None:
    """Refuses a run folder in which a job trains, or whose job waits.

    Raises: BadInput where one does.
    """
    queued = state.Queued.read(paths)
    if queued is not None and not queued.inside and state.word(queued.job) in (*state.QUEUED, *state.RUNNING):
        raise BadInput(
            f"job {queued.job} of this run is queued or running",
            where=str(paths.root),
            allowed="cancel it, or another folder",
        )
    last = runfolder.last_number(paths.turns)
    turn = FolderLock.read(runfolder.numbered(paths.turns, last)) if last else None
    if turn is not None and not turn.over(""):
        raise FolderBusy(turn.job, paths)


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """The range of nodes that a run may have, and the files from which it is planned."""

    fewest: int
    most: int
    profile: Path
    cluster: Path
    fix: Mapping[str, str]

    def check(self, old: Plan) -> None:
        """Solves for the fewest nodes, so that wrong files are found before any node is lost.

        Args: `old` is the plan that the run begins with.
        Raises: Infeasible or BadInput where there is no plan for the fewest nodes.
        """
        cluster = clusters.load(self.cluster)
        with tempfile.TemporaryDirectory() as folder:
            _solved(Path(folder), self.profile, cluster, self.fix, old, self.fewest)

    def write(self, paths: Paths) -> None:
        """Copies into the run folder all that a later plan is made from."""
        write_whole(paths.profile, self.profile.read_text())
        write_whole(paths.cluster, self.cluster.read_text())
        write_whole(paths.fixed, json.dumps(dict(self.fix)))


def parse(text: str) -> tuple[int, int]:
    """Returns the fewest and the most nodes of a text such as `3:4`.

    Raises: BadInput where the text is no range.
    """
    fewest, _, most = text.partition(":")
    try:
        found = int(fewest), int(most)
    except ValueError:
        raise BadInput(
            f"'{text}' is no range of nodes", where="--elastic", allowed="MIN:MAX, such as 3:4"
        ) from None
    if not 1 <= found[0] <= found[1]:
        raise BadInput(f"'{text}' is empty", where="--elastic", allowed="1 or more, and MIN not above MAX")
    return found


def plan_for(paths: Paths, old: Plan, nodes: int) -> Plan:
    """Solves for a number of nodes and replaces the plan in the run folder.

    Args: `old` is kept beside it, named by its number of nodes.
    Returns: the new plan.
    Raises: Infeasible where there is no plan for so many nodes.
    """
    fixed = json.loads(paths.fixed.read_text())
    plan = _solved(paths.root, paths.profile, clusters.load(paths.cluster), fixed, old, nodes)
    write_whole(paths.plan.with_name(f"plan-{len({p.node for p in old.places})}-nodes.yaml"), plans.dump(old))
    write_whole(paths.plan, plans.dump(plan))
    return plan


def _solved(
    folder: Path, profile: Path, cluster: Cluster, fixed: Mapping[str, str], old: Plan, nodes: int
) -> Plan:
    """Returns the plan for a number of nodes. Plan and cluster are files in `folder`."""
    there, found = folder / f"cluster-{nodes}.yaml", folder / f"plan-{nodes}.yaml"
    write_whole(there, clusters.dump(clusters.with_nodes(cluster, nodes)))
    words = [f"--profile={profile}", f"--cluster={there}", f"--batch={old.batch.samples}"]
    words += [f"--output={found}", "--force", f"--precision={old.precision}", f"--execution={old.execution}"]
    if old.kept is not None:
        masks = Paths(folder).kept
        words.append(f"--kept={masks if masks.exists() else old.kept.share}")
    fixed = {**({"weights": old.weights} if old.weights != "same" else {}), **fixed}
    words += [f"--fix={key}={value}" for key, value in fixed.items()]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shardwright", "plan", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Infeasible(f"no plan for {nodes} nodes: {done.stderr.strip().rpartition('error: ')[2]}")
    plan = plans.load(found)
    if plan.model.fingerprint != old.model.fingerprint:
        raise BadInput("is of another model", where=str(profile), allowed="a profile of the plan's")
    # The profile knows the model by its fingerprint; which file it is in, and with what arguments, the old plan knows.
    return plan.model_copy(update={"model": old.model})
