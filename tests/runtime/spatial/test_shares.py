"""Ranks that shared samples in space share whole ones among them from some layer on: training as in one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.capture import cut
from planner.errors import BadPlan
from planner.plan import Plan, Regrid, dump
from planner.plan.yaml import parse
from planner.spatial import NoRule
from runtime.spatial.ranks import analyse_stages, shares_of
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.spatial.test_plans import plan_of
from tests.runtime.train.test_script import SCRIPT

CLASSIFIER = "tests/runtime/spatial/workloads/classifier.py"
SIDES = "tests/runtime/spatial/workloads/sides.py"
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


@pytest.mark.parametrize("layer", ["second", "side", "norm"])
def test_what_comes_beside_images_and_sums_over_samples_are_shared_too(
    layer: str, pool: Pool, tmp_path: Path
) -> None:
    """Rows, words and weights that every rank is given whole; a matrix made of weights; means, and a loss with count."""
    plan = shared(
        plan_of(SIDES, {0: (2,)}, 2, workers=1, micros=2, micro=4, data=1 + (layer == "side")), layer
    )
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False)
    assert distance(expected(plan, tmp_path, steps=3), have).worst() < 1e-12


def test_dropout_draws_for_every_sample_what_one_process_draws(pool: Pool, tmp_path: Path) -> None:
    """Of whole channels before the flattening, and of numbers behind it."""
    settings = {"arguments": {"dropout": "0.25"}, "micros": 2, "micro": 4, "workers": 1}
    alone = run(pool, plan_of(CLASSIFIER, {}, 1, **settings), tmp_path / "alone", steps=2)
    plan = shared(plan_of(CLASSIFIER, {0: (2,)}, 2, **settings), "deep")
    have = run(pool, plan, tmp_path / "shared", steps=2, compare_holders=False)
    assert have.losses == pytest.approx(alone.losses, rel=1e-12)
    undropped = plan_of(CLASSIFIER, {}, 1, micros=2, micro=4, workers=1)
    assert run(pool, undropped, tmp_path / "undropped", steps=2).losses != pytest.approx(
        alone.losses, rel=1e-6
    )


def test_evaluation_on_shares_gives_the_losses_of_one_process(pool: Pool, tmp_path: Path) -> None:
    arguments = {"dropout": "0.25"}
    plan = shared(
        plan_of(CLASSIFIER, {0: (2,)}, 2, arguments=arguments, micros=2, micro=4, workers=1), "deep"
    )
    trained, evaluated = told(pool, plan, tmp_path / "shared")
    right = plan_of(CLASSIFIER, {}, 1, arguments=arguments, micros=2, micro=4, workers=1)
    assert (trained, evaluated) == tuple(
        pytest.approx(each, rel=1e-12) for each in told(pool, right, tmp_path / "alone")
    )


def told(pool: Pool, plan: Plan, folder: Path) -> tuple[list[float], list[float]]:
    """Losses of a script that trains and evaluates, step by step; the same on all ranks."""
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    model = Model(plan, *captured_of(CLASSIFIER, plan.model.arguments, plan.batch.micro))
    paths, job = prepare(model, folder / "run", job_of(plan, 1, {}))
    replace(job, script=(str(script), str(folder))).write(paths)
    pool.run("tests.runtime.jobs:script", len(plan.places), folder=str(paths.root))
    found = [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(len(plan.places))]
    assert all(each == found[0] for each in found)
    return found[0][0], found[0][1]


def test_a_model_that_mixes_samples_behind_is_refused_before_anything_runs(tmp_path: Path) -> None:
    arguments = {"mixing": "true"}
    _, captured = captured_of(CLASSIFIER, arguments, 2)
    with pytest.raises(
        NoRule,
        match=r"^forward of the model \(counted to layer 'norm'\): aten.flip on a share of the samples: it picks",
    ):
        analyse_stages(cut(captured, []), [(2,)], 2, [""], [{}], "deep")


def test_only_the_last_stage_shares_and_evenly() -> None:
    _, captured = captured_of(CLASSIFIER, {}, 2)
    stages = cut(captured, [5])
    with pytest.raises(BadPlan, match="shared from 'deep' on, which is not in the last stage"):
        analyse_stages(stages, [(2,), (2,)], 2, ["", ""], [{}, {}], "deep")
    plan = plan_of(CLASSIFIER, {0: (2,), 1: (2,)}, 2, workers=2, micros=2, micro=4)
    first, last = plan.stages
    turn = Regrid(before="down.0", spatial=(), samples=True)
    early = plan.model_copy(update={"stages": (first.model_copy(update={"regrid": (turn,)}), last)})
    uneven = shared(plan_of(CLASSIFIER, {0: (2,)}, 2, workers=1, micros=2, micro=3), "deep")
    for wrong, why in ((early, "only the last one may"), (uneven, "2 ranks cannot share 3 samples evenly")):
        with pytest.raises(BadPlan, match=why):
            shares_of(wrong)
