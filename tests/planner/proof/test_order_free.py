"""The bound that holds for any order, against orders of every family and against machines done by hand."""

from __future__ import annotations

import random
from itertools import permutations

import numpy as np
import pytest

from planner.proof.order_free import OneMachineJob, jackson, order_free_bound_ns
from tests.planner.milp.search.test_totals import cuts, posed, space

SEEDS = 40


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_order_is_faster_than_the_bound_of_its_cut(seed: int) -> None:
    given = space(seed)
    for problem in posed(given, seed):
        every = cuts(problem)
        chosen = every[np.random.default_rng(seed).permutation(len(every))[:6]]
        if len(chosen):
            times = problem.times(chosen)
            for cut, ns in zip(chosen, times.tolist(), strict=True):
                assert order_free_bound_ns(problem, cut) <= ns, f"{problem.shape} at {cut.tolist()}"


@pytest.mark.parametrize("seed", range(30))
def test_no_sequence_of_jobs_ends_before_jacksons_bound(seed: int) -> None:
    rng = random.Random(seed)
    jobs = [
        OneMachineJob(head=rng.randint(0, 9), takes=rng.randint(1, 5), tail=rng.randint(0, 9))
        for _ in range(rng.randint(1, 6))
    ]
    best = min(_length(order) for order in permutations(jobs))
    bound = jackson(jobs)
    assert bound <= best
    assert bound >= max(job.head + job.takes + job.tail for job in jobs)
    assert bound >= min(j.head for j in jobs) + sum(j.takes for j in jobs) + min(j.tail for j in jobs)


def test_a_job_gives_way_to_one_with_a_longer_tail() -> None:
    assert jackson([OneMachineJob(head=0, takes=4, tail=0), OneMachineJob(head=2, takes=2, tail=9)]) == 13
    assert jackson([OneMachineJob(head=0, takes=4, tail=5), OneMachineJob(head=2, takes=2, tail=0)]) == 9


def _length(order: tuple[OneMachineJob, ...]) -> int:
    now = most = 0
    for job in order:
        now = max(now, job.head) + job.takes
        most = max(most, now + job.tail)
    return most
