"""Recomputation stage by stage: only where a stage would not fit, never slower than all, and as executable."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import combinations

import numpy as np
import pytest

from planner import limits
from planner.cluster import Cluster, Correction, Corrections
from planner.configurations.configurations import Configuration
from planner.cost import stage_bytes
from planner.cuts.stage_costs import KINDS
from planner.errors import Infeasible
from planner.milp import Question, solve, solve_or_none
from planner.model import Buffer
from planner.plan import Plan, dump, schedule_of
from planner.plan.yaml import parse as loads
from planner.profile import CostKey, Profile
from planner.program import lower
from planner.program import violations as program_violations
from planner.proof.descent import judge
from planner.schedule import Kind
from planner.simulate import PART_NAMES, period_of_plan
from planner.verify import violations
from tests.planner.milp.instances import Block, chain, cluster, profile

ALIKE = profile(
    [
        Block(forward=1000, input_grad=1000, weight_grad=1000, out=100, own=10_000, weight=40, reads=(k - 1,))
        for k in range(8)
    ]
)
FIX = {"pipeline": 4, "data": 1}


def plan_of(memory: int, schedule: str = "1f1b", **fix: object) -> Plan:
    machines = cluster(4, memory=memory)
    plan = solve(Question(profile=ALIKE, cluster=machines, batch=8, fix={**FIX, **fix}, schedules=[schedule]))
    assert violations(plan, profile=ALIKE, cluster=machines) == []
    assert period_of_plan(plan) == plan.prediction.step_ns
    return plan


def again(plan: Plan) -> list[bool]:
    return [stage.recompute for stage in plan.stages]


def remembering(costs: Profile, names: Sequence[str], size: int, *, read: bool = True) -> Profile:
    """With a buffer that these layers write, and read as well."""
    buffers = tuple(
        Buffer(
            name=f"mean {name}",
            users=(name,),
            shape=(size // 4,),
            dtype="float32",
            bytes=size,
            mutated=True,
            remembered=read,
        )
        for name in names
    )
    layers = (
        replace(row, buffers=(f"mean {row.name}",)) if row.name in names else row
        for row in costs.graph.layers
    )
    return replace(costs, graph=replace(costs.graph, layers=tuple(layers), buffers=buffers))


def test_only_stages_with_many_micro_batches_in_flight_recompute() -> None:
    """Under 1F1B the first stage holds four micro-batches, the last one."""
    plan = plan_of(60_000)
    assert again(plan)[0]
    assert not again(plan)[-1]
    assert plan.times[-1].recompute_ns == 0
    assert plan.certificate is not None
    assert plan.certificate.gap == 0


def test_it_is_faster_than_recomputing_all_and_than_cuts_that_need_none() -> None:
    some, every, none = plan_of(60_000), plan_of(60_000, recompute=True), plan_of(60_000, recompute=False)
    assert all(again(every))
    assert not any(again(none))
    assert some.prediction.step_ns < every.prediction.step_ns < none.prediction.step_ns
    with pytest.raises(Infeasible):
        plan_of(40_000, recompute=False)


def test_models_too_large_for_tables_of_every_interval_get_the_same_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tabled = plan_of(60_000)
    monkeypatch.setattr(limits, "TABLED_LAYERS", 0)
    assert plan_of(60_000) == tabled


def test_a_stage_recomputes_no_more_of_its_layers_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stage lacks room for a layer of four micro-batches or so: it does again its first layer, not both."""
    some = plan_of(75_000)
    assert [stage.recompute_before for stage in some.stages] == ["l1", "", "", ""]
    assert some.times[0].recompute_ns == 1000 < some.times[0].forward_ns
    assert some.certificate is not None and some.certificate.space is not None
    assert some.certificate.space.recompute == "first_layers"
    assert loads(dump(some)) == some
    monkeypatch.setattr(limits, "PARTED_LAYERS", 0)
    whole = plan_of(75_000)
    assert not any(stage.recompute_before for stage in whole.stages)
    assert some.prediction.step_ns < whole.prediction.step_ns


@pytest.mark.parametrize("seed", range(6))
def test_bytes_of_a_stage_in_two_are_those_of_the_definition(seed: int) -> None:
    costs = profile(chain(7, seed, skips=3, loose=seed % 2 == 1))
    costs = remembering(costs, [row.name for row in costs.graph.layers[1::2]], 900) if seed > 2 else costs
    posed = (
        Question(profile=costs, cluster=cluster(1), batch=1)
        .instance()
        .problem(replace(SHAPE, workers=1, micros=1))
    )
    assert posed is not None
    names = [layer.name for layer in costs.graph.layers]
    for i, k, j in combinations(range(len(names) + 1), 3):
        low, middle, high = (np.array([at]) for at in (i, k, j))
        row = dict(zip(PART_NAMES, posed.moving_in_two(low, middle, high)[0].tolist(), strict=True))
        key = CostKey("", 1, (), "fp32", "eager")
        want = asdict(stage_bytes(costs, names[i:j], key, recompute=True, before=names[k]))
        assert row == want | {"update": row["update"]}
        assert row["kept"] <= row["saved"]


def test_a_layer_that_ends_nothing_is_a_violation() -> None:
    plan = plan_of(75_000)
    first, *others = plan.stages
    for wrong in (
        first.model_copy(update={"recompute_before": "l0"}),
        first.model_copy(update={"recompute_before": "l7"}),
        first.model_copy(update={"recompute_before": "l1", "recompute": False}),
    ):
        changed = plan.model_copy(update={"stages": (wrong, *others)})
        assert any("recompute" in str(each) for each in violations(changed, profile=ALIKE))
    less = plan.times[0].model_copy(update={"recompute_ns": 10})
    quick = plan.model_copy(update={"times": (less, *plan.times[1:])})
    assert any("recompute_ns" in str(each) for each in violations(quick, profile=ALIKE))


def test_a_layer_with_a_large_buffer_of_its_own_is_left_out_of_what_recomputes() -> None:
    """All of a stage would keep more than it saves: only the layers before that one can be recomputed."""
    costs = remembering(ALIKE, ["l1"], 70_000)
    fix = {**FIX, "stages": [["l0", "l1"], ["l2", "l3"], ["l4", "l5"], ["l6", "l7"]]}
    roomy = solve(
        Question(
            profile=costs, cluster=cluster(4), batch=8, fix={**fix, "recompute": False}, schedules=["1f1b"]
        )
    )
    machines = cluster(4, memory=roomy.prediction.memory[0].total - 20_000)
    plan = solve(Question(profile=costs, cluster=machines, batch=8, fix=fix, schedules=["1f1b"]))
    assert [stage.recompute_before for stage in plan.stages] == ["l1", "", "", ""]
    assert violations(plan, profile=costs, cluster=machines) == []
    with pytest.raises(Infeasible):
        solve(
            Question(
                profile=costs, cluster=machines, batch=8, fix={**fix, "recompute": True}, schedules=["1f1b"]
            )
        )


def test_where_there_is_room_nothing_recomputes() -> None:
    assert not any(again(plan_of(1 << 30)))


def test_stages_that_share_a_worker_recompute_no_more_than_they_must() -> None:
    some = plan_of(60_000, "zb-v")
    every = plan_of(60_000, "zb-v", recompute=True)
    assert any(again(some))
    assert not all(again(some))
    assert some.prediction.step_ns < every.prediction.step_ns


@pytest.mark.parametrize("read", [False, True])
def test_buffers_are_copied_where_only_some_stages_of_a_worker_recompute(read: bool) -> None:
    """`verify` counts the copies of those that do."""
    costs = remembering(ALIKE, [layer.name for layer in ALIKE.graph.layers], 100, read=read)
    seen = set()
    for memory in range(50_000, 110_000, 4_000):
        asked = Question(
            profile=costs,
            cluster=cluster(2, memory=memory),
            batch=4,
            fix={"data": 1, "schedule": "interleaved"},
        )
        if (plan := solve_or_none(asked.instance())) is None:
            continue
        assert violations(plan, profile=costs, cluster=cluster(2, memory=memory)) == []
        seen.add(sum(again(plan)))
    assert seen & {1, 2, 3}


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v"])
def test_a_plan_that_recomputes_in_part_runs_like_any_other(schedule: str) -> None:
    plan = plan_of(60_000, schedule)
    order = schedule_of(plan)
    done = {action.stage for row in order.orders for action in row if action.kind is Kind.R}
    assert done == {stage for stage, recomputes in enumerate(again(plan)) if recomputes}
    program = lower(order, plan.hops, plan.times, layout="global")
    assert program_violations(program, order) == []


SHAPE = Configuration(
    family="zb-h1",
    data=1,
    workers=4,
    pairs=1,
    chunks=1,
    micro=1,
    micros=6,
    recompute=False,
    shard=False,
    axes=("data", "pipeline", "spatial"),
)


def corrected(machines: Cluster) -> Cluster:
    """Every forward, a second one too, takes 700 ns besides its layers."""
    late = Correction(start_s=700e-9, samples=1)
    return machines.model_copy(
        update={"fitted": Corrections(forward=late, step_spread=0.0, rests_on=("a run",))}
    )


@pytest.mark.parametrize("launched", [False, True])
def test_times_are_those_of_the_order_in_which_only_these_stages_recompute(launched: bool) -> None:
    rng = random.Random(3)
    machines = cluster(4, memory=140_000)
    asked = Question(
        profile=profile(chain(9, 4)), cluster=corrected(machines) if launched else machines, batch=6
    ).instance()
    shape = replace(SHAPE, sparing=True)
    posed = asked.problem(shape)
    assert posed is not None
    seen = set()
    for _ in range(30):
        cut = np.array([0, *sorted(rng.sample(range(1, 9), 3)), 9])
        alone = posed.settled(cut)
        assert posed.times(cut[None, :]) == alone.times(cut[None, :])
        assert judge(posed, cut[None, :]) == judge(alone, cut[None, :])
        row = posed.durations(cut).kinds[0, KINDS.index(Kind.R)]
        assert set(np.flatnonzero(row)) == alone.order.recomputing
        seen.add(len(alone.order.recomputing))
    assert len(seen) > 1
