"""The search over shapes: every shape bounded or proved, the best cut of the best shape as a plan with its certificate.

Shapes are taken in the order of what they promise. What their totals cannot rule out (`planner.milp.floors`) gets a
first look (`planner.milp.closing`); then what is still open is taken further in turns, the lowest bound first, by
descents for better answers and by trees for better bounds. What is left when the work allowed is done, and the winner,
go into one mixed-integer program (`planner.milp.formulation`) where it is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from planner.errors import Infeasible
from planner.milp import explain, formulation, infeasible, relisting, sparing
from planner.milp.bounds import whole
from planner.milp.box import ROUNDING, Box
from planner.milp.closing import Closing
from planner.milp.floors import Floors
from planner.milp.free import free_bound_ns
from planner.milp.problem import Problem
from planner.milp.search import NEVER, Answer, balanced, descend, even, judge, kicked
from planner.milp.shapes import Pins, Shape, shapes
from planner.milp.space import Space, short_bytes
from planner.plan import Certificate

_EVEN, _FIRST = 40, 6  # shapes whose even cut is simulated, and that are answered, before any is proved
_KICKS = 6
_WORK_NS = 40e9  # of `Meter`
_LOOKS = 0.6  # of it is for first looks; shapes that are left then keep the bound of their totals
_PROGRAM_NODES = 2000  # of the mixed-integer program
_MOST_ARCS = 3000  # beyond, the program is left unwritten and the tree's proof stands alone
_CHANGED = 20  # shapes looked at for each change that might make an infeasible question feasible
_BOXES = 100  # of one shape at first, divided by its depth
_NODES = 3000  # boxes of one shape in a turn at most, divided by its depth


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How far to go, in counts, never in seconds: the same input gives the same plan."""

    nodes: int = _NODES
    kicks: int = _KICKS
    program_nodes: int = _PROGRAM_NODES
    work_ns: float = _WORK_NS


@dataclass(kw_only=True)
class Tried:
    """One shape, as far as it was looked into."""

    shape: Shape
    problem: Problem
    answer: Answer | None = None
    bound_ns: int = 0
    closing: Closing | None = None


@dataclass(kw_only=True)
class Search:
    space: Space
    effort: Effort
    below: int = NEVER  # what a plan has to take less than
    floors: Floors = field(init=False)
    best: Tried | None = None
    tried: dict[Shape, Tried] = field(default_factory=dict)
    open: list[Tried] = field(default_factory=list)
    queue: list[Shape] = field(default_factory=list)
    considered: int = 0
    listed: int = 0  # orders listed anew that entered
    bounded: int = 0  # shapes that their bound alone ruled out
    left: list[int] = field(default_factory=list)  # bounds of shapes that were not looked into
    program: formulation.Outcome | None = None
    pays: dict[tuple[object, ...], bool] = field(
        default_factory=dict
    )  # shared updates, by what they depend on

    def __post_init__(self) -> None:
        self.floors = Floors(self.space)

    @property
    def limit(self) -> int:
        return self.below if self.best is None or self.best.answer is None else self.best.answer.ns

    def look(self, shape: Shape) -> Tried | None:
        """The problem that a shape poses; None where its family cannot be had."""
        if shape not in self.tried:
            posed = self.space.problem(shape)
            if posed is None:
                return None
            self.tried[shape] = Tried(shape=shape, problem=posed)
        return self.tried[shape]

    def answer(self, tried: Tried, root: Box | None = None) -> None:
        """An answer by descent: from the most even cut, or from the most even one that fits."""
        posed = tried.problem
        spans = self.space.windows(posed)
        if spans is None:
            return
        start = spans[0] if (spans[0] == spans[1]).all() else even(posed)
        found = descend(posed, *spans, start)
        if found is None:
            root = root or whole(posed, *spans)
            found = None if root is None else descend(posed, *spans, balanced(posed, root))
        self.take(tried, found)

    def take(self, tried: Tried, answer: Answer | None) -> None:
        if answer is not None and answer.better(tried.answer):
            tried.answer = answer
            if answer.ns < self.limit:
                self.best = tried

    def close(self, tried: Tried) -> bool:
        """A first look: refutes the shape, or leaves it open with a bound; whether memory narrows it."""
        tried.closing = Closing(problem=tried.problem, spans=self.space.windows(tried.problem))
        tried.closing.look(tried.answer, self.limit)
        self._learn(tried)
        if tried.closing.open:
            self.open.append(tried)
        return tried.closing.tight

    def _learn(self, tried: Tried) -> None:
        assert tried.closing is not None
        self.take(tried, tried.closing.record.answer)
        least = min(int(np.ceil(self.floors.summed_ns(tried.shape) - ROUNDING)), self.limit)
        tried.bound_ns = max(tried.closing.bound_ns, least)

    def prove(self) -> None:
        """Takes what is open further, a few boxes of every shape at a time, the lowest bound first."""
        self._polish()
        boxes = _BOXES
        while self.open and boxes <= self.effort.nodes and self.space.meter.spent_ns < self.effort.work_ns:
            for tried in sorted(self.open, key=lambda each: (each.bound_ns, each.shape)):
                if tried.bound_ns < self.limit and self.space.meter.spent_ns < self.effort.work_ns:
                    self._prove(tried, max(1, boxes // tried.shape.stages))
            self.open = [tried for tried in self.open if self._left(tried)]
            boxes *= 4

    def _polish(self) -> None:
        """Descents from the best cuts that the first looks met: a better answer refutes more than any bound."""
        met = [tried for tried in self.open if tried.answer is not None and tried.closing is not None]
        met.sort(key=lambda tried: (tried.answer.ns if tried.answer else NEVER, tried.shape))
        for tried in met[:_FIRST]:
            spans = self.space.windows(tried.problem)
            if spans is not None and tried.answer is not None:
                self.take(tried, descend(tried.problem, *spans, tried.answer.cut))

    def _left(self, tried: Tried) -> bool:
        return tried.closing is not None and tried.closing.open and tried.bound_ns < self.limit

    def _prove(self, tried: Tried, boxes: int) -> None:
        assert tried.closing is not None
        fresh = tried.closing.tree is None
        tried.closing.prove(tried.answer, self.limit, boxes, self.effort.work_ns)
        self._learn(tried)
        root = tried.closing.root
        if fresh and root is not None and self._left(tried):
            self.answer(tried, root)
            if tried.answer is not None:
                self.take(tried, kicked(tried.problem, root.low, root.high, tried.answer, self.effort.kicks))

    def state(self) -> None:
        """The mixed-integer program over the winner and whatever is still open, where it is small enough to write."""
        if self.best is None or self.best.closing is None:
            return
        others = [tried for tried in self.open if tried is not self.best and tried.bound_ns < self.limit]
        parts = [part for part in map(self._part, [self.best, *others]) if part is not None]
        if not parts or sum(int(a.sum()) for part in parts for a in part.box.alive) > _MOST_ARCS:
            return
        done = formulation.solve(parts, self.limit, nodes=self.effort.program_nodes)
        self.program = done
        if done.part >= 0:
            self.take(self.tried[parts[done.part].box.problem.shape], Answer(cut=done.cut, ns=done.ns))
        least = int(done.bound_ns * (1 - formulation.TOLERANCE))
        for tried in self.open:
            tried.bound_ns = max(tried.bound_ns, min(least, self.limit))

    def _part(self, tried: Tried) -> formulation.Part | None:
        """The cuts that the rows do not refute; ties with the best answer stay."""
        if tried.closing is None or tried.closing.root is None:
            return None
        rows = tried.closing.record.pool.weights
        box = tried.closing.root.filtered(rows, self.limit + ROUNDING)
        box = None if box is None else box.filtered(rows, self.limit + ROUNDING)
        return None if box is None else formulation.Part(box=box, rows=rows, bound_ns=tried.bound_ns)

    def examine(self, shape: Shape) -> bool:
        """Rules a shape out, or closes it; whether memory narrows it."""
        least = self.floors.free_ns(shape)
        if least <= self.limit - 1:
            least = self.floors.summed_ns(shape)
        if least > self.limit - 1:
            self.bounded += 1
            return False
        if short_bytes(self.space, shape) > 0:
            self.bounded += 1
            return True
        if self.space.meter.spent_ns > _LOOKS * self.effort.work_ns and self.limit < NEVER:
            self.left.append(int(np.ceil(least - ROUNDING)))
            return False
        tried = self.look(shape)
        return tried is not None and self.close(tried)

    def faster(self, shape: Shape) -> Iterator[Shape]:
        """Sharing the update saves time where updates take longer than handing the parameters round."""
        plain = self.tried.get(shape)
        if plain is None or shape.shard or self.space.pins.shard is False or plain.problem.holders == 1:
            return
        shared = self.look(replace(shape, shard=True))
        if shared is not None and self._pays(plain.problem, shared.problem):
            yield shared.shape

    def _pays(self, plain: Problem, shared: Problem) -> bool:
        kinds = {(plain.sums[p], plain.slowness[p]): p for p in range(plain.stages)}
        key = (plain.shape.micro, plain.holders, plain.tie, frozenset(kinds))
        if key not in self.pays:
            pairs = ((shared.step_grid(p), plain.step_grid(p)) for p in kinds.values())
            self.pays[key] = any(bool((a < b).any()) for a, b in pairs)
        return self.pays[key]

    def certificate(self) -> Certificate:
        assert self.best is not None
        best = self.best
        assert best.answer is not None
        objective = best.answer.ns
        bound = min([objective, *(tried.bound_ns for tried in self.open), *self.left])
        return Certificate(
            objective_ns=objective,
            bound_ns=bound,
            free_bound_ns=free_bound_ns(best.problem, best.answer.cut),
            gap=(objective - bound) / objective if objective else 0.0,
            scope=explain.scope(self.space, self.considered, self.bounded, len(self.left), self.listed),
            rivals=tuple(explain.rivals(self.space, best.problem, best.answer, list(self.tried.values()))),
        )


def search(space: Space, effort: Effort, *, below: int = NEVER) -> Search:
    """`below` is what is known already: slower plans are not looked for."""
    found = Search(space=space, effort=effort, below=below)
    given = ranked(space)
    if not given:
        raise Infeasible(infeasible.no_shape(space, lambda asked: bool(ranked(asked))))
    _first_answers(found, given)
    queue, queued = list(given), set(given)
    _take_trivial(found, queued)
    for shape in queue:  # grows by the thriftier variants of shapes that memory narrows
        tight = found.examine(shape)
        more = thriftier(space.pins, shape) if tight else found.faster(shape)
        for variant in (each for each in more if each not in queued):
            queue.append(variant)
            queued.add(variant)
    found.queue = queue
    found.listed = relisting.grow(found)
    found.considered = len(queue) + found.listed
    found.prove()
    found.state()
    return found


def ranked(space: Space) -> list[Shape]:
    """Shapes, the most promising first. Recomputing and sharding ones follow where memory asks for them."""
    pinned = space.pins
    plain = replace(pinned, recompute=bool(pinned.recompute), shard=bool(pinned.shard))
    every = shapes(
        space.cluster,
        layers=space.layers,
        batch=space.batch,
        micros=space.micros(),
        pinned=plain,
        splits=space.splits,
    )
    floors = Floors(space)
    return sorted(every, key=lambda shape: (floors.guess_ns(shape), shape))


def _first_answers(found: Search, given: list[Shape]) -> None:
    """Even cuts of the most promising shapes; then descents of those that came out best, and of the most promising
    one of each family."""
    firsts: dict[str, Shape] = {}
    for shape in given:
        firsts.setdefault(shape.family, shape)
    looked = [found.look(shape) for shape in dict.fromkeys([*given[:_EVEN], *firsts.values()])]
    known = [tried for tried in looked if tried is not None]
    if found.space.pins.stages is None:
        known = sorted(known, key=lambda tried: (_even_ns(tried.problem), tried.shape))
    chosen = [*known[:_FIRST], *(tried for tried in known if firsts[tried.shape.family] == tried.shape)]
    for tried in {tried.shape: tried for tried in chosen}.values():
        if found.space.meter.spent_ns < found.effort.work_ns / 3:
            found.answer(tried)


def _even_ns(posed: Problem) -> int:
    return int(posed.times(even(posed)[None, :], 0)[0])


def _take_trivial(found: Search, allowed: set[Shape]) -> None:
    """The trivial plans are answers too: none of them beats the plan, however little was looked into."""
    for _, chosen in explain.trivial(found.space):
        for shape in (each for each in chosen if each in allowed):
            tried = found.look(shape)
            if tried is not None and found.space.pins.stages is None:
                cut = explain.equal_cut(tried.problem)
                ns = int(judge(tried.problem, cut[None, :])[0])
                found.take(tried, None if ns == NEVER else Answer(cut=cut, ns=ns))


def thriftier(pinned: Pins, shape: Shape) -> Iterator[Shape]:
    """Variants that take less memory. Where workers hold one stage each, only stages that must do recompute."""
    spare = sparing.possible(shape)
    now = shape.recompute or shape.sparing
    recompute = (True,) if now else (False,) if pinned.recompute is False else (False, True)
    shard = (True,) if shape.shard else (False,) if pinned.shard is False else (False, True)
    for again, sharded in product(recompute, shard):
        changed = (again, sharded) != (now, shape.shard)
        if changed and (not sharded or shape.holders > 1):
            some = again and spare and not shape.recompute
            yield replace(shape, recompute=again and not some, sparing=some, shard=sharded)
