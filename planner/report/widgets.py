"""Pictures that need no script: widths in per cent, so that they fit any window with letters of one size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from planner.model import ModelGraph
from planner.plan import Memory, Plan
from planner.show import Markup, escaped, table
from planner.units import format_bytes, format_duration

if TYPE_CHECKING:
    from planner.explore import FrontierRow

MOST_LISTED = 12  # longer tables are folded
_HIGH = 96  # of the bars of layers
_ARCS = 40
_MOST_ARCS = 200
_MOST_NUMBERS = 24  # stages whose number is written
MEMORY_PARTS = (
    ("parameters", "--pipe0-strong"),
    ("gradients", "--pipe2-strong"),
    ("optimizer", "--pipe3-strong"),
    ("activations", "--pipe1-strong"),
    ("buffers", "--update"),
    ("margin", "--faint"),
)


def page_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, ours: int | None = None
) -> str:
    """Returns a table with every row of the page.

    Args: cells are HTML already; the row numbered `ours` is marked.
    """
    return table(heads, [map(Markup, row) for row in rows], most=None, caption=caption, ours=ours)


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Returns a list of names with what each is.

    Args: the second of each row is HTML already.
    """
    body = "".join(f"<dt>{escaped(name)}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<dl class="facts">{body}</dl>'


def meter(share: float, *, other: bool = False) -> str:
    """Draws a bar of a share.

    Args: `share` from 0 to 1; `other` gives it another colour.
    """
    width = min(100.0, max(0.0, 100 * share))
    return f'<span class="meter{" other" if other else ""}"><i style="width:{width:.2f}%"></i></span>'


def section(name: str, title: str, *parts: str) -> str:
    """Returns a section of the page with its heading.

    Args: `name` is its anchor; `parts` are HTML already.
    """
    head = f'<h2 id="h-{name}">{escaped(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="h-{name}">{head}{"".join(parts)}</section>'


def chart(name: str, told: str) -> str:
    """Returns a place for a chart that a script draws, and that keys and pointer ask.

    Args: `name` is its id; `told` says what it is to who does not see it.
    """
    return (
        f'<figure id="{name}"><div class="stage"><canvas tabindex="0" role="application" aria-roledescription="chart" '
        f'aria-label="{escaped(told)}" aria-describedby="keys"></canvas></div><div class="tip" hidden></div>'
        '<p class="said" role="status"></p></figure>'
    )


def mesh(plan: Plan) -> str:
    """Returns the degrees of a plan's mesh, the outermost first.

    Example: "data 2 × pipeline 4".
    """
    axes = plan.axes
    degrees = [f"{name} {getattr(axes, name)}" for name in axes.order if getattr(axes, name) > 1]
    return " × ".join(degrees) or "one process"


def strip(plan: Plan, layer_ns: Mapping[str, int] | None, graph: ModelGraph | None) -> str:
    """Draws the layers in their order, as high as they take long, with the cuts and what passes over them.

    Args: `layer_ns` is the time of each layer, where known; without a `graph` nothing passes over cuts.
    """
    names = [name for stage in plan.stages for name in stage.layers]
    edges = [0, *accumulate(len(stage.layers) for stage in plan.stages)]
    most = max([1, *(layer_ns or {}).values()])
    arcs = _arcs(names, edges, graph)
    bottom = 18 + _HIGH
    parts = [*_bands(edges, len(names)), *_bars(names, edges, layer_ns, most), *_lines(edges, len(names))]
    if arcs:
        parts.append(
            f'<svg y="{bottom + 2}" height="{_ARCS}" viewBox="0 0 100 100" preserveAspectRatio="none">{"".join(arcs)}</svg>'
        )
    told = f"{len(names)} layers in {len(plan.stages)} stages, cut after layers {', '.join(str(e) for e in edges[1:-1]) or 'none'}"
    height = bottom + (_ARCS + 4 if arcs else 2)
    return f'<svg role="img" aria-label="{escaped(told)}" height="{height}" data-layers="{len(names)}">{"".join(parts)}</svg>'


def _share(at: float, of: int) -> str:
    return f"{100 * at / max(1, of):.3f}%"


def _bands(edges: Sequence[int], layers: int) -> Iterator[str]:
    every = max(1, -(-(len(edges) - 1) // _MOST_NUMBERS))
    for stage, (low, high) in enumerate(pairwise(edges)):
        shade = "--idle" if stage % 2 else "--panel"
        yield f'<rect x="{_share(low, layers)}" y="16" width="{_share(high - low, layers)}" height="{_HIGH + 2}" fill="var({shade})"/>'
        if stage % every == 0:
            yield f'<text x="{_share((low + high) / 2, layers)}" y="11" text-anchor="middle">{stage}</text>'


def _bars(
    names: Sequence[str], edges: Sequence[int], layer_ns: Mapping[str, int] | None, most: int
) -> Iterator[str]:
    for stage, (low, high) in enumerate(pairwise(edges)):
        for at in range(low, high):
            ns = None if layer_ns is None else layer_ns[names[at]]
            tall = _HIGH * 0.4 if ns is None else max(1.0, _HIGH * ns / most)
            told = f"{names[at]}, stage {stage}" + (
                "" if ns is None else f": {format_duration(ns)} forward and backward"
            )
            yield (
                f'<rect x="{_share(at + 0.08, len(names))}" y="{16 + _HIGH - tall:.1f}" width="{_share(0.84, len(names))}" '
                f'height="{tall:.1f}" fill="var(--pipe0-{"strong" if stage % 2 else "middle"})"><title>{escaped(told)}</title></rect>'
            )


def _lines(edges: Sequence[int], layers: int) -> Iterator[str]:
    for edge in edges[1:-1]:
        x = _share(edge, layers)
        yield f'<line x1="{x}" x2="{x}" y1="14" y2="{18 + _HIGH}" stroke="var(--alarm)" stroke-dasharray="4 3"/>'


def _arcs(names: Sequence[str], edges: Sequence[int], graph: ModelGraph | None) -> list[str]:
    """Returns arcs for the largest values that pass by the next layer and over a cut."""
    if graph is None:
        return []
    at = {name: i for i, name in enumerate(names)}
    found = []
    for value in graph.values:
        reach = max((at[name] for name in value.consumers), default=-1)
        start = at.get(value.producer, -1)
        if start >= 0 and reach > start + 1 and any(start < edge <= reach for edge in edges[1:-1]):
            found.append((value.sample_bytes + value.fixed_bytes, start, reach, value.name))
    arcs = []
    for size, start, reach, name in sorted(found, reverse=True)[:_MOST_ARCS]:
        x1, x2 = (100 * (i + 0.5) / len(names) for i in (start, reach))
        deep = 30 + 150 * (reach - start) / len(names)
        told = f"{name}: {format_bytes(size)} a sample, from {names[start]} to {names[reach]}"
        arcs.append(
            f'<path d="M{x1:.2f} 0Q{(x1 + x2) / 2:.2f} {deep:.0f} {x2:.2f} 0" fill="none" stroke="var(--pipe1-strong)" '
            f'vector-effect="non-scaling-stroke" stroke-width="1.2"><title>{escaped(told)}</title></path>'
        )
    return arcs


def memory_bar(found: Memory) -> str:
    """Draws what holds a device's memory, against its limit.

    Returns: an SVG element.
    """
    whole, at, parts = max(found.limit, found.total, 1), 0, []
    for name, shade in MEMORY_PARTS:
        size = int(getattr(found, name))
        if size:
            parts.append(
                f'<rect x="{_share(at, whole)}" width="{_share(size, whole)}" height="14" fill="var({shade})">'
                f"<title>{name}: {format_bytes(size)}</title></rect>"
            )
        at += size
    limit = _share(found.limit, whole)
    return (
        f'<svg height="14" role="img" aria-label="{format_bytes(found.total)} of {format_bytes(found.limit)}" style="min-width:120px">'
        f'<rect width="100%" height="14" fill="var(--idle)"/>{"".join(parts)}'
        f'<line x1="{limit}" x2="{limit}" y2="14" stroke="var(--alarm)" stroke-width="2"/></svg>'
    )


def scatter(
    rows: Sequence[FrontierRow], of: Callable[[FrontierRow], float], name: str, unit: Callable[[float], str]
) -> str:
    """Draws plans as points: their step against what `of` finds that they take.

    Args: `unit` writes a value of the axis, which is called `name`.
    """
    xs, ys = [of(row) for row in rows], [row.step_ns for row in rows]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys), max(ys)
    parts = []
    for x, y, row in zip(xs, ys, rows, strict=True):
        px = 12 + 76 * ((x - low_x) / (high_x - low_x) if high_x > low_x else 0.5)
        py = 20 + 110 * (1 - (y - low_y) / (high_y - low_y) if high_y > low_y else 0.5)
        told = f"{unit(x)}: {format_duration(y)}, {row.plan.schedule.family}"
        parts.append(
            f'<circle cx="{px:.2f}%" cy="{py:.1f}" r="5" fill="var(--pipe0-strong)"><title>{escaped(told)}</title></circle>'
        )
        if len(rows) <= 8 or row in (rows[0], rows[-1]):
            parts.append(
                f'<text x="{px:.2f}%" y="{py - 9:.1f}" text-anchor="middle">{format_duration(y)}</text>'
            )
    ends = (
        f'<text x="12%" y="158" text-anchor="middle">{unit(low_x)}</text><text x="88%" y="158" text-anchor="middle">'
        f'{unit(high_x)}</text><text x="50%" y="158" text-anchor="middle">{escaped(name)}</text>'
    )
    frame = '<line x1="6%" x2="94%" y1="142" y2="142" stroke="var(--line)"/>'
    told = f"{len(rows)} plans: step time against {name}"
    return f'<svg role="img" aria-label="{escaped(told)}" height="164" data-points="{len(rows)}">{frame}{"".join(parts)}{ends}</svg>'


_MOST_HOVERED = 400  # steps that say their number to the pointer; of more, every second, third, ...


def sparkline(values: Mapping[int, float], told: str, written: Callable[[float], str]) -> str:
    """Draws numbers by step, with their range and their first and last step; the pointer is told each.

    Args: `written` writes a value.
    """
    low, high, wide = min(values.values()), max(values.values()), 100 / max(1, len(values) - 1)
    points = " ".join(
        f"{wide * i:.2f},{38 - 34 * ((v - low) / (high - low) if high > low else 0.5):.2f}"
        for i, v in enumerate(values.values())
    )
    apart = -(-len(values) // _MOST_HOVERED)
    hovered = "".join(
        f'<rect x="{wide * (i - apart / 2):.2f}" y="0" width="{wide * apart:.2f}" height="42" fill="transparent">'
        f"<title>step {step}: {escaped(written(value))}</title></rect>"
        for i, (step, value) in enumerate(values.items())
        if i % apart == 0
    )
    return (
        f'<div class="spark"><span>{escaped(written(high))}</span>'
        f'<svg role="img" aria-label="{escaped(told)}" height="44" viewBox="0 0 100 42" preserveAspectRatio="none">'
        f'<polyline points="{points}" fill="none" stroke="var(--pipe0-strong)" stroke-width="1.8" vector-effect="non-scaling-stroke"/>'
        f"{hovered}</svg><span>{escaped(written(low))}</span><span>step {min(values)}</span><span>step {max(values)}</span></div>"
    )
