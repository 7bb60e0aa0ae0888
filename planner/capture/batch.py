"""Makes example batches, and finds which of their sizes grow with the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from planner.capture.traced_graph import named_leaves
from planner.errors import BadInput

Pair = tuple[object, object]  # (inputs, targets)
Batch = Callable[[int], Pair]
SMALL, LARGE = 2, 3  # two batch sizes tell how every size depends on the batch


def example(batch: Batch, n: int, mode: FakeTensorMode | None) -> Pair:
    """Returns a batch of `n` samples with every tensor its own.

    Args: the batch is made on the fake tensors of `mode` if its code can, else for real.
    """
    if mode is not None:
        try:
            with mode:
                return _apart(batch(n))
        except Exception:
            return example(batch, n, None)
    with torch.random.fork_rng(devices=[]):
        return _apart(batch(n))


def _apart(pair: Pair) -> Pair:
    """Returns a pair in which no tensor is given twice, as an autoencoder's batch may do; a dataset's never does."""
    met = set[int]()

    def own(leaf: object) -> object:
        again = isinstance(leaf, Tensor) and id(leaf) in met
        met.add(id(leaf))
        return leaf.clone() if again and isinstance(leaf, Tensor) else leaf

    return cast(Pair, pytree.tree_map(own, pair))


def repeated(pair: Pair) -> Batch:
    """Returns a function that makes batches of any size out of one batch, by repeating its samples.

    Args: `pair` is (inputs, targets); tensors with the samples along their first dimension grow.
    Raises: BadInput where the pair has no samples.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise BadInput("batch is no pair", allowed="a function batch(n), or one example (inputs, targets)")
    rows = next((x.shape[0] for x in pytree.tree_leaves(pair) if isinstance(x, Tensor) and x.ndim), 0)
    if not rows:
        raise BadInput(
            "the example batch has no samples", allowed="tensors with samples along their first dim"
        )

    def batch(n: int) -> Pair:
        def take(leaf: object) -> object:
            if not isinstance(leaf, Tensor) or not leaf.ndim or leaf.shape[0] != rows:
                return leaf
            return leaf[torch.arange(n) % rows]

        return cast(Pair, pytree.tree_map(take, tuple(pair)))

    return batch


def uneven(small: Pair, large: Pair) -> str:
    """Returns the first size that is neither fixed nor the batch's, in words; empty where there is none.

    Args: `small` and `large` are batches of `SMALL` and `LARGE` samples.
    """
    rows = [*named_leaves("input", small[0]), *named_leaves("target", small[1])]
    for (name, low), high in zip(rows, pytree.tree_leaves(large), strict=True):
        if isinstance(low, Tensor) and isinstance(high, Tensor):
            for dim, (a, b) in enumerate(zip(low.shape, high.shape, strict=True)):
                if a != b and (a, b) != (SMALL, LARGE):
                    return f"dim {dim} of {name} is {a} for n={SMALL} and {b} for n={LARGE}"
    return ""


def growing_dims(small: Pair, large: Pair, where: str) -> object:
    """Returns the dynamic shapes of a batch for the export: every size that grows, in terms of one symbol.

    Args: `small` and `large` are batches of `SMALL` and `LARGE` samples; `where` names the workload in errors.
    Raises: BadInput where the two differ in more than sizes, or do not differ.
    """
    if pytree.tree_structure(small) != pytree.tree_structure(large):
        raise BadInput("batch(n) gives another nesting for another n", where=where)
    symbol = torch.export.Dim("batch", min=1)
    leaves = zip(
        [*named_leaves("input", small[0]), *named_leaves("target", small[1])],
        pytree.tree_leaves(large),
        strict=True,
    )
    sizes = [_growing(name, low, high, symbol, where) for (name, low), high in leaves]
    if not any(sizes):
        raise BadInput("batch(n) gives the same shapes for n=2 and n=3", where=where, allowed="n samples")
    return pytree.tree_unflatten(sizes, pytree.tree_structure(small))


def _growing(
    name: str, low: object, high: object, symbol: torch.export.Dim, where: str
) -> dict[int, object] | None:
    if not isinstance(low, Tensor) or not isinstance(high, Tensor):
        return None
    if low.ndim != high.ndim or low.dtype != high.dtype:
        raise BadInput(f"batch(n) gives another kind of tensor for another n: {name}", where=where)
    sizes: dict[int, object] = {}
    for dim, (a, b) in enumerate(zip(low.shape, high.shape, strict=True)):
        slope, fixed = b - a, a - SMALL * (b - a)
        if slope < 0 or fixed < 0:
            raise BadInput(f"batch(n): dim {dim} of {name} is {a} for n=2 and {b} for n=3", where=where)
        if slope:
            multiple = symbol if slope == 1 else slope * symbol
            sizes[dim] = multiple + fixed if fixed else multiple
    return sizes
