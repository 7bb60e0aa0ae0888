"""What the runtime costs beside the work itself: host time an action, one rank against a plain loop, gradient sums."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.harness import Cell, Result, Table, above, main
from planner.capture import capture
from planner.capture.stage_modules import whole
from planner.plan import (
    Axes,
    Batch,
    Memory,
    ModelRef,
    Place,
    Plan,
    Prediction,
    Provenance,
    ScheduleChoice,
    StagePlan,
    StageTimes,
)
from planner.program import lower
from planner.schedule import generate
from planner.workload import load
from runtime import checkpoint as checkpoints
from runtime.execute import Interpreter, Tracer
from runtime.local import supervise
from runtime.messages import Routes
from runtime.runfolder import Paths
from runtime.train import Model, NoPulse, job_of, prepare
from runtime.train.training import Training
from runtime.world import alone
from runtime.world import world as groups

MICROS = 8
AIM_ACTION_US, AIM_LOOP, AIM_SUM_MS = 30, 1.03, 9


class Idle:
    """Stages, messages and updates that do nothing: what is left is the interpreter."""

    def forward(self, micro: int, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {}

    def backward(self, micro: int, grads: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {}

    input_half = backward

    def weight_half(self, micro: int) -> None: ...
    def recompute(self, micro: int) -> None: ...
    def launch(self, pipe: int, stage: int) -> None: ...
    def wait(self, pipe: int, stage: int) -> None: ...
    def step(self, pipe: int, stage: int) -> None: ...
    def beat(self, waiting: bool) -> None: ...


def interpreter_table(rounds: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for family in ("1f1b", "zb-h1", "chimera"):
        schedule = generate(family, workers=1 if family != "chimera" else 2, micros=64)
        times = [StageTimes(forward_ns=1, backward_ns=2, input_grad_ns=1, weight_grad_ns=1)] * schedule.stages
        idle = Idle()
        interpreter = Interpreter(
            lower(schedule, [], times),
            0,
            stages={
                (p, s): idle for p, row in enumerate(schedule.place) for s, w in enumerate(row) if w == 0
            },
            routes=Routes({}, {}),
            carrier=idle,  # type: ignore[arg-type]
            updates=idle,
            feed=lambda stage, micro: {},
            pulse=idle,
            tracer=Tracer(0),
        )
        actions, took = len(schedule.orders[0]), []
        for _ in range(rounds):
            start = time.process_time()
            interpreter.run(1)
            took.append((time.process_time() - start) / actions)
        rows.append((family, actions, 1e6 * statistics.median(took)))
    return Table(
        title="The interpreter alone", columns=("schedule", "actions", "microseconds an action"), rows=rows
    )


def plain_loop(
    model: Model, tensors: dict[str, Tensor], batches: list[dict[str, Tensor]]
) -> Callable[[], None]:
    module = whole(model.captured)
    module.materialise(tensors)
    optimizer = model.workload.optimizer(list(module.named_parameters()))

    def step() -> None:
        optimizer.zero_grad()
        for values in batches:
            (module(values)["loss:0"] / len(batches)).backward()
        optimizer.step()

    return step


def single_rank_table(rounds: int) -> Table:
    """Thread CPU time, which other jobs on the machine do not stretch."""
    rows: list[tuple[Cell, ...]] = []
    for name, arguments in (("gpt2", {"size": "tiny"}), ("unet3d", {"size": "tiny"})):
        with tempfile.TemporaryDirectory() as folder:
            model = single_model(name, arguments)
            plan = model.plan
            paths, job = prepare(model, Path(folder), job_of(plan, 1, {}))
            start = checkpoints.latest(paths.checkpoints)
            assert start is not None
            training = Training(model, start, alone(torch.device("cpu")), job, paths, NoPulse())
            batch = next(training.batches())
            plain = plain_loop(
                model,
                start.parameters([*training.rank.parameters, *training.rank.buffers]),
                [dict(batch[m]) for m in sorted(batch)],
            )
            ours, theirs = [], []
            for _ in range(rounds):
                for took, run in ((ours, partial(training.step, batch)), (theirs, plain)):
                    begin = time.thread_time()
                    run()
                    took.append(1e3 * (time.thread_time() - begin))
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        rows.append((name, statistics.median(ours), statistics.median(theirs), ratio))
    return Table(
        title=f"One rank against a plain loop over the captured graph, {MICROS} micro-batches of 2",
        columns=("model", "ours ms CPU", "loop ms CPU", "ratio, paired"),
        rows=rows,
    )


def single_model(name: str, arguments: Mapping[str, str]) -> Model:
    workload = load(name, arguments)
    captured = capture(workload)
    memory = Memory(parameters=0, gradients=0, optimizer=0, activations=0, buffers=0, margin=0, limit=0)
    schedule = generate("1f1b", workers=1, micros=MICROS)
    plan = Plan(
        model=ModelRef(workload=name, arguments=dict(arguments), fingerprint=captured.graph.fingerprint),
        batch=Batch(samples=2 * MICROS, micro=2, micros=MICROS),
        axes=Axes(data=1, pipeline=1, spatial=1),
        schedule=ScheduleChoice(
            family="1f1b",
            pairs=1,
            chunks=1,
            place=schedule.place,
            pipe_of=schedule.pipe_of,
            orders=tuple(schedule.to_text().splitlines()),
        ),
        stages=(StagePlan(layers=tuple(layer.name for layer in captured.graph.layers), spatial=()),),
        places=(Place(rank=0, node=0, slot=0, data=0, pipeline=0, spatial=0),),
        times=(StageTimes(forward_ns=1, backward_ns=2, input_grad_ns=1, weight_grad_ns=1),),
        hops=(),
        prediction=Prediction(step_ns=1, low_ns=1, high_ns=1, memory=(memory,)),
        provenance=Provenance(profile="none", cluster="none"),
    )
    return Model(plan, workload, captured)


class Wide(nn.Module):
    """12.6 MB of parameters in layers as small as a transformer's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(48))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def sum_rank(paths: Paths, rounds: int, rank: int) -> None:
    torch.set_num_threads(1)
    world = groups.join(paths.rendezvous(0), rank, 2, torch.device("cpu"))
    module = Wide()
    flat = torch.zeros(sum(p.numel() for p in module.parameters()))
    wrapped, x = nn.parallel.DistributedDataParallel(module), torch.randn(8, 256)

    def synced() -> None:
        wrapped(x).sum().backward()

    def unsynced() -> None:
        with wrapped.no_sync():
            wrapped(x).sum().backward()

    def flat_sum() -> None:
        dist.all_reduce(flat)

    took: dict[str, list[float]] = {"flat": [], "ddp": [], "alone": []}
    for number in range(rounds + 2):
        for name, run in (("flat", flat_sum), ("ddp", synced), ("alone", unsynced)):
            world.barrier()
            start = time.perf_counter()
            run()
            if number >= 2:
                took[name].append(1e3 * (time.perf_counter() - start))
    paths.rank_metrics(rank).write_text(json.dumps(took))
    world.barrier()
    world.close()


def sum_table(rounds: int) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        paths = Paths(Path(folder)).make()
        outcome = supervise(paths, 2, 120.0, partial(sum_rank, paths, rounds))
        if outcome.state != "done":
            raise RuntimeError(outcome.cause)
        took = json.loads(paths.rank_metrics(0).read_text())
    extra = [a - b for a, b in zip(took["ddp"], took["alone"], strict=True)]
    rows: list[tuple[Cell, ...]] = [
        ("one flat buffer, as ours", statistics.median(took["flat"]), min(took["flat"])),
        ("DistributedDataParallel, over no synchronisation", statistics.median(extra), min(extra)),
    ]
    return Table(
        title="Sum of 12.6 MB of gradients, two ranks, gloo",
        columns=("how", "median ms", "least ms"),
        rows=rows,
    )


Rows = Sequence[tuple[Cell, ...]]


def missed(actions: Rows, loops: Rows, sums: Rows) -> tuple[str, ...]:
    """Returns what was missed of the three aims, from the rows of the three tables."""
    return (
        *above("The host time of an action", ((str(r[0]), r[2]) for r in actions), AIM_ACTION_US, " µs"),
        *above("One rank over a plain loop", ((str(r[0]), r[3]) for r in loops), AIM_LOOP),
        *above("The sum of 12.6 MB in one flat buffer", [("", sums[0][1])], AIM_SUM_MS, " ms"),
    )


def run(quick: bool) -> Result:
    rounds = 5 if quick else 25
    sums = sum_table(rounds)  # first: the ranks are forked from a process that has run nothing
    torch.set_num_threads(1)
    actions, loops = interpreter_table(4 * rounds), single_rank_table(rounds)
    return Result(
        name="runtime_costs",
        claim="At most 30 microseconds of host time an action; one rank within 3 % of a plain loop; 12.6 MB in 9 ms.",
        missed=missed(actions.rows, loops.rows, sums.rows),
        tables=[actions, loops, sums],
    )


if __name__ == "__main__":
    main(run)
