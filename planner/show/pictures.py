"""Pictures for notebooks: SVG inside an image element.

As an element of the page viewers such as GitHub's take SVG apart and leave its letters; as an image it stays whole.
An image knows nothing of the page around it, so letters are of the one grey, and shades of middle tones, that show on
white and on black.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby, pairwise

from planner.model import ModelGraph
from planner.plan import Memory, Plan
from planner.show.timelines import COMPUTE, TimelineBox, boxes_of, ink, shade
from planner.timeline import COLLECTIVE, SEND, Timeline
from planner.units import format_bytes, format_duration

WIDTH = 960
LETTERS = "#767676"  # 4.5 : 1 on white, 4.6 : 1 on black
_LEFT, _TOP = 64, 20
MOST_BOXES = 3000  # beyond, a row is drawn by columns of pixels
_COLUMN = 2
IDLE = 'fill="#808080" fill-opacity="0.16"'
PARTS = (
    ("parameters", "#2f6fbd"),
    ("gradients", "#3a8a36"),
    ("optimizer", "#8445b5"),
    ("activations", "#d9730d"),
    ("buffers", "#7d7d7d"),
    ("margin", "#b5b5b5"),
)


def image(height: float, told: str, parts: Sequence[str]) -> str:
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'font-family="sans-serif" font-size="11" fill="{LETTERS}">{"".join(parts)}</svg>'
    )
    data = b64encode(drawn.encode()).decode("ascii")
    return f'<img src="data:image/svg+xml;base64,{data}" width="{WIDTH}" alt="{escape(told)}"/>'


def label(x: float, y: float, words: object, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(str(words))}</text>'


def rect(x: float, y: float, wide: float, high: float, fill: str, told: str = "") -> str:
    title = f"<title>{escape(told)}</title>" if told else ""
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(wide, 0.3):.2f}" height="{high:.2f}" fill="{fill}">{title}</rect>'


def timeline(found: Timeline, name: Callable[[int], str] = "rank {}".format) -> str:
    """Draws a row for each rank: actions, with gradient sums and messages as thin lines below them.

    Args: `name` turns the number of a rank into the label of its row.
    Returns: an image element.
    """
    boxes = list(boxes_of(found))
    ranks = sorted({box.rank for box in boxes})
    high = 22 if len(ranks) <= 24 else 10
    span = max([1, *(box.end for box in boxes)])
    scale = (WIDTH - _LEFT - 8) / span
    condensed = len(boxes) > MOST_BOXES
    parts = [*_ticks(span, scale)]
    rows = {
        rank: list(group)
        for rank, group in groupby(sorted(boxes, key=lambda box: box.rank), lambda box: box.rank)
    }
    for row, rank in enumerate(ranks):
        y = _TOP + row * (high + 6)
        parts += [
            label(2, y + high / 2 + 4, name(rank)),
            f'<rect x="{_LEFT}" y="{y}" width="{span * scale:.2f}" height="{high}" {IDLE}/>',
        ]
        draw = _condensed(rows[rank], y, high, span) if condensed else _drawn(rows[rank], y, high, scale)
        parts += draw
    height = _TOP + len(ranks) * (high + 6) + 16
    busy = sum(box.end - box.start for box in boxes if box.kind in COMPUTE)
    idle = max(0.0, 1 - busy / max(1, span * len(ranks)))
    events = (
        f"{len(boxes):,} events in columns of pixels; the report has every one"
        if condensed
        else f"{len(boxes):,} events"
    )
    parts.append(
        label(
            _LEFT,
            height - 4,
            f"{format_duration(found.makespan_ns)}, {idle:.1%} idle, {events}",
        )
    )
    parts += _legend({box.kind for box in boxes}, height - 12)
    return image(height, f"{len(ranks)} ranks over {format_duration(found.makespan_ns)}", parts)


def _legend(kinds: set[str], y: float) -> Iterator[str]:
    x = float(WIDTH - 8)
    for kind, word in (
        ("STEP", "update"),
        ("W", "weight half"),
        ("I", "input half"),
        ("B", "backward"),
        ("F", "forward"),
    ):
        if kind in kinds:
            x -= 8 + 6.2 * len(word)
            yield label(x, y + 8, word)
            x -= 16
            yield rect(x, y, 12, 9, shade(TimelineBox(0, kind, "", "", 0, 0, 1, 0)))


def _ticks(span: int, scale: float) -> Iterator[str]:
    for tick in range(0, 11, 2):
        anchor = "end" if tick == 10 else "middle" if tick else "start"
        yield label(
            _LEFT + tick * span / 10 * scale, 12, format_duration(tick * span / 10) if tick else "0", anchor
        )


def _drawn(boxes: Sequence[TimelineBox], y: float, high: int, scale: float) -> Iterator[str]:
    for box in boxes:
        x, wide = _LEFT + box.start * scale, (box.end - box.start) * scale
        told = f"{box.name}: {format_duration(box.end - box.start)} from {format_duration(box.start)}"
        if box.kind in COMPUTE and wide > 0:
            yield rect(x, y, wide - 0.6 if wide > 2 else wide, high, shade(box), told)
            if box.label and high > 14 and wide > 7 * len(box.label):
                yield f'<text x="{x + wide / 2:.1f}" y="{y + high / 2 + 4:.1f}" text-anchor="middle" fill="{ink(box)}">{box.label}</text>'
        elif box.kind in (COLLECTIVE, SEND) and wide > 0:
            yield rect(
                x,
                y + high + (0.5 if box.kind == COLLECTIVE else 3),
                wide,
                2,
                "#8445b5" if box.kind == COLLECTIVE else "#a08020",
                told,
            )


def _condensed(boxes: Sequence[TimelineBox], y: float, high: int, span: int) -> Iterator[str]:
    """Yields one path for each shade. Each column of two pixels has the shade of what takes most of it."""
    columns = (WIDTH - _LEFT - 8) // _COLUMN
    shares: list[Counter[str]] = [Counter() for _ in range(columns)]
    for box in boxes:
        if box.kind in COMPUTE:
            _spread(shares, box, span, columns)
    best = [column.most_common(1)[0][0] if column.total() * 2 * columns >= span else "" for column in shares]
    runs: dict[str, list[str]] = {}
    at = 0
    for fill, run in groupby(best):
        count = len(list(run))
        runs.setdefault(fill, []).append(f"M{_LEFT + _COLUMN * at} {y + high / 2:g}h{_COLUMN * count}")
        at += count
    runs.pop("", None)
    for fill, path in runs.items():
        yield f'<path d="{"".join(path)}" stroke="{fill}" stroke-width="{high}"/>'


def _spread(shares: list[Counter[str]], box: TimelineBox, span: int, columns: int) -> None:
    first, last = box.start * columns // span, min(columns - 1, box.end * columns // span)
    for column in range(first, last + 1):
        low, high = max(box.start, column * span // columns), min(box.end, (column + 1) * span // columns)
        if high > low:
            shares[column][shade(box)] += high - low


def strip(
    graph: ModelGraph, heights: Mapping[str, float] | None = None, cuts: Sequence[int] = (), tall: int = 90
) -> str:
    """Draws the layers in their order, as high as they weigh. Dashed lines are cuts, arcs pass by a layer.

    Args: `heights` of the layers by name, their operations by default; `cuts` are indices of layers that open a stage.
    Returns: an image element.
    """
    names = [layer.name for layer in graph.layers]
    weights = heights or {layer.name: float(max(0, layer.flops(1))) for layer in graph.layers}
    most, wide = max([*weights.values(), 1e-30]), (WIDTH - 4) / max(1, len(names))
    parts = []
    for at, name in enumerate(names):
        high = max(2.0, tall * weights.get(name, 0.0) / most)
        fill = "#2f6fbd" if sum(cut <= at for cut in cuts) % 2 else "#6699d6"
        parts.append(rect(2 + at * wide, 16 + tall - high, wide * 0.86, high, fill, f"{at}: {name}"))
    for edge in cuts:
        x = 2 + (edge - 0.07) * wide
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="{18 + tall}" stroke="#d0342c" stroke-dasharray="4 3"/>'
        )
    edges = [0, *cuts, len(names)]
    if len(cuts) in range(1, 33):
        parts += [
            label(2 + (a + b) / 2 * wide, 10, stage, "middle") for stage, (a, b) in enumerate(pairwise(edges))
        ]
    parts += _skips(graph, wide, 18 + tall)
    return image(tall + 58, f"{len(names)} layers in {len(cuts) + 1} stages", parts)


def _skips(graph: ModelGraph, wide: float, y: float) -> list[str]:
    found = []
    for value in graph.values:
        start = graph.index.get(value.producer, -1)
        reach = max((graph.index[name] for name in value.consumers), default=-1)
        if 0 <= start < reach - 1:
            found.append((value.bytes(1), start, reach, value.name))
    arcs = []
    for size, start, reach, name in sorted(found, reverse=True)[:120]:
        x1, x2 = 2 + (start + 0.43) * wide, 2 + (reach + 0.43) * wide
        deep = y + min(70.0, 8 + 0.16 * (x2 - x1))
        arcs.append(
            f'<path d="M{x1:.1f} {y}Q{(x1 + x2) / 2:.1f} {deep:.1f} {x2:.1f} {y}" fill="none" stroke="#d9730d">'
            f"<title>{escape(name)}: {format_bytes(size)} a sample</title></path>"
        )
    return arcs


def plan_memory(found: Sequence[Memory]) -> str:
    """Draws a bar for each worker against its limit, and only the fullest workers where there are many.

    Returns: an image element.
    """
    chosen = sorted(range(len(found)), key=lambda w: -found[w].total / max(1, found[w].limit))[:16]
    parts, room = [], WIDTH - 280
    for row, worker in enumerate(sorted(chosen)):
        each, y, at = found[worker], 4 + row * 18, 100.0
        scale = room / max(each.limit, each.total, 1)
        parts += [
            label(2, y + 11, f"worker {worker}"),
            f'<rect x="100" y="{y}" width="{room}" height="13" {IDLE}/>',
        ]
        for name, fill in PARTS:
            size = int(getattr(each, name))
            parts += [rect(at, y, size * scale, 13, fill, f"{name}: {format_bytes(size)}")] if size else []
            at += size * scale
        x = 100 + each.limit * scale
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2}" y2="{y + 15}" stroke="#d0342c" stroke-width="2"/>'
        )
        parts.append(label(WIDTH - 172, y + 11, f"{format_bytes(each.total)} of {format_bytes(each.limit)}"))
    y, x = 4 + len(chosen) * 18 + 12, 100
    for name, fill in PARTS:
        parts += [rect(x, y - 8, 12, 9, fill), label(x + 16, y, name)]
        x += 100
    return image(y + 8, f"Memory of {len(found)} workers against their limits", parts)


def cuts_of(plan: Plan) -> list[int]:
    """Returns the indices of the layers at which stages after the first begin.

    Example: a plan with stages of 3, 2 and 4 layers has cuts at 3 and 5.
    """
    return list(accumulate(len(stage.layers) for stage in plan.stages))[:-1]


def dots(points: Sequence[tuple[float, float, str]], across: Callable[[float], str], name: str) -> str:
    """Draws plans as dots, their step upwards.

    Args: `points` hold what the plan takes, its step in nanoseconds, and words about it.
    Returns: an image element.
    """
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    wide, tall = max(xs) - min(xs) or 1, max(ys) - min(ys) or 1
    parts = [f'<line x1="60" x2="{WIDTH - 60}" y1="150" y2="150" stroke="#808080"/>']
    for x, y, told in points:
        px, py = 90 + (WIDTH - 180) * (x - min(xs)) / wide, 130 - 100 * (y - min(ys)) / tall
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5" fill="#2f6fbd"><title>{escape(told)}</title></circle>'
        )
        parts.append(label(px, py - 9, format_duration(y), "middle"))
    parts += [label(90, 166, across(min(xs)), "middle"), label(WIDTH - 90, 166, across(max(xs)), "middle")]
    parts.append(label(WIDTH / 2, 166, name, "middle"))
    return image(172, f"{len(points)} plans: step against {name}", parts)
