"""Loss, every gradient and five optimizer steps of a plan against the captured graph in one process."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

import pytest

from planner.errors import BadInput
from planner.plan import Plan
from planner.schedule import FAMILIES, generate
from tests.captures import captured_of
from tests.draws import covering
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.plans import plan_for

FAMILY_NAMES = sorted(FAMILIES)
HERE = "tests/runtime/workloads/"


def plan_of(workload: str, arguments: dict[str, str], **shape: object) -> Plan:
    _, captured = captured_of(workload, arguments, 2)
    return plan_for(captured.graph, workload, arguments=arguments, **shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_family_trains_as_one_process_does(family: str, pool: Pool, tmp_path: Path) -> None:
    shape = sample(family)
    plan = plan_of(HERE + "mlp.py", {"layers": "9"}, family=family, **shape)
    have = run(pool, plan, tmp_path)
    found = distance(expected(plan, tmp_path), have)
    one_pipe = len(plan.schedule.place) == 1
    assert found.worst() <= (0.0 if one_pipe else 1e-6), (family, shape, found)


def sample(family: str) -> dict[str, int]:
    """One of D = 2, 3, 4 and N = D, 2D, odd, that the family allows."""
    draw = Random(f"{family}/1")
    for _ in range(50):
        workers = draw.choice((2, 3, 4))
        micros = draw.choice((workers, 2 * workers, 2 * workers + 1))
        try:
            generate(family, workers=workers, micros=micros)
        except BadInput:
            continue
        return {"workers": workers, "micros": micros}
    raise AssertionError(family)


@pytest.mark.parametrize(
    ("family", "double"), covering(product(FAMILY_NAMES, [False, True]), kinds=lambda case: case)
)
def test_skips_ties_integers_and_frozen_layers_make_no_difference(
    family: str, double: bool, pool: Pool, tmp_path: Path
) -> None:
    plan = plan_of(HERE + "branches.py", {"double": str(double)}, family=family, **sample(family))
    have = run(pool, plan, tmp_path)
    found = distance(expected(plan, tmp_path), have)
    assert found.worst() <= (1e-12 if double else 1e-6), found
    tied = {"embedding.weight"}
    if len(plan.schedule.place) == 1:
        assert all(apart == 0 for name, apart in found.grads.items() if name not in tied), found
