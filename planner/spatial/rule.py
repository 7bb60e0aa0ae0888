"""The question that a rule is asked (`Call`) and its answer (`Step`).

A rule is a function from a Call, one operation of a captured model with the layouts of its tensors, to a Step. A box of
a volume is asked for as the shard of an imaginary rank that has others before and behind it along every axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from planner.errors import BadInput
from planner.spatial.layout import Cut, Layout
from planner.spatial.operation import Given, Operation, Ref
from planner.spatial.rows_needed import Fetch, RowRun, recut, take

# Tensors are Layouts; a list of tensors is a tuple of them (None where one is left out).
Argument = None | bool | int | float | str | Layout | tuple["Argument", ...]
PARTS: Final = "parts of a sample"
LOWEST: Final = float("-inf")
Rows = tuple[int, int]  # from the first to behind the last
Box = tuple[Rows, ...]  # of each axis
HERE: Final = 1  # the box's coordinate along every axis: rows before it, its own, rows behind it
BOXES: Final = "boxes of a volume"


@dataclass(frozen=True, slots=True)
class Call:
    """An operation with its arguments by the names of its schema."""

    operation: str  # "aten.conv3d"
    arguments: Mapping[str, Argument]
    outputs: tuple[tuple[int, ...], ...]  # global shapes
    where: str = ""  # the user's module, for errors
    parts: str = PARTS  # that its tensors are, for errors
    layer: str = ""  # that it belongs to, where that is not `where`
    wanted: Mapping[int, tuple[int, ...]] = field(
        default_factory=dict
    )  # axis -> points that results shall have

    def get(self, name: str, default: Argument = None) -> Argument:
        """Returns an argument.

        Args: `default` stands for an argument that is missing or None.
        """
        value = self.arguments.get(name)
        return default if value is None else value

    def tensor(self, name: str) -> Layout:
        """Returns the layout of a tensor argument.

        Raises: NoRule where the argument is no tensor: this overload has no rule.
        """
        value = self.arguments.get(name)
        if not isinstance(value, Layout):
            raise self.refuse(f"this overload has no tensor '{name}'")
        return value

    def integer(self, name: str, default: int = 0) -> int:
        """Returns an integer argument.

        Args: `default` stands for an argument that is missing or None.
        """
        value = self.get(name, default)
        assert isinstance(value, int), (self.operation, name)
        return value

    def flag(self, name: str) -> bool:
        """Returns a true-or-false argument; False where it is missing.

        Args: `name` is the argument's in the schema.
        """
        return bool(self.get(name, False))

    def integers(self, name: str, count: int, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Returns an argument that is a list of `count` integers.

        Args: one integer in the argument stands for all; `default` stands for an empty list.
        """
        value = self.get(name, ())
        if isinstance(value, int):
            return (value,) * count
        assert isinstance(value, tuple), (self.operation, name)
        given = tuple(value) or tuple(default)
        return tuple(x for x in (given * count if len(given) == 1 else given) if isinstance(x, int))

    def dims(self, name: str, ndim: int) -> tuple[int, ...]:
        """Returns an argument that names dimensions.

        Args: `ndim` is the number of dimensions that there are.
        Returns: dimensions counted from the front; all of them where the argument names none.
        """
        value = self.get(name)
        given = (value,) if isinstance(value, int) else value
        if not given:
            return tuple(range(ndim))
        assert isinstance(given, tuple)
        return tuple(x % ndim for x in given if isinstance(x, int))

    def tensors(self) -> Iterator[tuple[str, Layout]]:
        """Yields the name and the layout of every tensor argument.

        Yields: also the tensors of lists; the first of the list "tensors" is named "tensors.0".
        """
        for name, value in self.arguments.items():
            if isinstance(value, Layout):
                yield name, value
            elif isinstance(value, tuple):
                yield from ((f"{name}.{i}", x) for i, x in enumerate(value) if isinstance(x, Layout))

    @property
    def gather(self) -> str:
        """Returns where a gather would make the operation possible, in words for errors."""
        apart = self.layer not in ("", self.where)
        return f"a gather before layer '{self.layer}'" if apart else "a gather before it"

    def refuse(self, why: str, allowed: str = "") -> BadInput:
        """Returns the error for an operation that cannot be done on shards.

        Args: `why` goes on after "aten.name on parts of a sample: "; `allowed` is a gather where it is empty.
        """
        what = f"{self.operation} on {self.parts}: {why}"
        return NoRule(what, where=self.where, allowed=allowed or self.gather, layer=self.layer)

    def too_few(self, rows: int, ranks: int) -> BadInput:
        """Returns the error for an operation that leaves fewer rows than there are ranks.

        Args: `rows` are left of a dimension that `ranks` ranks share.
        """
        why = f"{self.operation} leaves {rows} rows for {ranks} ranks"
        allowed = f"up to {rows} ranks, or {self.gather}"
        return TooFew(why, where=self.where, allowed=allowed, layer=self.layer)


def call_of(operation: Operation, inputs: Mapping[str, Layout]) -> Call:
    """Returns the question to a rule that an operation poses on given layouts.

    Args: `inputs` are layouts by the names of the tensors that the operation reads.
    """
    arguments = {name: _resolved(value, inputs) for name, value in operation.arguments.items()}
    return Call(operation.operation, arguments, operation.outputs, operation.place, layer=operation.layer)


def _resolved(value: Given, inputs: Mapping[str, Layout]) -> Argument:
    if isinstance(value, Ref):
        return inputs[value.name]
    if isinstance(value, tuple):
        return tuple(_resolved(x, inputs) for x in value)
    return value


class NoRule(BadInput):
    """An operation that cannot be computed on shards; to compute it alike on every rank is exact, too.

    `layer` is the layer before which shards must be gathered at the latest; `where` names the place for the user.
    """

    def __init__(self, what: str, *, where: str = "", allowed: str = "", layer: str = "") -> None:
        super().__init__(what, where=where, allowed=allowed)
        self.layer = layer or where

    @property
    def why(self) -> str:
        """Returns the message without what would be allowed, for callers that know better what is."""
        return f"{self.where}: {self.what}" if self.where else self.what


class TooFew(NoRule):
    """The error where fewer rows are left than there are ranks."""


@dataclass(frozen=True, slots=True)
class Step:
    """The answer of a rule: where the results lie, what is fetched first, and what is reduced."""

    outputs: tuple[Layout, ...]
    fetches: Mapping[str, tuple[Fetch, ...]] = field(default_factory=dict)  # by name of the tensor argument
    # dimension -> by coordinate, rows to drop at the front of what the operation makes of the fetched rows
    skips: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    axes: frozenset[int] = frozenset()  # of the grid, along which the ranks compute different things
    reduced: int = 0  # elements all-reduced in the forward pass, over `axes`
    reduced_backward: int = 0

    @property
    def output(self) -> Layout:
        """Returns the layout of the first result."""
        return self.outputs[0]

    def fetch(self, name: str, dim: int) -> Fetch | None:
        """Returns the fetch of a tensor argument along a dimension, or None.

        Args: `name` is the argument's in the schema.
        """
        return next((f for f in self.fetches.get(name, ()) if f.dim == dim), None)


Rule = Callable[[Call], Step]


def aligned(call: Call, layout: Layout, target: Mapping[int, Cut]) -> tuple[Fetch, ...]:
    """Returns the fetches that bring a tensor to given cuts.

    Args: `target` has the wanted cut of each dimension; other dimensions must not be cut.
    Returns: slices of dimensions that are whole, re-cuts of those that are cut otherwise.
    Raises: NoRule where the tensor is cut along another dimension or axis.
    """
    found = []
    axes = {dim: cut.axis for dim, cut in target.items()}
    for dim, own in enumerate(layout.cuts):
        if own is not None and own.axis != axes.get(dim):
            raise call.refuse("its operands are cut along different dimensions")
    for dim, cut in target.items():
        own = layout.cuts[dim]
        if own is None:
            found.append(take(dim, cut))
        elif own != cut:
            found.append(recut(dim, own, cut))
    return tuple(found)


def rows_of(cut: Cut) -> list[tuple[int, int]]:
    """Returns the rows (start, stop) of each shard of a cut.

    Args: `cut` has one shard between each two neighbouring points.
    """
    return list(zip(cut.points, cut.points[1:], strict=False))


def elements(shape: Sequence[int]) -> int:
    """Returns the number of elements of a tensor of a shape."""
    return prod(shape)


def here(step: Step) -> Step:
    """Returns a Step in which only the box in the middle wants rows.

    Args: `step` is a rule's answer for rows before the box, of the box, and behind it.
    """
    fetches = {name: tuple(map(_alone, found)) for name, found in step.fetches.items()}
    return replace(step, fetches=fetches)


def _alone(fetch: Fetch) -> Fetch:
    runs = tuple(own if i == HERE else () for i, own in enumerate(fetch.runs))
    return replace(fetch, runs=runs, sizes=tuple(n if i == HERE else 0 for i, n in enumerate(fetch.sizes)))


def asked(operation: Operation, reads: Mapping[str, Layout], wanted: Mapping[int, tuple[int, ...]]) -> Call:
    """Returns the question to a rule with the points that the results shall have.

    Args: `wanted` has points by axis.
    """
    return replace(call_of(operation, reads), wanted=wanted, parts=BOXES)


def axis_of(layout: Layout, dim: int) -> int:
    """Returns the axis of space along which a dimension is cut.

    Args: `dim` is one of the layout's cut dimensions.
    """
    cut = layout.cuts[dim]
    assert cut is not None
    return cut.axis


def laid(layout: Layout, rows: Mapping[int, Rows]) -> Layout:
    """Returns a layout of which the box has the given rows, by axis."""
    for dim in layout.cut_dims:
        axis = axis_of(layout, dim)
        layout = layout.with_cut(dim, Cut(axis, (0, *rows[axis], layout.shape[dim])))
    return layout


def span(runs: Sequence[RowRun]) -> Rows | None:
    """Returns the rows from the first to behind the last of some runs; None where there are none."""
    ends = [row for run in runs for row in (run.start, run.start + (run.length - 1) * run.step)]
    return (min(ends), max(ends) + 1) if ends else None


def named(operation: Operation) -> Iterator[tuple[str, str]]:
    """Yields the argument and the tensor of everything that an operation reads; a list's entries are numbered."""
    for argument, value in operation.arguments.items():
        listed = isinstance(value, tuple)
        values = value if isinstance(value, tuple) else (value,)
        entries = ((f"{argument}.{i}" if listed else argument, x) for i, x in enumerate(values))
        yield from ((name, x.name) for name, x in entries if isinstance(x, Ref))
