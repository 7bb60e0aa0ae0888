"""Models that tests of runs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.capture import Captured, capture
from planner.measure import bench
from planner.plan import Plan
from planner.workload import Workload
from runtime.messages import in_order_of
from runtime.train import Model
from tests.captures import captured_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="session")
def _profiles_capture_once() -> Iterator[None]:
    """A model of this repository is captured once for its profiles and its runs; what tests write is captured anew."""

    def of(workload: Workload, *, micro: int = 1) -> Captured:
        if not Path(workload.where).resolve().is_relative_to(ROOT) or workload.opaque:
            return capture(workload, micro=micro)
        return captured_of(workload.name, workload.arguments, micro)[1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "capture", of)
        yield


@pytest.fixture
def captures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that capture is no part of: a model is captured once for all of them."""

    def of(plan: Plan, workload: Workload | None = None) -> Model:
        loaded, captured = captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro)
        return Model(plan, workload or loaded, in_order_of(plan, captured))

    monkeypatch.setattr(Model, "of", of)
