"""Islands beside torch's DistributedDataParallel: steps a second, and what is learned from as many samples.

Two islands train digits by rounds of H steps each, and meet in a folder. Two gloo ranks of DDP sum gradients in every
step. All see as many samples of each step's size; what is learned is judged on digits that nobody has trained with.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.harness import Cell, Result, Table, main
from benchmarks.zoo.digits import batch, build, dataset, judged, loss, optimizer, source
from planner import workload as workloads
from planner.capture import capture
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime import islands
from runtime.islands import IslandsAsked, Outer
from runtime.launch import launch_local
from runtime.train import Model
from tests.runtime.plans import plan_for

DIGITS = "benchmarks/zoo/digits.py"
MICRO, RANKS = 32, 2
STEPS, QUICK_STEPS = 400, 40
INNER = (10, 50)
OUTERS = {"the mean": Outer(), "SGD 0.7, momentum 0.9": Outer.parse("sgd:0.7:0.9")}


def model_of(data: int) -> Model:
    workload = workloads.load(DIGITS, {})
    captured = capture(workload, micro=MICRO)
    plan: Plan = plan_for(
        captured.graph, DIGITS, arguments={}, family="1f1b", workers=1, data=data, micros=1, micro=MICRO
    )
    return Model(plan, workload, captured)


def right(state: Mapping[str, Tensor]) -> float:
    """Returns the share of digits that a network with these parameters names."""
    network, (pictures, labels) = build(), judged()
    network.load_state_dict(dict(state))
    with torch.no_grad():
        return float((network(pictures).argmax(1) == labels).float().mean())


def by_islands(folder: Path, steps: int, inner: int, outer: Outer) -> tuple[float, float]:
    """Returns steps a second of all shards together, begin to end, and the share of digits that are right."""
    model = model_of(1)
    asked = IslandsAsked(rounds=steps // inner, inner_steps=inner, shards=RANKS, outer=outer)
    started = islands.begin(model.plan, folder, asked, workload=model.workload, threads=1)
    begin = time.perf_counter()
    for process in islands.start_islands(started, RANKS):
        process.wait()
    took = time.perf_counter() - begin
    return steps / took, right(_weights(started.paths.checkpoints))


def by_ranks(folder: Path, steps: int) -> tuple[float, float]:
    """The same of two replicas of ours that sum gradients in every step."""
    model = model_of(RANKS)
    begin = time.perf_counter()
    run = launch_local(model.plan, folder, steps=steps, workload=model.workload, save_every=steps, threads=1)
    run.wait().check()
    return steps / (time.perf_counter() - begin), right(_weights(run.paths.checkpoints))


def _weights(folder: Path) -> dict[str, Tensor]:
    found = checkpoints.latest(folder)
    assert found is not None
    return found.whole()


def by_ddp(folder: Path, steps: int) -> tuple[float, float]:
    """The same of torch's DDP, whose processes begin as cold as ours."""
    code = "import sys; from benchmarks import islands; islands.ddp_rank(*sys.argv[1:])"
    begin = time.perf_counter()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(steps), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    told = [process.communicate()[0] for process in started]
    took = time.perf_counter() - begin
    if any(process.returncode for process in started):
        raise RuntimeError("a rank of DDP ended with an error")
    return steps / took, float(json.loads(told[0].splitlines()[-1]))


def ddp_rank(rank: str, steps: str, folder: str) -> None:
    """Trains as one of two ranks, and prints the share of digits that are right."""
    torch.set_num_threads(1)
    Path(folder).mkdir(exist_ok=True)
    store = torch.distributed.FileStore(f"{folder}/store", RANKS)
    torch.distributed.init_process_group("gloo", store=store, rank=int(rank), world_size=RANKS)
    torch.manual_seed(0)
    network = build()
    trained = nn.parallel.DistributedDataParallel(network)
    chosen, samples = optimizer(list(network.named_parameters())), dataset()
    for step in range(int(steps)):
        first = (step * RANKS + int(rank)) * MICRO
        rows = [samples[(first + i) % len(samples)] for i in range(MICRO)]
        pictures, labels = (torch.stack(column) for column in zip(*rows, strict=True))
        chosen.zero_grad()
        loss(trained(pictures), labels).backward()
        chosen.step()
    print(json.dumps(right(network.state_dict())), flush=True)
    torch.distributed.destroy_process_group()


def run(quick: bool) -> Result:
    steps = QUICK_STEPS if quick else STEPS
    rows: list[tuple[Cell, ...]] = []
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        rows.append(("DistributedDataParallel, 2 ranks", 1, *by_ddp(folder / "ddp", steps)))
        rows.append(("ours, 2 replicas", 1, *by_ranks(folder / "ranks", steps)))
        for name, outer in OUTERS.items():
            for inner in INNER:
                where = folder / f"{inner}-{len(rows)}"
                rows.append(
                    (f"2 islands, {name}", inner, *by_islands(where, steps, min(inner, steps), outer))
                )
    table = Table(
        title=f"Digits, {source()}: {steps} steps of two times {len(batch(MICRO)[1])} samples, on this machine",
        columns=("trainer", "steps between sums", "steps a second", "right of 500 unseen"),
        rows=rows,
        notes=(
            "From the start of the processes to their end; an island starts its ranks anew in every round.",
            "Two ranks of one machine talk as fast as ranks ever do: islands are for those that hardly can.",
        ),
    )
    return Result(
        name="islands",
        claim="Islands that meet once in H steps learn from as many samples what data parallelism does.",
        tables=[table],
    )


if __name__ == "__main__":
    main(run)
