"""What actions cost and what may be in flight: the numbers from which orders are listed and proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import BadInput
from planner.plan import Hop, StageTimes
from planner.schedule.action import Kind

PerStage = tuple[int, ...]
PerNode = tuple[tuple[int, ...], ...]  # [pipe][stage]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Whole numbers of any one unit, a stage; `hops[sender, receiver]` is a message between two stages.

    A hop between stages of one worker costs nothing, whatever is written here.
    """

    forward: PerStage
    backward: PerStage
    input_grad: PerStage
    weight_grad: PerStage
    recompute: PerStage = ()  # counted only where a schedule recomputes
    hops: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = {
            "forward": self.forward,
            "backward": self.backward,
            "input_grad": self.input_grad,
            "weight_grad": self.weight_grad,
            "recompute": self.recompute or (0,) * len(self.forward),
        }
        for name, row in rows.items():
            if len(row) != len(self.forward):
                raise BadInput(f"{len(row)} costs", where=name, allowed=f"{len(self.forward)}, one a stage")
            if any(cost < 0 for cost in row):
                raise BadInput(f"a cost of {min(row)}", where=name, allowed="0 or more")
        if any(cost < 0 for cost in self.hops.values()):
            raise BadInput(f"a cost of {min(self.hops.values())}", where="hops", allowed="0 or more")

    @property
    def stages(self) -> int:
        return len(self.forward)

    def of(self, kind: Kind) -> PerStage:
        """The row of a kind of compute; SYNC and STEP cost nothing here."""
        rows = {
            Kind.F: self.forward,
            Kind.B: self.backward,
            Kind.I: self.input_grad,
            Kind.W: self.weight_grad,
        }
        zeros = (0,) * self.stages
        return (self.recompute or zeros) if kind is Kind.R else rows.get(kind, zeros)


def nominal(stages: int, hop: int = 0) -> Costs:
    """F = I = W = 1, B = 2, and every hop between neighbours alike."""
    ones, twos = (1,) * stages, (2,) * stages
    pairs = [(s, s + 1) for s in range(stages - 1)]
    hops = {edge: hop for s, t in pairs for edge in ((s, t), (t, s))}
    return Costs(forward=ones, backward=twos, input_grad=ones, weight_grad=ones, hops=hops)


def costs_of(times: Sequence[StageTimes], hops: Sequence[Hop]) -> Costs:
    """A plan's own numbers, in nanoseconds. Skips are left out: listing knows neighbours only."""
    return Costs(
        forward=tuple(t.forward_ns for t in times),
        backward=tuple(t.backward_ns for t in times),
        input_grad=tuple(t.input_grad_ns for t in times),
        weight_grad=tuple(t.weight_grad_ns for t in times),
        recompute=tuple(t.recompute_ns for t in times),
        hops={(h.sender, h.receiver): h.ns for h in hops if abs(h.sender - h.receiver) == 1},
    )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may be in flight. A micro-batch weighs `keep` on its stage from F to B, or to I and `held` from I to W.

    Weights are bytes, or micro-batches where every stage weighs 1, which is the default.
    """

    flight: PerNode | None = None  # micro-batches of a (pipe, stage) between F and B, or W
    ahead: PerNode | None = None  # micro-batches of a (pipe, stage) between F and B, or I
    memory: tuple[int, ...] | None = None  # sum of the weights on a worker
    keep: PerStage | None = None
    held: PerStage | None = None  # `keep` by default
