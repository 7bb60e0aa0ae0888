"""Ways to cut an operation in two that hold numerically though `planner.layout` has no factor for them.

`python -m tests.runtime.layout.missing_rules` prints them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from planner.layout import FAMILIES, MOVES, Along
from planner.spatial import call_of, whole
from tests.runtime.layout.one_operation import EXACT, Case
from tests.runtime.layout.operation_cases import SIZES, cases

Way = tuple[
    frozenset[tuple[str, int]], int | str
]  # tensors by the dimension they are cut along, and the result
MOST_TENSORS = 3  # of which all ways are tried


def known(case: Case) -> set[Way]:
    """Returns the ways that the factors of an operation allow."""
    operations = case.graph()[2]
    operation = next(x for x in operations if x.layer == "layer")
    shapes = {x.name: x.outputs[0] for x in operations}
    call = call_of(operation, {name: whole(shapes[name]) for name in operation.reads()})
    names = {argument: ref.name for argument, ref in _references(operation.arguments)}
    found: set[Way] = set()
    for factor in FAMILIES[operation.operation](call) if operation.operation in FAMILIES else ():
        inputs = {
            (names[x], side.dim)
            for x, side in factor.inputs.items()
            if isinstance(side, Along) and x in names
        }
        out = factor.outputs[0]
        found.add((frozenset(inputs), out.dim if isinstance(out, Along) else out))
    return found


def _references(arguments: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in arguments.items():
        if isinstance(value, tuple):
            yield from ((f"{name}.{i}", x) for i, x in enumerate(value) if hasattr(x, "name"))
        elif hasattr(value, "name"):
            yield name, value


def holding(case: Case) -> set[Way]:
    """Returns the ways that hold: every tensor cut along one dimension or whole, results joined, added or the same."""
    tensors = case.tensors()
    target: Callable[..., object] = case.target  # type: ignore[assignment]

    def made(given: Mapping[str, Tensor]) -> object:
        return target(*(case._argument(x, given) for x in case.args), **case.kwargs)

    wanted = made(tensors)
    found: set[Way] = set()
    if not isinstance(wanted, Tensor):
        return found
    for dims in itertools.product(*([None, *range(x.ndim)] for x in tensors.values())):
        cut = {name: dim for name, dim in zip(tensors, dims, strict=True) if dim is not None}
        if not cut or any(tensors[name].shape[dim] % 2 for name, dim in cut.items()):
            continue
        both = []
        for place in (0, 1):
            parts = {name: x.chunk(2, cut[name])[place] if name in cut else x for name, x in tensors.items()}
            with contextlib.suppress(RuntimeError, IndexError, ValueError):
                both.append(made(parts))
        if len(both) == 2 and all(isinstance(x, Tensor) for x in both):
            found |= {(frozenset(cut.items()), side) for side in _joins(both, wanted)}  # type: ignore[arg-type]
    return found


def _joins(both: list[Tensor], wanted: Tensor) -> Iterator[int | str]:
    first, second = both
    for dim in range(wanted.ndim):
        others = [n for i, n in enumerate(first.shape) if i != dim]
        if others == [n for i, n in enumerate(wanted.shape) if i != dim] and _same(
            torch.cat(both, dim), wanted
        ):
            yield dim
    if _same(first + second, wanted):
        yield "P"
    if _same(first, wanted) and _same(second, wanted):
        yield "I"


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, EXACT, EXACT)


def missing() -> list[str]:
    """Returns all that hold and have no factor, as text."""
    found = []
    for name, case in cases(*SIZES["even"]).items():
        if case.graph()[2][-1].operation in MOVES or len(case.tensors()) > MOST_TENSORS:
            continue
        for inputs, side in sorted(holding(case) - known(case), key=str):
            cut = ", ".join(f"{tensor} by {dim}" for tensor, dim in sorted(inputs))
            found.append(f"{name}: {cut} gives {side}")
    return found


if __name__ == "__main__":
    print("\n".join(missing()))
