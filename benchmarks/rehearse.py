"""Rehearsals beside runs: each distinct rank alone on this device, then the same plan in processes.

Peaks must be the same to the byte: on the host both are counted storage by storage. Times of a run hold what the
other ranks and jobs of the machine take away from it. With a GPU at hand the ranks of large plans are rehearsed on
it, and there is no run to compare with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.harness import Cell, Result, Table, above, main
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.measure import measure
from planner.milp import Question, solve
from planner.plan import Plan
from planner.timeline import Timeline
from planner.workload import workload as workloads
from runtime.launch import launch_local
from runtime.rehearse import rehearse
from runtime.rehearse.report import Rehearsal
from runtime.runfolder import Paths
from runtime.stage import Split

MIB = 2**20
STEPS = 4
CASES = (
    ("gpt2", {"size": "tiny"}, {"schedule": "chimera", "pipeline": 2, "data": 1}),
    ("unet3d", {"size": "tiny"}, {"schedule": "1f1b", "pipeline": 2, "data": 1}),
    ("gpt2", {"size": "tiny"}, {"schedule": "zb-h1", "pipeline": 2, "data": 1}),
    ("lstm", {}, {"schedule": "1f1b", "pipeline": 2, "data": 1, "recompute": True}),
)
LARGE = (
    ("gpt2", {"size": "chimera"}, {"schedule": "chimera", "pipeline": 32, "data": 64, "micro": 1}, 2048),
    ("unet3d", {"size": "small"}, {"schedule": "1f1b", "pipeline": 4, "data": 1, "micro": 1}, 16),
)


def cluster(ranks: int, device: str, a_node: int) -> Cluster:
    group = NodeGroup(count=-(-ranks // a_node), device=device, devices_per_node=min(ranks, a_node))
    link = Link(latency_s=2e-4, bandwidth_bytes_per_s=2e9)
    return Cluster(name="rehearsed", nodes=(group,), links=Links(node=link, rack=link))


def solved(name: str, arguments: dict[str, str], fix: dict[str, object], batch: int, device: str) -> Plan:
    micro = int(str(fix.get("micro", 2)))
    costs = measure.profile(workloads.load(name, arguments), device=device, micros=(micro,), split=Split())
    ranks = int(str(fix["data"])) * int(str(fix["pipeline"]))
    machines = cluster(ranks, "cpu" if device == "cpu" else costs.device, 2 if device == "cpu" else 8)
    return solve(Question(profile=costs, cluster=machines, batch=batch, fix=fix))


def beside_runs(quick: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, arguments, fix in CASES[:2] if quick else CASES:
        plan = solved(name, arguments, dict(fix), 16, "cpu")
        found = rehearse(plan)
        with tempfile.TemporaryDirectory() as folder:
            done = launch_local(plan, folder, steps=STEPS, memory_step=STEPS).wait().check()
            peaks = [Timeline.load(Paths(Path(folder)).rank_trace(r)).peak_bytes[r] for r in found.ranks]
            steps = [done.timeline.of_step(step).makespan_ns for step in range(2, STEPS)]
        rows.append((f"{name} {fix['schedule']}", *_row(found, min(steps), max(peaks))))
    return Table(
        title="in processes of this machine",
        columns=(*COLUMNS, "a run's step, ms", "a run's peak over rehearsed"),
        rows=rows,
        notes=(
            "A run's step is its fastest after the first; its last one, in which memory is counted, is left out.",
        ),
    )


COLUMNS = ("plan", "ranks", "step predicted, ms", "rehearsed, ms", "peak over predicted, least", "most")


def _row(found: Rehearsal, step_ns: int | None, peak: int | None) -> tuple[Cell, ...]:
    ratios = [each.rehearsed_bytes / each.predicted_bytes for each in found.peaks]
    most = max(each.rehearsed_bytes for each in found.peaks)
    cells: list[Cell] = [len(found.ranks), found.predicted_step_ns / 1e6, found.rehearsed_step_ns / 1e6]
    cells += [min(ratios), max(ratios)]
    return (*cells, *([step_ns / 1e6] if step_ns else []), *([peak / most] if peak else []))


def on_a_gpu() -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, arguments, fix, batch in LARGE:
        plan = solved(name, arguments, dict(fix), batch, "cuda")
        rows.append((f"{name} {fix['schedule']}", *_row(rehearse(plan, device="cuda"), None, None)))
    return Table(title="on one GPU, of large plans", columns=COLUMNS, rows=rows)


def missed(tables: Sequence[Table]) -> tuple[str, ...]:
    """Returns what was missed: peaks above their prediction, and bytes that differ between a run and its rehearsal."""
    most = [(str(row[0]), row[5]) for table in tables for row in table.rows]
    apart = [(str(row[0]), abs(float(row[7] or 0) - 1)) for row in tables[0].rows]
    return (
        *above("A rehearsed peak over its prediction", most, 1),
        *above("The distance of a run's peak from the rehearsed one, relative,", apart, 0),
    )


def run(quick: bool) -> Result:
    tables = [beside_runs(quick)]
    if torch.cuda.is_available() and not quick:
        tables.append(on_a_gpu())
    return Result(
        name="rehearse",
        claim="A rank alone holds what it holds in a run, to the byte, and never more than was predicted.",
        missed=missed(tables),
        tables=tables,
    )


if __name__ == "__main__":
    main(run)
