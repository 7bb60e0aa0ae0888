"""Memory predicted beside memory held: random plans on a device that they almost fill, processes of hosts, and how a
rank of a large model starts.

Every rank is rehearsed: it runs alone, with its real stages, optimizer and buffers, on the host, where each storage
is counted from its making to its end. A device is emulated by its size: the plan is solved for one of which it takes
90 to 98 %, and a rank that would exceed it fails the run. Half of the plans keep a share of pruned weights.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

from benchmarks.harness import Cell, Result, Table, above, main
from planner.capture import Captured, capture
from planner.cluster import HOST_FRAGMENTS, HOST_PROCESS_BYTES, Cluster, Link, Links, NodeGroup
from planner.errors import BadInput, Infeasible
from planner.kept import KeptEntries
from planner.measure import measure
from planner.milp import Question, solve
from planner.plan import Plan, coordinates
from planner.plan import yaml as plan_yaml
from planner.profile import Profile
from planner.schedule import FAMILIES
from planner.workload import Workload
from planner.workload import workload as workloads
from runtime.launch import launch_local
from runtime.rank import RankOptions, assemble
from runtime.rehearse.fake_world import world_of
from runtime.rehearse.rehearse import runs
from runtime.runfolder import Paths
from runtime.stage import Split
from runtime.train import Model, NoPulse

PLANS, QUICK_PLANS = 200, 6
KEPT = (0.05, 0.1, 0.2, 0.4, 0.7)  # shares of weights
MIB = 2**20
MODELS: tuple[tuple[str, dict[str, str], tuple[int, ...]], ...] = (
    ("gpt2", {"size": "tiny"}, (1, 2, 4)),
    ("unet3d", {"size": "tiny"}, (1, 2)),
    ("mlp", {"width": "256", "layers": "9"}, (4, 64)),
    ("lstm", {}, (2, 4)),
)


@dataclass(frozen=True)
class Known:
    workload: Workload
    captured: Captured
    costs: dict[int, Profile]  # by micro-batch


@dataclass(frozen=True)
class Ran:
    plan: Plan
    filled: float  # of the device, as predicted: its fullest worker
    ratios: tuple[float, ...]  # of every worker, peak over prediction


def known(quick: bool) -> list[Known]:
    found = []
    for name, arguments, micros in MODELS[:2] if quick else MODELS:
        workload = workloads.load(name, arguments)
        costs = {
            micro: measure.profile(workload, device="roofline:cpu", micros=(micro,), split=Split())
            for micro in micros
        }
        found.append(Known(workload, capture(workload), costs))
    return found


def machines(ranks: int, memory_bytes: int) -> Cluster:
    group = NodeGroup(count=1, device="cpu", devices_per_node=ranks, memory_bytes=memory_bytes)
    return Cluster(
        name="emulated", nodes=(group,), links=Links(node=Link(latency_s=2e-4, bandwidth_bytes_per_s=2e9))
    )


def tight_plan(models: list[Known], draw: Random, pruned: bool) -> tuple[Known, Plan, float]:
    """Solved again for a device of which its first solution takes 90 to 98 %."""
    while True:
        model = draw.choice(models)
        micro, costs = draw.choice(sorted(model.costs.items()))
        if pruned:
            share = draw.choice(KEPT)
            costs = replace(costs, kept=KeptEntries.of_share(costs.graph, share))
        workers, data = draw.choice((1, 2, 3, 4)), draw.choice((1, 1, 2))
        fix: dict[str, object] = {"data": data, "pipeline": workers, "micro": micro}
        fix |= {"schedule": draw.choice(sorted(FAMILIES)), "recompute": draw.random() < 0.3}
        fix |= {"shard": data > 1 and draw.random() < 0.5}
        batch, ranks = micro * workers * data * draw.choice((1, 2)), workers * data
        try:
            first = solve(Question(profile=costs, cluster=machines(ranks, 2**40), batch=batch, fix=fix))
            memory_bytes = round(_fullest(first) / draw.uniform(0.9, 0.98))
            plan = solve(Question(profile=costs, cluster=machines(ranks, memory_bytes), batch=batch, fix=fix))
        except (BadInput, Infeasible):
            continue  # the family does not take this shape
        filled = _fullest(plan) / memory_bytes
        if 0.9 <= filled <= 0.98:
            return model, plan, filled


def _fullest(plan: Plan) -> int:
    return max(memory.total for memory in plan.prediction.memory)


def ran(model: Known, plan: Plan, filled: float) -> Ran:
    predicted = [memory.total for memory in plan.prediction.memory]
    found = runs(Model(plan, model.workload, model.captured), torch.device("cpu"), steps=0)
    return Ran(plan, filled, tuple(run.peak_bytes / predicted[run.worker] for run in found))


def emulated(quick: bool) -> Table:
    models, draw = known(quick), Random(2026)
    count = QUICK_PLANS if quick else PLANS
    found = [ran(*tight_plan(models, draw, pruned=number % 2 == 1)) for number in range(count)]
    rows = [
        _row(name, [each for each in found if _model(each) == name]) for name in sorted(map(_model, found))
    ]
    return Table(
        title="random plans predicted at 90 to 98 % of a device",
        columns=(
            "model",
            "plans",
            "exceeded",
            "of the device, least",
            "most",
            "peak / prediction, least",
            "median",
            "most",
        ),
        rows=list(dict.fromkeys([*rows, _row("all", found)])),
        notes=(
            "Peak over prediction is of every worker; exceeded counts plans of which any worker took more than the device.",
            f"Pruned plans keep a share of their weights: {', '.join(f'{share:g}' for share in KEPT)}, drawn at random.",
        ),
    )


def _model(each: Ran) -> str:
    return each.plan.model.workload + (", pruned" if each.plan.kept is not None else "")


def _row(name: str, found: list[Ran]) -> tuple[Cell, ...]:
    every = [ratio for each in found for ratio in each.ratios]
    over = sum(max(each.ratios) * each.filled > 1 for each in found)
    filled = [each.filled for each in found]
    return (
        name,
        len(found),
        over,
        min(filled),
        max(filled),
        min(every),
        statistics.median(every),
        max(every),
    )


# What the process of a rank holds, as the kernel counts it.

ON_HOSTS: tuple[tuple[str, dict[str, str], dict[str, object], int], ...] = (
    ("gpt2", {"size": "tiny"}, {"data": 2, "pipeline": 1, "micro": 32}, 128),
    ("mlp", {"width": "2048", "layers": "8"}, {"data": 1, "pipeline": 2, "micro": 64}, 256),
    ("resnet50", {"side": "96"}, {"data": 1, "pipeline": 2, "micro": 8}, 32),
)
HOST_STEPS = 4


class OnHost(NamedTuple):
    """What one rank's process held. `predicted` is without the margin."""

    model: str
    predicted: int
    base: int
    most: int

    @property
    def allowed(self) -> int:
        """Returns the memory that holds the plan with the margin of a host."""
        return round(HOST_PROCESS_BYTES + self.predicted * (1 + HOST_FRAGMENTS))


def on_hosts(quick: bool) -> list[OnHost]:
    found = []
    for name, arguments, fix, batch in ON_HOSTS[:1] if quick else ON_HOSTS:
        workload, micro = workloads.load(name, arguments), int(str(fix["micro"]))
        costs = measure.profile(workload, device="roofline:cpu", micros=(micro,), split=Split())
        pins = fix | {"schedule": "1f1b"} if fix["pipeline"] != 1 else fix
        plan = solve(Question(profile=costs, cluster=machines(2, 2**40), batch=batch, fix=pins))
        with tempfile.TemporaryDirectory() as folder:
            launch_local(plan, folder, steps=HOST_STEPS).wait().check()
            for rank in range(len(plan.places)):
                held = json.loads(Paths(Path(folder)).rank_resident(rank).read_text())
                said = plan.prediction.memory[coordinates(plan.axes, rank).pipeline]
                found.append(OnHost(name, said.total - said.margin, held["base"], held["most"]))
    return found


def processes(quick: bool) -> Table:
    """Two ranks of each plan, trained for some steps and saved."""
    return Table(
        title="processes of ranks on a host, with the checkpoint that they write",
        columns=(
            "model",
            "predicted, MiB",
            "process before, MiB",
            "most, MiB",
            "growth / prediction",
            "most / allowed",
        ),
        rows=[
            (
                each.model,
                each.predicted / MIB,
                each.base / MIB,
                each.most / MIB,
                (each.most - each.base) / each.predicted,
                each.most / each.allowed,
            )
            for each in on_hosts(quick)
        ],
        notes=(
            f"Allowed are {HOST_PROCESS_BYTES / MIB:.0f} MiB for a process and {HOST_FRAGMENTS:.0%} beyond the prediction: "
            "the margin that `probe` and the catalogue leave on hosts.",
            "Growth is libraries that the first step reads (35 to 50 MiB), tensors, and holes between them in the heap.",
        ),
    )


# How one rank of many starts.

RANKS, QUICK_RANKS = 64, 8
LIMIT_BYTES = 2 * 2**30
LARGE = """
from models.gpt2 import GPT2, Shape, batch as _batch, loss, optimizer
from torch import nn

SHAPE = Shape(layers={layers}, width={width}, heads=64, positions=2048)

def build() -> nn.Module:
    return GPT2(SHAPE, dropout=0.0)

def batch(n):
    return _batch(n, size="175b")
"""


def starting(quick: bool) -> Table:
    """In a process of its own each: what is resident before its own weights are asked for."""
    with tempfile.TemporaryDirectory() as folder:
        file, path = Path(folder) / "large.py", Path(folder) / "plan.yaml"
        file.write_text(LARGE.format(layers=8 if quick else 44, width=2048 if quick else 6144))
        plan = large_plan(str(file), QUICK_RANKS if quick else RANKS)
        path.write_text(plan_yaml.dump(plan))
        ranks = range(0, len(plan.places), 4 if quick else 1)
        found = [_started(path, rank) for rank in ranks]
    elements = sum(memory.parameters for memory in plan.prediction.memory) / 4
    return Table(
        title=f"ranks of {len(plan.places)} of a model of {elements / 1e9:.3g} billion parameters start, one at a time",
        columns=(
            "started",
            "under 2 GiB",
            "resident before their weights, MiB: least",
            "most",
            "their weights, MiB: least",
            "most",
            "seconds, most",
        ),
        rows=[
            (
                len(found),
                sum(each.resident < LIMIT_BYTES for each in found),
                min(each.resident for each in found) / MIB,
                max(each.resident for each in found) / MIB,
                min(each.weights for each in found) / MIB,
                max(each.weights for each in found) / MIB,
                max(each.seconds for each in found),
            )
        ],
        notes=(
            "Resident is the most that the process ever held until then: torch, the capture, every stage on meta.",
        ),
    )


def large_plan(file: str, ranks: int) -> Plan:
    costs = measure.profile(workloads.load(file), device="roofline:H100-80GB", micros=(1,), split=Split())
    node = NodeGroup(count=ranks // 8, device="H100-80GB", devices_per_node=8)
    links = Links(
        node=Link(latency_s=2e-6, bandwidth_bytes_per_s=4.5e11),
        rack=Link(latency_s=5e-6, bandwidth_bytes_per_s=5e10),
    )
    fix = {"data": 1, "pipeline": ranks, "schedule": "1f1b", "micro": 1, "recompute": False}
    return solve(
        Question(
            profile=costs, cluster=Cluster(name="large", nodes=(node,), links=links), batch=ranks, fix=fix
        )
    )


class Started(NamedTuple):
    resident: int
    weights: int
    seconds: float


def _started(plan: Path, rank: int) -> Started:
    code = f"from benchmarks.memory import start; start({str(plan)!r}, {rank})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return Started(*json.loads(done.stdout.splitlines()[-1]))


def most_resident() -> int:
    """Ever, of this process; what `getrusage` says is at least what the process had that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def start(path: str, rank: int) -> None:
    """Everything that a rank does until it reads its weights; then it says what that took and ends."""
    began = time.monotonic()
    plan = plan_yaml.load(Path(path))
    model = Model.of(plan)

    def load(names: Sequence[str]) -> Mapping[str, torch.Tensor]:
        resident = most_resident()
        weights = sum(model.captured.graph.parameter[name].bytes for name in names)
        print(json.dumps([resident, weights, time.monotonic() - began]), flush=True)
        os._exit(0)

    with world_of(rank, len(plan.places), torch.device("cpu")) as world:
        assemble(
            plan,
            model.captured,
            world,
            make_optimizer=model.workload.optimizer,
            lr_schedule=model.workload.lr_schedule,
            load=load,
            options=RankOptions(),
            pulse=NoPulse(),
        )


def missed(
    tight: Sequence[tuple[Cell, ...]],
    processes: Sequence[tuple[Cell, ...]],
    begun: Sequence[tuple[Cell, ...]],
) -> tuple[str, ...]:
    """Returns what was missed, from the rows of the tables; the last of the first is of all models."""
    started, small, most = (float(begun[0][column] or 0) for column in (0, 1, 3))
    late = f"Of {started:g} ranks of a large model {started - small:g} held 2 GiB or more before their weights, {most:.4g} MiB at most."
    return (
        *above("The peak of a rank over its prediction", ((str(row[0]), row[7]) for row in tight[:-1]), 1),
        *above("A process over what its host leaves it", ((str(row[0]), row[5]) for row in processes), 1),
        *above("The number of plans that exceeded their device", [("", tight[-1][2])], 0),
        *((late,) if small < started else ()),
    )


def run(quick: bool) -> Result:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tables = [emulated(quick), processes(quick), starting(quick)]
    finally:
        torch.set_num_threads(before)
    return Result(
        name="memory",
        claim="No rank takes more than was predicted, and no rank of a large model holds more than its part.",
        missed=missed(*(table.rows for table in tables)),
        tables=tables,
    )


if __name__ == "__main__":
    main(run)
