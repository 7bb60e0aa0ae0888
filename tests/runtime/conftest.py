"""Models that tests of runs share."""

from __future__ import annotations

import pytest

from planner.plan import Plan
from planner.workload import Workload
from runtime.messages import in_order_of
from runtime.train import Model
from tests.captures import captured_of


@pytest.fixture
def captures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that capture is no part of: a model is captured once for all of them."""

    def of(plan: Plan, workload: Workload | None = None) -> Model:
        loaded, captured = captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro)
        return Model(plan, workload or loaded, in_order_of(plan, captured))

    monkeypatch.setattr(Model, "of", of)
