"""Which stages of workers that hold several recompute: what any choice takes and holds, bounds, and what they leave."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from planner.arrays import IntArray
from planner.configurations import pins
from planner.configurations.configurations import Configuration
from planner.cuts.recompute_choice import RecomputeProblem
from planner.limits import Effort
from planner.milp import Instance, SearchState
from planner.milp.search.search import solve_program
from planner.profile import Profile
from planner.proof import prove as closing
from planner.proof.boxes import Box
from planner.proof.descent import UNFIT_NS, descend, fits, judge
from planner.proof.feasible import every_cut, memory_weights, moment_weights, whole, windows
from planner.proof.prove import ConfigurationProof, Windows
from planner.proof.weights import Weights, stack, weigh
from tests.planner.milp.instances import chain, cluster, keeping, profile

SHAPES = {
    "interleaved": (2, 1, 2),
    "zb-v": (2, 1, 2),
    "dualpipe-v": (2, 1, 2),
    "wave": (2, 1, 2),
    "chimera": (4, 1, 1),
    "chimera-zb": (4, 2, 1),
    "overlap": (1, 1, 4),
}
TIGHT = 0.2  # of all points fit


def shape_of(name: str, **changes: object) -> Configuration:
    workers, pairs, chunks = SHAPES[name]
    given: dict[str, object] = {
        "family": name,
        "data": 1,
        "workers": workers,
        "pairs": pairs,
        "chunks": chunks,
        "micro": 1,
        "micros": 4,
        "recompute": False,
        "shard": False,
        "axes": ("data", "pipeline", "spatial"),
    }
    return Configuration(**(given | changes))  # type: ignore[arg-type]


ONE = shape_of("interleaved", family="1f1b", chunks=1)


@cache
def posed(family: str, seed: int) -> tuple[Instance, RecomputeProblem]:
    """So that some points fit."""
    costs, shape = keeping(profile(chain(6, seed, skips=seed % 3)), seed), shape_of(family, sparing=True)
    ample = space_of(costs).problem(shape)
    assert isinstance(ample, RecomputeProblem)
    space = space_of(costs, int(np.quantile(ample.memory(points(ample)).max(1), TIGHT)))
    found = space.problem(shape)
    assert isinstance(found, RecomputeProblem)
    return space, found


def space_of(costs: Profile, memory: int = 1 << 40) -> Instance:
    machines = cluster(4, memory=memory)
    fix: dict[str, object] = {}
    return Instance(
        profile=costs, cluster=machines, batch=4, precision="fp32", execution="eager", pins=pins(fix, None)
    )


def points(problem: RecomputeProblem) -> IntArray:
    inner = combinations(range(1, problem.layers), problem.stages - 1)
    cuts = [(0, *each, problem.layers) for each in inner]
    return np.array([[*a, *b] for a, b in product(cuts, product((0, 1), repeat=problem.stages))], np.int64)


CASES = [(family, seed) for family in SHAPES for seed in (1, 2)]


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_a_point_is_judged_as_the_order_in_which_just_these_stages_recompute(family: str, seed: int) -> None:
    space, problem = posed(family, seed)
    every, rng = points(problem), random.Random(seed)
    for point in every[rng.sample(range(len(every)), 12)]:
        again = tuple(np.flatnonzero(problem.flags(point)).tolist())
        if not again:
            continue
        alone = space.problem(shape_of(family, chosen=again))
        assert alone is not None
        assert alone.order.recomputing == set(again)
        cut = problem.bounds(point)[None, :]
        assert problem.times(point[None, :]) == alone.times(cut)
        assert (problem.memory(point[None, :]) == alone.memory(cut)).all()


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_no_choice_holds_less_than_the_rows_that_bound_them_all(family: str, seed: int) -> None:
    _, problem = posed(family, seed)
    every, rows = points(problem), memory_weights(problem)
    exact = problem.memory(every) - problem.available_bytes
    worker = np.repeat(np.arange(len(problem.moments)), [len(rows) for rows in problem.moments])
    for point, over in zip(every, exact, strict=True):
        fixed, moving = problem.bytes_of(point)
        least = rows.fixed @ fixed + np.tensordot(rows.moving, moving, 2) + rows.constant
        assert (least <= over[worker]).all()
        decided = problem.decided(point, point)
        settled = moment_weights(problem, decided)
        whole_ = settled.fixed @ fixed + np.tensordot(settled.moving, moving, 2) + settled.constant
        firsts = np.cumsum([0, *(len(own) for _, own in decided)])
        assert [int(whole_[a:b].max()) for a, b in pairwise(firsts)] == over.tolist()


def values(problem: RecomputeProblem, weights: Weights, every: IntArray) -> list[float]:
    found = []
    for point in every:
        span, (fixed, moving) = problem.durations(point), problem.bytes_of(point)
        hops = weights.hops[0].ravel()[span.cells] @ span.hop_ns[0]
        held = float(weights.fixed[0] @ fixed + (weights.moving[0] * moving).sum())
        found.append(float((weights.kinds[0] * span.kinds[0]).sum() + hops + held + weights.constant[0]))
    return found


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_the_least_of_a_mixture_over_a_box_is_below_every_point_of_it(family: str, seed: int) -> None:
    """And the point it gives, of boxes with some flags decided, lies in the box; filters take no point that is below."""
    _, problem = posed(family, seed)
    every, rng = points(problem), np.random.default_rng(seed)
    rows = [weigh(problem.critical(point)[0]) for point in every[rng.integers(len(every), size=4)]]
    memory = memory_weights(problem)
    box = every_cut(problem, *windows(problem))
    assert box is not None
    flags = rng.integers(0, 3, problem.stages)
    low, high = box.low.copy(), box.high.copy()
    low[problem.stages + 1 :], high[problem.stages + 1 :] = flags == 1, flags != 0
    narrow = box.narrowed(low, high)
    assert narrow is not None
    inside = every[((every >= low) & (every <= high)).all(1)]
    for _ in range(3):
        mixed = mixture(rng, rows, memory, problem.stages)
        least, point = narrow.least(mixed)
        true = values(problem, mixed, inside)
        assert least <= min(true) + 0.01
        assert (point >= low).all()
        assert (point <= high).all()
        most = float(np.median(true))
        left = narrow.filtered(mixed, most)
        at = rng.integers(len(inside))
        alone = narrow.narrowed(inside[at], inside[at])
        assert alone is not None
        held = memory.mixed(rng.random(len(memory)))
        assert alone.least(held)[0] == pytest.approx(values(problem, held, inside[at : at + 1])[0])
        assert all(within(left, each) for each, value in zip(inside, true, strict=True) if value <= most)


def mixture(rng: np.random.Generator, rows: list[Weights], memory: Weights, stages: int) -> Weights:
    shares = rng.random(len(rows))
    time = stack(rows, stages).mixed(shares / shares.sum())
    rates = rng.random(len(memory)) * (rng.random(len(memory)) < 0.2) / 10
    return stack([time, memory.mixed(rates)], stages).mixed(np.ones(2))


def within(box: Box | None, point: IntArray) -> bool:
    if box is None or (point < box.low).any() or (point > box.high).any():
        return False
    arcs = zip(box.alive, point[:-1], point[1:], box.low[:-1], box.low[1:], strict=False)
    return all(bool(alive[a - x, b - y]) for alive, a, b, x, y in arcs)


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_the_tree_finds_the_best_of_all_cuts_and_choices(family: str, seed: int) -> None:
    _, problem = posed(family, seed)
    every = points(problem)
    best = int(judge(problem, every).min())
    found = ConfigurationProof(problem=problem, spans=windows(problem))
    found.look(None, UNFIT_NS)
    found.prove(None, UNFIT_NS, 10_000, 1e12)
    assert not found.open
    assert found.record.answer is not None
    assert found.record.answer.ns == best
    assert fits(problem, found.record.answer.cut[None, :])[0]


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_what_time_says_where_nothing_recomputes_excludes_no_choice(family: str, seed: int) -> None:
    space, problem = posed(family, seed)
    best = int(judge(problem, points(problem)).min())
    plain = space.problem(shape_of(family))
    assert plain is not None
    first = ConfigurationProof(problem=plain, spans=windows(plain))
    first.look(None, best + 1)
    found = ConfigurationProof(problem=problem, spans=windows(problem), rows=first.rows, timed=first.timed)
    found.look(None, best + 1)
    assert found.bound <= best
    found.prove(None, best + 1, 10_000, 1e12)
    assert found.record.answer is not None
    assert found.record.answer.ns == best


def test_a_descent_moves_flags_too() -> None:
    _, problem = posed("interleaved", 1)
    spans = windows(problem)
    fitting = whole(problem, *spans)
    assert fitting is not None
    every = points(problem)
    every = every[fits(problem, every) & problem.flags(every).all(1)]
    found = descend(problem, *spans, every[0])
    assert found is not None
    assert not problem.flags(found.cut).all()


def test_a_shape_without_arcs_keeps_its_bound_when_the_program_is_solved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program is about the shapes written into it, and says nothing of others that are open."""
    space = space_of(profile(chain(8, 3)))

    def looked(record: object, lines: object, spans: Windows, rounds: int) -> tuple[float, Windows]:
        return 0.0, spans

    monkeypatch.setattr(closing, "surrounded", looked)
    monkeypatch.setattr(closing, "fits_surely", lambda *given: False)
    monkeypatch.setattr(ConfigurationProof, "_light", lambda self: self.problem.shape.micros == 4)
    found = SearchState(instance=space, effort=Effort())
    few, many = (Configuration(**{**vars(ONE), "micros": micros, "data": 4 // micros}) for micros in (2, 4))
    for shape in (many, few):
        tried = found.look(shape)
        assert tried is not None
        found.answer(tried)
        found.close(tried)
    found.best = found.tried[many]
    left = [tried for tried in found.open if tried.shape == few]
    bounds = [tried.bound_ns for tried in left]
    assert bounds
    solve_program(found)
    assert found.program is not None
    assert [tried.bound_ns for tried in left] == bounds
