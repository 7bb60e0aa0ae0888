"""Makes example batches, and finds which of their sizes grow with the batch, and for which batches a trace holds."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import SymInt, Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from planner.capture.traced_graph import named_leaves
from planner.errors import BadInput
from planner.workload import is_users

Pair = tuple[object, object]  # (inputs, targets)
Batch = Callable[[int], Pair]
SMALL = 2
MOST = 2**40  # a trace that holds for this batch holds for all larger ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A range of batch sizes, and two of them that tell how every size depends on the batch."""

    small: int = SMALL
    least: int = 1
    most: int | None = None

    @property
    def large(self) -> int:
        return self.small + 1

    @property
    def sizes(self) -> tuple[int, int]:
        return self.small, self.large

    def within(self, least: int, most: int | None) -> Span | None:
        """Returns the span of a smaller range; None where that has no two sizes to tell from."""
        small = max(SMALL, min(self.small, (most or self.large) - 1), least)
        fits = most is None or small < most
        return Span(small=small, least=least, most=most) if fits else None


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
    return _apart(drawn(batch, n))


def drawn(batch: Batch, n: int) -> Pair:
    """Returns a batch of `n` samples as the user's code makes it, where two tensors may share memory."""
    with torch.random.fork_rng(devices=[]):
        return batch(n)


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
    rows = rows_of(pair)

    def batch(n: int) -> Pair:
        def take(leaf: object) -> object:
            if not isinstance(leaf, Tensor) or not leaf.ndim or leaf.shape[0] != rows:
                return leaf
            return leaf[torch.arange(n) % rows]

        return cast(Pair, pytree.tree_map(take, tuple(pair)))

    return batch


def growing_dim(one: object, two: object) -> int | None:
    """Returns the dimension in which a tensor of one batch and that of another differ; None where none does."""
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        return None
    return next((d for d in range(one.ndim) if one.shape[d] != two.shape[d]), None)


def rows_of(pair: object) -> int:
    """Returns the samples of an example batch: the first size of its first tensor.

    Raises: BadInput where it has none.
    """
    rows = next((x.shape[0] for x in pytree.tree_leaves(pair) if isinstance(x, Tensor) and x.ndim), 0)
    if not rows:
        other = next((x for x in pytree.tree_leaves(pair) if x is not None), None)
        if other is not None and not isinstance(other, Tensor):
            kind = f"{type(other).__module__}.{type(other).__qualname__}".removeprefix("builtins.")
            raise BadInput(
                f"the example batch holds {kind} and no tensor", allowed="torch.as_tensor of its arrays"
            )
        raise BadInput(
            "the example batch has no samples", allowed="tensors with samples along their first dim"
        )
    return int(rows)


def uneven(small: Pair, large: Pair, span: Span) -> str:
    """Returns the first size that is neither fixed nor the batch's, in words; empty where there is none.

    Args: `small` and `large` are batches of the two sizes of `span`.
    """
    rows = [*named_leaves("input", small[0]), *named_leaves("target", small[1])]
    for (name, low), high in zip(rows, pytree.tree_leaves(large), strict=True):
        if isinstance(low, Tensor) and isinstance(high, Tensor):
            for dim, (a, b) in enumerate(zip(low.shape, high.shape, strict=True)):
                if a != b and (a, b) != span.sizes:
                    return f"dim {dim} of {name} is {a} for n={span.small} and {b} for n={span.large}"
    return ""


def growing_dims(small: Pair, large: Pair, where: str, span: Span) -> object:
    """Returns the dynamic shapes of a batch for the export: every size that grows, in terms of one symbol.

    Args: `small` and `large` are batches of the two sizes of `span`; `where` names the workload in errors.
    Raises: BadInput where the two differ in more than sizes, or do not differ.
    """
    if pytree.tree_structure(small) != pytree.tree_structure(large):
        raise BadInput("batch(n) gives another nesting for another n", where=where)
    symbol = torch.export.Dim("batch", min=span.least, max=span.most)
    leaves = zip(
        [*named_leaves("input", small[0]), *named_leaves("target", small[1])],
        pytree.tree_leaves(large),
        strict=True,
    )
    sizes = [_growing(name, low, high, symbol, where, span) for (name, low), high in leaves]
    if not any(sizes):
        said = f"batch(n) gives the same shapes for n={span.small} and n={span.large}"
        raise BadInput(said, where=where, allowed="n samples")
    return pytree.tree_unflatten(sizes, pytree.tree_structure(small))


def _growing(
    name: str, low: object, high: object, symbol: torch.export.Dim, where: str, span: Span
) -> dict[int, object] | None:
    if not isinstance(low, Tensor) or not isinstance(high, Tensor):
        if repr(low) != repr(high) and isinstance(low, bool | int | float | str):
            raise BadInput(
                f"batch(n) gives {low!r} and {high!r} as {name}, for n={span.small} and n={span.large}",
                where=where,
                allowed="the same for every n; or a tensor; or in forward() a size of a tensor, as x.shape[0]",
            )
        return None
    if low.ndim != high.ndim or low.dtype != high.dtype:
        raise BadInput(f"batch(n) gives another kind of tensor for another n: {name}", where=where)
    sizes: dict[int, object] = {}
    for dim, (a, b) in enumerate(zip(low.shape, high.shape, strict=True)):
        slope, fixed = b - a, a - span.small * (b - a)
        if slope < 0 or fixed < 0:
            said = f"batch(n): dim {dim} of {name} is {a} for n={span.small} and {b} for n={span.large}"
            raise BadInput(said, where=where)
        if slope:
            multiple = symbol if slope == 1 else slope * symbol
            sizes[dim] = multiple + fixed if fixed else multiple
    return sizes


def symbols(*trees: object) -> list[SymInt]:
    """Returns the sizes of the tensors in a batch that an export knows as symbols, in order."""
    sizes: list[object] = []
    for leaf in pytree.tree_leaves(trees):
        sizes += leaf.shape if isinstance(leaf, Tensor) else ()
    return [size for size in sizes if isinstance(size, SymInt)]


@contextlib.contextmanager
def watching_fixed() -> Iterator[list[tuple[object, str]]]:
    """Notes where a trace takes a size for one number, as `len(x)` and `range(x.shape[0])` do.

    Yields: symbols with the line of the user's, or of a library, that each became a number at; filled meanwhile.
    """
    found: list[tuple[object, str]] = []
    original = ShapeEnv._set_replacement

    def noted(env: ShapeEnv, symbol: Any, target: Any, said: str) -> None:
        if getattr(target, "is_Integer", False):
            found.append((symbol, _line_outside_torch()))
        original(env, symbol, target, said)

    try:
        ShapeEnv._set_replacement = noted  # type: ignore[method-assign, assignment]
        yield found
    finally:
        ShapeEnv._set_replacement = original  # type: ignore[method-assign]


def _line_outside_torch() -> str:
    frames = [(x.f_code.co_filename, line) for x, line in traceback.walk_stack(sys._getframe(2))]
    own = [f"{file}:{line}" for file, line in frames if is_users(file)]
    libraries = [f"{file}:{line}" for file, line in frames if "site-packages" in file and not _torch(file)]
    return next(iter([*own, *libraries]), "")


def _torch(file: str) -> bool:
    return any(f"/site-packages/{name}/" in file for name in ("torch", "sympy"))


def fixed_at(sizes: Sequence[SymInt], found: Sequence[tuple[object, str]]) -> str:
    """Returns in words the first line that has made a number of a size of the batch; empty where none has.

    Args: `found` is what `watching_fixed` gave.
    """
    own = {x for size in sizes for x in _names(size)}
    line = next((line for symbol, line in found if symbol in own and line), "")
    return f"; {line} makes a number of the number of samples" if line else ""


def held(found: Sequence[SymInt], small: Pair, large: Pair, span: Span) -> tuple[int, int | None]:
    """Returns the range of batch sizes for which all guards of an export hold.

    Args: `found` are the symbols of `large`; it and `small` are batches of the two sizes of `span`.
    Returns: the least and the most; None where there is no most.
    """
    guards, n = _guards(found), span.large
    lines = {
        x: line for size, line in zip(found, _lines(small, large, span), strict=False) for x in _names(size)
    }

    def holds(batch: int) -> bool:
        at = {symbol: slope * batch + fixed for symbol, (slope, fixed) in lines.items()}
        return all(bool(guard.subs(at)) for guard in guards)

    least = next((each + 1 for each in range(n - 1, 0, -1) if not holds(each)), 1)
    numbers = {int(x) for guard in guards for x in guard.atoms() if x.is_Integer and n < x < MOST}
    points = sorted({2**i for i in range(41)} | {y for x in numbers for y in (x - 1, x, x + 1)})
    good = n
    for point in (point for point in points if point > n):
        if not holds(point):
            return least, _last_good(holds, good, point)
        good = point
    return least, None


def _lines(small: Pair, large: Pair, span: Span) -> list[tuple[int, int]]:
    """Returns (slope, fixed) of every size that grows with the batch, in order."""
    pairs = zip(pytree.tree_leaves(small), pytree.tree_leaves(large), strict=True)
    tensors = [(a, b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor)]
    sizes = [(a, b) for low, high in tensors for a, b in zip(low.shape, high.shape, strict=True) if a != b]
    return [(b - a, a - span.small * (b - a)) for a, b in sizes]


def _names(size: SymInt) -> list[Any]:
    """Returns the symbols of a size: its own, and the one that an export has found it to be equal to."""
    return [x for x in (size.node._expr, size.node.expr) if x.is_Symbol]


def _last_good(holds: Callable[[int], bool], good: int, bad: int) -> int:
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _guards(found: Sequence[SymInt]) -> list[Any]:  # Any: expressions of sympy, which has no types
    """Returns what an export has assumed of the sizes of a batch, which no other symbol takes part in."""
    if not found:
        return []
    env, own = found[0].node.shape_env, {x for size in found for x in _names(size)}
    ranges = [(x, env.var_to_range[x]) for x in own if x in env.var_to_range]
    guards = [guard.expr for guard in env.guards]
    guards += [x <= each.upper for x, each in ranges if each.upper.is_Integer]
    guards += [x >= each.lower for x, each in ranges if each.lower > SMALL]  # an export leaves out 1
    return [guard for guard in dict.fromkeys(guards) if guard.free_symbols and guard.free_symbols <= own]
