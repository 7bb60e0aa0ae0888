"""Writes a choice as lines of a plan's section `cut`, and reads lines back as a model on a group.

Every operation that is decided asks for its factor under the path of its module. Lines that change nothing are then
dropped, since the walk of `planner.layout` finds what they say by itself; and pairs of linear layers become one line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner import files
from planner.choose.folded import FoldedGraph
from planner.choose.options import Decisions
from planner.choose.work import GroupWork
from planner.errors import BadInput
from planner.group import ATTENTION
from planner.layout import (
    ADDENDS,
    ALIKE,
    MOVES,
    STORED,
    WHOLE,
    Laid,
    LocalGraph,
    LocalOperation,
    Mesh,
    Wish,
    Wishes,
    granted,
    of_path,
    propagate,
    unmet,
)
from planner.plan import CutLine, wishes_in
from planner.spatial import GETITEM, Operation


def taken(decisions: Decisions, choice: Sequence[int]) -> dict[str, LocalOperation]:
    """Returns every operation of the folded model as it is done by a choice.

    Args: `choice` has the option of each decision.
    """
    found: dict[str, LocalOperation] = {}
    for decision, option in zip(decisions.found, choice, strict=True):
        found |= decision.options[option]
    return found


def exactly(decisions: Decisions, choice: Sequence[int]) -> Wishes:
    """Returns the wishes by which every operation of the whole model does what a choice says."""
    done = taken(decisions, choice)
    stands = decisions.graph.stands_for

    def wished(operation: Operation, axis: int) -> Sequence[tuple[str, object]]:
        local = done.get(stands.get(operation.name, operation.name))
        factor = ALIKE if local is None else local.factors[axis]
        if factor == ADDENDS:
            return ()
        return ((factor or WHOLE, ""),)

    return wished


def graph_of(work: GroupWork, decisions: Decisions, choice: Sequence[int]) -> LocalGraph:
    """Returns the whole model as a choice has it."""
    wishes = exactly(decisions, choice)
    return propagate(
        work.operations,
        decisions.mesh,
        wishes,
        work.trained,
        work.resolved,
        laid_once=decisions.laid_whole,
        stands_for=decisions.graph.stands_for,
    )


def graph_by(
    work: GroupWork,
    mesh: Mesh,
    lines: Sequence[Wish],
    laid_once: Laid | None = None,
    stands_for: Mapping[str, str] | None = None,
) -> LocalGraph:
    """Returns the whole model as the lines of a section `cut` have it.

    Args: `laid_once` and `stands_for` are those of `propagate`.
    Raises: NoRule for what cannot be done exactly, BadInput for a line that no module can grant.
    """
    return _graph_by(work, work.operations, mesh, lines, laid_once, stands_for)


def _graph_by(
    work: GroupWork,
    operations: Sequence[Operation],
    mesh: Mesh,
    lines: Sequence[Wish],
    laid_once: Laid | None,
    stands_for: Mapping[str, str] | None = None,
) -> LocalGraph:
    wishes = granted(lines, operations)
    found = propagate(
        operations,
        mesh,
        wishes,
        work.trained,
        work.resolved,
        laid_once=laid_once,
        stands_for=stands_for,
    )
    unmet(lines, found.taken, operations, mesh)
    return found


@dataclass(frozen=True)
class _Asked:
    """What operations under one path ask for along one axis."""

    pattern: str
    axis: int
    factors: tuple[str, ...]  # different ones, the most frequent first


def lines_of(
    work: GroupWork,
    decisions: Decisions,
    choice: Sequence[int],
    priced: Callable[[LocalGraph], float],
    resting: Mapping[str, tuple[int, ...]],
) -> tuple[Wish, ...]:
    """Returns the fewest lines found that give a choice, or what comes nearest to it.

    Args: `priced` is what a layout costs, by which two sets of lines are compared; `resting` has the axes along which
        parameters rest in parts.
    """
    folded = decisions.graph

    def cost(lines: Sequence[Wish]) -> float:
        try:
            return priced(_graph_by(work, folded.operations, decisions.mesh, lines, decisions.laid_folded))
        except BadInput:
            return float("inf")

    asked = sorted(
        _asked(decisions, choice), key=lambda x: x.pattern == "*"
    )  # of all modules: what no other is for
    lines = [Wish(x.pattern, x.axis, x.factors[0]) for x in asked if x.factors[0] != ADDENDS]
    best = cost(lines)
    for x in asked:
        for factor in x.factors[1:]:
            others = [line for line in lines if (line.pattern, line.axis) != (x.pattern, x.axis)]
            tried = others if factor == ADDENDS else _sorted([*others, Wish(x.pattern, x.axis, factor)])
            if (found := cost(tried)) < best:
                lines, best = tried, found
    for stored in _resting(folded, resting):
        if (found := cost(tried := [*lines, *stored])) < best:
            lines, best = tried, found
    attentions = {_pattern(x, folded) for x in folded.operations if x.operation == ATTENTION}
    return tuple(_simpler(lines, best, cost, attentions))


def _resting(graph: FoldedGraph, resting: Mapping[str, tuple[int, ...]]) -> Iterator[list[Wish]]:
    """Yields lines by which parameters rest in parts: of each axis one for all modules, and one for each module."""
    axes = sorted({axis for own in resting.values() for axis in own})
    if axes:
        yield [Wish("*", axis, STORED) for axis in axes]
        own = {
            Wish(_pattern(x, graph), axis, STORED): None
            for x in graph.operations
            for name in x.reads()
            for axis in resting.get(name, ())
        }
        yield list(own)


def _asked(decisions: Decisions, choice: Sequence[int]) -> Iterator[_Asked]:
    counted: dict[tuple[str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for local in taken(decisions, choice).values():
        kind = local.operation.operation
        if kind == GETITEM or kind in MOVES:
            continue
        pattern = _pattern(local.operation, decisions.graph)
        for axis, factor in enumerate(local.factors):
            weight = 1 + (
                kind == ATTENTION
            )  # where operations of one module differ, attention says which factor it is
            counted[pattern, axis][_readable(local.operation, factor) or WHOLE] += weight
    for (pattern, axis), factors in counted.items():
        yield _Asked(pattern, axis, tuple(sorted(factors, key=lambda x: -factors[x])))


def _readable(operation: Operation, factor: str) -> str:
    rank = len(operation.outputs[0])
    heads = operation.operation == ATTENTION and factor == f"dim{rank - 3}"
    return "heads" if heads and rank > 3 else factor


def _pattern(operation: Operation, graph: FoldedGraph) -> str:
    """Returns the pattern that names the module of an operation, in all blocks that it stands for."""
    path = of_path(operation) or "*"
    if operation.name not in graph.times:
        return path
    names = path.split(".")
    first = next(i for i, name in enumerate(names) if name.isdigit())
    return ".".join([*names[:first], "*", *names[first + 1 :]])


def _simpler(
    lines: Sequence[Wish],
    best: float,
    cost: Callable[[Sequence[Wish]], float],
    attentions: Collection[str],
) -> list[Wish]:
    """Returns fewer lines that cost the same; `attentions` are the modules with attention."""
    kept = list(lines)

    def same(tried: Sequence[Wish]) -> bool:
        return cost(tried) <= best * (1 + 1e-9)

    for line in sorted(kept, key=lambda x: (x.factor != WHOLE, x.factor in ("out", "in"), x)):
        tried = [x for x in kept if x != line]
        if same(tried):
            kept = tried
    for pair in _pairs(kept, attentions):
        inside = [x for x in kept if x.axis == pair.axis and x.pattern.startswith(pair.pattern + ".")]
        tried = _sorted([*(x for x in kept if x not in inside), pair])
        if len(inside) > 1 and same(tried):
            kept = tried
    for line in list(kept):
        for name in ("samples", "sequence"):
            place = {"samples": "dim0", "sequence": "dim1"}[name]
            tried = [line._replace(factor=name) if x == line else x for x in kept]
            if line.factor == place and same(tried):
                kept = tried
    return _sorted(kept)


def _sorted(lines: Sequence[Wish]) -> list[Wish]:
    return sorted(lines, key=lambda x: (x.pattern == "*", x.axis))


def _pairs(lines: Sequence[Wish], attentions: Collection[str]) -> Iterator[Wish]:
    """Yields the pairs of linear layers that lines under one module may be, shorter paths last."""
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for line in lines:
        names = line.pattern.split(".")
        for count in range(1, len(names)):
            found[".".join(names[:count]), line.axis].add(line.factor)
    for (pattern, axis), factors in sorted(found.items(), key=lambda x: -x[0][0].count(".")):
        if {"out", "in"} <= factors:
            inside = any(x == pattern or x.startswith(pattern + ".") for x in attentions)
            yield Wish(pattern, axis, "heads" if inside else "hidden")


def rows_of(lines: Sequence[Wish]) -> list[dict[str, str]]:
    """Returns lines as rows of a section `cut`: a module with a factor for each axis; more rows where one has several."""
    rows: list[dict[str, str]] = []
    for line in lines:
        axis = "xyz"[line.axis]
        own = next((row for row in rows if row["layers"] == line.pattern and axis not in row), None)
        if own is None:
            own = {"layers": line.pattern}
            rows.append(own)
        own[axis] = line.factor
    return rows


def as_read(lines: Sequence[Wish]) -> tuple[Wish, ...]:
    """Returns lines in the order in which a plan reads them that has them as rows."""
    return wishes_in(CutLine(**row) for row in rows_of(lines))


def cut_text(mesh: Mesh, lines: Sequence[Wish], about: str = "") -> str:
    """Returns the text of a file with a section `cut`, as `plan --fix cut=FILE` takes it.

    Args: `about` is a comment for its first line.
    """
    sizes = "x".join(map(str, mesh))
    header = f"# {about or 'A layout'} of {sizes} ranks, for plan --fix cut=\n"
    return files.render(
        {"version": 1, "group": list(mesh), "cut": [dict(row) for row in rows_of(lines)]}, header=header
    )
