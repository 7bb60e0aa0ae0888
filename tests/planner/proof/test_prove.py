"""A first look and what follows it, against every cut of the shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.proof.descent import UNFIT_NS, Answer, judge
from planner.proof.feasible import windows
from planner.proof.prove import ConfigurationProof
from tests.planner.proof.test_branch_and_bound import cuts, posed


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("seed", range(14))
def test_a_look_never_bounds_above_the_best_cut_and_the_proof_ends_with_it(
    seed: int, forgotten: bool
) -> None:
    problem = posed(seed)
    every = cuts(problem)
    times = judge(problem, every)
    best, feasible = int(times.min()), np.flatnonzero(times < UNFIT_NS)
    closing = ConfigurationProof(problem=problem, spans=windows(problem))
    bad = None
    if len(feasible):
        worst = feasible[times[feasible].argmax()]
        bad = Answer(cut=every[worst], ns=int(times[worst]))
    closing.look(bad, UNFIT_NS if bad is None else bad.ns)
    assert closing.bound_ns <= best
    if forgotten and closing.root is None:
        closing._forget()
    for _ in range(40):
        closing.prove(closing.record.answer, closing.record.limit, 500, np.inf)
    assert not closing.open
    assert closing.record.limit == best
    found = closing.record.answer
    assert (found is None) == (best == UNFIT_NS)
    assert found is None or found.ns == best


@pytest.mark.parametrize("seed", range(14))
def test_against_a_better_plan_of_another_shape_nothing_is_left(seed: int) -> None:
    problem = posed(seed)
    best = int(judge(problem, cuts(problem)).min())
    closing = ConfigurationProof(problem=problem, spans=windows(problem))
    closing.look(None, best)
    for _ in range(40):
        closing.prove(None, best, 500, np.inf)
    assert not closing.open
    assert closing.record.answer is None
    assert closing.bound_ns == best


@pytest.mark.parametrize("seed", range(14))
def test_what_one_shape_teaches_about_an_order_bounds_no_other_shape_of_it_above_its_best_cut(
    seed: int,
) -> None:
    """Nothing but the order is the same: the other's layers take longer or less, its messages another time."""
    problem = posed(seed)
    first = ConfigurationProof(problem=problem, spans=windows(problem))
    first.look(None, UNFIT_NS)
    rng = np.random.default_rng(seed)
    factor = rng.integers(1, 9, (problem.prefix_ns.shape[0], 1, problem.layers))
    layers = np.diff(problem.prefix_ns, axis=2) * factor
    prefix = np.concatenate([np.zeros_like(problem.prefix_ns[:, :, :1]), layers.cumsum(2)], 2)
    other = replace(problem, prefix_ns=prefix, latency_ns=problem.latency_ns * rng.uniform(0.1, 9.0))
    best = int(judge(other, cuts(other)).min())
    closing = ConfigurationProof(problem=other, spans=windows(other), rows=first.rows)
    closing.look(None, UNFIT_NS)
    assert closing.bound_ns <= best
    for _ in range(40):
        closing.prove(closing.record.answer, closing.record.limit, 500, np.inf)
    assert not closing.open
    assert closing.record.limit == best


@pytest.mark.parametrize("share", [0.5, 0.95, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(14))
def test_a_glance_never_bounds_above_the_fastest_cut_whether_that_fits_or_not(
    seed: int, share: float
) -> None:
    problem = posed(seed)
    best = int(problem.times(cuts(problem)).min())
    bound = ConfigurationProof(problem=problem, spans=windows(problem)).glance(int(best * share))
    assert 0 <= bound <= min(best, int(best * share))
