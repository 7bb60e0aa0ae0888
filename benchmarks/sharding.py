"""Replicas that share gradients or parameters, beside torch's `fully_shard` and its sharded optimizer, in one run.

All contenders live in the same processes, over the same gloo world, and take turns: GPT-2 of four blocks, the same
weights, the same samples, AdamW. Wall clock and the process's own CPU clock are both kept, since ranks share cores.
The most memory of a step is measured in processes of their own, one set for each contender.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# Here and not where they are used: code is loaded before memory is counted, so that it is nobody's.
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import Cell, Result, Table, above, main
from planner.capture import Captured
from planner.plan import Plan
from planner.workload import Workload
from runtime.execute import Resident
from runtime.rank import Rank, RankOptions, assemble
from runtime.runfolder import LOSS
from runtime.sharding import SharedFlat
from runtime.sharding.flats import FlatUnit
from runtime.train import NoPulse
from runtime.world import World
from runtime.world import world as groups
from tests.captures import captured_of
from tests.runtime.plans import plan_for
from tests.runtime.sharding.wire import Counter

OURS = ("none", "state", "gradients", "parameters")
FSDP, KEPT, ZERO = "fully_shard", "fully_shard, not resharded", "DDP and ZeroRedundancyOptimizer"
ZEROED = "fully_shard, gradients set to zero"  # and not dropped before a forward: they stay, as ours do
PEERS = (FSDP, KEPT, ZEROED, ZERO)
MICRO, BLOCKS, WIDTH, VOCAB, POSITIONS = 4, 4, 256, 1024, 128
LEARNING_RATE = 1e-4
MIB = 2**20
STEP, PEAK, OPTIMIZER, EXPOSED = 0.9, 1.02, 0.1, 0.15  # aims
DEEP, NARROW = 12, 128  # of the model on a slow link: what no order hides is about one block of so many
SLEEP_S = 1e-7  # for each weight
WORKLOAD = """
import torch
from models.gpt2 import GPT2, Shape, loss

__all__ = ["batch", "build", "loss", "optimizer"]


def build(blocks: int = BLOCKS, width: int = WIDTH):
    torch.manual_seed(0)
    return GPT2(Shape(blocks, width, 8, POSITIONS, VOCAB), 0.0)


def batch(n):
    tokens = torch.randint(VOCAB, (n, POSITIONS + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def optimizer(named_parameters):
    return torch.optim.AdamW([p for _, p in named_parameters], lr=LEARNING_RATE, foreach=False)
"""
# Each layer sleeps for as long as it has weights, and twice as long backward: cores are left alone, however many there are.
SLOW = """
import time

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["batch", "build", "loss", "optimizer"]


@torch.library.custom_op("benchmarks::slow_line", mutates_args=())
def slow_line(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    time.sleep(SLEEP_S * weight.numel())
    return x @ weight.t()


@slow_line.register_fake
def _(x, weight):
    return x @ weight.t()


def setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, dy):
    x, weight = ctx.saved_tensors
    time.sleep(2 * SLEEP_S * weight.numel())
    return dy @ weight, dy.t() @ x


slow_line.register_autograd(backward, setup_context=setup)


class Line(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * 0.02)

    def forward(self, x):
        return slow_line(x, self.weight)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = Line(width, 3 * width), Line(3 * width, width)
        self.up, self.down = Line(width, 3 * width), Line(3 * width, width)

    def forward(self, x):
        x = x + self.out(torch.tanh(self.qkv(x)))
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self, blocks, width):
        super().__init__()
        self.first = Line(width, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = Line(width, 10)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(blocks: int = 4, width: int = NARROW):
    torch.manual_seed(0)
    return Model(blocks, width)


def batch(n, width: int = NARROW):
    return torch.randn(n, width), torch.randint(10, (n,))


def loss(outputs, targets):
    return F.cross_entropy(outputs, targets)


def optimizer(named_parameters):
    return torch.optim.AdamW([p for _, p in named_parameters], lr=LEARNING_RATE, foreach=False)
"""
SETTINGS = ("BLOCKS", "WIDTH", "POSITIONS", "VOCAB", "LEARNING_RATE", "NARROW", "SLEEP_S")


class Weights:
    """The weights that all contenders begin with."""

    def __init__(self, model: nn.Module) -> None:
        self._known = {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def parameters(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        return {name: self._known[name].clone() for name in names}

    def region(self, name: str, start: int, stop: int) -> Tensor:
        return self._known[name].reshape(-1)[start:stop].clone()


class Contender:
    """One way to train: a step, and what its optimizer took of it."""

    def __init__(self, step: Callable[[], float], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.step, self.updated_s = step, 0.0
        for optimizer in optimizers:
            optimizer.step = partial(self._timed, optimizer.step)  # type: ignore[method-assign]

    def _timed(self, step: Callable[..., object], *given: Any) -> None:
        start = time.thread_time()
        step(*given)
        self.updated_s += time.thread_time() - start


def plan_of(file: str, captured: Captured, sharing: str, ranks: int) -> Plan:
    return plan_for(
        captured.graph,
        file,
        family="1f1b",
        workers=1,
        micros=1,
        micro=MICRO,
        data=ranks,
        sharing="" if sharing == "none" else sharing,
    )


def rank_of(
    file: str, workload: Workload, captured: Captured, sharing: str, world: World, weights: Weights
) -> Rank:
    return assemble(
        plan_of(file, captured, sharing, world.size),
        captured,
        world,
        make_optimizer=workload.optimizer,
        lr_schedule=workload.lr_schedule,
        load=weights,
        options=RankOptions(),
        pulse=NoPulse(),
    )


def ours(rank: Rank, values: Mapping[str, Tensor]) -> Contender:
    def step() -> float:
        found = rank.step(0, {0: values})
        rank.updater.settle()
        return next(iter(found.values()))[LOSS]

    return Contender(step, list(rank.updater.optimizers.values()))


def peer(name: str, model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor]) -> Contender:
    settings: dict[str, Any] = {"lr": LEARNING_RATE, "foreach": False}
    optimizer: torch.optim.Optimizer
    if name == ZERO:
        trained: nn.Module = DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = ZeroRedundancyOptimizer(trained.parameters(), torch.optim.AdamW, **settings)
    else:
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh, reshard_after_forward=name != KEPT)  # type: ignore[arg-type]
        fully_shard(model, mesh=mesh, reshard_after_forward=name != KEPT)
        trained, optimizer = model, torch.optim.AdamW(model.parameters(), **settings)
    inputs, targets = batch

    def step() -> float:
        optimizer.zero_grad(set_to_none=name != ZEROED)
        found = loss(trained(inputs), targets)
        found.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(found.detach())

    return Contender(step, [optimizer])


def made(name: str, file: str, world: World) -> Contender:
    """Makes a contender; all ranks make it at the same time."""
    workload, captured = captured_of(file, {}, MICRO)
    torch.manual_seed(7 + world.rank)
    batch = workload.batch(MICRO)
    model = workload.build()
    if name in OURS:
        rank = rank_of(file, workload, captured, name, world, Weights(model))
        return ours(rank, captured.batch_values(*batch))
    return peer(name, model, workload.loss, batch)


def timed(file: str, world: World, rounds: int, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns the figures of one rank, all contenders in turn."""
    every = {name: made(name, file, world) for name in names}
    losses = {name: [each.step() for _ in range(2)] for name, each in every.items()}
    first = losses[names[0]]
    for name, found in losses.items():
        assert all(abs(a - b) < 1e-4 for a, b in zip(first, found, strict=True)), (name, first, found)
    sent = {}
    for name, each in every.items():
        with (counter := Counter())():
            each.step()
        sent[name] = counter.bytes
    walls: dict[str, list[float]] = {name: [] for name in names}
    cpus: dict[str, list[float]] = {name: [] for name in names}
    updates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = list(every.items())
        for name, each in turn[number % len(turn) :] + turn[: number % len(turn)]:
            world.barrier()
            each.updated_s, wall, cpu = 0.0, time.perf_counter(), time.process_time()
            each.step()
            walls[name].append(time.perf_counter() - wall)
            cpus[name].append(time.process_time() - cpu)
            updates[name].append(each.updated_s)
    return {
        name: {
            "wall": statistics.median(walls[name]),
            "least": min(walls[name]),
            "cpu": statistics.median(cpus[name]),
            "update": statistics.median(updates[name]),
            "sent": sent[name],
        }
        for name in names
    }


def peak(file: str, world: World, name: str) -> dict[str, float]:
    """Returns what a rank's process holds more in a step than before it had a model."""
    captured_of(file, {}, MICRO)
    gc.collect()
    trim = ctypes.CDLL("libc.so.6").malloc_trim
    trim(0)
    base = Resident().base_bytes
    contender = made(name, file, world)
    for _ in range(3):
        contender.step()
    gc.collect()
    trim(0)
    held = Resident()
    contender.step()
    return {"peak": held.most_bytes - base, "kept": held.base_bytes - base}


def slowed(file: str, world: World, rounds: int, name: str, blocks: int) -> dict[str, float]:
    """Returns a step with every gather and sum on a link that takes its time, beside one on a link that takes none.

    Layers sleep, and so does the link: it takes for all that is sent as long as the layers do for a step.
    """
    workload, captured = captured_of(file, {"blocks": str(blocks)}, MICRO)
    batch = captured.batch_values(*workload.batch(MICRO))
    rank = rank_of(file, workload, captured, name, world, Weights(workload.build()))
    flats = [flat for flat in rank.flats if isinstance(flat, SharedFlat)]
    assert len({id(flat.wires) for flat in flats}) == 1
    contender, link = ours(rank, batch), Link(flats[0])
    for _ in range(2):
        link.sent = 0.0
        contender.step()
    elements = sum(unit.part for flat in flats for unit in flat.units) * world.size
    layers_s = 3 * SLEEP_S * elements  # a forward, and twice as much backward
    pace, walls = layers_s / link.sent, dict[bool, list[float]]()
    for turn in range(2 * rounds):
        link.pace = pace if turn % 2 else 0.0
        world.barrier()
        began = time.perf_counter()
        contender.step()
        walls.setdefault(bool(turn % 2), []).append(time.perf_counter() - began)
    plain, slow = (statistics.median(walls[each]) for each in (False, True))
    sizes = sorted(unit.part for flat in flats for unit in flat.units)
    alone = [size for size in sizes if size < sizes[-1]]  # before the first block and behind the last one
    first = (sizes[-1] + sum(alone)) / sum(sizes)
    return {
        "plain": plain,
        "slow": slow,
        "link": layers_s,
        "exposed": (slow - plain) / layers_s,
        # A gather of each before a forward and a backward begin, and the last sums; or those, and all that is handed round.
        "least": first if name == "parameters" else (first + 1) / 2,
    }


class Link:
    """A link that sleeps while something is on it, in the place of the wire of one rank's flats."""

    def __init__(self, flat: SharedFlat) -> None:
        self.pace, self.sent, self._flat = 0.0, 0.0, flat
        self._launch = flat.wires.launch
        flat.wires.launch = self.launch  # type: ignore[method-assign]

    def launch(self, group: Any, run: Callable[[], object]) -> Any:
        def work() -> None:
            run()
            self.sent += size
            time.sleep(size * self.pace)

        size = _elements(run)
        return self._launch(group, work)


def _elements(run: Any) -> int:
    """Returns the elements of the whole buffer of a gather or a sum."""
    first = run.args[0]
    if isinstance(first, FlatUnit):
        flat: SharedFlat = run.func.__self__
        return first.part * len(flat.ranks)
    found: int = first.numel()
    return found


def work(what: str, folder: str, rank: int, ranks: int, given: str) -> None:
    """What a rank's process does."""
    torch.set_num_threads(1)
    world = groups.join(Path(folder) / f"meet-{what}", rank, ranks, torch.device("cpu"))
    found = {"timed": timed, "peak": peak, "slowed": slowed}[what](
        str(Path(folder) / ("slow.py" if what == "slowed" else "gpt2.py")), world, **json.loads(given)
    )  # type: ignore[operator]
    (Path(folder) / f"found-{rank}.json").write_text(json.dumps(found))
    world.barrier()
    sys.stdout.flush()
    os._exit(0)


def ran(what: str, ranks: int, **given: object) -> list[Any]:
    """Returns what each rank has found."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("gpt2.py", WORKLOAD), ("slow.py", SLOW)):
            for setting in SETTINGS:
                text = text.replace(setting, str(globals()[setting]))
            (Path(folder) / name).write_text(text)
        code = "import sys; from benchmarks.sharding import work; work(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])"
        quiet = {"OMP_NUM_THREADS": "1"}
        if what == "peak":  # what is freed goes back to the machine at once, which takes time
            quiet |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, what, folder, str(rank), str(ranks), json.dumps(given)],
                env={**os.environ, **quiet},
                stdout=subprocess.DEVNULL,
            )
            for rank in range(ranks)
        ]
        if any(process.wait() for process in processes):
            raise RuntimeError(f"a rank of '{what}' failed")
        return [json.loads((Path(folder) / f"found-{rank}.json").read_text()) for rank in range(ranks)]


def steps(ranks: int, rounds: int, names: Sequence[str]) -> list[tuple[Cell, ...]]:
    """Returns a row for each contender: the slowest rank's times, the largest peak, the bytes of all ranks."""
    found = ran("timed", ranks, rounds=rounds, names=list(names))
    most = {name: max(each["peak"] for each in ran("peak", ranks, name=name)) for name in names}
    base = {key: max(each[FSDP][key] for each in found) for key in ("wall", "cpu")}
    rows: list[tuple[Cell, ...]] = []
    for name in names:
        wall, cpu, update = (max(each[name][key] for each in found) for key in ("wall", "cpu", "update"))
        sent = sum(each[name]["sent"] for each in found) / ranks / MIB
        rows.append(
            (
                ranks,
                name if name in PEERS else f"ours, {name}",
                wall * 1e3,
                wall / base["wall"],
                cpu * 1e3,
                cpu / base["cpu"],
                most[name] / MIB,
                most[name] / most[FSDP],
                update * 1e3,
                None if name == ZERO else sent,
            )
        )
    return rows


def run(quick: bool) -> Result:
    names = ("none", "parameters", FSDP) if quick else (*OURS, *PEERS)
    rows = [row for ranks in ((2,) if quick else (2, 4)) for row in steps(ranks, 3 if quick else 15, names)]
    links: list[tuple[Cell, ...]] = []
    for name, blocks in product(("parameters",) if quick else ("gradients", "parameters"), (BLOCKS, DEEP)):
        found = ran("slowed", 2, rounds=3 if quick else 8, name=name, blocks=blocks)
        links.append(
            (
                name,
                blocks,
                *(max(each[key] for each in found) * 1e3 for key in ("plain", "slow", "link")),
                max(each["exposed"] for each in found),
                found[0]["least"],
            )
        )
    return Result(
        name="sharding",
        claim="Replicas that share parameters take at most 0.9 of the step of `fully_shard`, at most 1.02 of its "
        "memory, and an optimizer step of 1/s and a tenth; at most 15 % of what a slow link takes is waited for.",
        missed=missed(rows, links),
        tables=[
            Table(
                title=f"GPT-2 of {BLOCKS} blocks of width {WIDTH}, {MICRO} samples of {POSITIONS} tokens a rank",
                columns=(
                    "ranks",
                    "how",
                    "step ms",
                    "of fully_shard",
                    "CPU ms",
                    "of fully_shard",
                    "peak MiB",
                    "of fully_shard",
                    "optimizer CPU ms",
                    "sent MiB a rank",
                ),
                rows=rows,
                notes=(
                    "Times are medians over rounds in which all take turns, of the slowest rank. Peak is what a rank's "
                    "process holds in a step beyond what it held before it had a model; all code is loaded by then.",
                    "Ours keeps the part of the gradients that a rank updates in one buffer from step to step, where "
                    "`fully_shard` drops it before the forward; beside its row with gradients set to zero, which keeps "
                    "them, too, what is left is mostly a unit that is gathered ahead of its use.",
                    "Sent is counted at the communicators, each sum by its ideal algorithm; DDP sums where nobody can count.",
                    "torch sums gradients in any order; here each element is added up in the order of ranks.",
                ),
            ),
            Table(
                title="Two ranks on a link that takes as long for what is sent as the layers take for a step",
                columns=(
                    "shared",
                    "blocks",
                    "no link ms",
                    "link ms",
                    "the link takes ms",
                    "exposed of it",
                    "in any order",
                ),
                rows=links,
                notes=(
                    "Layers and link sleep, so that they take no core; a layer backward takes as long as two forward. "
                    "Times are medians of rounds in turn.",
                    "In any order: a forward and a backward begin with a gather of the first block and of what lies before "
                    "it, and a step ends with such a sum. So much hides behind nothing. Of `gradients` that is the last sum, "
                    "and all that is handed round after an update.",
                    "Of four blocks each is more than a fifth of the model, so that no order meets the aim.",
                ),
            ),
        ],
    )


def missed(rows: Sequence[tuple[Cell, ...]], links: Sequence[tuple[Cell, ...]]) -> tuple[str, ...]:
    """Returns the aims that were not met."""
    shared = [row for row in rows if row[1] == "ours, parameters"]
    whole = {row[0]: float(row[8] or 0) for row in rows if row[1] == "ours, none"}
    updates = [
        (f"{row[0]} ranks", float(row[8] or 0) / whole[row[0]] - 1 / float(row[0] or 1)) for row in shared
    ]
    return (
        *above("A step over that of fully_shard", ((f"{row[0]} ranks", row[3]) for row in shared), STEP),
        *above("The peak over that of fully_shard", ((f"{row[0]} ranks", row[7]) for row in shared), PEAK),
        *above("An optimizer step over 1/s of the whole one", updates, OPTIMIZER),
        *above(
            "What is waited for of a slow link",
            ((f"{row[0]}, {row[1]} blocks", row[5]) for row in links),
            EXPOSED,
        ),
        *beyond_any(links),
    )


def beyond_any(links: Sequence[tuple[Cell, ...]]) -> tuple[str, ...]:
    """Returns of which rows no order of work could have met the aim, and why."""
    rows = [row for row in links if float(row[6] or 0) > EXPOSED]
    told = ", ".join(f"{row[0]} of {row[1]} blocks ({row[5]:.3g}, of which {row[6]:.3g})" for row in rows)
    return (f"Of a slow link something hides behind nothing, in any order: {told}.",) if rows else ()


if __name__ == "__main__":
    main(run)
