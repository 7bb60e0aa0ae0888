"""Whether a cut has room is told by the most that its stages hold at once only where the worst moment tells the same."""

from __future__ import annotations

import numpy as np
import pytest

from planner.milp import Question
from planner.milp.search.candidates import ranked
from planner.proof.descent import fits
from tests.planner.milp.instances import chain, cluster, profile

STEPS = (15_000, 30_000, 60_000, 120_000, 240_000, 1 << 40)  # bytes of a device


@pytest.mark.parametrize("recompute", [False, None])
def test_what_surely_has_room_has_it_and_nothing_else_is_taken_for_it(recompute: bool | None) -> None:
    told = {"surely": 0, "by moments": 0, "not": 0}
    fix = {} if recompute is None else {"recompute": recompute}
    for memory in STEPS:
        made = Question(
            profile=profile(chain(8, 4), micros=(1, 2)), cluster=cluster(4, memory=memory), batch=4, fix=fix
        )
        instance, random = made.instance(), np.random.default_rng(0)
        for shape in ranked(instance)[::7]:
            if (problem := instance.problem(shape)) is None:
                continue
            inner = [
                np.sort(random.choice(np.arange(1, problem.layers), problem.stages - 1, replace=False))
                for _ in range(9)
            ]
            cuts = np.array([[0, *row, problem.layers] for row in inner], np.int64)
            within = (problem.memory(cuts) <= problem.available_bytes).all(1)
            surely = problem.roomy(cuts)
            assert (fits(problem, cuts) == within).all() and not (surely & ~within).any()
            told["surely"] += int(surely.sum())
            told["by moments"] += int((within & ~surely).sum())
            told["not"] += int((~within).sum())
    assert all(told.values()), told
