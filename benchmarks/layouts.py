"""Tensors in parts: memory predicted beside memory held, and a transformer block beside torch's own tensor parallelism.

A block with its heads and columns in two parts, and with its norms by sequence besides, is trained by two processes over
gloo. Our stages and `parallelize_module` take turns in one run. Both start from the same weights and must agree.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from operator import truediv
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.harness import Cell, Result, Table, above, main
from planner.capture import capture, cut, materialise
from planner.layout import Wish
from planner.workload import load
from runtime.draws import Draw, Keys
from runtime.layout import Convert, CutGroup
from runtime.layout.stage import cut_stage, local_graph
from runtime.spatial import GroupWire
from runtime.spatial.ranks import Silence
from tests.runtime.layout.test_memory import CASES, LEAST, MOST, planned
from tests.runtime.layout.training import alone, together
from tests.runtime.test_memory_model import ratios

WIDTHS = {256: 0.7, 512: 0.8, 1024: 0.95}  # and the most that our step may take of theirs
RANKS, SAMPLES, TOKENS, HEAD = 2, 2, 128, 32
ROUNDS, QUICK_ROUNDS = 15, 4
HEADS = (("attention", "heads"), ("feedforward", "hidden"))
SEQUENCE = (*HEADS, ("norm1", "sequence"), ("norm2", "sequence"))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each(x).view(x.shape[0], x.shape[1], -1, HEAD).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o(made.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(nn.functional.gelu(self.up(x)))
        return out


class Block(nn.Module):
    """A transformer block with queries, keys and values apart, which is what torch's plans cut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.feedforward = Attention(width), FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feedforward(self.norm2(x))
        return out


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets)


class Took(NamedTuple):
    """What one step takes in both ways, and what torch's parallelism sends unasked."""

    ours: float  # seconds on the wall, median of all rounds
    theirs: float
    ratio: float  # ours over theirs, median of all rounds
    least: float  # our least over theirs
    processor: float  # of processor time, ours over theirs, median of all rounds
    apart: float  # losses
    collectives: int  # of theirs, in a step
    our_collectives: int


def _ours(
    width: int, lines: tuple[tuple[str, str], ...], group: dist.ProcessGroup
) -> tuple[Callable[[], float], int]:
    x, target = _given(width)
    module = _module(width)
    captured = capture(module, lambda n: _given(width, n), loss, micro=SAMPLES)
    graph = local_graph(captured, (RANKS,), [Wish(*line[:1], 0, line[1]) for line in lines])
    (stage,) = cut(captured, ())
    materialise(stage, {name: each.detach().clone() for name, each in captured.initial(module).items()})
    cut_stage(stage, graph, CutGroup((RANKS,), GroupWire(group)))
    batch = captured.batch_values(x, target)

    def step() -> float:
        stage.zero_grad()
        found = list(stage(batch).values())[-1]
        found.backward()
        return float(found.detach())

    counted = [step for x in graph.conversions() for p in x.steps for step in (p.forward, p.backward)]
    moved = sum(what in ("gather", "scatter", "reduce", "exchange") for what in counted)
    return step, moved


def _theirs(width: int, lines: tuple[tuple[str, str], ...]) -> tuple[Callable[[], float], int]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    x, target = _given(width)
    module, mesh = _module(width), init_device_mesh("cpu", (RANKS,))
    by_sequence = len(lines) > len(HEADS)
    plan: dict[str, object] = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan |= {"feedforward.up": ColwiseParallel()}
    if by_sequence:
        gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        plan |= {"attention": gathered, "feedforward": gathered}
        plan |= {
            name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.o", "feedforward.down")
        }
        x, target = (each.chunk(RANKS, 1)[dist.get_rank()].contiguous() for each in (x, target))
    else:
        plan |= {name: RowwiseParallel() for name in ("attention.o", "feedforward.down")}
    parallel = parallelize_module(module, mesh, plan)  # type: ignore[arg-type]

    def step() -> float:
        parallel.zero_grad()
        found = loss(parallel(x), target)
        found.backward()  # type: ignore[no-untyped-call]
        return float(found.detach())

    with CommDebugMode() as counted:
        step()
    return step, counted.get_total_counts()


def _given(width: int, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x, target = torch.randn(2, samples, TOKENS, width, generator=draw)
    return x, target


def _module(width: int) -> Block:
    torch.manual_seed(0)
    return Block(width)


def rank_of(rank: int, folder: str, width: int, lines: tuple[tuple[str, str], ...], rounds: int) -> None:
    """Runs one rank: both steps in turns; the first one writes what they took."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    (ours, moved), (theirs, collectives) = _ours(width, lines, dist.new_group()), _theirs(width, lines)
    took: dict[Callable[[], float], list[tuple[float, float]]] = {ours: [], theirs: []}
    for turn in range(rounds + 1):
        for step in (ours, theirs) if turn % 2 else (theirs, ours):
            dist.barrier()
            wall, processor = time.perf_counter(), time.process_time()
            step()
            took[step].append((time.perf_counter() - wall, time.process_time() - processor))
    walls, processors = ([[each[i] for each in took[step][1:]] for step in (ours, theirs)] for i in (0, 1))
    sums = torch.tensor(theirs()) if len(lines) > len(HEADS) else None
    if sums is not None:
        dist.all_reduce(sums)
    apart = abs(ours() - (theirs() if sums is None else float(sums) / RANKS))
    if rank == 0:
        found = Took(
            *map(median, walls),
            median(map(truediv, *walls)),
            min(walls[0]) / min(walls[1]),
            median(map(truediv, *processors)),
            apart,
            collectives,
            moved,
        )
        (Path(folder) / "took.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measured(width: int, lines: tuple[tuple[str, str], ...], rounds: int) -> Took:
    """Returns what a step of a block takes in both ways.

    Args: `lines` are modules with their factor.
    """
    with tempfile.TemporaryDirectory() as folder:
        start = multiprocessing.get_context("spawn")
        ranks = [start.Process(target=rank_of, args=(r, folder, width, lines, rounds)) for r in range(RANKS)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        assert not any(each.exitcode for each in ranks), [each.exitcode for each in ranks]
        return Took(*json.loads((Path(folder) / "took.json").read_text()))


def blocks(quick: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    rounds = QUICK_ROUNDS if quick else 4 * ROUNDS
    for width in list(WIDTHS)[: 1 if quick else None]:
        for name, lines in (("heads", HEADS), ("heads and sequence", SEQUENCE)):
            found = measured(width, lines, rounds)
            assert found.apart < 1e-4, found
            rows.append(
                (
                    width,
                    name,
                    found.ours * 1e3,
                    found.theirs * 1e3,
                    found.ratio,
                    found.least,
                    found.processor,
                    found.our_collectives,
                    found.collectives,
                    WIDTHS[width],
                )
            )
    return Table(
        title=f"forward and backward of a block by {RANKS} processes, {SAMPLES} x {TOKENS} tokens",
        columns=(
            "width",
            "cut",
            "ours, ms",
            "parallelize_module, ms",
            "ratio",
            "ratio of least",
            "ratio of processor time",
            "our collectives",
            "theirs",
            "aim",
        ),
        rows=rows,
        notes=(
            f"Medians of {rounds} rounds, in which the two take turns to be first; the ratio is the median of the rounds' own. "
            "Their collectives are those that CommDebugMode counts, ours those of our conversions: nothing else is sent.",
            "torch's context_parallel is not beside ours: its attention has no rule for processors in torch 2.13.",
        ),
    )


def memory(quick: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, case in list(CASES.items())[: 2 if quick else None]:
        found = ratios(planned(case))
        rows.append((name, min(found), max(found)))
    return Table(
        title="peak of ranks over their prediction",
        columns=("plan", "least", "most"),
        rows=rows,
        notes=("Each rank is rehearsed alone. The fullest one tells how near a prediction is.",),
    )


SIMULATED, MOST_SIMULATED_S = 8, 2.0  # ranks of GPT-2 (tiny) in one process, and what a step of them may take
MOST_OVERHEAD = 1.05  # processor time of a step with conversions over the same operations without
BY_SEQUENCE = (
    ("token", "sequence"),
    ("blocks.*", "sequence"),
    ("norm", "sequence"),
    ("blocks.*.attention", "dim2"),
    ("blocks.*.feedforward", "hidden"),
)
DROPPED = {"tiny": (2, 64, 64), "width 256": (4, 128, 256), "width 768": (4, 1024, 768)}


def simulated(quick: bool) -> Table:
    """Returns how long a step of all ranks of a group takes as threads of one process, beside one rank."""
    workload = load("gpt2", {"size": "tiny", "dropout": "0"})
    module = workload.build()
    captured = capture(workload, micro=SAMPLES)
    tensors = {name: x.detach().clone() for name, x in captured.initial(module).items()}
    batches, wishes = (
        [captured.batch_values(*workload.batch(SAMPLES))],
        [Wish(x, 0, of) for x, of in BY_SEQUENCE],
    )
    took = []
    for _ in range(2 if quick else 5):
        begun = time.perf_counter()
        found, _ = together(captured, tensors, batches, (SIMULATED,), wishes)
        took.append(time.perf_counter() - begun)
    apart = abs(found[0].losses[0] - alone(captured, tensors, batches).losses[0])
    return Table(
        title="a step of GPT-2 (tiny) by 8 ranks in one process, sequence and columns cut",
        columns=("ranks", "seconds", "losses apart", "aim, seconds"),
        rows=[(SIMULATED, min(took), apart, MOST_SIMULATED_S)],
        notes=("The time has the layouts, the rewriting of eight graphs, forward, backward and update.",),
    )


def _passed(x: Tensor) -> Tensor:
    return x


def overhead(quick: bool) -> Table:
    """Returns the processor time of a step with conversions whose messages go nowhere, over one without them."""
    rows: list[tuple[Cell, ...]] = []
    for width in list(WIDTHS)[: 1 if quick else None]:
        x, target = _given(width)
        module = _module(width)
        captured = capture(module, lambda n, w=width: _given(w, n), loss, micro=SAMPLES)  # type: ignore[misc]
        graph = local_graph(captured, (RANKS,), [Wish(layers, 0, factor) for layers, factor in HEADS])
        batch, stages = captured.batch_values(x, target), []
        for plain in (False, True):
            (stage,) = cut(captured, ())
            materialise(
                stage, {name: each.detach().clone() for name, each in captured.initial(module).items()}
            )
            cut_stage(stage, graph, CutGroup((RANKS,), Silence(0, RANKS)))
            for name, held in list(vars(stage._run).items()) if plain else ():
                if isinstance(held, Convert):
                    setattr(stage._run, name, _passed)
            stages.append(stage)
        best = [float("inf")] * 2
        for _ in range(QUICK_ROUNDS if quick else 3 * ROUNDS):
            for i, stage in enumerate(stages):
                stage.zero_grad()
                begun = time.process_time()
                list(stage(batch).values())[-1].backward()
                best[i] = min(best[i], time.process_time() - begun)
        rows.append((width, best[0] * 1e3, best[1] * 1e3, best[0] / best[1], MOST_OVERHEAD))
    return Table(
        title="processor time of a block's step on one of two ranks, conversions whose messages go nowhere",
        columns=("width", "with conversions, ms", "without, ms", "ratio", "aim"),
        rows=rows,
    )


def dropouts(quick: bool) -> Table:
    """Returns how long a dropout takes that draws by sample, beside torch's own under a key."""
    rows: list[tuple[Cell, ...]] = []
    keys = Keys(0, torch.device("cpu"))
    draw = Draw(keys, 1, torch.ops.aten.dropout.default, 0, 1)
    for name, shape in DROPPED.items():
        x = torch.randn(shape)
        times = max(1, (200_000 if quick else 3_000_000) // x.numel())

        def torchs(x: Tensor = x) -> None:
            keys.reseed(1, "0")
            torch.dropout(x, 0.1, True)

        def ours(x: Tensor = x) -> None:
            draw(x, 0.1, True)

        best = [float("inf")] * 2
        for _ in range(QUICK_ROUNDS if quick else ROUNDS):
            for i, step in enumerate((torchs, ours)):
                begun = time.perf_counter()
                for _ in range(times):
                    step()
                best[i] = min(best[i], (time.perf_counter() - begun) / times)
        rows.append((name, " x ".join(map(str, shape)), best[1] * 1e6, best[0] * 1e6, best[1] / best[0]))
    return Table(
        title="a dropout of a transformer's block, one thread",
        columns=("block", "numbers", "by sample, us", "torch's own under a key, us", "ratio"),
        rows=rows,
    )


def run(quick: bool) -> Result:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    held, steps = memory(quick), blocks(quick)
    together_, beside, drawn = simulated(quick), overhead(quick), dropouts(quick)
    over = [(str(row[0]), row[2]) for row in held.rows]
    short = tuple(
        f"{name}: the fullest rank held {x:.3f} of its prediction."
        for name, x in over
        if isinstance(x, float) and x < LEAST
    )
    slow = tuple(
        sentence
        for row in steps.rows
        for sentence in above(
            f"A step at width {row[0]} by {row[1]} over parallelize_module's",
            [("", row[4])],
            float(str(row[9])),
        )
    )
    return Result(
        name="layouts",
        claim="Ranks with parts of tensors hold what was predicted within 4 %, and take less time than torch's own.",
        missed=(
            *above("The peak of a rank over its prediction", over, MOST),
            *short,
            *slow,
            *above(
                "A step of eight ranks in one process, in seconds,",
                [("", together_.rows[0][1])],
                MOST_SIMULATED_S,
            ),
            *above(
                "Processor time with conversions over that without",
                [(f"width {row[0]}", row[3]) for row in beside.rows],
                MOST_OVERHEAD,
            ),
        ),
        tables=[held, steps, together_, beside, drawn],
    )


if __name__ == "__main__":
    main(run)
