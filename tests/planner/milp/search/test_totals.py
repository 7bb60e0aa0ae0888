"""What is said of whole shapes and of single rows, against every cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from planner.arrays import IntArray
from planner.configurations import pins
from planner.configurations.configurations import OUTER_DATA, Configuration, shapes
from planner.cuts.problem import CutProblem
from planner.errors import BadInput
from planner.milp import Instance
from planner.milp.search.totals import TotalsBound, _hops_to
from planner.profile import Profile, Seconds
from planner.proof.boxes import ROUNDING
from planner.proof.branch_and_bound import ProofState
from planner.proof.feasible import every_cut, quieted, windows
from planner.proof.hull import hull_bound
from planner.proof.multipliers import RowPool
from planner.proof.separable import SeparableRows
from planner.proof.weights import PathRows, stack, weigh
from planner.schedule import FAMILIES, Kind, generate
from tests.draws import part
from tests.planner.milp.instances import chain, cluster, profile

SEEDS, DRAWN = 40, 10
SHAPES = 12  # of each seed


def space(seed: int) -> Instance:
    rng = random.Random(seed)
    layers = rng.randint(5, 8)
    blocks = chain(layers, seed, equal=rng.random() < 0.3, skips=rng.choice([0, 2]), loose=rng.random() < 0.2)
    update = rng.choice(["barrier", "barrier", "rolling"])
    return Instance(
        profile=uneven(
            tied(profile(blocks, scale=rng.choice([1, 10])), rng.choice([0, 0, 1, layers - 1])), rng
        ),
        cluster=cluster(
            rng.choice([1, 2, 4, 6]),
            rng.choice([1, 1, 2, 4]),
            bandwidth=rng.choice([1e8, 1e9, 1e11]),
            latency_s=rng.choice([1e-9, 5e-7]),
        ),
        batch=rng.choice([4, 6, 8, 12]),
        precision="fp32",
        execution="eager",
        pins=pins({"update": update}, None),
    )


def tied(given: Profile, far: int) -> Profile:
    """The first layer's parameters are those of the layer so far behind it as well."""
    if not far or not given.graph.layers[0].parameters:
        return given
    first, other = given.graph.layers[0].parameters[0], given.graph.layers[far]
    parameters = tuple(
        replace(p, users=(*p.users, other.name)) if p.name == first else p for p in given.graph.parameters
    )
    layers = tuple(
        replace(layer, parameters=(*layer.parameters, first)) if layer is other else layer
        for layer in given.graph.layers
    )
    return replace(given, graph=replace(given.graph, parameters=parameters, layers=layers))


def uneven(given: Profile, rng: random.Random) -> Profile:
    """A whole backward that takes more or less than its halves."""
    factor = rng.choice([0.7, 1.0, 1.3])
    costs = {
        key: replace(cost, backward=Seconds(median=round(cost.backward.median * 1e9 * factor) * 1e-9))
        for key, cost in given.costs.items()
    }
    return replace(given, costs=costs)


def posed(given: Instance, seed: int) -> list[CutProblem]:
    every = list(
        shapes(
            given.cluster,
            layers=given.layers,
            batch=given.batch,
            micros=given.micros(),
            pinned=given.pins,
        )
    )
    chosen = random.Random(seed).sample(every, min(SHAPES, len(every)))
    found = (given.problem(shape) for shape in chosen)
    return [problem for problem in found if problem is not None]


def cuts(problem: CutProblem) -> IntArray:
    inner = combinations(range(1, problem.layers), problem.stages - 1)
    every = np.array([(0, *boundaries, problem.layers) for boundaries in inner], np.int64)
    return every[problem.allowed[every].all(1)]


@pytest.mark.parametrize("seed", part(range(SEEDS), DRAWN))
def test_no_cut_of_a_shape_is_faster_than_its_floor(seed: int) -> None:
    given = space(seed)
    floors = TotalsBound(given)
    for problem in posed(given, seed):
        every = cuts(problem)
        if len(every):
            least = int(problem.times(every).min())
            assert floors.free_ns(problem.shape) <= floors.summed_ns(problem.shape) <= least + ROUNDING, str(
                problem.shape
            )


@pytest.mark.parametrize("seed", part(range(SEEDS), DRAWN))
def test_no_variant_whose_replicas_share_is_faster_than_what_is_computed(seed: int) -> None:
    given = space(seed) if seed % 2 else branched(seed)
    optimizer = replace(given.profile.optimizer, by_element=True)
    given = replace(given, profile=replace(given.profile, optimizer=optimizer))
    floors = TotalsBound(given)
    for plain in posed(given, seed):
        state = (replace(plain.shape, shard=True),) if plain.shape.holders > 1 else ()
        for shape in (plain.shape, *state, *given.by_element(plain.shape)):
            problem = given.problem(shape)
            assert problem is not None
            assert floors.computed_ns(plain.shape) <= floors.summed_ns(shape) + ROUNDING, str(shape)
            every = cuts(problem)
            if len(every):
                assert floors.computed_ns(plain.shape) <= int(problem.times(every).min()) + ROUNDING, str(
                    shape
                )


def branched(seed: int) -> Instance:
    """The question of a model in which many layers do not read the one before them."""
    given, rng = space(seed), random.Random(seed)
    blocks = chain(rng.randint(5, 8), seed, skips=rng.choice([0, 2, 4]), loose=True)
    return replace(given, profile=uneven(profile(blocks, scale=10), rng))


def views(problem: CutProblem) -> Iterator[tuple[CutProblem, IntArray]]:
    """Yields the problems of which the cuts of one are made up, each with its cuts."""
    every, talk = cuts(problem), problem.tables.talk
    if not len(every):
        return
    told = problem.talks(every)
    yield problem.talking, every[told]
    for p in problem.apart if not told.all() else ():
        first = talk.ends[every[:, p - 1], every[:, p]] > every[:, p + 1]
        first &= talk.everywhere(every, [q for q in problem.apart if q < p])
        yield problem.silent_at(p), every[first]


@pytest.mark.parametrize("seed", part(range(SEEDS), DRAWN))
def test_no_cut_is_faster_than_the_floor_of_its_kind(seed: int) -> None:
    given = branched(seed)
    floors = TotalsBound(given)
    for problem in posed(given, seed):
        assert sum(len(own) for _, own in views(problem)) == len(cuts(problem))
        for view, own in views(problem):
            if len(own):
                least = int(problem.times(own).min()) + ROUNDING
                floor = floors.summed_ns(problem.shape, talking=view.chained)
                assert floors.summed_ns(problem.shape) <= floor <= least, str(problem.shape)


@pytest.mark.parametrize("seed", part(range(SEEDS), DRAWN))
def test_two_stages_that_do_not_talk_hold_no_more_work_than_is_said(seed: int) -> None:
    given = branched(seed)
    floors = TotalsBound(given)
    for problem in posed(given, seed):
        line = np.concatenate([[0], np.cumsum(floors.work(problem.shape).total)])
        for view, own in views(problem):
            if view.silent and len(own):
                most = floors.passed(problem.shape).beside(problem.tables, problem.stages)
                held = line[own[:, view.silent + 1]] - line[own[:, view.silent - 1]]
                assert held.max() <= most <= line[-1], str(problem.shape)


@pytest.mark.parametrize("seed", part(range(2 * SEEDS), 2 * DRAWN))
def test_no_cut_is_faster_than_any_row_as_a_sum_over_its_boundaries(seed: int) -> None:
    given = space(seed) if seed < SEEDS else branched(seed)
    for problem in posed(given, seed):
        assert (problem.times(cuts(problem)) == problem.any.simulated(cuts(problem), None)).all()
        for view, own in views(problem):
            if len(own):
                _rows_hold(view, own)


@pytest.mark.parametrize("seed", part(range(2 * SEEDS), DRAWN))
def test_no_cut_is_faster_than_the_linear_program_over_the_hull_of_all_cuts(seed: int) -> None:
    given = space(seed) if seed < SEEDS else branched(seed)
    for problem in posed(given, seed):
        spans = windows(problem)
        for view, own in views(problem):
            narrow = quieted(view, *spans) if view.silent else spans
            if not len(own) or narrow is None or problem.stages < 2:
                continue
            least = int(problem.times(own).min())
            record = ProofState(RowPool(problem=view, memory=stack([], view.stages)))
            record.aim(None, 2 * least)
            bound, mixtures = hull_bound(record, SeparableRows(view), *narrow, 60)
            assert bound <= least + ROUNDING, str(problem.shape)
            for row in mixtures:
                assert SeparableRows(view).least(row, *narrow)[0] <= least + ROUNDING
            assert bound > 0


@pytest.mark.parametrize("seed", part(range(2 * SEEDS), 2 * DRAWN))
def test_paths_learnt_before_refuse_no_cut_that_is_as_fast_as_allowed(seed: int) -> None:
    given = space(seed) if seed < SEEDS else branched(seed)
    for problem in posed(given, seed):
        every, paths, random_ = cuts(problem), PathRows(problem), np.random.default_rng(seed)
        times = problem.times(every)
        for _ in range(8 if len(every) else 0):
            some = random_.integers(0, len(every), 16)
            allowed = random_.choice(times, 16) + random_.choice([-1.0, 0.0, 0.5], 16)
            took = paths.times(every[some], allowed)
            assert ((took < allowed) == (times[some] < allowed)).all(), str(problem.shape)
            assert (took <= times[some]).all()
            assert (took == times[some])[took < allowed].all()


def _rows_hold(problem: CutProblem, every: IntArray) -> None:
    """Checks rows that cuts of a problem teach against all of its cuts, within its windows and as sums."""
    times, lines, spans = problem.times(every), SeparableRows(problem), windows(problem)
    rows = [problem.critical(every[k])[0] for k in {0, len(every) // 2, len(every) - 1}] + problem.loads()
    most = int(np.quantile(times, 0.3))
    if problem.chained:
        rough, ns = problem.rough(problem.durations(every[0]))
        assert ns <= times[0]
        rows.append(rough)
        told = problem.times(every, most)
        assert (told[times <= most] == times[times <= most]).all()
        assert (told[times > most] > most).all()
        assert (told <= times).all()
    else:
        narrow = quieted(problem, *spans)
        assert narrow is not None
        spans = narrow
        assert ((every >= spans[0]) & (every <= spans[1])).all()
    if problem.shape.update == "barrier":
        rows += problem.slowed(every[len(every) // 3], 1.3)
    box = every_cut(problem, *spans)
    assert box is not None
    for row in rows:
        weights = weigh(row)
        value, cut = lines.least(weights, *spans)
        assert value <= times.min()
        assert box.least(weights)[0] <= times.min() + ROUNDING
        assert (np.diff(cut) > 0).all()
        most = float(np.quantile(times, 0.3))
        narrow = lines.narrowed(weights, most, *spans)
        filtered = box.filtered(weights, most)
        for kept in every[times <= most]:
            assert narrow is not None and filtered is not None
            assert ((kept >= narrow[0]) & (kept <= narrow[1])).all()
            assert ((kept >= filtered.low) & (kept <= filtered.high)).all()
        if problem.chained:
            heights = lines.heights(weights)[0]
            at = np.searchsorted(lines.places, every)
            values = heights[np.arange(problem.stages + 1), at].sum(1)
            assert value <= values.min() + lines._constants(weights)[0] + 1e-3 * max(1.0, value)


def test_an_idle_first_stage_does_not_hold_up_a_rolling_split_backward() -> None:
    """The next step starts before the last weight gradients are done: no head delays every step."""
    given = Instance(
        profile=profile(chain(8, 1, equal=True)),
        cluster=cluster(4, bandwidth=1e15, latency_s=0.0),
        batch=8,
        precision="fp32",
        execution="eager",
        pins=pins({"update": "rolling"}, None),
    )
    shape = Configuration(
        family="zb-h2",
        data=1,
        workers=4,
        pairs=1,
        chunks=1,
        micro=1,
        micros=8,
        recompute=False,
        shard=False,
        axes=OUTER_DATA,
        update="rolling",
    )
    problem = given.problem(shape)
    assert problem is not None
    period = int(problem.times(np.array([[0, 2, 4, 6, 8]]))[0])
    assert 8 * 2 * 3000 <= period < 8 * 2 * 3000 + 100
    assert TotalsBound(given).summed_ns(shape) <= period


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.paired])
@pytest.mark.parametrize("workers", [2, 4, 6, 8, 12])
def test_the_pipes_of_a_stage_lie_on_workers_of_their_own(name: str, workers: int) -> None:
    for pairs in (f for f in range(1, workers // 2 + 1) if workers // 2 % f == 0):
        place = generate(name, workers=workers, micros=2 * workers, pairs=pairs).place
        assert all(len({pipe[s] for pipe in place}) == 2 * pairs for s in range(len(place[0])))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_with_whole_and_split_backward_passes_says_so(name: str) -> None:
    for workers, micros in ((2, 4), (4, 8), (4, 5), (2, 12)):
        kinds = {
            action.kind for order in generate(name, workers=workers, micros=micros).orders for action in order
        }
        family = FAMILIES[name]
        assert family.mixes or (Kind.I in kinds) == family.splits
        assert family.mixes or not {Kind.B, Kind.I} <= kinds


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_stage_is_said_to_be_further_away_than_messages_take_to_it(family: str) -> None:
    for workers, chunks in product((2, 4), (FAMILIES[family].default_chunks, 4)):
        try:
            place = generate(family, workers=workers, micros=workers, chunks=chunks).place
        except BadInput:
            continue
        shape = Configuration(
            family=family,
            data=1,
            workers=workers,
            pairs=1,
            chunks=chunks,
            micro=1,
            micros=workers,
            recompute=False,
            shard=False,
            axes=OUTER_DATA,
        )
        for pipe in place:
            sent = np.cumsum([0, *(a != b for a, b in pairwise(pipe))])
            assert (_hops_to(shape, np.arange(len(pipe))) <= sent).all()
