"""Reading samples: a throttled disk with and without a store in memory, a starved run beside its prediction, and near samples.

Each node is a process of this machine that reads at most so many bytes a second. Layers of nodes sleep, since four nodes
on a few cores would measure the want of cores. Times are side by side in one run.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import shardwright as sw
from benchmarks.harness import Cell, Result, Table, above, main
from benchmarks.near_samples import beside_imagededup, near
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.plan import Plan, awaited_ns
from runtime.launch import launch_local
from tests.captures import captured_of
from tests.runtime.plans import plan_for

RATE = 20e6  # bytes a second that a node reads
FLOATS = 128 * 128  # of a sample
NODES, MICRO, LENGTH, STEP_S = 4, 16, 768, 0.04  # of those that keep samples in memory
ROUNDS = 2
STARVED = 1.05  # times as long as computing, from where on a run waits for samples
WAITING, SIDE, CHANNELS = 4, 128, 16  # micro-batch and network of a run that waits for samples
BUSY_S = 4e-3  # of a processor, that a sample takes in some of these runs
AIM_STORE, AIM_PREDICTED, AIM_HASHES_S, AIM_HASHES_GIB = 1.05, 0.10, 60.0, 1.0
ONE = Cluster(
    name="one process",
    nodes=(NodeGroup(count=1, device="cpu", devices_per_node=1),),
    links=Links(node=Link(latency_s=1e-5, bandwidth_bytes_per_s=1e9)),
)
READS = f"""
import time
import torch


class Throttled(torch.utils.data.Dataset):
    def __init__(self, rate, busy_s):
        self.rate, self.busy_s = rate, busy_s

    def __len__(self):
        return {LENGTH}

    def __getitem__(self, index):
        if self.rate:
            time.sleep({4 * FLOATS} / self.rate)
        end = time.thread_time() + self.busy_s
        while time.thread_time() < end:
            pass
        return torch.full(({FLOATS},), index / {LENGTH}), index % 2


def dataset(rate: float = 0.0, busy_s: float = 0.0):
    return Throttled(rate, busy_s)


def batch(n):
    return torch.randn(n, {FLOATS}), torch.randint(2, (n,))


def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)
"""
SLEEPS = f"""
opaque = ["2"]


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep({STEP_S / 3})
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        time.sleep({2 * STEP_S / 3})
        return dy.clone()


class Layers(torch.nn.Module):
    def forward(self, x):
        return Sleep.apply(x)


def build():
    means = torch.nn.Unflatten(1, (64, {FLOATS // 64})), torch.nn.AdaptiveAvgPool1d(1)
    return torch.nn.Sequential(torch.nn.Sequential(*means, torch.nn.Flatten()), torch.nn.Linear(64, 64), Layers(), torch.nn.Linear(64, 2))
"""
COMPUTES = f"""
def build():
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, {SIDE}, {SIDE})),
        torch.nn.Conv2d(1, {CHANNELS}, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear({CHANNELS}, 2),
    )
"""


def file_in(folder: Path, name: str, model: str) -> Path:
    path = folder / name
    path.write_text(READS + model)
    return path


def on_nodes(file: Path, nodes: int, rate: float) -> Plan:
    """Returns a plan of so many replicas, each on a node of its own."""
    arguments = {"rate": rate}
    _, captured = captured_of(str(file), {"rate": str(rate)}, MICRO)
    shape = {"workers": 1, "micros": 1, "micro": MICRO, "data": nodes}
    plan = plan_for(captured.graph, str(file), arguments=arguments, **shape)  # type: ignore[arg-type]
    places = tuple(x.model_copy(update={"node": x.rank, "slot": 0}) for x in plan.places)
    return plan.model_copy(update={"places": places})


@dataclass
class Trained:
    """What runs of one kind took a step, after the first epoch; and the losses and counts of the last."""

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    counts: list[dict[str, int]] = field(default_factory=list)

    @property
    def step_s(self) -> float:
        return median(self.seconds)

    def mean_s(self, readers: int) -> float:
        """Returns what a step takes in the median of as many steps in a row as there are readers, which deliver in turns."""
        width = max(1, readers)
        return median(
            fmean(self.seconds[i : i + width]) for i in range(0, len(self.seconds) - width + 1, width)
        )

    def add(self, plan: Plan, folder: Path, steps: int, first: int, **settings: Any) -> None:
        """Trains once more. Steps count after the `first` ones."""
        launch_local(plan, folder, steps=steps, detach=False, **settings).wait().check()
        lines = (folder / "metrics" / "rank-00000.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        self.seconds += [row["seconds"] for row in rows if row["step"] > first]
        self.losses = [loss["loss:0"] for row in rows for loss in row["losses"].values()]
        found = sorted((folder / "metrics").glob("store-*.json"))
        self.counts = [json.loads(each.read_text()) for each in found]


def stored(folder: Path, nodes: int, steps: int) -> tuple[Table, list[tuple[str, float]]]:
    file, rows = file_in(folder, "sleeping.py", SLEEPS), list[tuple[Cell, ...]]()
    cases: list[tuple[str, float, dict[str, object]]] = [
        ("data in memory", 0.0, {}),
        ("DataLoader, one reader a node", RATE, {"data_workers": 1}),
        ("read before each step", RATE, {}),
        ("store, window chosen", RATE, {"store": "ram"}),
        ("store, window of one step", RATE, {"store": "ram", "store_steps": 1}),
    ]
    found = {name: Trained() for name, _, _ in cases}
    for number, (name, rate, how) in ((number, case) for number in range(ROUNDS) for case in cases):
        first = LENGTH // (nodes * MICRO) + 1
        found[name].add(on_nodes(file, nodes, rate), folder / f"{name} {number}", steps, first, **how)
    memory = found["data in memory"]
    for name, each in found.items():
        read = sum(row["read_samples"] for row in each.counts)
        received = sum(row["received_bytes"] for row in each.counts) / 2**20
        same = each.losses == memory.losses
        over = each.step_s / memory.step_s
        rows.append((name, 1e3 * each.step_s, over, same, read or None, received or None))
    reading_ms = 1e3 * MICRO * 4 * FLOATS / RATE
    table = Table(
        title=f"{nodes} nodes that read {RATE / 1e6:g} MB/s each, {LENGTH} samples of {4 * FLOATS // 1024} KiB",
        columns=("samples from", "step, ms", "over memory", "same losses", "samples read", "MiB received"),
        rows=rows,
        notes=(
            f"A step is the median of those after the first epoch, of {ROUNDS} runs in turn. Nodes are processes of one machine.",
            f"Layers sleep for {1e3 * STEP_S:g} ms a step, so that nodes do not take each other's cores; a node reads for "
            f"{reading_ms:.3g} ms a step.",
            "Samples read and received are those of stores, of all nodes in one run.",
            "A window of one step leaves an exchange no longer than a step: it is here to show what is lost, and is not judged.",
        ),
    )
    chosen = "store, window chosen"
    return table, [(chosen, found[chosen].step_s / memory.step_s)]


def starved(folder: Path, steps: int) -> tuple[Table, list[tuple[str, float]]]:
    """Returns what steps take that wait for samples, beside what the plan of a profile says."""
    file, rows, off = file_in(folder, "waiting.py", COMPUTES), list[tuple[Cell, ...]](), []
    cases = [
        ("at once", 0.0, 0.0, (0, 1)),
        ("20 MB/s", RATE, 0.0, (0, 1, 3)),
        ("5 MB/s", RATE / 4, 0.0, (0, 1, 3)),
    ]
    for name, rate, busy_s, counts in [*cases, (f"{1e3 * BUSY_S:g} ms of a processor", 0.0, BUSY_S, (0, 1))]:
        costs = sw.profile(file, micro=(WAITING,), rate=rate, busy_s=busy_s)
        plan = sw.plan(costs, ONE, batch=2 * WAITING)
        for readers in counts:
            found = Trained()
            found.add(plan, folder / f"{name} {readers}", steps, steps // 4, data_workers=readers)
            told_s = awaited_ns(plan, readers) * 1e-9
            waits = told_s > STARVED * 1e-9 * plan.prediction.step_ns
            took_s = found.mean_s(readers)
            ratio = took_s / told_s
            rows.append((name, readers, 1e-6 * plan.prediction.step_ns, 1e3 * told_s, 1e3 * took_s, ratio))
            off += [(f"{name}, {readers} readers", abs(ratio - 1))] if waits else []
    table = Table(
        title="A run that waits for samples, one process",
        columns=(
            "reads",
            "readers",
            "planned step, ms",
            "predicted with reading, ms",
            "measured, ms",
            "measured over predicted",
        ),
        rows=rows,
        notes=(
            "Steps whose samples come at once wait for nothing: what these are off by is computing, and is in all rows.",
            f"Runs are judged that are predicted to take {STARVED:g} times their planned step or longer.",
            "A step is the median of means over as many steps as there are readers. Readers that start together deliver "
            "together, so that one step waits for all of them and the next ones for none.",
        ),
    )
    return table, off


def run(quick: bool) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept, over = stored(folder, 2 if quick else NODES, 40 if quick else 60)
        waits, off = starved(folder, 12 if quick else 40)
        pairs, seconds, gib = near(100_000 if quick else 1_000_000, 2_000 if quick else 20_000)
        peer = beside_imagededup(folder, 2_000 if quick else 50_000)
    missed = (
        *above("A step with a store over one on data in memory", over, AIM_STORE),
        *above("The error of a predicted step that waits for samples", off, AIM_PREDICTED),
        *above("Finding near samples", [("1,000,000", None if quick else seconds)], AIM_HASHES_S, " s"),
        *above("Its memory", [("1,000,000", None if quick else gib)], AIM_HASHES_GIB, " GiB"),
    )
    return Result(
        name="data",
        claim=(
            f"Aim: with file reads throttled to {RATE / 1e6:g} MB/s a node, a step with a store takes at most {AIM_STORE} times "
            "one on data in memory; a step that waits for samples is predicted within 10 %; near samples of a million are "
            "found in less than 60 s and 1 GiB."
        ),
        tables=[kept, waits, pairs, peer],
        missed=missed,
    )


if __name__ == "__main__":
    main(run)
