"""Clipping of gradients by their norm: the step's own, or that of the step before, for which no update has to wait.

Also the check of plans that update at use: what they may not ask for, since it needs all gradients. An update at use
is a STEP that stands before the forward that needs it, while gradients of other stages are still on their way.
Whatever looks at the whole step before the first update ends that overlap. It is refused with the reason, never done
from half of the gradients.

Clipping by the previous norm is another training than clipping by a step's own, and for users who ask for it.
The first step is not clipped. A step's norm is added up as its updates are made, and summed over all ranks
while work goes on.

The exponential moving average of trained parameters: each rank averages the elements that it keeps up to date.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from planner.errors import BadPlan
from planner.plan import Plan, schedule_of
from planner.schedule import overlap_of, updates_at_use
from planner.simulate import SQUARE_BYTES, SQUARED_ELEMENTS
from runtime.execute import NotFinite
from runtime.update.flats import AnyFlat, Bucket

ClipBy = Literal["step", "previous"]  # whose norm
EPSILON = 1e-6  # as in torch's clip_grad_norm_


def too_long_by(norm: float, limit: float) -> float:
    """Returns the number to divide gradients by; 1 where they are short enough.

    Args: `norm` is that of the gradients, `limit` the longest allowed.
    """
    return (norm + EPSILON) / limit if limit < norm + EPSILON else 1.0


class Squares:
    """The squares of a step's gradients, added up parameter by parameter.

    So the norm is the same to the bit whichever parameters share a bucket, and whichever ranks hold them.
    """

    def __init__(self, buckets: Iterable[Bucket], rank: int, device: torch.device) -> None:
        names = sorted(name for bucket in buckets for name in bucket.names)
        self._row, self._rank = {name: row for row, name in enumerate(names)}, rank
        self.table = torch.zeros(len(names), dtype=torch.float64, device=device)  # 0 where others count

    def take(self, flat: AnyFlat) -> None:
        """Adds up the squares of a bucket's gradients; an element counts once.

        Args: `flat` has gradients that are summed already.
        """
        for name, gradient in flat.counted(self._rank):
            pieces = torch.split(gradient, SQUARED_ELEMENTS)
            self.table[self._row[name]] = torch.stack([_square(piece) for piece in pieces]).sum()


def _square(gradient: Tensor) -> Tensor:
    wide = gradient.to(torch.float64, copy=True)
    assert wide.element_size() == SQUARE_BYTES
    return wide.square_().sum()


class PreviousNorm:
    """Clipping by the norm of the step before, and the sum that makes the norm of this one."""

    def __init__(
        self, limit: float, flats: Sequence[AnyFlat], squares: Squares, group: dist.ProcessGroup | None
    ) -> None:
        self._limit, self._squares, self._group = limit, squares, group
        self._mine = frozenset(flat.bucket for flat in flats)
        self._left = set(self._mine)
        self._coming: Tensor | None = None
        self._work: dist.Work | None = None
        self._norm: float | None = None

    def begin(self) -> None:
        """Starts a step: a rank that updates nothing takes part in the sums all the same."""
        if not self._mine:
            self._launch()

    def clip(self, flat: AnyFlat) -> None:
        """Clips a bucket's gradients in place, and adds them to this step's norm.

        Args: `flat` has gradients that are summed already.
        """
        by = 1.0 if (norm := self.norm()) is None else too_long_by(norm, self._limit)
        self._squares.take(flat)
        self._left.discard(flat.bucket)
        if by != 1.0:
            flat.grads.div_(by)
        if not self._left:
            self._launch()

    def _launch(self) -> None:
        self._coming = self._squares.table.clone()
        self._left = set(self._mine)
        if self._group is not None:
            self._work = dist.all_reduce(self._coming, group=self._group, async_op=True)

    @property
    def known(self) -> float | None:
        """Returns the norm that was known last, without waiting for a sum."""
        return self._norm

    def norm(self) -> float | None:
        """Returns the norm of the last step whose updates are all made; None before the first."""
        if self._coming is not None:
            if self._work is not None:
                self._work.wait()
            self._norm = math.sqrt(float(self._coming.sum()))
            self._coming = self._work = None
            if not math.isfinite(self._norm):
                raise NotFinite(f"the norm of all gradients was {self._norm} in the step before")
        return self._norm

    def resume(self, norm: float) -> None:
        """Goes on from a checkpoint.

        Args: `norm` is that of the step before.
        """
        self._norm = norm


def check(plan: Plan, clip_norm: float | None, clip_by: ClipBy = "step") -> None:
    """Raises BadPlan where a plan updates at use and clips by the norm of the step's own gradients.

    It also refuses fp16 that is clipped by the previous norm.
    Args: `clip_norm` is the longest norm allowed, or None; `clip_by` tells whose norm it is.
    """
    if clip_by == "previous" and plan.precision == "fp16":
        raise BadPlan(
            "fp16 is clipped by its step's own norm, which its scaler looks at anyway: use clip_by: step"
        )
    overlap_of(dict(plan.schedule.settings), "schedule.settings")
    if clip_norm is not None and clip_by == "step" and updates_at_use(schedule_of(plan)):
        raise BadPlan(
            "updates at use cannot be had with clipping: the global norm is known when every gradient is in; plan with "
            "update: barrier, or clip by that of the step before: clip_by: previous"
        )


class Averages:
    """The averages of this rank's parameters: `average += (1 - decay) * (parameter - average)` after every step.

    They begin with the parameters that the training begins with. All holders of an element come to the same value.
    """

    def __init__(self, flats: Sequence[AnyFlat], decay: float) -> None:
        self.decay = decay
        self._flats = tuple(flats)
        self._values: dict[Bucket, dict[str, Tensor]] = {
            flat.bucket: {name: x.clone() for name, x in flat.own_values().items()} for flat in self._flats
        }

    def update(self, flat: AnyFlat) -> None:
        """Takes in the parameters of a bucket after its update."""
        with torch.no_grad():
            for average, value in self._pairs(flat):
                average.lerp_(value, 1.0 - self.decay)

    def named(self) -> dict[str, Tensor]:
        """Returns the averages of this rank's elements, by the names of the parameters that they are of."""
        return {name: average for own in self._values.values() for name, average in own.items()}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Goes on from a checkpoint.

        Args: `saved` has averages by name; those that it lacks begin at the parameters as they are.
        """
        for name, average in self.named().items():
            if name in saved:
                average.copy_(saved[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the averages in the place of the parameters while it is entered; all ranks enter it at one time."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        with torch.no_grad():
            for flat in self._flats:
                for average, value in self._pairs(flat):
                    kept = value.clone()
                    value.copy_(average)
                    average.copy_(kept)
                flat.publish()

    def _pairs(self, flat: AnyFlat) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self._values[flat.bucket].values(), flat.own_values().values(), strict=True)
