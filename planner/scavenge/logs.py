"""Logs of a site as spells: which node was idle from when to when.

Three kinds of text are read. All nodes of a log are known by name, and no spell reaches beyond its begin and end.

    events   a row each time a node falls idle or is taken: `seconds,node,idle` with idle 1 or 0
    sacct    `sacct -a -X -P --format=JobID,Start,End,NodeList`: a node is idle while no job has it
    swf      the standard workload format: jobs have processors only, so each takes the first nodes that are free
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from planner import files
from planner.errors import BadInput

MOST_BYTES = 2**27
MOST_NODES = 2**17
_SWF_COLUMNS = 18
_SACCT = "what `sacct -a -X -P --format=JobID,Start,End,NodeList` prints"
_LIST = re.compile(r"([^\[,]+)(?:\[([\d,-]+)\])?([^\[,]*)(?:,|$)")
Format = Literal["events", "sacct", "swf"]
FORMATS: tuple[Format, ...] = ("events", "sacct", "swf")


class Spell(NamedTuple):
    """The time in which a node is idle, in seconds."""

    node: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class IdleLog:
    """The spells of a site in the order of their begins, and the time that the log is about."""

    nodes: tuple[str, ...]
    spells: tuple[Spell, ...]
    begin_s: float
    end_s: float

    @property
    def idle_node_s(self) -> float:
        """Returns the seconds of all spells."""
        return sum(spell.end_s - spell.begin_s for spell in self.spells)

    @property
    def average(self) -> float:
        """Returns how many nodes were idle on average."""
        return self.idle_node_s / (self.end_s - self.begin_s)

    def cut(self, *, nodes: int | None = None, seconds: float | None = None) -> IdleLog:
        """Returns a part of the log.

        Args: the first `nodes` and `seconds` are kept; None keeps all.
        """
        end_s = self.end_s if seconds is None else min(self.end_s, self.begin_s + seconds)
        count = len(self.nodes) if nodes is None else min(nodes, len(self.nodes))
        kept = (
            spell._replace(end_s=min(spell.end_s, end_s))
            for spell in self.spells
            if spell.node < count and spell.begin_s < end_s
        )
        return IdleLog(nodes=self.nodes[:count], spells=tuple(kept), begin_s=self.begin_s, end_s=end_s)


def log_of_spells(nodes: Sequence[str], spells: Iterable[Spell], begin_s: float, end_s: float) -> IdleLog:
    """Returns a log whose spells are in order, within its time, and joined where one begins as another ends.

    Args: `spells` may be in any order; those of a node do not overlap.
    Raises: BadInput where the log is about no time.
    """
    if not end_s > begin_s:
        raise BadInput("is about no time: its last event is not after its first", where="log")
    joined: dict[int, list[Spell]] = defaultdict(list)
    for spell in sorted(spells):
        spell = spell._replace(begin_s=max(spell.begin_s, begin_s), end_s=min(spell.end_s, end_s))
        own = joined[spell.node]
        if own and own[-1].end_s >= spell.begin_s:
            own[-1] = own[-1]._replace(end_s=max(own[-1].end_s, spell.end_s))
        elif spell.end_s > spell.begin_s:
            own.append(spell)
    found = sorted(
        (spell for own in joined.values() for spell in own), key=lambda spell: spell[1:2] + spell[:1]
    )
    return IdleLog(nodes=tuple(nodes), spells=tuple(found), begin_s=begin_s, end_s=end_s)


def read_log(path: Path, *, kind: Format | None = None, processors: int = 1) -> IdleLog:
    """Reads a log.

    Args: `kind` is found from the text where it is None; `processors` are those of a node, for SWF.
    Raises: BadInput that names the line which is none of that kind.
    """
    lines = files.read_text(path, max_bytes=MOST_BYTES).splitlines()
    kind = kind or _kind(lines, str(path))
    if kind == "sacct":
        return _from_sacct(lines, str(path))
    return _from_swf(lines, str(path), processors) if kind == "swf" else _from_events(lines, str(path))


def _kind(lines: Sequence[str], name: str) -> Format:
    first = next((line for line in lines if line.strip()), "")
    if "|" in first:
        return "sacct"
    if "NodeList" in first.split():
        what = f"has the columns {' '.join(first.split())} without '|' between them"
        raise BadInput(what, where=f"{name}:1", allowed=_SACCT)
    return "swf" if first.startswith(";") or len(first.split()) >= _SWF_COLUMNS else "events"


def _from_events(lines: Sequence[str], name: str) -> IdleLog:
    numbers: dict[str, int] = {}
    idle: dict[int, float] = {}
    spells: list[Spell] = []
    begin_s = now = None
    for line, (moment, node, state) in _rows(lines, name):
        now = _number(moment, f"{name}:{line}") if now is None else _later(moment, now, f"{name}:{line}")
        begin_s = now if begin_s is None else begin_s
        if state not in ("0", "1"):
            raise BadInput(f"'{state}' is no state", where=f"{name}:{line}", allowed="1 idle, 0 taken")
        at = numbers.setdefault(node, len(numbers))
        if state == "1":
            idle.setdefault(at, now)
        elif at in idle:
            spells.append(Spell(at, idle.pop(at), now))
    if begin_s is None or now is None:
        raise BadInput("has no event", where=name, allowed="rows of seconds,node,idle")
    spells += [Spell(at, since, now) for at, since in idle.items()]
    return log_of_spells(list(numbers), spells, begin_s, now)


def _rows(lines: Sequence[str], name: str) -> Iterator[tuple[int, list[str]]]:
    for line, text in enumerate(lines, 1):
        cells = text.replace(",", " ").split()
        if not cells or text.startswith("#") or cells[0] == "seconds":
            continue
        if len(cells) != 3:
            raise BadInput(f"has {len(cells)} columns", where=f"{name}:{line}", allowed="seconds,node,idle")
        yield line, cells


def _from_sacct(lines: Sequence[str], name: str) -> IdleLog:
    heads = lines[0].strip().split("|")
    columns = {head: heads.index(head) for head in ("Start", "End", "NodeList") if head in heads}
    if len(columns) < 3:
        missing = ", ".join({"Start", "End", "NodeList"} - set(columns))
        raise BadInput(f"has no column {missing}", where=f"{name}:1", allowed=_SACCT)
    numbers: dict[str, int] = {}
    busy: list[Spell] = []
    open_: list[tuple[str, float]] = []
    for line, text in enumerate(lines[1:], 2):
        cells = text.strip().split("|")
        if len(cells) < len(heads):
            continue
        start, end, nodes = (cells[columns[head]] for head in ("Start", "End", "NodeList"))
        if start in ("Unknown", "None", "") or nodes in ("None assigned", "", "None"):
            continue  # never began
        begin_s = _moment(start, f"{name}:{line}")
        for node in hosts(nodes, f"{name}:{line}"):
            if end == "Unknown":
                open_.append((node, begin_s))
            busy.append(
                Spell(
                    numbers.setdefault(node, len(numbers)),
                    begin_s,
                    begin_s if end == "Unknown" else _moment(end, f"{name}:{line}"),
                )
            )
    if not busy:
        raise BadInput("has no job that began", where=name, allowed="rows with Start, End and NodeList")
    begin_s, end_s = min(spell.begin_s for spell in busy), max(spell.end_s for spell in busy)
    busy += [Spell(numbers[node], since, end_s) for node, since in open_]  # still runs
    return _idle_beside(list(numbers), busy, begin_s, end_s)


def hosts(text: str, where: str) -> list[str]:
    """Returns the names in a list of nodes as SLURM writes it, such as n[01-03,7],login.

    Raises: BadInput where the text is no such list, or names very many.
    """
    found, at = list[str](), 0
    while at < len(text):
        part = _LIST.match(text, at)
        if part is None:
            raise BadInput(f"'{text}' is no list of nodes", where=where, allowed="such as n[01-03,7]")
        at = part.end()
        for span in (part[2] or "").split(","):
            first, _, last = span.partition("-")
            if len(found) + int(last or 0) - int(first or 0) > MOST_NODES:
                raise BadInput(f"'{text:.80}' has too many nodes", where=where, allowed=f"{MOST_NODES}")
            numbers = range(int(first), int(last or first) + 1) if first else [None]
            found += [
                f"{part[1]}{'' if number is None else str(number).zfill(len(first))}{part[3]}"
                for number in numbers
            ]
    return found


def _head(text: str) -> int:
    """Returns the number of a head of SWF, 0 where it has none."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else 0


def _from_swf(lines: Sequence[str], name: str, processors: int) -> IdleLog:
    heads = {k.strip(): v.strip() for k, _, v in (x[1:].partition(":") for x in lines if x.startswith(";"))}
    jobs = sorted(_swf_jobs(lines, name, processors))
    said, procs = (_head(heads.get(key, "")) for key in ("MaxNodes", "MaxProcs"))
    count = -(-procs // processors) if procs else said or max((nodes for _, _, nodes in jobs), default=0)
    if not jobs or count > MOST_NODES:
        raise BadInput("has no job, or too many nodes", where=name, allowed=f"up to {MOST_NODES} nodes")
    free, ending, busy = list(range(count)), list[tuple[float, int]](), list[Spell]()
    for begin_s, end_s, nodes in jobs:
        while ending and ending[0][0] <= begin_s:
            heapq.heappush(free, heapq.heappop(ending)[1])
        for _ in range(min(nodes, len(free))):  # a log may have more than there are for a second or two
            node = heapq.heappop(free)
            busy.append(Spell(node, begin_s, end_s))
            heapq.heappush(ending, (end_s, node))
    names = [f"n{i}" for i in range(count)]
    return _idle_beside(names, busy, jobs[0][0], max(end_s for _, end_s, _ in jobs))


def _swf_jobs(lines: Sequence[str], name: str, processors: int) -> Iterator[tuple[float, float, int]]:
    for line, text in enumerate(lines, 1):
        cells = text.split()
        if not cells or cells[0].startswith(";"):
            continue
        if len(cells) < 5:
            raise BadInput(f"has {len(cells)} columns", where=f"{name}:{line}", allowed=f"{_SWF_COLUMNS}")
        submit, wait, runs, procs = (_number(cell, f"{name}:{line}") for cell in cells[1:5])
        if runs > 0 and procs > 0:
            begin_s = submit + max(wait, 0.0)
            yield begin_s, begin_s + runs, -(-int(procs) // processors)


def _idle_beside(nodes: Sequence[str], busy: Iterable[Spell], begin_s: float, end_s: float) -> IdleLog:
    """Returns the log of the spells in which nodes are not busy; jobs of a node may overlap."""
    spells, free_since = list[Spell](), [begin_s] * len(nodes)
    for node, begin, end in sorted(busy, key=lambda spell: spell.begin_s):
        if begin > free_since[node]:
            spells.append(Spell(node, free_since[node], begin))
        free_since[node] = max(free_since[node], end)
    spells += [Spell(node, since, end_s) for node, since in enumerate(free_since) if since < end_s]
    return log_of_spells(nodes, spells, begin_s, end_s)


def _number(text: str, where: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not abs(found) < 1e15:
        raise BadInput(f"'{text}' is no number of seconds", where=where, allowed="a number")
    return found


def _later(text: str, before: float, where: str) -> float:
    found = _number(text, where)
    if found < before:
        raise BadInput(f"{text} lies before the event above", where=where, allowed="events in order of time")
    return found


def _moment(text: str, where: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BadInput(f"'{text}' is no time", where=where, allowed="such as 2026-01-31T12:00:00") from None
