"""The tests of equality can fail: with a mistake in place of each kind they see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.test_equality import HERE, plan_of


@pytest.mark.parametrize("fault", ["dropped sum", "swapped micro-batch", "lost skip gradient"])
def test_a_mistake_shows(fault: str, pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(HERE + "branches.py", {"double": "False"}, family="1f1b", workers=2, micros=4)
    have = run(pool, plan, tmp_path, steps=1, fault=fault, compare_holders=False)
    assert distance(expected(plan, tmp_path, steps=1), have).worst() > 1e-3


def test_without_a_sum_holders_of_a_parameter_drift_apart(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {"layers": "9"}, family="chimera", workers=2, micros=4)
    with pytest.raises(AssertionError, match=r"holders of '.*' differ"):
        run(pool, plan, tmp_path, steps=1, fault="dropped sum")
