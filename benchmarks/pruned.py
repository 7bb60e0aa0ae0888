"""Pruned weights: the memory and the time of a step beside the same training dense, and plans for a large model.

One rank trains in a process of its own, dense and pruned. The plans of the large model are by roofline, and simulated.
Nothing here was measured on a GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.harness import Cell, Result, Table, above, main
from benchmarks.memory import most_resident
from planner import measure
from planner import workload as workloads
from planner.capture import capture
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.kept import KeptEntries, Numbers, dump, prune
from planner.milp import Question, effort_named, solve_or_none
from planner.plan import KeptWeights, Plan
from runtime import checkpoint as checkpoints
from runtime.train import Model, NoPulse, job_of, prepare
from runtime.train.training import Training
from runtime.world import alone
from tests.runtime.plans import plan_for

MIB = 2**20
STEPS = 4
AIM_PEAK, AIM_STEP = 0.45, 0.80
SHARES = (1.0, 0.2, 0.1)
PAPER_BYTES = 20  # a parameter, of mixed precision with fp32 masters
LARGE = {"size": "2.7b", "seq": "2048"}


class Trained(NamedTuple):
    """What one rank held and took."""

    bytes_each: float  # of all tensors that outlive a step, a parameter
    predicted_each: float
    peak: int  # resident above what the process held with the captured model alone
    step_s: float  # of processor time


def alone_trained(share: float, size: str) -> Trained:
    """Trains a few steps in a process of its own."""
    code = f"from benchmarks.pruned import train; train({share}, {size!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return Trained(*json.loads(done.stdout.splitlines()[-1]))


def train(share: float, size: str) -> None:
    """Trains a few steps of gpt2 with a share of its weights, and prints what that took."""
    torch.set_num_threads(1)
    settings = {"size": size, "seq": "32"}
    workload = workloads.load("gpt2", settings)
    captured = capture(workload, micro=1)
    graph = captured.graph
    plan = plan_for(graph, "gpt2", arguments=settings, family="1f1b", workers=1, micros=2, micro=1)
    with tempfile.TemporaryDirectory() as folder:
        file, kept = Path(folder) / "kept.safetensors", ""
        counts: dict[str, int] = {}
        if share < 1.0:
            shapes = {row.name: tuple(row.shape) for row in graph.trained if len(row.shape) > 1}
            masks = prune(Numbers(shapes, lambda name: torch.randn(shapes[name]).numpy()), share)
            dump(masks, file)
            kept, counts = str(file), masks.counts
            entries = KeptWeights(share=share, digest=masks.digest, counts=counts)
            plan = plan.model_copy(update={"kept": entries})
            del masks
        start = resident()
        trained = opened(Model(plan, workload, captured), Path(folder) / "run", kept)
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of what was before
        data = trained.batches()
        trained.step(next(data))
        began = time.process_time()
        for _ in range(STEPS):
            trained.step(next(data))
        took = (time.process_time() - began) / STEPS
    elements = sum(prod(row.shape) for row in graph.trained)
    held = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in trained.rank.kept()}
    stay = sum(counts.get(row.name, prod(row.shape)) for row in graph.trained)
    predicted = 4 * elements + 8 * sum(counts.values()) + 12 * stay
    peak = most_resident() - start
    print(json.dumps([sum(held.values()) / elements, predicted / elements, peak, took]), flush=True)


def opened(model: Model, folder: Path, kept: str) -> Training:
    paths, job = prepare(model, folder, job_of(model.plan, STEPS + 1, {"kept": kept}))
    start = checkpoints.latest(paths.checkpoints)
    assert start is not None
    return Training(model, start, alone(torch.device("cpu")), job, paths, NoPulse())


def resident() -> int:
    """Returns the bytes of this process that are in memory now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def trained_table(size: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    dense: Trained | None = None
    for share in SHARES:
        found = alone_trained(share, size)
        dense = dense or found
        rows.append(
            (
                share,
                found.bytes_each,
                found.predicted_each,
                found.bytes_each / found.predicted_each,
                found.peak / MIB,
                found.step_s,
                found.step_s / dense.step_s,
            )
        )
    return Table(
        title=f"gpt2 {size}, AdamW, one rank",
        columns=(
            "share kept",
            "bytes a parameter",
            "predicted",
            "measured over predicted",
            "peak above start, MiB",
            "processor s a step",
            "over dense",
        ),
        rows=rows,
        notes=(
            "Bytes are of all tensors that outlive a step.",
            "The peak is of the process, above what it held with the captured model alone.",
        ),
    )


def large_cluster(devices: int) -> Cluster:
    node = NodeGroup(count=devices // 8, device="V100-16GB", devices_per_node=8)
    links = Links(
        node=Link(latency_s=5e-6, bandwidth_bytes_per_s=1.5e11),
        rack=Link(latency_s=5e-6, bandwidth_bytes_per_s=1.25e10),
    )
    return Cluster(name=f"{devices} V100", nodes=(node,), links=links)


def simulated(devices: int, batch: int) -> Table:
    """Plans for GPT of 2.7 billion parameters, dense and of a tenth of its weights."""
    workload = workloads.load("gpt2", LARGE)
    costs = measure.profile(workload, device="roofline:V100-16GB", micros=(1,), precision="fp16")
    rows: list[tuple[Cell, ...]] = []
    for share in (1.0, 0.1):
        profile = replace(costs, kept=KeptEntries.of_share(costs.graph, share))
        question = Question(
            profile=profile,
            cluster=large_cluster(devices),
            batch=batch,
            schedules=["1f1b"],
            precision="fp16",
            effort=effort_named("quick"),
        )
        plan = solve_or_none(question.instance(), question.effort)
        rows.append((share, *(_told(plan) if plan else ("nothing fits", *[None] * 6))))
    return Table(
        title=f"GPT of 2.7 billion parameters on {devices} V100-16GB, by roofline, simulated",
        columns=(
            "share kept",
            "plan",
            "step s",
            "sums s of the largest stage",
            "messages s a micro-batch",
            "state GiB, all devices of a pipeline",
            "bytes a parameter",
            "fullest device GiB",
        ),
        rows=rows,
        notes=(f"Dense is 16 bytes a parameter here; the paper's dense is {PAPER_BYTES}.",),
    )


def _told(plan: Plan) -> tuple[Cell, ...]:
    memory = plan.prediction.memory
    state = sum(each.parameters + each.gradients + each.optimizer for each in memory)
    peak = max(each.total - each.margin for each in memory)
    told = f"data {plan.axes.data} x pipeline {plan.axes.pipeline}, recompute {any(s.recompute for s in plan.stages)}"
    return (
        told,
        plan.prediction.step_ns / 1e9,
        max(each.sync_ns for each in plan.times) / 1e9,
        sum(hop.ns for hop in plan.hops) / 1e9,
        state / 2**30,
        state / 2.65e9,
        peak / 2**30,
    )


def _missed(small: Table) -> tuple[str, ...]:
    dense, tenth = small.rows[0], small.rows[-1]
    assert isinstance(dense[4], float) and isinstance(tenth[4], float)
    return (
        *above("The peak", [("a tenth", tenth[4] / dense[4])], AIM_PEAK, " of dense"),
        *above("A step", [("a tenth", tenth[6])], AIM_STEP, " of dense"),
    )


def run(quick: bool) -> Result:
    small = trained_table("tiny" if quick else "small")
    tables = [small, *([] if quick else [simulated(512, 512)])]
    return Result(
        name="pruned",
        claim="Aims: all tensors kept within 1 % of the prediction; of a tenth at most 0.45 of the dense "
        "peak, and 0.80 of the processor time of a step.",
        missed=(
            *above("Tensors over their prediction", ((str(row[0]), row[3]) for row in small.rows), 1.01),
            *(() if quick else _missed(small)),
        ),
        tables=tables,
    )


if __name__ == "__main__":
    main(run)
