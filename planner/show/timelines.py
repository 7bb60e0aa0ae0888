"""A Timeline for people: drawn in the terminal and as SVG.

One colour a pipe (Chimera's two directions differ at a glance), the forward light, the backward strong and its weight
half between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from io import StringIO
from itertools import groupby
from math import gcd
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from planner.schedule import Kind
from planner.shown import DrawnText
from planner.timeline import COLLECTIVE, SEND, Timeline, decode
from planner.units import format_bytes, format_duration

COMPUTE = {Kind.F: "-", Kind.B: "=", Kind.I: "~", Kind.W: "+", Kind.R: "^", Kind.STEP: "#"}
_MEANING = "- forward  = backward  ~ input half  + weight half  ^ recompute  # update"
_LIGHT = ("#9ec5f4", "#f7c08a", "#a5d8a0", "#d3b3ec")  # forward, a pipe
_MIDDLE = ("#6699d6", "#e6944d", "#6fb06a", "#ab7cd0")  # weight half of the backward
_STRONG = ("#2f6fbd", "#d9730d", "#3a8a36", "#8445b5")  # backward, a pipe
_GREY = "#8a8a8a"
_MOST_RANKS = 48  # rows drawn in a terminal; the middle ones are left out


class TimelineBox(NamedTuple):
    rank: int
    kind: str
    label: str
    name: str
    pipe: int
    start: int  # ns from the first start
    end: int
    step: int


def boxes_of(timeline: Timeline) -> Iterator[TimelineBox]:
    zero = int(timeline.start_ns.min()) if len(timeline) else 0
    columns = (timeline.rank, timeline.code, timeline.start_ns, timeline.end_ns, timeline.step)
    for rank, code, start, end, step in zip(*(column.tolist() for column in columns), strict=True):
        event = decode(code)
        label = str(event.micro) if event.name not in (Kind.STEP, COLLECTIVE) else ""
        yield TimelineBox(rank, event.name, label, str(event), event.pipe, start - zero, end - zero, step)


def shade(box: TimelineBox) -> str:
    if box.kind not in COMPUTE or box.kind == Kind.STEP:
        return _GREY
    shades = _LIGHT if box.kind in (Kind.F, Kind.R) else _MIDDLE if box.kind == Kind.W else _STRONG
    return shades[box.pipe % len(shades)]


def ink(box: TimelineBox) -> str:
    return "white" if box.kind in (Kind.B, Kind.I) else "black"


def terminal(timeline: Timeline, *, width: int | None = None, colour: bool | None = None) -> DrawnText:
    """Draws a line for each rank, time to the right.

    Args: `width` in columns is the terminal's by default. Without `colour` the characters tell the kinds apart; by default
    it is used where rich would (not with NO_COLOR, nor without a terminal).
    """
    rows: dict[int, list[TimelineBox]] = {}
    for box in boxes_of(timeline):
        if box.kind in COMPUTE:
            rows.setdefault(box.rank, []).append(box)
    probe = Console(force_jupyter=False)  # which would display each line as a cell's output
    total = width or probe.width
    colour = probe.is_terminal and not probe.no_color if colour is None else colour
    out = Console(
        file=StringIO(),
        width=max(total, 20),
        color_system="truecolor" if colour else None,
        force_terminal=colour,
        force_jupyter=False,
    )
    if not rows:
        return DrawnText("nothing happens\n")
    name = 1 + len(str(max(rows)))
    wide = total >= 50
    room = max(8, total - name - 2 - (7 if wide else 0))
    scale = _Scale(rows, room, plain=not colour)
    for rank in _shown(sorted(rows)):
        if rank is None:
            out.print("...")
            continue
        line = Text(f"{'r' + str(rank):>{name}} ")
        line.append_text(scale.row(rows[rank]))
        if wide:
            busy = sum(box.end - box.start for box in rows[rank])
            line.append(f" {busy / max(1, timeline.makespan_ns):5.0%}")
        out.print(line, no_wrap=True, overflow="crop", crop=True)
    file = out.file
    assert isinstance(file, StringIO)
    return DrawnText(file.getvalue() + _caption(timeline, rows, total))


def _shown(ranks: list[int]) -> list[int | None]:
    if len(ranks) <= _MOST_RANKS:
        return list(ranks)
    half = _MOST_RANKS // 2
    return [*ranks[:half], None, *ranks[-half:]]


def _caption(timeline: Timeline, rows: dict[int, list[TimelineBox]], width: int) -> str:
    busy = sum(box.end - box.start for boxes in rows.values() for box in boxes)
    idle = 1 - busy / max(1, timeline.makespan_ns * len(rows))
    words = [format_duration(timeline.makespan_ns), f"{idle:.1%} idle"]
    if peaks := timeline.peak_bytes:
        rank = max(peaks, key=lambda r: peaks[r])
        words.append(f"peak {format_bytes(peaks[rank])} r{rank}")
    drawn = {COMPUTE[Kind(b.kind)] for boxes in rows.values() for b in boxes if b.end > b.start}
    words += [part for part in _MEANING.split("  ") if part[0] in drawn]
    lines, line = [], ""
    for word in words:
        if line and len(line) + 2 + len(word) > width:
            lines.append(line)
            line = ""
        line = f"{line}  {word}" if line else word
    return "\n".join([*lines, line]) + "\n"


class _Scale:
    """A scale from time to columns: a whole number of columns a unit where the units fit, else proportional."""

    def __init__(self, rows: dict[int, list[TimelineBox]], room: int, *, plain: bool) -> None:
        self.plain = plain  # without colour, so that a box always shows its kind's character
        times = [t for boxes in rows.values() for box in boxes for t in (box.start, box.end)]
        self.span = max(1, *times)
        unit = gcd(*times) or 1
        units = self.span // unit
        self.columns = units * min(4, room // units) if units <= room else room

    def at(self, ns: int) -> int:
        return ns * self.columns // self.span

    def row(self, boxes: list[TimelineBox]) -> Text:
        cells = [(" ", "")] * self.columns
        for box in boxes:
            low, high = self.at(box.start), self.at(box.end)
            fill = COMPUTE[Kind(box.kind)]
            label = box.label and box.label + "'" * box.pipe
            if len(label) >= high - low:  # the kind matters more than the pipe, which the number tells, too
                label = box.label if len(box.label) <= high - low - self.plain else ""
            style = f"{ink(box)} on {shade(box)}"
            for i, char in enumerate(label.ljust(high - low, fill)):
                cells[low + i] = (char, style)
        row = Text()
        for style, run in groupby(cells, key=lambda cell: cell[1]):
            row.append("".join(char for char, _ in run), style)
        return row


def svg(timeline: Timeline, *, width: int = 1200) -> str:
    """Draws ranks as rows, with gradient sums as thin bars below them.

    Args: `width` is in pixels.
    Returns: an SVG document in which every box tells its name, start and length when pointed at.
    """
    boxes = list(boxes_of(timeline))
    ranks = sorted({box.rank for box in boxes})
    height, left, top = 26, 60, 28
    row_of = {rank: i for i, rank in enumerate(ranks)}
    span = max([1, *(box.end for box in boxes)])
    per_ns = max(1, width - left - 10) / span
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + height * len(ranks) + 30}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for rank, row in row_of.items():
        parts.append(f'<text x="4" y="{top + row * height + 15}">rank {rank}</text>')
    for box in sorted(boxes, key=lambda b: b.kind in COMPUTE):
        parts += _svg_box(box, left + box.start * per_ns, top + row_of[box.rank] * height, per_ns)
    for tick in range(11):
        x = left + tick * span / 10 * per_ns
        anchor = "end" if tick == 10 else "middle" if tick else "start"
        parts.append(
            f'<text x="{x:.1f}" y="18" text-anchor="{anchor}">{escape(format_duration(tick * span / 10))}</text>'
        )
    parts.append("</svg>\n")
    return "\n".join(parts)


def _svg_box(box: TimelineBox, x: float, y: float, per_ns: float) -> Iterator[str]:
    wide = (box.end - box.start) * per_ns
    if box.kind == SEND or wide <= 0:
        return
    low, high = (20, 3) if box.kind == COLLECTIVE else (0, 19)
    told = escape(f"{box.name}: {format_duration(box.end - box.start)} from {format_duration(box.start)}")
    yield (
        f'<rect x="{x:.2f}" y="{y + low}" width="{wide:.2f}" height="{high}" fill="{shade(box)}" '
        f'stroke="white" stroke-width="0.5"><title>{told}</title></rect>'
    )
    if box.label and box.kind in COMPUTE and wide > 7 * len(box.label):
        yield (
            f'<text x="{x + wide / 2:.2f}" y="{y + 14}" text-anchor="middle" fill="{ink(box)}">{box.label}</text>'
        )
