"""Pruned weights: the memory and the time of a step beside the same training dense, and plans for a large model.

One rank trains in a process of its own, dense and pruned, with weights in fp32 and in bf16. Two ranks train beside
torch's own pruning with DDP. Handwritten digits show what a pruned network learns. Plans of a large model are in
`benchmarks.pruned_large`. Nothing here was measured on a GPU.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import Cell, Result, Table, above, below, main
from benchmarks.memory import most_resident
from benchmarks.zoo.digits import judged, source
from planner import plan as plans
from planner import workload as workloads
from planner.capture import Captured, capture, settle_memory
from planner.kept import Masks, Numbers, dump, prune
from planner.model import ModelGraph
from planner.plan import KeptWeights, Plan, halved_weights
from planner.timeline import WARM_UP_STEPS
from planner.workload import Workload
from runtime import checkpoint as checkpoints
from runtime import runfolder
from runtime.runfolder import Paths
from runtime.train import Model, NoPulse, job_of, prepare
from runtime.train.training import Batch, Training, training_of
from runtime.world import alone
from tests.runtime.plans import plan_for

MIB = 2**20
STEPS = 4  # of peers
TIMED_STEPS = 12
AIM_PEAK, AIM_STEP, AIM_POINTS = 0.45, 0.80, 1.0
SHARES = (1.0, 0.2, 0.1)
HALVED = (1.0, 0.1)  # of weights in bf16
RANKS = 2
DIGITS, DIGITS_STEPS, DIGITS_KEPT = "benchmarks/zoo/digits.py", 400, 0.2


TIED = (
    "The peak of a tenth has three dense gradients of the embedding, 147 MiB each: autograd adds up those of its two "
    "uses, in it and in the head, before anything can be gathered."
)


class Case(NamedTuple):
    """One way to train."""

    share: float  # of weights that is kept
    precision: str
    weights: str = "same"


class Held(NamedTuple):
    """What one rank held."""

    bytes_each: float  # of all tensors that outlive a step, a parameter
    predicted_each: float
    peak: int  # resident above what the process held with the captured model alone


def in_a_process(call: str) -> list[Any]:
    """Returns what a function of this file prints as JSON, called in a process of its own."""
    code = f"from benchmarks.pruned import *; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def model_of(size: str) -> tuple[Workload, Captured, Plan]:
    """Returns gpt2 of a size, and its dense plan for one rank."""
    torch.set_num_threads(1)
    settings = {"size": size, "seq": "32"}
    workload = workloads.load("gpt2", settings)
    captured = capture(workload, micro=1)
    plan = plan_for(captured.graph, "gpt2", arguments=settings, family="1f1b", workers=1, micros=2, micro=1)
    return workload, captured, plan


def planned(plan: Plan, graph: ModelGraph, case: Case, file: Path) -> Plan:
    """Returns a dense plan as one of a case, whose masks are written."""
    plan = plan.model_copy(update={"weights": case.weights, "precision": case.precision})
    if case.share == 1.0:
        return plan
    shapes = {row.name: tuple(row.shape) for row in graph.trained if len(row.shape) > 1}
    masks = prune(Numbers(shapes, lambda name: torch.randn(shapes[name]).numpy()), case.share)
    dump(masks, file)
    kept = KeptWeights(share=case.share, digest=masks.digest, counts=masks.counts)
    return plan.model_copy(update={"kept": kept})


def hold(size: str, share: float, precision: str, weights: str) -> None:
    """Trains a few steps of gpt2 with a share of its weights, and prints what that held."""
    case, (workload, captured, plan) = Case(share, precision, weights), model_of(size)
    graph = captured.graph
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(plan, graph, case, Path(folder) / "kept.safetensors")
        kept = "" if plan.kept is None else str(Path(folder) / "kept.safetensors")
        settle_memory()
        start = resident()
        trained = opened(Model(plan, workload, captured), Path(folder) / "run", kept)
        settle_memory()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of what was before
        data = trained.batches()
        for _ in range(2):
            trained.step(next(data))
        peak = most_resident() - start
    counts = plan.kept.counts if plan.kept is not None else {}
    elements = sum(prod(row.shape) for row in graph.trained)
    held = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in trained.rank.kept()}
    stay = sum(counts.get(row.name, prod(row.shape)) for row in graph.trained)
    halved = halved_weights(graph) if weights == "bf16" else frozenset()
    apart = sum(
        counts.get(row.name, prod(row.shape)) for row in graph.trained if row.name in {*counts, *halved}
    )
    predicted = 4 * elements + 4 * apart + 4 * sum(counts.values()) + 12 * stay
    predicted -= 2 * sum(prod(row.shape) for row in graph.trained if row.name in halved)
    print(json.dumps([sum(held.values()) / elements, predicted / elements, peak]), flush=True)


def time_steps(size: str, cases: Sequence[Sequence[Any]], steps: int) -> None:
    """Trains every case, a step of each in turn, and prints the seconds of processor time of all steps by case.

    Whatever else the machine does then takes its share of all of them.
    """
    workload, captured, plan = model_of(size)
    with tempfile.TemporaryDirectory() as folder:
        runs: list[tuple[Training, Iterator[Batch]]] = []
        for number, case in enumerate(cases):
            file = Path(folder) / f"{number}.safetensors"
            own = planned(plan, captured.graph, Case(*case), file)
            model = Model(own, workload, captured)
            trained = opened(model, Path(folder) / str(number), "" if own.kept is None else str(file))
            runs.append((trained, trained.batches()))
        settle_memory()
        took: list[list[float]] = [[] for _ in runs]
        for _ in range(WARM_UP_STEPS + steps):
            for own_times, (trained, data) in zip(took, runs, strict=True):
                batch = next(data)
                began = time.process_time()
                trained.step(batch)
                own_times.append(time.process_time() - began)
    print(json.dumps([times[WARM_UP_STEPS:] for times in took]), flush=True)


def opened(model: Model, folder: Path, kept: str) -> Training:
    paths, job = prepare(model, folder, job_of(model.plan, STEPS + 1, {"kept": kept}))
    start = checkpoints.latest(paths.checkpoints)
    assert start is not None
    return Training(model, start, alone(torch.device("cpu")), job, paths, NoPulse())


def resident() -> int:
    """Returns the bytes of this process that are in memory now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


HELD = (
    "share kept",
    "precision",
    "bytes a parameter",
    "predicted",
    "measured over predicted",
    "peak above start, MiB",
)
OF_HELD = (
    "Bytes are of all tensors that outlive a step.",
    "The peak is of the process, above what it held with the captured model alone.",
)


def held_row(size: str, case: Case) -> tuple[Cell, ...]:
    held = Held(*in_a_process(f"hold({size!r}, *{list(case)!r})"))
    over = held.bytes_each / held.predicted_each
    return case.share, _precision(case), held.bytes_each, held.predicted_each, over, held.peak / MIB


def held_table(size: str, cases: Sequence[Case], *notes: str) -> Table:
    """Returns what each case holds."""
    return Table(
        title=f"gpt2 {size}, AdamW, one rank: memory alone",
        columns=HELD,
        rows=[held_row(size, case) for case in cases],
        notes=(*OF_HELD, *notes),
    )


def trained_table(size: str, cases: Sequence[Case], steps: int, notes: tuple[str, ...] = ()) -> Table:
    """Returns what each case holds, and what its steps take over those of the first."""
    rows: list[tuple[Cell, ...]] = []
    for case in cases:
        beside = [list(each) for each in dict.fromkeys((cases[0], case))]
        took: list[list[float]] = in_a_process(f"time_steps({size!r}, {beside!r}, {steps})")
        times = took[-1]
        over = statistics.median(own / dense for own, dense in zip(times, took[0], strict=True))
        rows.append((*held_row(size, case), statistics.median(times), over))
    return Table(
        title=f"gpt2 {size}, AdamW, one rank",
        columns=(*HELD, "processor s a step", "over dense"),
        rows=rows,
        notes=(
            *OF_HELD,
            "Steps of a row and of the first row were taken in turn, in a process with these two trainings alone. Times "
            f"are medians of {steps}, and so is what they are over the dense step beside them.",
            *notes,
        ),
    )


class Beside(NamedTuple):
    """What a rank of two held, took and summed."""

    peak: int
    step_s: float
    cpu_s: float
    summed: int  # bytes of gradients that a rank gave to sums, a step


def peer_table(width: int) -> Table:
    """One perceptron on two ranks, a tenth of its weights: ours, torch's pruning with DDP, and DDP dense."""
    rows: list[tuple[Cell, ...]] = []
    for name, kind in (("DDP, dense", "dense"), ("torch.nn.utils.prune, DDP", "prune"), ("ours", "ours")):
        with tempfile.TemporaryDirectory() as folder:
            code = "import sys; from benchmarks import pruned; pruned.peer_rank(*sys.argv[1:])"
            if kind == "ours":
                _prepared(width, Path(folder))
            started = [
                subprocess.Popen(
                    [sys.executable, "-c", code, kind, str(width), str(rank), folder],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(RANKS)
            ]
            told = [process.communicate()[0] for process in started]
            if any(process.returncode for process in started):
                raise RuntimeError(f"a rank of '{name}' ended with an error")
        found = [Beside(*json.loads(out.splitlines()[-1])) for out in told]
        rows.append(
            (
                name,
                max(x.peak for x in found) / MIB,
                max(x.step_s for x in found),
                max(x.cpu_s for x in found),
                found[0].summed / MIB,
            )
        )
    return Table(
        title=f"A perceptron of eight layers, {width} wide, on {RANKS} ranks of this machine: a tenth of its weights",
        columns=("trainer", "peak above start, MiB", "s a step", "processor s a step", "MiB of a sum"),
        rows=rows,
        notes=(
            "torch's pruning holds weight, mask and product of both, and trains the pruned entries, too.",
        ),
    )


def _masks_of(shapes: Mapping[str, tuple[int, ...]]) -> Masks:
    draw = torch.Generator().manual_seed(0)
    return prune(Numbers(shapes, lambda name: torch.randn(shapes[name], generator=draw).numpy()), 0.1)


def _prepared(width: int, folder: Path) -> None:
    """Writes the run folder of our two ranks."""
    settings = {"width": str(width), "layers": "8"}
    workload = workloads.load("mlp", settings)
    captured = capture(workload, micro=16)
    plan = plan_for(
        captured.graph, "mlp", arguments=settings, family="1f1b", workers=1, data=RANKS, micros=1, micro=16
    )
    masks = _masks_of({row.name: tuple(row.shape) for row in captured.graph.trained if len(row.shape) > 1})
    dump(masks, folder / "kept.safetensors")
    kept = KeptWeights(share=0.1, digest=masks.digest, counts=masks.counts)
    plan = plan.model_copy(update={"kept": kept})
    model, job = Model(plan, workload, captured), {"kept": str(folder / "kept.safetensors")}
    prepare(model, folder / "run", job_of(plan, STEPS + 2, job))


def peer_rank(kind: str, width: str, rank: str, folder: str) -> None:
    """Trains a few steps as one of two ranks, and prints what that took."""
    torch.set_num_threads(1)
    found = (_ours if kind == "ours" else _theirs)(Path(folder), int(rank), int(width), kind)
    print(json.dumps(found), flush=True)


def _ours(folder: Path, rank: int, width: int, _: str) -> Beside:
    paths = Paths(folder / "run")
    job, plan = runfolder.read(paths), plans.load(paths.plan)
    model = Model.of(plan)
    start = resident()
    training = training_of(paths, job, model, rank)
    data = training.batches()
    found = _timed(start, lambda: training.step(next(data)))
    summed = sum(flat.grads.nbytes for flat in training.rank.flats)
    training.leave()
    training.world.close()
    return found._replace(summed=summed)


def _theirs(folder: Path, rank: int, width: int, kind: str) -> Beside:
    """DDP with AdamW, and with torch's pruning of all weights of two dims."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.nn.utils import prune as torchs

    workload = workloads.load("mlp", {"width": str(width), "layers": "8"})
    store = torch.distributed.FileStore(str(folder / "store"), RANKS)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    start = resident()
    module = workload.build()
    if kind == "prune":
        layers = [
            (f"{name}.weight", each) for name, each in module.named_modules() if hasattr(each, "weight")
        ]
        masks = _masks_of({name: tuple(each.weight.shape) for name, each in layers})
        for name, each in layers:
            mask = torch.zeros(each.weight.shape)
            mask.view(-1)[torch.from_numpy(masks.indices[name]).long()] = 1.0
            torchs.custom_from_mask(each, "weight", mask)
        del masks, mask
    model = DistributedDataParallel(module)
    optimizer, summed = workload.optimizer(list(model.named_parameters())), [0]

    def count(_: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        summed[0] += bucket.buffer().nbytes
        work = torch.distributed.all_reduce(bucket.buffer().div_(RANKS), async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0])

    count.__annotations__ = {
        "bucket": torch.distributed.GradBucket,
        "return": torch.futures.Future[torch.Tensor],
    }
    model.register_comm_hook(None, count)

    def step() -> None:
        optimizer.zero_grad()
        inputs, targets = workload.batch(16)
        workload.loss(model(inputs), targets).backward()
        optimizer.step()

    found = _timed(start, step)
    torch.distributed.destroy_process_group()
    return found._replace(summed=summed[0] // (STEPS + 1))


def _timed(start: int, step: Callable[[], object]) -> Beside:
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of what was before
    step()
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        step()
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return Beside(most_resident() - start, took / STEPS, cpu / STEPS, 0)


def digits_table(steps: int) -> Table:
    """What a network of digits knows: trained, then trained on with all of its weights, and with a fifth of them."""
    settings: dict[str, str] = {}
    workload = workloads.load(DIGITS, settings)
    captured = capture(workload, micro=32)
    plan = plan_for(captured.graph, DIGITS, arguments=settings, family="1f1b", workers=1, micros=2, micro=32)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        first = _learn(Model(plan, workload, captured), folder / "dense", steps)
        shapes = {row.name: tuple(row.shape) for row in captured.graph.trained if len(row.shape) > 1}
        masks = prune(Numbers(shapes, lambda name: first[name].numpy()), DIGITS_KEPT)
        dump(masks, folder / "kept.safetensors")
        kept = KeptWeights(share=DIGITS_KEPT, digest=masks.digest, counts=masks.counts)
        fewer = plan.model_copy(update={"kept": kept})
        on = {"weights": str(folder / "dense")}
        whole = _learn(Model(plan, workload, captured), folder / "on", steps, **on)
        less = {**on, "kept": str(folder / "kept.safetensors")}
        pruned = _learn(Model(fewer, workload, captured), folder / "pruned", steps, **less)
    known = [
        _accuracy(workload, first),
        _accuracy(workload, _masked(first, masks)),
        _accuracy(workload, whole),
        _accuracy(workload, pruned),
    ]
    names = (
        "trained",
        "the same, pruned and not trained",
        "trained on, whole",
        "trained on, pruned to a fifth",
    )
    return Table(
        title=f"Digits, {source()}: {steps} steps of 64, then {steps} more",
        columns=("network", "accuracy on 500 others, %", "points below trained on whole"),
        rows=[(name, found, known[2] - found) for name, found in zip(names, known, strict=True)],
    )


def _learn(model: Model, folder: Path, steps: int, **settings: str) -> dict[str, torch.Tensor]:
    paths, job = prepare(model, folder, job_of(model.plan, steps, dict(settings)))
    start = checkpoints.latest(paths.checkpoints)
    assert start is not None
    training = Training(model, start, alone(torch.device("cpu")), job, paths, NoPulse())
    data = training.batches()
    for _ in range(steps):
        training.step(next(data))
    training.save()
    training.flush()
    return {name: tensor.detach().clone() for name, tensor in training.rank.parameters.items()}


def _masked(tensors: Mapping[str, torch.Tensor], masks: Masks) -> dict[str, torch.Tensor]:
    return {
        name: x if name not in masks.indices else _only(x, masks.indices[name]) for name, x in tensors.items()
    }


def _only(tensor: torch.Tensor, index: NDArray[np.int32]) -> torch.Tensor:
    found, kept = torch.zeros_like(tensor), torch.from_numpy(index).long()
    found.view(-1)[kept] = tensor.reshape(-1)[kept]
    return found


def _accuracy(workload: Workload, tensors: Mapping[str, torch.Tensor]) -> float:
    module = workload.build()
    module.load_state_dict(dict(tensors))
    pictures, labels = judged()
    with torch.no_grad():
        return 100.0 * float((module(pictures).argmax(1) == labels).float().mean())


def _precision(case: Case) -> str:
    return case.precision if case.weights == "same" else f"{case.precision}, weights in bf16"


def _missed(small: Table) -> tuple[str, ...]:
    dense, tenth = small.rows[0], small.rows[len(SHARES) - 1]
    assert isinstance(dense[5], float) and isinstance(tenth[5], float)
    return (
        *above("The peak", [("a tenth", tenth[5] / dense[5])], AIM_PEAK, " of dense"),
        *above("A step", [("a tenth", tenth[7])], AIM_STEP, " of dense"),
    )


def run(quick: bool) -> Result:
    cases = [Case(share, "fp32") for share in SHARES]
    cases += [Case(1.0, "bf16"), *(Case(share, "bf16", "bf16") for share in HALVED)]
    said = (
        "Weights in bf16 are those that only products read; embeddings and a head tied to them stay in fp32."
    )
    small = trained_table("tiny" if quick else "91m", cases, 2 if quick else TIMED_STEPS, (said,))
    beside, learned = peer_table(512 if quick else 2048), digits_table(100 if quick else DIGITS_STEPS)
    tables = [small, beside, learned]
    if not quick:
        tables.append(held_table("small", [Case(1.0, "fp32"), Case(0.1, "fp32")], TIED))
    over = [(f"{row[0]}, {row[1]}", row[4]) for row in small.rows]
    return Result(
        name="pruned",
        claim="Aims: all tensors kept within 1 % of the prediction; of a tenth at most 0.45 of the dense "
        "peak, and 0.80 of the processor time of a step; digits within 1 point of those that are not pruned.",
        missed=(
            *above("Tensors over their prediction", over, 1.01),
            *below("Tensors over their prediction", over, 0.99),
            *(() if quick else _missed(small)),
            *(
                ()
                if quick
                else above(
                    "Accuracy below unpruned", [("digits", learned.rows[-1][-1])], AIM_POINTS, " points"
                )
            ),
        ),
        tables=tables,
    )


if __name__ == "__main__":
    main(run)
