"""The layouts of a model on a group that no other one equals in time and memory, over meshes and prices of memory.

For each mesh the program is solved without a price of memory and with one by which little else counts. Between
two layouts found, the price at which both are worth the same is tried next, until nothing new is found. What the list
says of a layout, and which ones it leaves out, is by the price of the plan that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planner.choose.folded import folded
from planner.choose.options import decisions_of
from planner.choose.prices import NOT_STORED, LayoutPrice, PricedParts, Storing, anywhere, price, resting_in
from planner.choose.program import program
from planner.choose.solve import LayoutProgram, Solver
from planner.choose.work import GroupWork
from planner.choose.written import as_read, graph_by, graph_of, lines_of
from planner.cluster import Cluster
from planner.group import MeshOnCluster, meshes, on_cluster
from planner.layout import LocalGraph, Mesh, Wish

MOST_KEPT = 8  # layouts of a list
Priced = Callable[[Mesh, tuple[Wish, ...]], LayoutPrice]  # what a plan with this cut takes
_SOLVES = 9  # of one mesh
_DEAR = 300.0  # times what a byte of the fastest layout takes: memory is then all but everything that counts


@dataclass(frozen=True, kw_only=True)
class ChosenLayout:
    """One layout: its lines, what it takes, and the model as it has it."""

    on: MeshOnCluster
    lines: tuple[Wish, ...]
    price: LayoutPrice
    graph: LocalGraph

    @property
    def mesh(self) -> Mesh:
        """Returns the ranks along each axis of the group."""
        return self.on.mesh


def layouts(
    work: GroupWork,
    cluster: Cluster,
    ranks: int,
    *,
    mesh: Mesh = (),
    axes: int = 2,
    solver: Solver | None = None,
    note: Callable[[Mesh], None] = lambda _: None,
    priced: Priced | None = None,
    most: int = MOST_KEPT,
) -> list[ChosenLayout]:
    """Returns the layouts that none equals in time and memory, fastest first.

    Args: `priced` says what a plan with a layout takes; without it, layouts are compared as they are searched. There are at most `most`. `mesh` is the only one to try where it is given; else all of at most so many `axes` are tried. `note` hears of
        each mesh before it is tried.
    Raises: BadInput where the cluster has fewer devices than the group has ranks.
    """
    found: list[ChosenLayout] = []
    for each in [mesh] if mesh else meshes(ranks, axes):
        note(each)
        found += _on_mesh(work, on_cluster(each, cluster), solver, priced)
    return _thinned(_best(found), most)


def _on_mesh(
    work: GroupWork, on: MeshOnCluster, solver: Solver | None, of_plan: Priced | None
) -> Iterator[ChosenLayout]:
    trained = work.with_gradients()
    decisions = decisions_of(folded(work.operations), on.mesh, trained, work.resolved)
    storing = anywhere(on.mesh)
    asked = program(decisions, work, on, storing)
    known = PricedParts(work, on)
    for worth, choice in explored(asked, work, on, solver, storing, known):

        def cost(graph: LocalGraph, worth: float = worth) -> float:
            priced = known.price(graph)
            return priced.ns + worth * priced.bytes

        resting = resting_in(graph_of(work, decisions, choice), work, on, storing, worth)
        lines = as_read(lines_of(work, decisions, choice, cost, resting))
        graph = graph_by(work, on.mesh, lines, decisions.laid_whole, decisions.graph.stands_for)
        found = of_plan(on.mesh, lines) if of_plan is not None else known.price(graph)
        yield ChosenLayout(on=on, lines=lines, price=found, graph=graph)


def explored(
    asked: LayoutProgram,
    work: GroupWork,
    on: MeshOnCluster,
    solver: Solver | None = None,
    storing: Storing = NOT_STORED,
    known_parts: PricedParts | None = None,
) -> list[tuple[float, list[int]]]:
    """Returns the choices of one mesh that are best at some price of memory, each with such a price."""
    known: dict[object, tuple[float, list[int]]] = {}

    def at(worth: float) -> LayoutPrice:
        choice = asked.solve(worth, solver)
        graph = graph_of(work, asked.decisions, choice)
        resting = resting_in(graph, work, on, storing, worth)
        known.setdefault((tuple(choice), tuple(resting.items())), (worth, choice))
        return price(graph, work, on, storing, worth, known_parts)

    fast = at(0.0)
    small = at(_DEAR * fast.ns / max(fast.bytes, 1.0))
    open_pairs = [(fast, small)]
    while open_pairs and len(known) < _SOLVES:
        left, right = open_pairs.pop(0)
        if right.ns <= left.ns or left.bytes <= right.bytes:
            continue
        worth = (right.ns - left.ns) / (left.bytes - right.bytes)
        middle = at(worth)
        line = left.ns + worth * left.bytes
        if middle.ns + worth * middle.bytes < line * (1 - 1e-6):
            open_pairs += [(left, middle), (middle, right)]
    return list(known.values())


def _best(found: Sequence[ChosenLayout]) -> list[ChosenLayout]:
    """Returns those that none equals in time and memory, fastest first; of equal ones the one with fewer axes."""
    kept: list[ChosenLayout] = []
    for each in sorted(found, key=lambda x: (x.price.ns, x.price.bytes, len(x.mesh), x.mesh, x.lines)):
        if not kept or each.price.bytes < kept[-1].price.bytes * (1 - 1e-9):
            kept.append(each)
    return kept


def _thinned(found: list[ChosenLayout], most: int) -> list[ChosenLayout]:
    """Returns at most so many, without those that save least memory for what they take longer."""
    kept = list(found)
    while len(kept) > most:
        gains = [
            (kept[i - 1].price.bytes - kept[i].price.bytes) * (kept[i + 1].price.ns - kept[i].price.ns)
            for i in range(1, len(kept) - 1)
        ]
        del kept[1 + gains.index(min(gains))]
    return kept
