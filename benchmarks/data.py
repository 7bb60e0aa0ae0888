"""Reading samples: a throttled disk with and without a store in memory, a starved run beside its prediction, and near samples.

Each node is a process of this machine that reads at most so many bytes a second. Times are side by side in one run.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardwright as sw
from benchmarks.harness import Cell, Result, Table, above, main
from planner.arrays import IntArray
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.plan import Plan, awaited_ns
from runtime.dedup import near_pairs
from runtime.launch import launch_local
from tests.captures import captured_of
from tests.runtime.plans import plan_for

RATE = 20e6  # bytes a second that a node reads
Bits = NDArray[np.uint64]
LENGTH, MICRO, SIDE, CHANNELS = 48, 4, 128, 16
FLOATS = SIDE * SIDE
AIM_STORE, AIM_PREDICTED, AIM_HASHES_S, AIM_HASHES_GIB = 1.05, 0.10, 60.0, 1.0
ONE = Cluster(
    name="one process",
    nodes=(NodeGroup(count=1, device="cpu", devices_per_node=1),),
    links=Links(node=Link(latency_s=1e-5, bandwidth_bytes_per_s=1e9)),
)
WORKLOAD = f"""
import time
import torch


def build():
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, {SIDE}, {SIDE})),
        torch.nn.Conv2d(1, {CHANNELS}, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d({CHANNELS}, {CHANNELS}, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear({CHANNELS}, 2),
    )


def batch(n):
    return torch.randn(n, {FLOATS}), torch.randint(2, (n,))


def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)


class Throttled(torch.utils.data.Dataset):
    def __init__(self, rate):
        self.rate = rate

    def __len__(self):
        return {LENGTH}

    def __getitem__(self, index):
        if self.rate:
            time.sleep({4 * FLOATS} / self.rate)
        return torch.full(({FLOATS},), index / {LENGTH}), index % 2


def dataset(rate: float = 0.0):
    return Throttled(rate)
"""


def file_in(folder: Path) -> Path:
    path = folder / "throttled.py"
    path.write_text(WORKLOAD)
    return path


def on_nodes(file: Path, nodes: int, rate: float) -> Plan:
    """Returns a plan of so many replicas, each on a node of its own."""
    arguments = {"rate": rate}
    _, captured = captured_of(str(file), {"rate": str(rate)}, MICRO)
    shape = {"workers": 1, "micros": 1, "micro": MICRO, "data": nodes}
    plan = plan_for(captured.graph, str(file), arguments=arguments, **shape)  # type: ignore[arg-type]
    places = tuple(x.model_copy(update={"node": x.rank, "slot": 0}) for x in plan.places)
    return plan.model_copy(update={"places": places})


def trained(
    plan: Plan, folder: Path, steps: int, **settings: Any
) -> tuple[float, list[float], list[dict[str, int]]]:
    """Returns a step after the first epoch, all losses, and what stores have read and received."""
    launch_local(plan, folder, steps=steps, detach=False, **settings).wait()
    rows = [json.loads(line) for line in (folder / "metrics" / "rank-00000.jsonl").read_text().splitlines()]
    first = LENGTH // plan.batch.samples
    counts = [json.loads(x.read_text()) for x in sorted((folder / "metrics").glob("store-*.json"))]
    losses = [loss["loss:0"] for row in rows for loss in row["losses"].values()]
    return median(row["seconds"] for row in rows if row["step"] > first + 1), losses, counts


def stored(folder: Path, nodes: int, steps: int) -> tuple[Table, float]:
    file, rows = file_in(folder), list[tuple[Cell, ...]]()
    cases: list[tuple[str, float, dict[str, object]]] = [
        ("data in memory", 0.0, {}),
        ("DataLoader, one reader a node", RATE, {"data_workers": 1}),
        ("read before each step", RATE, {}),
        ("store, window chosen", RATE, {"store": "ram"}),
        ("store, window of one step", RATE, {"store": "ram", "store_steps": 1}),
    ]
    found = {
        name: trained(on_nodes(file, nodes, rate), folder / name, steps, **how) for name, rate, how in cases
    }
    memory_s, losses, _ = found["data in memory"]
    for name, (step_s, same, counts) in found.items():
        read = sum(row["read_samples"] for row in counts)
        received = sum(row["received_bytes"] for row in counts) / 2**20
        rows.append((name, 1e3 * step_s, step_s / memory_s, same == losses, read or None, received or None))
    table = Table(
        title=f"{nodes} nodes that read {RATE / 1e6:g} MB/s each, {LENGTH} samples of {4 * FLOATS // 1024} KiB",
        columns=("samples from", "step, ms", "over memory", "same losses", "samples read", "MiB received"),
        rows=rows,
        notes=(
            "A step is the median of those after the first epoch. Nodes are processes of one machine.",
            f"An epoch is {LENGTH // (nodes * MICRO)} steps, so nodes exchange most samples again and again: what a store adds is work.",
            "Samples read and received are those of stores, of all nodes.",
        ),
    )
    return table, found["store, window chosen"][0] / memory_s


def starved(folder: Path, steps: int) -> tuple[Table, list[tuple[str, float]]]:
    """Returns what steps take that wait for samples, beside what the plan of a profile says."""
    file, rows, off = file_in(folder), list[tuple[Cell, ...]](), list[tuple[str, float]]()
    for rate in (0.0, RATE, RATE / 4):
        costs = sw.profile(file, micros=(MICRO,), rate=rate)
        plan = sw.plan(costs, ONE, batch=2 * MICRO)
        for readers in (0, 1):
            run = folder / f"starved-{rate:g}-{readers}"
            step_s, _, _ = trained(plan, run, steps, data_workers=readers)
            told_s = awaited_ns(plan, readers) * 1e-9
            reads = f"{rate / 1e6:g} MB/s" if rate else "at once"
            rows.append((reads, readers, 1e3 * told_s, 1e3 * step_s, step_s / told_s))
            off += [(f"{reads}, {readers} readers", abs(step_s / told_s - 1))] if rate else []
    table = Table(
        title="A run that waits for samples, one process",
        columns=("reads", "readers", "predicted step, ms", "measured, ms", "measured over predicted"),
        rows=rows,
        notes=("The first rows wait for nothing: what they are off by is computing, and is in all rows.",),
    )
    return table, off


def near(count: int, compared: int) -> tuple[Table, float, float]:
    """Returns what finding near samples takes, in a process of its own, and whether the pairs are brute force's."""
    code = f"from benchmarks.data import found; found({count}, {compared})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, gib, pairs, same = json.loads(done.stdout.splitlines()[-1])
    table = Table(
        title="Near samples among hashes of 64 bits, at most 4 apart, one core",
        columns=(
            "hashes",
            "seconds",
            "most memory of the process, GiB",
            "pairs",
            f"brute force's among {compared:,}",
        ),
        rows=[(count, seconds, gib, pairs, same)],
        notes=(
            "Half of the hashes are drawn at random, and each of the others differs from one of these in 0 to 6 bits.",
        ),
    )
    return table, seconds, gib


def found(count: int, compared: int) -> None:
    """Prints what finding pairs takes, and whether they are those of comparing all with all."""
    bits = hashes(count)
    start = time.perf_counter()
    pairs = near_pairs(bits, 4)
    took_s = time.perf_counter() - start
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    few = hashes(compared)
    same = np.array_equal(near_pairs(few, 4), brute(few, 4))
    print(json.dumps([took_s, gib, len(pairs), bool(same)]))


def hashes(count: int) -> Bits:
    draw = np.random.default_rng(count)
    bits = draw.integers(0, 2**64, count, dtype=np.uint64)
    half = count // 2
    flips = np.zeros(count - half, np.uint64)
    for _ in range(6):
        flips |= np.uint64(1) << draw.integers(0, 64, count - half, dtype=np.uint64)
    bits[half:] = bits[draw.integers(0, half, count - half)] ^ (
        flips * draw.integers(0, 2, count - half, dtype=np.uint64)
    )
    return bits


def brute(bits: Bits, threshold: int) -> IntArray:
    """Returns the near pairs by comparing all with all."""
    rows = []
    for first in range(0, len(bits), 256):
        differ = bits[first : first + 256, None] ^ bits[None, :]
        ones = np.unpackbits(differ.view(np.uint8).reshape(*differ.shape, 8), axis=2).sum(axis=2)
        near = np.argwhere(ones <= threshold) + np.array([first, 0])
        rows.append(near[near[:, 0] < near[:, 1]])
    return np.concatenate(rows)


def run(quick: bool) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept, over = stored(folder, 2 if quick else 4, 12 if quick else 60)
        waits, off = starved(folder, 12 if quick else 40)
        pairs, seconds, gib = near(100_000 if quick else 1_000_000, 2_000 if quick else 20_000)
    missed = (
        *above("A step with a store over one on data in memory", [("store", over)], AIM_STORE),
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
        tables=[kept, waits, pairs],
        missed=missed,
    )


if __name__ == "__main__":
    main(run)
