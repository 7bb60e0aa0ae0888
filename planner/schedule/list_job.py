"""What the list scheduler is asked: a placement, costs, caps, and what goes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.errors import BadInput
from planner.schedule.action import Action
from planner.schedule.assemble import Place
from planner.schedule.costs import Costs, Limits

TIES = (
    "first",
    "deep",
    "shallow",
    "micro",
)  # arrived first, deepest or shallowest stage, earliest micro-batch


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What goes first. Defaults: backward, then forward, and weight gradients only where nothing else is ready.

    That default is the fast-forwarding of gradients of out-of-order backprop; `pending` and `grain` bound it.
    """

    order: str = "BFW"  # kinds, the most urgent first; B stands for I where the backward is split
    tie: str = "first"  # among alike: arrived first, deepest or shallowest stage, or earliest micro-batch of its pipe
    pending: int | None = (
        None  # weight gradients a (pipe, stage) may owe; past that they are the most urgent,
    )
    grain: int = 1  # and this many run in a row
    patience: int = (
        0  # percent of an action's time that a worker idles for a more urgent one that is on its way
    )

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
class Job:
    place: Place
    pipe_of: Sequence[int]
    costs: Costs
    split: bool
    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)
    # a worker: its F and B (or I) in exactly this order, W where it fits
    sequence: Sequence[Sequence[Action]] | None = None
