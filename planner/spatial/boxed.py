"""Asks rules about one box of a volume, and reads what they answer.

A box is the shard of an imaginary rank that has others before and behind it along every axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from planner.spatial.layout import Cut, Layout
from planner.spatial.operation import Operation, Ref
from planner.spatial.rows_needed import Fetch, RowRun
from planner.spatial.rule import Call, Step, call_of

Rows = tuple[int, int]  # from the first to behind the last
Box = tuple[Rows, ...]  # of each axis
HERE: Final = 1  # the box's coordinate along every axis: rows before it, its own, rows behind it
BOXES: Final = "boxes of a volume"


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
