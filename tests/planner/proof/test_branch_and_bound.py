"""Bounds, tree and program on one shape, against every cut of it."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest

from planner.arrays import IntArray
from planner.configurations.configurations import OUTER_DATA, Configuration
from planner.configurations.pins import Pins
from planner.cuts.problem import CutProblem
from planner.milp import Instance, formulation
from planner.proof.boxes import ROUNDING
from planner.proof.branch_and_bound import ProofState, Tree
from planner.proof.descent import UNFIT_NS, Answer, descend, even, judge
from planner.proof.feasible import binding, every_cut, fitting, memory_weights, windows
from planner.proof.multipliers import RowPool
from planner.proof.separable import SeparableRows
from planner.proof.weights import stack, weigh
from tests.planner.milp.instances import chain, cluster, profile

SHAPES = [
    ("1f1b", 1, 1, "barrier"),
    ("chimera", 1, 1, "barrier"),
    ("chimera", 2, 1, "barrier"),
    ("zb-h1", 1, 1, "barrier"),
    ("zb-v", 1, 2, "barrier"),
    ("chimera-zb", 1, 1, "rolling"),
    ("gpipe", 1, 1, "rolling"),
]


def posed(seed: int) -> CutProblem:
    rng = random.Random(seed)
    family, pairs, chunks, update = SHAPES[seed % len(SHAPES)]
    workers = 2 if chunks > 1 else 4
    blocks = chain(10, seed, skips=rng.choice([0, 3]), loose=rng.random() < 0.25)
    space = Instance(
        profile=profile(blocks, scale=10),
        cluster=cluster(workers, memory=rng.choice([1 << 40, 150_000]), bandwidth=rng.choice([1e9, 1e11])),
        batch=6,
        precision="fp32",
        execution="eager",
        pins=Pins(),
    )
    shape = Configuration(
        family=family,
        data=1,
        workers=workers,
        pairs=pairs,
        chunks=chunks,
        micro=1,
        micros=6,
        recompute=False,
        shard=False,
        axes=OUTER_DATA,
        update=update,  # type: ignore[arg-type]
    )
    found = space.problem(shape)
    assert found is not None
    return found


def cuts(problem: CutProblem) -> IntArray:
    inner = combinations(range(1, problem.layers), problem.stages - 1)
    return np.array([(0, *boundaries, problem.layers) for boundaries in inner], np.int64)


@pytest.mark.parametrize("seed", range(14))
def test_no_row_is_above_the_simulation_of_any_cut_that_has_its_messages(seed: int) -> None:
    problem = posed(seed)
    every = cuts(problem)
    times = problem.times(every)
    rng = np.random.default_rng(seed)
    pool = RowPool(problem=problem, memory=memory_weights(problem))
    for k in rng.choice(len(every), 12, replace=False):
        row, ns = problem.critical(every[k])
        assert ns == times[k]
        pool.add_row(row)
    for k in range(len(every)):
        pool.add_cut(every[k])
    assert (pool.values(slice(None), np.arange(len(every))) <= times[None, :]).all()


@pytest.mark.parametrize("seed", range(14))
def test_rows_of_a_pool_are_those_that_it_was_given(seed: int) -> None:
    problem = posed(seed)
    every, pool = cuts(problem), _pool(problem)
    for cut in every[:20]:
        pool.add_cut(cut)
    given = stack([weigh(row) for row in pool.rows], problem.stages)
    kept = pool.part(np.arange(len(pool.rows)))
    assert (kept.kinds == given.kinds).all()
    assert (kept.hops == given.hops).all()
    for cut in every[:20]:
        number = pool.find(cut)
        assert number is not None
        span = problem.durations(cut)
        hops = given.hops.reshape(len(given), -1)[:, span.cells]
        sent = (hops[:, span.hop_bytes[0] > 0] != 0).sum(1)
        whole = problem.chained | (sent == (given.hops != 0).sum((1, 2, 3)))
        asked = (given.kinds * span.kinds).sum((1, 2)) + hops @ span.hop_ns[0]
        assert pool.values(slice(None), np.array([number]))[:, 0] == pytest.approx(asked * whole)


@pytest.mark.parametrize("seed", range(14))
def test_a_box_keeps_every_cut_that_a_row_does_not_refute(seed: int) -> None:
    problem = posed(seed)
    every = cuts(problem)
    times = problem.times(every)
    most = float(np.quantile(times, 0.2))
    rows = weigh(problem.critical(every[len(every) // 2])[0])
    low, high = windows(problem)
    spans = SeparableRows(problem).narrowed(rows, most, low, high) if problem.chained else None
    box = every_cut(problem, *(spans or (low, high)))
    assert box is not None
    box = box.filtered(rows, most)
    for cut in every[times <= most]:
        assert box is not None
        assert (cut >= box.low).all()
        assert (cut <= box.high).all()
        for p, alive in enumerate(box.alive):
            assert alive[cut[p] - box.low[p], cut[p + 1] - box.low[p + 1]]
    if box is not None:
        assert box.least(rows)[0] <= times[(every >= box.low).all(1) & (every <= box.high).all(1)].min()


@pytest.mark.parametrize("seed", [k for k in range(42) if SHAPES[k % len(SHAPES)][0] in ("chimera", "zb-v")])
def test_a_row_of_memory_that_is_left_out_is_exceeded_by_no_cut(seed: int) -> None:
    problem = posed(seed)
    box = every_cut(problem, *windows(problem))
    assert box is not None
    rows = memory_weights(problem)
    every = RowPool(problem=problem, memory=rows)
    kept = RowPool(problem=problem, memory=binding(box, rows))
    for cut in cuts(problem):
        every.add_cut(cut)
        kept.add_cut(cut)
    whole, left = every.excess.max(0), kept.excess.max(0, initial=-np.inf)
    assert ((whole > 0) == (left > 0)).all()
    assert (whole[whole > 0] == left[whole > 0]).all()
    ample = problem.available_bytes.min() > 1 << 30
    assert len(kept.memory) <= (0 if ample else len(rows))


@pytest.mark.parametrize("seed", range(21))
def test_the_tree_finds_the_planted_best_and_proves_it(seed: int) -> None:
    problem = posed(seed)
    every = cuts(problem)
    times = judge(problem, every)
    best = int(times.min())
    root = every_cut(problem, *windows(problem))
    assert root is not None
    root = fitting(root)
    if best == UNFIT_NS:
        assert root is None or Tree(_record(problem, None), root).prove(10_000, np.inf).answer is None
        return
    assert root is not None
    fitting_cuts = every[times < UNFIT_NS]
    worst = fitting_cuts[times[times < UNFIT_NS].argmax()]
    bad = Answer(cut=worst, ns=int(times[times < UNFIT_NS].max()))
    proof = Tree(_record(problem, bad), root).prove(10_000, np.inf)
    assert proof.answer is not None
    assert proof.closed
    assert proof.answer.ns == proof.bound_ns == best
    hurried = Tree(_record(problem, bad), root).prove(1, np.inf)
    assert hurried.bound_ns <= best


def _record(problem: CutProblem, answer: Answer | None) -> ProofState:
    record = ProofState(_pool(problem))
    record.aim(answer, UNFIT_NS)
    return record


def _pool(problem: CutProblem) -> RowPool:
    pool = RowPool(problem=problem, memory=memory_weights(problem))
    pool.add_row(problem.critical(even(problem))[0])
    return pool


@pytest.mark.parametrize("solver", ["highs", "cbc"])
@pytest.mark.parametrize("seed", range(7))
def test_the_program_agrees_with_every_cut_of_the_shape(seed: int, solver: formulation.Solver) -> None:
    problem = posed(seed)
    times = judge(problem, cuts(problem))
    best = int(times.min())
    box = every_cut(problem, *windows(problem))
    box = None if box is None else fitting(box)
    if best == UNFIT_NS or box is None:
        return
    found = descend(problem, box.low, box.high, even(problem))
    limit = 3 * best if found is None else found.ns
    pool = _pool(problem)
    rows = pool.part(np.arange(len(pool.rows)))
    narrow = box.filtered(rows, limit + ROUNDING)
    assert narrow is not None
    part = formulation.OpenConfiguration(box=narrow, rows=rows)
    outcome = formulation.solve([part], limit, nodes=100_000, solver=solver)
    assert outcome.status == "optimal"
    assert outcome.ns == best
    assert (
        best * (1 - 2 * formulation.TOLERANCE) - 1 <= outcome.bound_ns <= best * (1 + formulation.TOLERANCE)
    )
