"""The course of a search: which configurations are looked into, and when.

First answers come from the most promising configurations and from the trivial plans, and orders listed anew for the
best of them. Then configurations are taken up as their totals (`planner.milp.proof.totals`) bound them, the lowest
first. What is left when the work allowed for that is done is bounded by the next one, and nothing was spent on what
could not be the least. At last the mixed-integer program states the proof over whatever is still open.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from planner.errors import Infeasible
from planner.milp import explain, formulation, infeasible, limits
from planner.milp.configurations.configurations import Configuration, shapes
from planner.milp.cut.problem import CutProblem
from planner.milp.instance import Instance
from planner.milp.limits import Effort
from planner.milp.proof.boxes import ROUNDING, Box
from planner.milp.proof.layer_work import LayerWork
from planner.milp.proof.prove import ConfigurationProof
from planner.milp.proof.separable import SeparableRows
from planner.milp.proof.totals import TotalsBound
from planner.milp.search import relist
from planner.milp.search.descent import UNFIT_NS, Answer, even, judge
from planner.milp.search.state import ConfigurationState, Rows, SearchState
from planner.schedule import FAMILIES

_PLAINEST = list(FAMILIES)  # on one worker many families take the same time: the plainest is named
_FILTERS = 2  # of what the program is written over


@dataclass(kw_only=True)
class Waiting:
    """The queue of configurations, by what they take at least."""

    state: SearchState
    every: list[Configuration] = field(default_factory=list)  # that ever waited
    known: set[Configuration] = field(default_factory=set)
    heap: list[tuple[float, int]] = field(default_factory=list)

    def add(self, shape: Configuration) -> None:
        """Adds a configuration that never waited before."""
        if shape not in self.known:
            self.known.add(shape)
            heapq.heappush(self.heap, (self.state.promise_ns(shape), len(self.every)))
            self.every.append(shape)

    def work_through(self) -> None:
        """Examines configurations, the lowest bound first, until the allowed work is done. Where memory narrows a
        configuration, variants with less memory join the queue; elsewhere, variants with faster updates.
        """
        state = self.state
        while self.heap:
            least, number = heapq.heappop(self.heap)
            if least > state.limit - 1 or self._enough():
                state.leave(least)
                continue
            shape = self.every[number]
            tight = state.examine(shape)
            for variant in thriftier(state.instance, shape) if tight else state.faster(shape):
                self.add(variant)

    def _enough(self) -> bool:
        spent = self.state.instance.meter.spent_ns
        return self.state.limit < UNFIT_NS and spent > limits.LOOKS * self.state.effort.work_ns


def search(
    instance: Instance, effort: Effort, *, below: int = UNFIT_NS, rows: Rows | None = None
) -> SearchState:
    """Searches all configurations of a planning instance, and proves the best plan as far as the effort goes.

    Args: plans that take `below` nanoseconds or more are not looked for; `rows` of the same orders give a start.
    Returns: the state of the search with the best answer, if there is one, and its bound.
    Raises: Infeasible where the pins leave no configuration.
    """
    state = SearchState(instance=instance, effort=effort, below=below, rows={} if rows is None else rows)
    configurations = ranked(instance)
    if not configurations:
        raise Infeasible(infeasible.no_shape(instance, lambda asked: bool(ranked(asked))))
    if below == UNFIT_NS:
        _first_answers(state, configurations)
        _take_trivial(state, set(configurations))
    state.listed = relist.grow(state)
    best = state.limit
    waiting = Waiting(state=state)
    for shape in configurations:
        waiting.add(shape)
    waiting.work_through()
    if state.limit < best:
        state.listed += relist.grow(state)
    state.queue = waiting.every
    state.considered = len(waiting.every) + state.listed
    state.prove()
    solve_program(state)
    return state


def solve_program(state: SearchState) -> None:
    """Solves the mixed-integer program over the winner and whatever is still open, where it is small enough to write.

    Args: `state` is that of a search whose proofs are done; its bounds and its best plan may get better.
    """
    if state.best is None:
        return
    if state.best.closing is None:
        spans = state.instance.windows(state.best.problem)
        state.best.closing = ConfigurationProof(problem=state.best.problem.talking, spans=spans)
        state.best.closing.look(state.best.answer, state.limit)
    others = [tried for tried in state.open if tried is not state.best and tried.bound_ns < state.limit]
    given = [(tried, _open_part(state, tried)) for tried in [state.best, *others]]
    parts = [part for _, part in given if part is not None]
    most = limits.PROGRAM_ARCS if others else limits.PROVED_ARCS
    if not parts or sum(int(a.sum()) for part in parts for a in part.box.alive) > most:
        return
    done = formulation.solve(parts, state.limit, nodes=state.effort.program_nodes)
    state.program = done
    if done.part >= 0:
        state.take(state.tried[parts[done.part].box.problem.shape], Answer(cut=done.cut, ns=done.ns))
    least = int(done.bound_ns * (1 - formulation.TOLERANCE))
    for tried, part in given:
        if part is not None:
            tried.bound_ns = max(tried.bound_ns, min(least, state.limit))


def _open_part(state: SearchState, tried: ConfigurationState) -> formulation.OpenConfiguration | None:
    """Returns the cuts that the rows do not refute; ties with the best answer stay."""
    if tried.closing is None or tried.closing.root is None or tried.problem.flagged:
        return None
    pool, most = tried.closing.record.pool, state.limit + ROUNDING
    rows = pool.weights.part(pool.active())
    box: Box | None = tried.closing.root
    if box is not None:
        spans = SeparableRows(box.problem).narrowed(rows, most, box.low, box.high)
        box = None if spans is None else box.narrowed(*spans)
    for _ in range(_FILTERS):
        box = None if box is None else box.filtered(rows, most)
    tried.bound_ns = state.limit if box is None else tried.bound_ns
    return None if box is None else formulation.OpenConfiguration(box=box, rows=rows, bound_ns=tried.bound_ns)


def ranked(instance: Instance) -> list[Configuration]:
    """Returns the configurations of a planning instance, the most promising first.

    Args: `instance`; unless pinned, recomputing and sharding configurations follow later, where memory asks for them.
    """
    pinned = instance.pins
    plain = replace(pinned, recompute=bool(pinned.recompute), shard=bool(pinned.shard))
    every = shapes(
        instance.cluster,
        layers=instance.layers,
        batch=instance.batch,
        micros=instance.micros(),
        pinned=plain,
        splits=instance.splits,
    )
    bound, permitted = TotalsBound(instance), filter(instance.permits, every)
    return sorted(
        permitted, key=lambda shape: (_guess_ns(bound, shape), _PLAINEST.index(shape.family), shape)
    )


def _guess_ns(bound: TotalsBound, shape: Configuration) -> float:
    """Returns about what a configuration may take, to know where to look first; it bounds nothing."""
    tables, work = bound.instance.tables(shape), bound.work(shape)
    bytes_a_worker = np.array([tables.gradients[0, -1] * shape.pipes // shape.workers])
    sums = (
        bound.instance.machines.typical_sum(shape).ns(bytes_a_worker)[0]
        if shape.data * shape.spatial > 1
        else 0
    )
    wire = bound.instance.cluster_link_ns(tables.typical_crossing_bytes) if shape.workers > 1 else 0.0
    hops = 2 * (shape.stages - 1) * wire
    load = float(work.total.sum()) * shape.micros / shape.workers + bound.step_ns(shape)
    idle = BUBBLES[shape.family](shape, work) if shape.workers > 1 else 0.0
    return max(load + idle, bound.free_ns(shape)) + float(sums) + hops


def _first_answers(state: SearchState, configurations: list[Configuration]) -> None:
    """Answers the configurations whose even cuts came out best, and the most promising one of each family.

    The even cuts of the most promising configurations are simulated before.
    """
    firsts: dict[str, Configuration] = {}
    for shape in configurations:
        firsts.setdefault(shape.family, shape)
    ahead = dict.fromkeys(
        [
            *configurations[: limits.FIRST_ANSWERS],
            *firsts.values(),
            *configurations[limits.FIRST_ANSWERS : limits.EVEN_CUTS],
        ]
    )
    meter, most = state.instance.meter, limits.GLANCES * state.effort.work_ns
    looked = [state.look(shape) for shape in ahead if meter.spent_ns < most]
    known = [tried for tried in looked if tried is not None]
    if state.instance.pins.stages is None:
        known = sorted(known, key=lambda tried: (_even_ns(tried.problem), tried.shape))
    chosen = [
        *known[: limits.FIRST_ANSWERS],
        *(tried for tried in known if firsts[tried.shape.family] == tried.shape),
    ]
    every = {tried.shape: tried for tried in chosen}.values()
    for tried in sorted(every, key=lambda tried: tried.shape.chunks * (tried.shape.workers == 1)):
        hopeless = state.instance.pins.stages is None and _hopeless(state, tried)
        if state.instance.meter.spent_ns < state.effort.work_ns / 3 and not hopeless:
            state.answer(tried)


def _hopeless(state: SearchState, tried: ConfigurationState) -> bool:
    """Returns whether a configuration is far from the best answer.

    Also returns True for a lone worker with more chunks that is no better at first than fewer chunks came to.
    """
    ns, own = _even_ns(tried.problem), tried.shape
    fewer = [
        other.answer.ns
        for shape, other in state.tried.items()
        if other.answer is not None
        and shape.chunks < own.chunks
        and (shape.data, shape.workers, shape.micro) == (own.data, 1, own.micro)
    ]
    return ns > limits.HOPE * state.limit or ns >= min(fewer, default=UNFIT_NS)


def _even_ns(problem: CutProblem) -> int:
    return int(problem.times(even(problem)[None, :], 0)[0])


def _take_trivial(state: SearchState, allowed: set[Configuration]) -> None:
    """Takes the trivial plans as answers too: none of them beats the plan, however little was looked into."""
    for _, chosen in explain.trivial(state.instance):
        for shape in (each for each in chosen if each in allowed):
            tried = state.look(shape)
            if tried is not None and state.instance.pins.stages is None:
                cut = explain.equal_cut(tried.problem)
                ns = int(judge(tried.problem, cut[None, :])[0])
                state.take(tried, None if ns == UNFIT_NS else Answer(cut=cut, ns=ns))


def thriftier(instance: Instance, shape: Configuration) -> Iterator[Configuration]:
    """Yields variants of a configuration that take less memory.

    Args: `shape`; only stages that must do so recompute, unless that would change the order.
    Yields: variants that recompute, shard the optimizer, or both.
    """
    pinned, now = instance.pins, shape.recompute or shape.sparing
    recompute = (True,) if now else (False,) if pinned.recompute is False else (False, True)
    shard = (True,) if shape.shard else (False,) if pinned.shard is False else (False, True)
    for again, sharded in product(recompute, shard):
        changed = (again, sharded) != (now, shape.shard)
        if changed and (not sharded or (shape.holders > 1 and not instance.joint)):
            some = again and not shape.recompute and not instance.at_use(replace(shape, shard=sharded))
            yield replace(shape, recompute=again and not some, sparing=some, shard=sharded)
    free = pinned.shard is None and pinned.held is None and not shape.held and not instance.joint
    for held, ranks in instance.shares(shape) if free else ():
        for again in recompute:
            some = again and not shape.recompute
            yield replace(
                shape, held=held, ranks=ranks, shard=False, recompute=again and not some, sparing=some
            )


Bubble = Callable[[Configuration, LayerWork], float]


def _whole(shape: Configuration, work: LayerWork) -> float:
    return float(work.total.sum()) / shape.workers * (shape.workers - 1) / shape.chunks


def _forward(shape: Configuration, work: LayerWork) -> float:
    return float(work.forward.sum()) / shape.workers * (shape.workers - 1) / shape.chunks


def _paired(shape: Configuration, work: LayerWork) -> float:
    units = max(1.0, shape.micros / shape.workers)
    return float(work.last.sum()) / shape.workers * max(0.0, shape.workers / shape.pairs - 2) * units


def _paired_split(shape: Configuration, work: LayerWork) -> float:
    return float(work.forward.sum()) / shape.workers * (shape.workers / shape.pipes - 1) / shape.chunks


# idle time of a worker, as the families have it for equal stages
BUBBLES: Mapping[str, Bubble] = dict.fromkeys(FAMILIES, _forward) | {
    "gpipe": _whole,
    "1f1b": _whole,
    "interleaved": _whole,
    "wave": _whole,
    "chimera": _paired,
    "chimera-zb": _paired_split,
}
