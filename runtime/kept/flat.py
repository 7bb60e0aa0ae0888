"""One bucket whose tensors differ from those of the model: kept entries of pruned weights, fp32 of weights in bf16.

The parameters of the model stay dense, zero where they are pruned, and are perhaps in bf16. A gradient is gathered when
it is complete for a micro-batch, and dropped. After an update the entries are written back. So sums, clipping, sharded
state and rolling updates see a bucket like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from planner.errors import BadPlan
from planner.kept import MOVED_ENTRIES, Masks
from planner.model import ModelGraph
from planner.plan import Plan, halved_weights, kept_of
from planner.workload import without_numbers
from runtime.kept.entries import expanded
from runtime.layout import TensorParts
from runtime.stage import on_gradient
from runtime.update import Bucket, Flat, OwnPart, weakly

Node = tuple[int, int]  # pipe, stage


class KeptFlat(Flat):
    """One bucket on one rank, with the kept entries of its pruned parameters and all of the others, in fp32."""

    def __init__(
        self,
        bucket: Bucket,
        parameters: Mapping[str, Tensor],
        nodes: Iterable[Node],
        rank: int | None = None,
        *,
        masks: Masks,
        halved: Collection[str] = (),
    ) -> None:
        """Gathers the kept entries into the bucket, and sets all others of the model's parameters to zero.

        Args: `masks` have the kept entries by parameter, of all buckets; `halved` names the parameters of the model
            that are held in bf16. The others are those of `Flat`.
        """
        self.dense = {
            name: parameters[name] for name in bucket.names if name in masks.indices or name in halved
        }
        self.indices = {
            name: torch.from_numpy(masks.indices[name].astype(np.int32, copy=False)).to(dense.device)
            for name, dense in self.dense.items()
            if name in masks.indices
        }
        leaves = {name: self._leaf(name) for name in self.dense}
        super().__init__(bucket, {**parameters, **leaves}, nodes, rank)
        self._made_for: dict[str, Tensor] = {}  # by pruned parameter, for whom optimizers are made
        for name, dense in self.dense.items():
            if name in self.indices:
                self._made_for[name] = without_numbers(dense.shape, leaves[name]) if name in halved else dense
            held = torch.bfloat16 if name in halved else dense.dtype
            dense.data = torch.zeros_like(dense.data, dtype=held, memory_format=torch.contiguous_format)
            dense.grad = None
            on_gradient(dense, weakly(self._gather, name))
        self.publish()

    def _leaf(self, name: str) -> nn.Parameter:
        """Returns the kept entries of a parameter as one of as many dims, since optimizers tell them apart by dims."""
        dense = self.dense[name].detach()
        return nn.Parameter(self._entries(name, dense) if name in self.indices else dense)

    @torch.no_grad()
    def _gather(self, name: str, dense: Tensor) -> None:
        """Adds the entries of a gradient to the bucket's, and drops it."""
        if dense.grad is None:
            return  # autograd calls where somebody else has taken the gradient
        given, dense.grad = dense.grad, None
        if given.is_sparse:
            self._gather_rows(name, given)
            return
        found = given.reshape(-1)
        for part, index in self._parts(name):
            part.of(self.grads).add_(found[part.slice] if index is None else found.index_select(0, index))

    def _gather_rows(self, name: str, rows: Tensor) -> None:
        """Adds the entries of a sparse gradient, each row by itself, as it is added to a dense one."""
        own, index = self.parameters[name].grad, self.indices[name]
        assert own is not None
        whole = expanded(own, index, tuple(rows.shape)).add_(rows)
        own.copy_(whole.reshape(-1).index_select(0, index).view_as(own))

    @torch.no_grad()
    def publish(self) -> None:
        """Writes the entries into the parameters of the model."""
        for name, dense in self.dense.items():
            flat = dense.data.view(-1)
            for part, index in self._parts(name):
                values = part.of(self.values)
                if index is None:
                    flat[part.slice].copy_(values)
                else:
                    flat.scatter_(0, index.long(), values.to(flat.dtype))

    def _parts(self, name: str) -> Iterator[tuple[_Part, Tensor | None]]:
        """Yields parts of a parameter's entries, with their indices where it is pruned."""
        start, end = self.ranges[name]
        index = self.indices.get(name)
        for low in range(0, end - start, MOVED_ENTRIES):
            part = _Part(start, low, min(low + MOVED_ENTRIES, end - start))
            yield part, None if index is None else index[part.slice]

    def whole(self, name: str) -> Tensor:
        """Returns a parameter of the model as it is updated, with zeros where it is pruned; on the host if it is copied.

        Args: `name` is of this bucket.
        """
        if name not in self.dense or self.dense[name].dtype == self.values.dtype:
            return self.dense.get(name, self.parameters[name]).detach()
        found = self.parameters[name].detach()
        if name not in self.indices:
            return found
        return expanded(found.cpu(), self.indices[name].cpu(), tuple(self.dense[name].shape))

    def pieces(self) -> Sequence[OwnPart]:
        """Returns what this rank updates, and the parameters that the user's optimizer is made for."""
        return [
            piece._replace(whole=self._made_for[piece.name], take=partial(self._entries, piece.name))
            if piece.name in self.indices
            else piece
            for piece in super().pieces()
        ]

    def _entries(self, name: str, every: Tensor) -> Tensor:
        """Returns the kept entries of a tensor as large as a parameter, as many dims as it has."""
        index = self.indices[name].to(every.device)
        return every.reshape(-1).index_select(0, index).view(*[1] * (every.ndim - 1), -1)

    def kept(self) -> Sequence[Tensor]:
        """Returns the buffers of kept entries, of their gradients, and of their indices."""
        return [*super().kept(), *self.indices.values()]


class _Part(NamedTuple):
    """Some entries of a parameter, one after the other."""

    start: int  # of the parameter in its bucket
    low: int
    high: int

    @property
    def slice(self) -> slice:
        return slice(self.low, self.high)

    def of(self, bucket: Tensor) -> Tensor:
        return bucket[self.start + self.low : self.start + self.high]


def flat_maker(
    plan: Plan, graph: ModelGraph, masks: Masks | None, parts: TensorParts | None, *, pretend: bool
) -> partial[Flat] | partial[KeptFlat]:
    """Returns what makes a bucket of a plan that is not shared by element.

    Args: `masks` are those of the run; without any, `pretend` makes some up, so that a rank can be tried alone;
        `parts` tells which parameters are cut over a group.
    Raises: BadPlan where the plan keeps entries and there are no masks, or others than it is for.
    """
    counts = kept_of(plan, graph)
    if masks is None and pretend:
        masks = made_up(counts, {name: prod(graph.parameter[name].shape) for name in counts})
    refuse_other(plan, graph, masks)
    halved = halved_weights(graph) if plan.weights == "bf16" else frozenset()
    pruned = masks is not None and masks.indices
    if not pruned and not halved:
        return partial(Flat, parts=parts)
    return partial(KeptFlat, masks=masks if pruned and masks is not None else Masks({}, {}), halved=halved)


def refuse_other(plan: Plan, graph: ModelGraph, masks: Masks | None) -> None:
    """Raises BadPlan where masks are not those that a plan is for.

    Args: `masks` are by the names of the model, without parameters that are whole.
    """
    counts, given = kept_of(plan, graph), {} if masks is None else masks.counts
    if counts and masks is None:
        assert plan.kept is not None
        raise BadPlan(
            f"the plan keeps {plan.kept.share:g} of pruned weights, and there are no masks: launch with --kept FILE, "
            "which `shardwright prune` makes"
        )
    if plan.kept is not None and plan.kept.digest and masks is not None and plan.kept.digest != masks.digest:
        raise BadPlan(
            f"the plan is for masks {plan.kept.digest[:19]}, these are {masks.digest[:19]}: launch with those, or plan "
            "with --kept and these"
        )
    for name, count in given.items():
        if count > counts.get(name, 0) or given.keys() != counts.keys():
            wrong = name if count > counts.get(name, 0) else min(given.keys() ^ counts.keys())
            planned = f"{counts[wrong]} entries" if wrong in counts else "no mask"
            raise BadPlan(
                f"the masks keep {given.get(wrong, 'all')} entries of '{wrong}', and the plan has {planned} of it: plan "
                "with --kept and this file"
            )


def made_up(counts: Mapping[str, int], elements: Mapping[str, int]) -> Masks:
    """Returns masks of so many entries of each parameter, evenly apart, where there are none yet.

    Args: `counts` and `elements` are by parameter.
    """
    indices = {
        name: (np.arange(count, dtype=np.int64) * elements[name] // count).astype(np.int32)
        for name, count in counts.items()
    }
    return Masks(indices, {name: elements[name] for name in counts})
