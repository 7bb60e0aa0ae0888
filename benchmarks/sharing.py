"""What sharing a sample costs over computing the same parts alone, in two processes over gloo, one thread each.

`ours` exchanges and reduces, `alone` computes the same shards with no message sent, `replayed` runs the code of `ours`
with messages of zeros that nobody sends, as a rehearsal does, `copied` fetches rows into a padded copy before it
convolves, `messages` are those of a step by themselves, and `alone again` shows the noise. Halos travel while others
compute, so `ours` may take less than `replayed` and `messages` together; on cores that others use as well each message
waits for its turn, which medians and, in some virtual machines, CPU time show as a cost of ours: the least times of
interleaved rounds are of those least disturbed. The other table holds one process with the whole sample against two.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.harness import Cell, Table, below, cell
from runtime.spatial import GroupWire, SampleGroup
from runtime.spatial.analyse import analyse
from runtime.spatial.group import Message, Operation, Wire
from runtime.spatial.ranks import Silence
from runtime.spatial.shard import shard
from tests.runtime.spatial.equality import Reference, entries, part, reference, stage_of

RANKS = 2
# Measured elsewhere on two cores with load 7 to 12, over the same shards, per cent: by medians, and by least times.
DISTCONV = {
    "conv3d 64^3": ("8 to 29", "15 to 45"),
    "conv3d 16^3": ("55 to 121", "24 to 189"),
    "CosmoFlow trunk": ("4 to 15", "-3 to 37"),
    "U-Net": ("5 to 14", "2 to 31"),
}
SHARDTENSOR = {
    "conv3d 64^3": ("16", "35"),
    "conv3d 16^3": ("92", "201"),
    "CosmoFlow trunk": ("11", "1"),
    "U-Net": ("17", "-4"),
}
NOT_MEASURED = ("", "")
AIMS = {"conv3d 64^3": 10, "conv3d 16^3": 50, "CosmoFlow trunk": 5, "U-Net": 5, "U-Net 64^3": 5}


def _trunk() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((4, 16), (16, 32), (32, 64)):
        layers += [nn.Conv3d(before, after, 3, padding=1, bias=False), nn.LeakyReLU(), nn.AvgPool3d(3, 2, 1)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, 16, 3, padding=1), nn.InstanceNorm3d(16), nn.ReLU())
        self.down = nn.Sequential(nn.Conv3d(16, 32, 3, 2, 1), nn.InstanceNorm3d(32), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv3d(32, 32, 3, padding=1), nn.InstanceNorm3d(32), nn.ReLU())
        self.up, self.last = nn.ConvTranspose3d(32, 16, 2, 2), nn.Conv3d(32, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        y: Tensor = self.last(torch.cat([skip, self.up(self.deep(self.down(skip)))], 1))
        return y


Build = Callable[[], nn.Module]
NETS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "conv3d 64^3": (lambda: nn.Conv3d(16, 16, 3, padding=1), (1, 16, 64, 64, 64)),
    "conv3d 16^3": (lambda: nn.Conv3d(32, 32, 3, padding=1), (1, 32, 16, 16, 16)),
    "CosmoFlow trunk": (_trunk, (1, 4, 64, 64, 64)),
    "U-Net": (UNet, (1, 1, 32, 32, 32)),
    "U-Net 64^3": (UNet, (1, 1, 64, 64, 64)),
}


@dataclass(frozen=True)
class Clock:
    wall_s: list[float]
    cpu_s: list[float]


SHARDS = ("alone", "ours", "replayed", "copied", "alone again")
WAYS = (*SHARDS, "messages", "whole")  # the last on the first rank only
FASTER = 1.9


def tables(quick: bool) -> list[Table]:
    rounds = 5 if quick else 25
    found = {}
    for name in NETS if not quick else ("conv3d 16^3", "U-Net"):
        print(f"{name}, timed ...", file=sys.stderr, flush=True)
        found[name] = _measured(name, rounds)
    note = f"{rounds} interleaved rounds on {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at the end."
    return [_overheads(found, note), _one_to_two(found, note)]


def missed(overheads: Sequence[tuple[Cell, ...]], faster: Sequence[tuple[Cell, ...]]) -> tuple[str, ...]:
    """Returns what was missed by the median of wall time, with the other clocks beside it, from the rows of `tables`."""
    clocks: dict[str, list[Cell]] = {}
    for row in overheads:
        clocks.setdefault(str(row[0]), []).append(row[3])
    found = [
        f"Sharing the sample of {name} cost {cell(median)} % by median wall time ({cell(least)} % by least, {cell(cpu)} % of CPU "
        f"time), and the aim is {AIMS[name]} %."
        for name, (median, least, cpu) in clocks.items()
        if float(median or 0) > AIMS[name]
    ]
    gains = [(str(row[0]), row[2]) for row in faster]
    return (*found, *below("The gain of two processes that share a sample over one", gains, FASTER, " times"))


def _overheads(found: Mapping[str, Mapping[str, Clock]], note: str) -> Table:
    return Table(
        title=f"Overhead of sharing a sample, {RANKS} processes over gloo, one thread each, fp32 forward and backward",
        columns=(
            "network",
            "clock",
            "alone ms",
            "ours %",
            "replayed %",
            "copied %",
            "noise %",
            "messages %",
            "aim %",
            "DistConv %",
            "ShardTensor %",
        ),
        rows=[row for name, clocks in found.items() for row in _rows(name, clocks)],
        notes=(
            note,
            "Wall time is that of the slower rank in each round, CPU time that of both.",
            "DistConv and ShardTensor are figures measured before on a machine of two cores with load 7 to 12.",
        ),
    )


def _rows(name: str, clocks: Mapping[str, Clock]) -> Iterator[tuple[Cell, ...]]:
    walls = {way: clocks[way].wall_s for way in WAYS}
    readings = {
        "wall, median": {way: statistics.median(times) for way, times in walls.items()},
        "wall, least": {way: min(times) for way, times in walls.items()},
        "CPU, median": {way: statistics.median(clocks[way].cpu_s) for way in WAYS},
    }
    others = [each.get(name, NOT_MEASURED) for each in (DISTCONV, SHARDTENSOR)]
    for place, (clock, times) in enumerate(readings.items()):
        base = times["alone"]
        yield (
            name,
            clock,
            1e3 * base,
            *(_share(times[way] - base, base) for way in SHARDS[1:]),
            _share(times["messages"], base),
            AIMS[name],
            *((*each, "")[place] for each in others),
        )


def _one_to_two(found: Mapping[str, Mapping[str, Clock]], note: str) -> Table:
    return Table(
        title=f"One process with the whole sample over the slower of {RANKS} that share it, one thread each",
        columns=(
            "network",
            "whole ms",
            "times faster",
            "by least times",
            "times faster, CPU",
            "times faster, replayed",
            "aim",
        ),
        rows=[(name, *_scaled(clocks), FASTER) for name, clocks in found.items()],
        notes=(
            note,
            "With one thread torch takes slower kernels for small tensors: half of the U-Net at 32^3 is below, the whole above.",
            "Replayed: against the CPU time of the shard alone, whose messages are zeros.",
        ),
    )


def _scaled(clocks: Mapping[str, Clock]) -> tuple[Cell, ...]:
    whole, ours = clocks["whole"], clocks["ours"]
    wall, cpu = (statistics.median(times) for times in (whole.wall_s, whole.cpu_s))
    found = [wall / statistics.median(ours.wall_s), min(whole.wall_s) / min(ours.wall_s)]
    found += [cpu / (statistics.median(clocks[way].cpu_s) / RANKS) for way in ("ours", "replayed")]
    return (1e3 * wall, *(round(x, 2) for x in found))


def _share(value: float, base: float) -> float:
    return round(100 * value / base, 1)


def _measured(name: str, rounds: int) -> dict[str, Clock]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes: list[Connection] = []
        processes = []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(rank, f"{folder}/store", name, rounds, theirs))
            process.start()
            pipes.append(ours)
            processes.append(process)
        found = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
    slowest = {
        way: [max(times) for times in zip(*(each[way][0] for each in found), strict=True)] for way in WAYS
    }
    spent = {
        way: [sum(times) for times in zip(*(each[way][1] for each in found), strict=True)] for way in WAYS
    }
    return {way: Clock(slowest[way], spent[way]) for way in WAYS}


def _rank(rank: int, store: str, name: str, rounds: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    build, shape = NETS[name]
    steps = _steps(build, shape, GroupWire(dist.group.WORLD))  # type: ignore[arg-type]
    times: dict[str, tuple[list[float], list[float]]] = {way: ([], []) for way in WAYS}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for way, step in steps.items():
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            if way != "whole" or rank == 0:
                step()
            times[way][0].append(time.perf_counter() - wall)
            times[way][1].append(time.process_time() - cpu)
    pipe.send(times)
    dist.destroy_process_group()


def _steps(build: Build, shape: tuple[int, ...], wire: Wire) -> dict[str, Callable[[], None]]:
    """One forward and backward of each way."""
    torch.manual_seed(0)
    ref = reference(build(), shape, dtype=torch.float32)
    alone = _alone(ref, wire)
    return {
        "alone": alone,
        "ours": _shared(ref, wire, overlap=True),
        "replayed": _shared(ref, Silence(wire.rank, wire.size), overlap=True),
        "copied": _shared(ref, wire, overlap=False),
        "alone again": alone,
        "messages": _messages(ref, wire),
        "whole": _whole(ref),
    }


def _shared(ref: Reference, wire: Wire, overlap: bool) -> Callable[[], None]:
    stage = stage_of(ref)
    stage.materialise(ref.tensors)
    how = analyse(stage, (RANKS,), entries(stage, (RANKS,)))
    shard(stage, how, SampleGroup((RANKS,), wire), overlap=overlap)
    values = {name: part(x, how.inputs[name], (wire.rank,)).clone() for name, x in ref.inputs.items()}
    return lambda: _step(stage, values)


class Recorder:
    """A wire that can say again what was said over it."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.rank, self.size = wire, wire.rank, wire.size
        self.said: list[Callable[[], None]] = []

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[], None]:
        kept = list(sends)
        self.said.append(lambda: self.wire.exchange(kept, receives)())
        return self.wire.exchange(sends, receives)

    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        self.said.append(lambda: self.wire.all_reduce(tensor, operation))
        self.wire.all_reduce(tensor, operation)


def _messages(ref: Reference, wire: Wire) -> Callable[[], None]:
    """Those of one forward and backward, each waited for, and nothing else."""
    recorder = Recorder(wire)
    _shared(ref, recorder, overlap=True)()

    def say() -> None:
        for message in recorder.said:
            message()

    return say


def _whole(ref: Reference) -> Callable[[], None]:
    stage = stage_of(ref)
    stage.materialise(ref.tensors)
    return lambda: _step(stage, dict(ref.inputs))


def _alone(ref: Reference, wire: Wire) -> Callable[[], None]:
    """The unchanged stage on this rank's part: halves of even samples are samples themselves."""
    stage = stage_of(ref)
    stage.materialise(ref.tensors)
    how = analyse(stage, (RANKS,), entries(stage, (RANKS,)))
    values = {name: part(x, how.inputs[name], (wire.rank,)).clone() for name, x in ref.inputs.items()}
    return lambda: _step(stage, values)


def _step(stage: nn.Module, values: dict[str, Tensor]) -> None:
    leaves = {name: x.detach().requires_grad_() for name, x in values.items()}
    made = stage(leaves)
    torch.autograd.backward(list(made.values()), [torch.ones_like(x) for x in made.values()])
    for parameter in stage.parameters():
        parameter.grad = None
