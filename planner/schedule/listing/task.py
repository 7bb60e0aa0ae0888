"""The question to the list scheduler: a placement, costs, caps, and which actions go first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind
from planner.schedule.build import Place

PerStage = tuple[int, ...]
PerNode = tuple[tuple[int, ...], ...]  # [pipe][stage]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of actions, whole numbers of any one unit, one a stage. `hops[sender, receiver]` is a
    message.

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
        """Returns the costs of a kind of compute, one a stage; SYNC and STEP cost nothing here.

        Args: `kind` is any; R costs nothing where no recomputation was priced.
        """
        rows = {
            Kind.F: self.forward,
            Kind.B: self.backward,
            Kind.I: self.input_grad,
            Kind.W: self.weight_grad,
        }
        zeros = (0,) * self.stages
        return (self.recompute or zeros) if kind is Kind.R else rows.get(kind, zeros)


def nominal(stages: int, hop: int = 0) -> Costs:
    """Returns the costs F = I = W = 1 and B = 2, with every hop between neighbours alike.

    Args: `hop` is the time of one message.
    """
    ones, twos = (1,) * stages, (2,) * stages
    pairs = [(s, s + 1) for s in range(stages - 1)]
    hops = {edge: hop for s, t in pairs for edge in ((s, t), (t, s))}
    return Costs(forward=ones, backward=twos, input_grad=ones, weight_grad=ones, hops=hops)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The caps on what may be in flight.

    A micro-batch weighs `keep` on its stage from F to B; where the backward is split, `keep` from F to I and
    `held` from I to W. Weights are bytes, or micro-batches where every stage weighs 1, which is the default.
    """

    flight: PerNode | None = None  # micro-batches of a (pipe, stage) between F and B, or W
    ahead: PerNode | None = None  # micro-batches of a (pipe, stage) between F and B, or I
    memory: tuple[int, ...] | None = None  # sum of the weights on a worker
    keep: PerStage | None = None
    held: PerStage | None = None  # `keep` by default


TIES = (
    "first",
    "deep",
    "shallow",
    "micro",
)  # arrived first, deepest or shallowest stage, earliest micro-batch


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rule that says which action goes first.

    By default a backward, then a forward, and weight gradients only where nothing else is ready. That default
    is the fast-forwarding of gradients of out-of-order backprop; `pending` and `grain` bound it.
    """

    order: str = "BFW"  # kinds, the most urgent first; B stands for I where the backward is split
    tie: str = "first"  # among alike: arrived first, deepest or shallowest stage, or earliest micro-batch of its pipe
    pending: int | None = None  # weight gradients a (pipe, stage) may owe; with more they are the most urgent
    grain: int = 1  # weight gradients that run in a row once too many are owed
    patience: int = 0  # percent of an action's time that a worker idles for a more urgent one on its way

    def __post_init__(self) -> None:
        if sorted(self.order) != ["B", "F", "W"]:
            raise BadInput(f"order is '{self.order}'", where="policy", allowed="B, F and W, each once")
        if self.tie not in TIES:
            raise BadInput(f"tie is '{self.tie}'", where="policy", allowed=", ".join(TIES))
        if self.grain < 1 or (self.pending is not None and self.pending < 0) or self.patience < 0:
            raise BadInput(
                "a negative or empty count", where="policy", allowed="grain 1 or more, others 0 or more"
            )


@dataclass(frozen=True, kw_only=True)
class ListingJob:
    """One question to the list scheduler."""

    place: Place
    pipe_of: Sequence[int]
    costs: Costs
    split: bool
    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)
    # a worker: its F and B (or I) in exactly this order, W where it fits
    sequence: Sequence[Sequence[Action]] | None = None
