"""Islands as elements of an array: each on a node of its own, ended and queued again, and the bytes of one island."""

from __future__ import annotations

from pathlib import Path

from planner.plan import Plan
from runtime.islands import IslandsAsked, IslandsFolder, Outer, begin, islands_status, queue_islands, work_on
from runtime.runfolder import Paths
from runtime.slurm import Options
from tests.captures import captured_of
from tests.runtime.plans import plan_for
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PATIENCE_S, until
from tests.slurm.warm import Warm

NET = str(Path("tests/runtime/workloads/dropped.py").resolve())
ASKED = IslandsAsked(rounds=3, inner_steps=2, shards=4, outer=Outer(rate=0.7, momentum=0.9))


def plan() -> Plan:
    return plan_for(captured_of(NET, {}, 2)[1].graph, NET, workers=1, micros=2)


def test_islands_on_nodes_of_which_one_is_ended_make_the_bytes_of_one(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    folder = IslandsFolder(tmp_path / "run")
    job = queue_islands(plan(), folder.root, ASKED, 3, Options(python=str(warm.python)), test=False)
    until(lambda: islands_status(folder).held, "an island that holds a shard")
    cluster.run("scancel", f"{job}_0")
    until(lambda: islands_status(folder).state == "done", "the last version", PATIENCE_S)
    hosts = {path.name.split("_")[0] for path in folder.logs.glob("*.out")}
    assert hosts and Paths(folder.root).islands.exists()
    alone = begin(plan(), tmp_path / "alone", ASKED)
    assert work_on(alone, print).checksum == islands_status(folder).checksum
