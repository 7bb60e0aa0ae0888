"""What a rank holds that shares gradients or parameters, against what the plan says of it."""

from __future__ import annotations

import pytest

from planner.milp import Question, solve
from tests.runtime.test_memory_model import machines, profile, ratios


@pytest.mark.parametrize("sharing", ["gradients", "parameters"])
@pytest.mark.parametrize("pipeline", [1, 2])
def test_no_rank_that_shares_holds_more_than_was_predicted(sharing: str, pipeline: int) -> None:
    costs = profile("mlp", (("layers", "9"), ("width", "96")), 4)
    fix = {"data": 2, "pipeline": pipeline, "schedule": "1f1b", "recompute": False, "shard": sharing}
    machine = machines(2 * pipeline)
    plan = solve(Question(profile=costs, cluster=machine, batch=16 * pipeline, fix=fix))
    found = ratios(plan)
    assert 0.75 <= max(found) <= 1.01, found
