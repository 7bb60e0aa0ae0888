"""Ranks that shared samples in space share whole ones among them from some layer on: training as in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.plan import Plan, Regrid
from planner.plan_yaml import dump, parse
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.spatial.test_plans import plan_of

CLASSIFIER = "tests/runtime/spatial/workloads/classifier.py"
Grid = tuple[int, ...]


def shared(plan: Plan, before: str) -> Plan:
    """The same plan with samples shared from a layer of its last stage on."""
    *others, last = plan.stages
    turn = Regrid(before=before, spatial=(), samples=True)
    return plan.model_copy(
        update={"stages": (*others, last.model_copy(update={"regrid": (*last.regrid, turn)}))}
    )


SHAPES: dict[str, tuple[dict[int, Grid], int, str, dict[str, object]]] = {
    "two ranks": ({0: (2,)}, 2, "deep", {"workers": 1}),
    "from where shards have ended": ({0: (2,)}, 2, "norm", {"workers": 1}),
    "from within the trunk": ({0: (2,)}, 2, "down.0", {"workers": 1}),
    "a grid of four": ({0: (2, 2)}, 4, "deep", {"workers": 1}),
    "two parts on four ranks": ({0: (2,)}, 4, "deep", {"workers": 1}),
    "beside replicas": ({0: (2,)}, 2, "deep", {"workers": 1, "data": 2}),
    "in the last of two stages": ({0: (2,), 1: (2,)}, 2, "wide", {"workers": 2}),
    "in Chimera": ({0: (2,), 1: (2,)}, 2, "wide", {"workers": 2, "family": "chimera"}),
    "split backward": ({0: (2,), 1: (2,)}, 2, "wide", {"workers": 2, "family": "zb-h1"}),
    "recomputed": ({0: (2,), 1: (2,)}, 2, "wide", {"workers": 2, "recompute": (0, 1)}),
    "from the first layer of a stage": ({0: (2,), 1: (2,)}, 2, "deep", {"workers": 2, "cuts": [4]}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_that_shares_samples_trains_as_one_process_does(name: str, pool: Pool, tmp_path: Path) -> None:
    """Batch statistics over the samples of all ranks, running ones and every gradient among it."""
    grids, ranks, layer, shape = SHAPES[name]
    plan = shared(plan_of(CLASSIFIER, grids, ranks, **{"micros": 2, "micro": 4, **shape}), layer)
    assert parse(dump(plan)) == plan
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() < 1e-10, found
