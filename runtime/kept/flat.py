"""One bucket of which some parameters are pruned: a dense bucket whose tensors have the kept entries alone.

The parameters of the model stay dense, and zero where they are pruned. A gradient is gathered when it is complete for a
micro-batch, and dropped. After an update the kept entries are scattered back. So sums, clipping, sharded state and
rolling updates see a bucket like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from planner.errors import BadPlan
from planner.kept import Masks
from planner.model import ModelGraph
from planner.plan import Plan, kept_of
from runtime.stage import on_gradient
from runtime.update import Bucket, Flat, OwnPart

Node = tuple[int, int]  # pipe, stage
CHUNK = 2**18  # entries that are scattered at a time; their indices take 8 bytes each meanwhile


class KeptFlat(Flat):
    """One bucket on one rank, with the kept entries of its pruned parameters and all of the others."""

    def __init__(
        self,
        bucket: Bucket,
        parameters: Mapping[str, Tensor],
        nodes: Iterable[Node],
        rank: int | None = None,
        *,
        masks: Masks,
    ) -> None:
        """Gathers the kept entries into the bucket, and sets all others of the model's parameters to zero.

        Args: `masks` have the kept entries by parameter, of all buckets; the others are those of `Flat`.
        """
        self.dense = {name: parameters[name] for name in bucket.names if name in masks.indices}
        self.indices = {
            name: torch.from_numpy(masks.indices[name].astype(np.int32)).to(dense.device)
            for name, dense in self.dense.items()
        }
        leaves = {name: self._leaf(name) for name in self.dense}
        super().__init__(bucket, {**parameters, **leaves}, nodes, rank)
        for name, dense in self.dense.items():
            dense.data = torch.zeros_like(dense.data, memory_format=torch.contiguous_format)
            dense.grad = None
            on_gradient(dense, partial(self._gather, name))
        self.publish()

    def _leaf(self, name: str) -> nn.Parameter:
        """Returns the kept entries of a parameter as one of as many dims, since optimizers tell them apart by dims."""
        dense = self.dense[name].detach()
        entries = dense.reshape(-1).index_select(0, self.indices[name])
        return nn.Parameter(entries.view(*[1] * (dense.ndim - 1), -1))

    @torch.no_grad()
    def _gather(self, name: str, dense: Tensor) -> None:
        """Adds the kept entries of a gradient to the bucket's, and drops it."""
        if dense.grad is None:
            return  # autograd calls where somebody else has taken the gradient
        start, end = self.ranges[name]
        self.grads[start:end].add_(dense.grad.reshape(-1).index_select(0, self.indices[name]))
        dense.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Scatters the kept entries into the parameters of the model."""
        for name, dense in self.dense.items():
            start, end = self.ranges[name]
            flat, index = dense.data.view(-1), self.indices[name]
            for low in range(0, end - start, CHUNK):
                part = index[low : low + CHUNK]
                flat.index_copy_(0, part.long(), self.values[start + low : start + low + len(part)])

    def pieces(self) -> Sequence[OwnPart]:
        """Returns what this rank updates, and the parameters that the user's optimizer is made for."""
        return [
            piece._replace(whole=self.dense[piece.name], entries=self.indices[piece.name])
            if piece.name in self.dense
            else piece
            for piece in super().pieces()
        ]

    def kept(self) -> Sequence[Tensor]:
        """Returns the buffers of kept entries, of their gradients, and of their indices."""
        return [*super().kept(), *self.indices.values()]


def flat_maker(
    plan: Plan, graph: ModelGraph, masks: Masks | None, *, pretend: bool
) -> type[Flat] | partial[KeptFlat]:
    """Returns what makes a bucket of a plan that is not shared by element.

    Args: `masks` are those of the run; without any, `pretend` makes some up, so that a rank can be tried alone.
    Raises: BadPlan where the plan keeps entries and there are no masks, or others than it is for.
    """
    counts = kept_of(plan, graph)
    if masks is None and pretend:
        masks = made_up(counts, {name: prod(graph.parameter[name].shape) for name in counts})
    refuse_other(plan, graph, masks)
    return partial(KeptFlat, masks=masks) if masks is not None and masks.indices else Flat


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
