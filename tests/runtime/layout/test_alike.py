"""A group without a cut computes alike on all of its ranks, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.plan import refused
from tests.captures import captured_of
from tests.draws import part
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.layout.test_plans import in_parts
from tests.runtime.plans import plan_for

MODELS = {
    "LSTM": ("tests/runtime/workloads/lstm.py", {"size": "tiny"}),
    "U-Net": ("unet3d", {"size": "tiny"}),
    "ResNet": ("resnet50", {"width": "8", "classes": "4", "side": "32"}),
}


@pytest.mark.parametrize("name", part(MODELS, 1))
def test_a_group_without_a_cut_trains_as_one_process_or_is_refused(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    workload, arguments = MODELS[name]
    _, captured = captured_of(workload, arguments, 2)
    plan = in_parts(plan_for(captured.graph, workload, arguments=arguments, workers=1, micros=2), {}, (2,))
    if any(refused(plan, captured.graph)):
        return
    have = run(pool, plan, tmp_path, steps=2, compare_holders=False)
    assert distance(expected(plan, tmp_path, steps=2), have).worst() < 1e-4
