"""Schedules side by side on equal hardware and an equal global batch, ours beside torch.distributed.pipelining's.

Eight devices. One forward through an eighth of the model is the unit of time; each half of the backward takes as
long, the whole backward twice that. A schedule on fewer workers has deeper stages and data-parallel replicas. Torch
hands out its orders without running them; they go through the same simulator as ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from benchmarks.harness import Cell, Result, Table, above, main
from planner.errors import BadInput
from planner.plan import StageTimes
from planner.schedule import FAMILIES, Action, Costs, Kind, Schedule, generate, relistings
from planner.schedule.actions import parse_action
from planner.schedule.build import dealt, zigzag
from planner.simulate import StageBytes, compile, duration_vector, peaks, period
from planner.simulate.longest_path import makespan, neighbour_hops

DEVICES = 8
UNIT = 240  # integer time of one forward through 1/8 of the model: divisible by every depth here


@dataclass(frozen=True, kw_only=True)
class Row:
    family: str
    workers: int = DEVICES
    chunks: int = 1
    pairs: int = 1
    concat: str = ""
    peer: str = ""  # torch's name

    @property
    def replicas(self) -> int:
        return DEVICES // self.workers

    @property
    def label(self) -> str:
        parts = [self.family, self.concat, f"f={self.pairs}" if FAMILIES[self.family].paired else ""]
        parts += [f"P={self.workers}", f"v={self.chunks}" if self.chunks > 1 else ""]
        parts.append(f"x DP{self.replicas}" if self.replicas > 1 else "")
        return " ".join(part for part in parts if part)

    @property
    def weights(self) -> str:
        copies = 2 * self.pairs if FAMILIES[self.family].paired else 1
        return f"{copies * self.replicas}/8"

    def schedule(self, micros: int) -> Schedule:
        settings = {"concat": self.concat} if self.concat else {}
        return generate(
            self.family, workers=self.workers, micros=micros, pairs=self.pairs, chunks=self.chunks, **settings
        )


ROWS = [
    Row(family="gpipe", peer="GPipe"),
    Row(family="1f1b", peer="1F1B"),
    Row(family="1f1b", workers=4, peer="1F1B"),
    Row(family="1f1b", workers=2, peer="1F1B"),
    Row(family="chimera", concat="direct"),
    Row(family="chimera", concat="doubling"),
    Row(family="chimera", concat="direct", pairs=2),
    Row(family="wave", workers=4, chunks=2),
    Row(family="interleaved", chunks=2, peer="Interleaved1F1B"),
    Row(family="interleaved", workers=4, chunks=2, peer="Interleaved1F1B"),
    Row(family="zb-h1"),
    Row(family="zb-h2"),
    Row(family="interleaved-zb", chunks=2, peer="InterleavedZeroBubble"),
    Row(family="interleaved-zb", workers=4, chunks=2, peer="InterleavedZeroBubble"),
    Row(family="zb-v", chunks=2, peer="ZBVZeroBubble"),
    Row(family="zb-v", workers=4, chunks=2, peer="ZBVZeroBubble"),
    Row(family="v-half", chunks=2),
    Row(family="v-min", chunks=2),
    Row(family="dualpipe-v", chunks=2, peer="DualPipeV"),
    Row(family="dualpipe-v", workers=4, chunks=2, peer="DualPipeV"),
    Row(family="chimera-zb"),
    Row(family="chimera-zb", pairs=2),
]


@dataclass(frozen=True)
class Measure:
    span: float
    period: float
    peak: float  # micro-batches of 1/8 of the model


def orders_for(schedule: Schedule, hop: int) -> list[Schedule]:
    """The family's order, or those listed anew for messages that take time, in no more memory, the shortest first."""
    if not hop:
        return [schedule]
    one = UNIT * DEVICES // schedule.stages
    ones, twos = (one,) * schedule.stages, (2 * one,) * schedule.stages
    edges = [edge for s in range(schedule.stages - 1) for edge in ((s, s + 1), (s + 1, s))]
    costs = Costs(
        forward=ones, backward=twos, input_grad=ones, weight_grad=ones, hops=dict.fromkeys(edges, hop)
    )
    return [order for _, order in relistings(schedule, costs)]


def measured(schedule: Schedule, hop: int) -> Measure:
    one = UNIT * DEVICES // schedule.stages
    stage = StageTimes(forward_ns=one, backward_ns=2 * one, input_grad_ns=one, weight_grad_ns=one)
    hops = neighbour_hops(schedule.stages, act_ns=hop, grad_ns=hop)
    vector = duration_vector([stage] * schedule.stages, hops)
    compiled = compile(schedule, hops, update="rolling")
    size = StageBytes(saved=one, held=one)  # activations stay until the weight half is done
    highest = max(peak.bytes for peak in peaks(schedule, [size] * schedule.stages))
    return Measure(
        makespan(compiled, vector) / UNIT, float(period(compiled, vector).period / UNIT), highest / UNIT
    )


def ours_at(schedule: Schedule, hop: int) -> Measure:
    """Of the orders for such messages, the shortest, and the shortest period: a plan takes the one its updates want."""
    shortest, *others = (measured(order, hop) for order in orders_for(schedule, hop))
    return replace(shortest, period=min([shortest.period, *(other.period for other in others)]))


def torch_schedule(row: Row, micros: int) -> Schedule | None:
    """None where torch has no such schedule or refuses the numbers."""
    if not row.peer:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

        try:
            rows = get_schedule_ops(row.peer, row.workers, micros, num_stages_per_rank=row.chunks)
        except ValueError:
            return None
    orders = []
    for ops in rows:
        words = [str(part) for op in ops if op is not None for part in op.sub_actions or (op,)]
        orders.append([parse_action(word) for word in words if not word.endswith("REDUCE_GRAD")])
    if row.peer == "1F1B":  # torch 2.13 numbers the last rank's forwards from 1; their turns are right
        turn = count()
        orders[-1] = [_numbered(action, turn) for action in orders[-1]]
    bent = row.peer in ("ZBVZeroBubble", "DualPipeV")
    place = zigzag(row.workers, row.chunks) if bent else dealt(row.workers, row.chunks)
    return Schedule(
        family=row.peer, place=place, pipe_of=(0,) * micros, orders=tuple(tuple(order) for order in orders)
    )


def _numbered(action: Action, turn: count[int]) -> Action:
    return action._replace(micro=next(turn)) if action.kind is Kind.F else action


def line(row: Row, batches: list[int], hop: int) -> tuple[Cell, ...]:
    cells: list[Cell] = [row.label, row.weights]
    highest: list[float] = []
    peers: list[float] = []
    for batch in batches:
        micros = batch // row.replicas
        order = torch_schedule(row, micros)
        theirs = None if order is None else measured(order, hop)
        peers += [] if theirs is None else [theirs.peak]
        try:
            ours = ours_at(row.schedule(micros), hop)
        except BadInput:
            ours = None
        highest += [] if ours is None else [ours.peak]
        cells += [None if side is None else side.span for side in (theirs, ours)]
        cells += [None if side is None else side.period for side in (theirs, ours)]
    return (*cells, max(highest, default=None), max(peers, default=None))


def table(batches: list[int], hop: int) -> Table:
    columns = ["schedule", "weights a device"]
    for batch in batches:
        columns += [f"{batch}: torch", f"{batch}: ours", f"{batch}: torch's period", f"{batch}: our period"]
    return Table(
        title=f"{DEVICES} devices, a message takes {hop / UNIT:g} of a forward",
        columns=(*columns, "peak", "torch's peak"),
        rows=[line(row, batches, hop) for row in ROWS],
        notes=(
            "Time in forwards through 1/8 of the model for so many micro-batches over all devices; no device can do "
            f"better than {', '.join(str(3 * b) for b in batches)}. Gradient sums and updates are not counted.",
            "Where messages take time, ours is listed for that (`relistings`), in no more memory than the family's order. "
            "torch and ours: makespan of one step; period: with rolling updates, the next step starting where devices "
            "are free, for the order of ours that has the shortest. Peak: activations, in micro-batches of 1/8 of the model. Empty: refused, or no peer.",
            "DualPipe-V's pairs of a forward and a backward are charged as one after the other.",
        ),
    )


def odd() -> Table:
    """Where the micro-batches do not divide evenly: Chimera against ZB-V on half the workers with two replicas."""
    rows: list[tuple[Cell, ...]] = []
    for workers, micros in ((4, 4), (4, 5), (4, 7), (8, 8), (8, 9), (8, 11), (8, 12)):
        stage = DEVICES / workers  # a stage of this depth, in units
        pipes = measured(generate("chimera-zb", workers=workers, micros=micros), 0)
        half = measured(generate("zb-v", workers=workers // 2, micros=-(-micros // 2)), 0)
        rows.append((workers, micros, 3 * micros, pipes.span / stage, half.span / stage))
    return Table(
        title="Odd numbers of micro-batches, split backward",
        columns=("devices", "micro-batches", "at least", "chimera-zb", "zb-v on half x DP2"),
        rows=rows,
        notes=("In slots of one stage's forward. The busier replica of ZB-V takes the odd micro-batch.",),
    )


def missed(tables: Sequence[Table]) -> tuple[str, ...]:
    """Returns what was missed: steps of ours that are longer than torch's, and orders that hold more."""
    longer: list[tuple[str, Cell]] = []
    fuller: list[tuple[str, Cell]] = []
    for table in tables:
        for row in table.rows:
            *steps, ours, theirs = row[2:]
            name = f"{row[0]}, {table.title}"
            pairs = [*zip(steps[::4], steps[1::4], strict=True)]
            longer += [(name, float(b) / float(a)) for a, b in pairs if a is not None and b is not None]
            fuller += [(name, float(ours) / float(theirs))] if ours is not None and theirs is not None else []
    return (
        *above("A step of ours over torch's of the same family", longer, 1),
        *above("The peak of ours over torch's of the same family", fuller, 1),
    )


def run(quick: bool) -> Result:
    batches = [8, 16] if quick else [8, 16, 32, 64]
    both = [table(batches, hop) for hop in (0, UNIT // 10)]
    return Result(
        name="schedules",
        claim="A step of ours of a family is never longer than torch's of the same family at no more memory, whether messages cost "
        "nothing or a tenth of a forward. Which family is best depends on the batch, the memory and whether updates "
        "roll.",
        missed=missed(both),
        tables=[*both, odd()],
    )


if __name__ == "__main__":
    main(run)
