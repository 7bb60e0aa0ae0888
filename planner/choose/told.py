"""Says in sentences what each layout of a list cuts, what it takes, and what it gives up for the memory it saves."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

from planner import units
from planner.choose.closed_forms import volumes
from planner.choose.folded import folded
from planner.choose.pareto import ChosenLayout
from planner.choose.work import GroupWork
from planner.choose.written import rows_of
from planner.group import placed_text

_SLIGHT = 0.005  # of a whole: what is not worth a word


def mesh_text(layout: ChosenLayout) -> str:
    """Returns a mesh as users write it, such as 2x4."""
    return "x".join(map(str, layout.mesh))


def reasons(found: Sequence[ChosenLayout]) -> list[str]:
    """Returns one sentence or two for each layout: what it costs and saves against the one before it."""
    said = ["It is the fastest."]
    for before, layout in itertools.pairwise(found):
        a, b = before.price, layout.price
        more = [
            f"{units.format_duration(abs(y - x))} {'more' if y > x else 'less'} {what}"
            for what, x, y in (
                ("computing", a.compute_ns, b.compute_ns),
                ("of conversions", a.convert_ns, b.convert_ns),
                ("of gradient sums", a.sum_ns, b.sum_ns),
            )
            if abs(y - x) > _SLIGHT * a.ns
        ]
        saved = [
            f"{units.format_bytes(abs(x - y))} {'less' if x > y else 'more'} of {what}"
            for what, x, y in (
                ("parameters with gradients and state", a.state_bytes, b.state_bytes),
                ("activations", a.kept_bytes, b.kept_bytes),
            )
            if abs(x - y) > _SLIGHT * a.bytes
        ]
        slower, smaller = units.format_duration(b.ns - a.ns), units.format_bytes(a.bytes - b.bytes)
        said.append(
            f"It takes {slower} more than the layout before it{_because(more)}. It saves {smaller}{_because(saved)}."
        )
    return said


def _because(parts: Sequence[str]) -> str:
    return f" ({', '.join(parts)})" if parts else ""


def layout_lines(number: int, layout: ChosenLayout, reason: str) -> Iterator[str]:
    """Yields the lines that a terminal shows of one layout.

    Args: `number` is its place in the list, from 1; `reason` is that of `reasons`.
    """
    price = layout.price
    yield (
        f"{number}. {units.format_duration(price.ns)} a step, {units.format_bytes(price.bytes)} a rank, "
        f"mesh {mesh_text(layout)}: {placed_text(layout.on)}"
    )
    parts = (
        ("computing", price.compute_ns),
        ("conversions", price.convert_ns),
        ("gradient sums", price.sum_ns),
    )
    taken = ", ".join(f"{what} {units.format_duration(ns)}" for what, ns in parts if ns)
    held = f"{units.format_bytes(price.state_bytes)} of parameters with gradients and state"
    yield f"   {taken}; {held}, {units.format_bytes(price.kept_bytes)} of activations"
    yield f"   {reason}"
    for row in rows_of(layout.lines):
        cut = ", ".join(f"{axis}: {row[axis]}" for axis in "xyz" if axis in row)
        yield f"     {row['layers']}  {cut}"
    if not layout.lines:
        yield "     nothing is cut: all ranks compute all of it"


def transformer_size(work: GroupWork) -> tuple[int, int] | None:
    """Returns tokens and width of the repeated blocks of a model; None where it has no linear layers in blocks."""
    graph = folded(work.operations)
    shapes = {x.name: x.outputs[0] for x in graph.operations if x.outputs}
    sizes = Counter[tuple[int, int]]()
    for x in graph.operations:
        read = dict(x.named_reads())
        name = read.get("input") if x.operation == "aten.linear" else None
        if name is not None and x.name in graph.times:
            *lead, width = shapes[name]
            sizes[prod(lead), width] += 1
    return max(sizes, key=lambda x: (sizes[x], x)) if sizes else None


def volume_lines(ranks: int, tokens: int, width: int) -> Iterator[str]:
    """Yields a table of what one transformer layer sends in closed form, by the way in which ranks cut it."""
    yield f"What one transformer layer of width {width} sends for {tokens} tokens on {ranks} ranks, forward and backward:"
    rows = sorted(volumes(ranks), key=lambda x: (not x.whole_layer, x.elements(tokens, width)))
    for row in rows:
        mesh = "x".join(map(str, row.mesh))
        alone = "" if row.whole_layer else ", attention alone"
        yield f"  {row.name:<20} {mesh:<8} {row.elements(tokens, width) / 1e6:12,.2f} million elements a rank{alone}"
