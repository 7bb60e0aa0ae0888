"""Plans that share samples among ranks train as one process does, with data and pipeline axes beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.capture.stage_modules import whole
from planner.errors import BadInput
from planner.plan import Axes, Place, Plan, Regrid, coordinates, world_size
from runtime.spatial.ranks import analyse_stages
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.plans import plan_for

CLASSIFIER = "tests/runtime/spatial/workloads/classifier.py"
VOLUME = "tests/runtime/spatial/workloads/volume.py"


def spatially(plan: Plan, grids: dict[int, tuple[int, ...]], ranks: int) -> Plan:
    """The same plan with `ranks` sharing each sample, in the stages that are given a grid."""
    axes = Axes(data=plan.axes.data, pipeline=plan.axes.pipeline, spatial=ranks)
    stages = [stage.model_copy(update={"spatial": grids.get(i, ())}) for i, stage in enumerate(plan.stages)]
    places = tuple(
        Place(rank=r, node=0, slot=r, **coordinates(axes, r)._asdict()) for r in range(world_size(axes))
    )
    return plan.model_copy(update={"axes": axes, "stages": tuple(stages), "places": places})


def plan_of(workload: str, grids: dict[int, tuple[int, ...]], ranks: int, **shape: object) -> Plan:
    arguments = shape.pop("arguments", {})
    assert isinstance(arguments, dict)
    _, captured = captured_of(workload, arguments, 2)
    plain = plan_for(captured.graph, workload, arguments=arguments, **shape)  # type: ignore[arg-type]
    return spatially(plain, grids, ranks)


SHAPES = {
    "space alone": ({0: (2,)}, 2, {"workers": 1}),
    "four ranks on a grid": ({0: (2, 2)}, 4, {"workers": 1}),
    "space and data": ({0: (2,)}, 2, {"workers": 1, "data": 2}),
    "space and pipeline": ({0: (2,), 1: (2,)}, 2, {"workers": 2}),
    "the last stage whole": ({0: (2,), 1: ()}, 2, {"workers": 2}),
    "the first stage whole": ({0: (), 1: (2,)}, 2, {"workers": 2}),
    "split backward": ({0: (2,), 1: (2,)}, 2, {"workers": 2, "family": "zb-h1"}),
    "recomputed": ({0: (2,), 1: (2,)}, 2, {"workers": 2, "recompute": (0,)}),
    "chimera": ({0: (2,), 1: (2,)}, 2, {"workers": 2, "family": "chimera"}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_over_shards_trains_as_one_process_does(name: str, pool: Pool, tmp_path: Path) -> None:
    grids, ranks, shape = SHAPES[name]
    plan = plan_of(VOLUME, grids, ranks, **{"micros": 2, **shape})
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() < 1e-10, found


AVERAGED: dict[str, tuple[dict[int, tuple[int, ...]], int, str, dict[str, object]]] = {
    "a grid of four": ({0: (2, 2)}, 4, "", {"workers": 1}),
    "beside replicas": ({0: (2,)}, 2, "", {"workers": 1, "data": 2}),
    "in Chimera": ({0: (2,), 1: (2,)}, 2, "", {"workers": 2, "family": "chimera"}),
    "recomputed": ({0: (2,), 1: (2,)}, 2, "", {"workers": 2, "recompute": (0, 1)}),
    "samples shared": ({0: (2,)}, 2, "down.0", {"workers": 1}),
}


@pytest.mark.parametrize("name", AVERAGED)
def test_running_averages_of_all_batches_are_those_of_one_process(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    """Batch norms with momentum=None."""
    grids, ranks, shares, shape = AVERAGED[name]
    settings = {"arguments": {"momentum": "0"}, "micros": 2, "micro": 4, **shape}
    plan = plan_of(CLASSIFIER if shares else VOLUME, grids, ranks, **settings)
    if shares:
        turn = Regrid(before=shares, spatial=(), samples=True)
        plan = plan.model_copy(update={"stages": (plan.stages[0].model_copy(update={"regrid": (turn,)}),)})
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() <= 1e-12, found
    counted = [x for key, x in have.after[-1].items() if key.endswith("num_batches_tracked")]
    assert counted and set(map(int, counted)) == {3 * 2 * plan.axes.data}


def test_dropout_is_the_same_on_shards(pool: Pool, tmp_path: Path) -> None:
    """Against a plan of one rank: both draw their masks by key."""
    settings = {"arguments": {"dropout": "0.25"}, "micros": 2, "workers": 1}
    alone = run(pool, plan_of(VOLUME, {}, 1, **settings), tmp_path / "alone", steps=2)
    shared = run(
        pool, plan_of(VOLUME, {0: (2,)}, 2, **settings), tmp_path / "shared", steps=2, compare_holders=False
    )
    assert shared.losses == pytest.approx(alone.losses, rel=1e-12)
    undropped = run(pool, plan_of(VOLUME, {}, 1, micros=2, workers=1), tmp_path / "undropped", steps=2)
    assert undropped.losses != pytest.approx(alone.losses, rel=1e-6)


@pytest.mark.parametrize(
    ("grid", "ranks", "what"),
    [((9,), 9, "9 ranks for 8 rows"), ((1, 1, 1, 2), 2, "a grid of 4 dimensions")],
)
def test_a_grid_that_no_sample_has_rows_for_is_refused(grid: tuple[int, ...], ranks: int, what: str) -> None:
    _, captured = captured_of(VOLUME, {}, 2)
    with pytest.raises(BadInput, match=what):
        analyse_stages([whole(captured)], [grid], ranks)
