"""What would refute a claim refutes it, and what lies within the stated error does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.refute import Claim, judged
from planner.plan import yaml as plan_yaml

PLAN = plan_yaml.load(Path("plans/mlp-chimera.yaml"))
PREDICTED = PLAN.prediction.step_ns


def claim(bound: float = 1.0, error: float = 0.05) -> Claim:
    return Claim(plan=PLAN, bound_ns=bound * PREDICTED, error=error)


def test_a_plan_faster_than_the_bound_by_more_than_the_error_refutes_it() -> None:
    assert not judged(claim(), 1.0 * PREDICTED, 0.94 * PREDICTED).holds
    assert judged(claim(), 1.0 * PREDICTED, 0.96 * PREDICTED).holds


def test_a_chosen_plan_far_behind_the_best_is_refuted_though_the_bound_holds() -> None:
    found = judged(claim(bound=0.5), 1.0 * PREDICTED, 0.85 * PREDICTED)
    assert found.beaten_by < 0 and found.regret == pytest.approx(1 / 0.85 - 1)
    assert found.claim.regret == pytest.approx(2 * 0.05 / 0.95) and not found.holds


def test_a_step_outside_its_interval_is_seen() -> None:
    assert judged(claim(), 1.04 * PREDICTED, PREDICTED).inside
    assert not judged(claim(), 1.06 * PREDICTED, PREDICTED).inside


def test_an_error_as_large_as_the_step_claims_nothing() -> None:
    assert claim(error=1.5).regret == float("inf")
    assert claim(error=1.5).interval_ns[0] == 0.0
    assert judged(claim(error=0.5), PREDICTED, PREDICTED).word == "undecided"
    assert judged(claim(), PREDICTED, PREDICTED).word == "holds"
    assert judged(claim(), PREDICTED, 0.94 * PREDICTED).word == "refuted"
