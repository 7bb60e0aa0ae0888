"""The planner has ranks share samples where that is fastest: what it chooses fits, holds, and trains as one process."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from planner.cost import price
from planner.errors import BadInput
from planner.measure import measure
from planner.milp import Question, solve
from planner.plan import Plan, shared_from
from planner.profile import CostKey, LayerCost, Profile, Seconds
from planner.report import Contents
from planner.simulate import period_of_plan
from planner.spatial import price as split_price
from planner.verify import violations
from planner.workload import load
from runtime.rehearse.rehearse import runs
from runtime.spatial import AloneShard
from runtime.stage import Split
from runtime.train import Model
from tests.captures import captured_of
from tests.draws import part
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.spatial.test_planned import machines
from tests.runtime.spatial.test_shares import CLASSIFIER

MICRO = 4


@cache
def classifier(double: bool = True) -> Profile:
    """By roofline; times that grow with the samples, and on shards are in proportion and a little more."""
    arguments = {} if double else {"double": "false", "dropout": "0.25"}
    found = measure.profile(
        load(CLASSIFIER, arguments),
        "roofline:V100-16GB",
        micros=(2, 4, 8) if double else (MICRO // 2, MICRO),
        spatial=AloneShard(),
        grids=((2,), (2, 2)) if double else ((2,),),
    )
    signatures = sorted({key.signature for key in found.costs})

    def timed(row: LayerCost, seconds: float) -> LayerCost:
        half = Seconds(median=seconds)
        return replace(
            row, forward=half, backward=Seconds(median=2 * seconds), input_grad=half, weight_grad=half
        )

    costs = {
        key: timed(
            row,
            1e-5
            * (1 + signatures.index(key.signature) % 3)
            * key.micro
            * (1.05 / math.prod(key.split) if key.split else 1.0),
        )
        for key, row in found.costs.items()
    }
    return replace(found, costs=costs)


CHOICES: dict[str, tuple[int, int, dict[str, object]]] = {  # devices, batch, pins
    "free": (2, MICRO, {"micro": MICRO}),
    "from a layer on": (2, MICRO, {"regrid": "down.1:samples"}),
    "behind another grid": (4, 8, {"spatial": 4, "regrid": "down.0:2,wide:samples", "micro": 8}),
    "in the last of two stages": (
        4,
        8,
        {"micro": MICRO, "spatial": 2, "pipeline": 2, "regrid": "wide:samples", "schedule": "1f1b"},
    ),
    "in Chimera": (
        4,
        8,
        {"micro": MICRO, "spatial": 2, "pipeline": 2, "regrid": "wide:samples", "schedule": "chimera"},
    ),
    "beside replicas": (4, 8, {"micro": MICRO, "spatial": 2, "data": 2, "regrid": "deep:samples"}),
    "split backward": (
        4,
        8,
        {"micro": MICRO, "spatial": 2, "pipeline": 2, "regrid": "wide:samples", "schedule": "zb-h1"},
    ),
}


@cache
def chosen(name: str, *, double: bool = True) -> Plan:
    devices, batch, fix = CHOICES[name]
    return solve(Question(profile=classifier(double), cluster=machines(devices), batch=batch, fix=fix))


@pytest.mark.parametrize("name", CHOICES)
def test_what_the_planner_chooses_is_what_was_asked_for_and_holds(name: str) -> None:
    devices, _, fix = CHOICES[name]
    plan = chosen(name)
    last = shared_from(plan.stages[-1])
    assert last and f"{last}:samples" == str(fix.get("regrid", f"{last}:samples")).rpartition(",")[2]
    assert violations(plan, profile=classifier(), cluster=machines(devices)) == []
    assert period_of_plan(plan) == plan.prediction.step_ns
    found = Contents(plan=plan, profile=classifier()).memory_lines
    assert found is not None
    said = plan.prediction.memory
    assert found[0].peak_bytes == {w: each.total - each.margin for w, each in enumerate(said)}


@pytest.mark.parametrize("name", part(CHOICES, 3))
def test_what_the_planner_chooses_trains_as_one_process_does(name: str, pool: Pool, tmp_path: Path) -> None:
    plan = chosen(name)
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False)
    assert distance(expected(plan, tmp_path, steps=3), have).worst() < 1e-10


def test_samples_are_shared_where_that_is_fastest_and_nowhere_else() -> None:
    """Against the same question with every layer fixed, and with a gather; and with the wire too slow for it."""
    free, (devices, batch, fix) = chosen("free"), CHOICES["free"]
    names = [layer.name for layer in classifier().graph.layers]
    times = {}
    for name in names[1:]:
        try:
            pinned = {**fix, "spatial": 2, "regrid": f"{name}:samples"}
            times[name] = solve(
                Question(profile=classifier(), cluster=machines(devices), batch=batch, fix=pinned)
            ).prediction.step_ns
        except BadInput as refused:
            assert "no such split" in str(refused)
    gathered = solve(
        Question(profile=classifier(), cluster=machines(devices), batch=batch, fix={**fix, "regrid": "none"})
    )
    assert len(times) >= 6
    assert free.prediction.step_ns == min(times.values()) == times[shared_from(free.stages[-1])]
    assert free.prediction.step_ns < gathered.prediction.step_ns
    assert free.certificate is not None and free.certificate.gap == 0
    assert free.certificate.space is not None and free.certificate.space.grids
    assert free.certificate.chosen is not None and free.certificate.chosen.configuration is not None
    assert free.certificate.chosen.configuration.shared


def test_micro_batches_that_ranks_cannot_share_evenly_are_not_shared() -> None:
    profile = classifier()
    with pytest.raises(BadInput, match="with regrid wide:samples, but no such split"):
        solve(
            Question(
                profile=profile,
                cluster=machines(4),
                batch=2,
                fix={"micro": 2, "spatial": 4, "regrid": "wide:samples"},
            )
        )


def test_what_mixes_samples_is_refused_by_name_when_the_plan_is_made() -> None:
    mixing = measure.profile(
        load(CLASSIFIER, {"mixing": "true"}),
        "roofline:V100-16GB",
        micros=(2, 4),
        spatial=AloneShard(),
        grids=((2,),),
    )
    with pytest.raises(
        BadInput, match=r"shared from 'deep' on: forward of .* layer 'norm'\): aten\.flip on a share"
    ) as refused:
        solve(
            Question(
                profile=mixing, cluster=machines(2), batch=4, fix={"spatial": 2, "regrid": "deep:samples"}
            )
        )
    assert str(refused.value).count("(allowed:") == 1


@pytest.mark.parametrize("name", ["free", "from a layer on", "in the last of two stages", "in Chimera"])
def test_no_rank_holds_more_than_was_predicted(name: str) -> None:
    plan = chosen(name, double=False)
    assert 0.5 <= _ratio(plan) <= 1.0


def _ratio(plan: Plan) -> float:
    """Of the worker that holds most of what was predicted for it."""
    model = Model(plan, *captured_of(CLASSIFIER, plan.model.arguments, plan.batch.micro))
    predicted = [memory.total - memory.margin for memory in plan.prediction.memory]
    return max(run.peak_bytes / predicted[run.worker] for run in runs(model, torch.device("cpu"), steps=0))


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2"])
def test_stages_on_shards_that_owe_weight_gradients_keep_what_neighbours_sent(schedule: str) -> None:
    costs = measure.profile(
        load(CLASSIFIER, {"double": "false"}),
        "roofline:cpu",
        micros=(MICRO,),
        split=Split(),
        spatial=AloneShard(),
        grids=((2,),),
    )
    fix = {"spatial": 2, "gather": "deep", "pipeline": 2, "cuts": "down.1", "schedule": schedule}
    plan = solve(
        Question(profile=costs, cluster=machines(4), batch=8 * MICRO, fix={**fix, "recompute": False})
    )
    assert 0.6 <= _ratio(plan) <= 1.0


def test_what_is_sent_in_double_precision_is_twice_as_much() -> None:
    sent = [
        sum(
            cost.traffic.halo_bytes
            for cost in split_price(classifier(double).graph, (2,), {"deep"}).layers.values()
        )
        for double in (True, False)
    ]
    assert sent[0] == 2 * sent[1] > 0


def test_only_what_overlaps_with_messages_saves_more_where_weight_gradients_are_owed() -> None:
    """There it is joined to what neighbours send, and not kept apart from it."""
    split = Split()
    costs = measure.profile(
        load("unet3d", {"size": "tiny"}),
        "roofline:cpu",
        micros=(1,),
        split=split,
        spatial=AloneShard(),
        grids=((2,),),
    )
    owing = {key.split for key, cost in costs.costs.items() if cost.owing_bytes}
    assert owing == {(2,)}
    tables = price(costs, CostKey("", 1, (), "fp32", "eager"))
    assert not tables.owing.any()


def test_a_plan_that_shares_is_held_against_the_profile_of_the_share() -> None:
    """No faster than its layers on half of the samples, no smaller than what they keep, and evenly."""
    plan, profile = chosen("free"), classifier()
    faster = plan.times[0].model_copy(update={"backward_ns": plan.times[0].backward_ns // 2})
    batch = plan.batch.model_copy(update={"micro": 3, "samples": 3})
    least = plan.prediction.memory[0].model_copy(update={"activations": 0, "buffers": 0})
    for change, why in (
        ({"times": (faster, *plan.times[1:])}, "backward_ns is .*, but its layers take"),
        ({"batch": batch}, "micro-batches of 3 are not shared evenly by 2 ranks"),
        (
            {"prediction": plan.prediction.model_copy(update={"memory": (least,)})},
            "needs at least .* of state",
        ),
    ):
        wrong = violations(plan.model_copy(update=change), profile=profile, cluster=machines(2))
        assert any(re.search(why, str(each)) for each in wrong), wrong
