"""Plans whose replicas share gradients or parameters: asked for by pins, found where memory asks for them, verified."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster import Cluster
from planner.errors import BadInput, Infeasible
from planner.kept import KeptEntries
from planner.milp import Question, solve
from planner.model import Buffer
from planner.plan import Plan, StageShard, dump
from planner.profile import Profile
from planner.verify import violations
from tests.planner.milp.instances import Block, cluster, profile

MIB = 2**20


def costs(*, by_element: bool | None = True, weight: int = 8 * MIB) -> Profile:
    """Eight layers, each a unit, whose state is far larger than what they make."""
    blocks = [
        Block(
            forward=10**6,
            input_grad=10**6,
            weight_grad=10**6,
            out=1024,
            own=1024,
            weight=weight,
            reads=(k - 1,),
        )
        for k in range(8)
    ]
    made = profile(blocks)
    return replace(
        made, optimizer=replace(made.optimizer, by_element=by_element, state_bytes_per_parameter=8.0)
    )


def machines(memory: int, devices: int = 4) -> Cluster:
    return cluster(devices, memory=memory)


def planned(memory: int, fix: dict[str, object], costs: Profile | None = None) -> Plan:
    known = costs or COSTS
    plan = solve(Question(profile=known, cluster=machines(memory), batch=4, fix=fix, schedules=["1f1b"]))
    assert violations(plan, profile=known, cluster=machines(memory)) == []
    return plan


COSTS = costs()
DATA = {"data": 4, "pipeline": 1, "recompute": False}


def test_pruned_weights_are_refused_with_what_is_shared_by_element() -> None:
    pruned = replace(COSTS, kept=KeptEntries({"w0": 5}, share=0.5, even=False))
    for asked in ("gradients", "parameters:2"):
        with pytest.raises(BadInput, match="pruned weights do not go with"):
            planned(2**30, DATA | {"shard": asked}, pruned)


def test_what_is_asked_for_is_planned_and_held() -> None:
    whole = planned(2**30, DATA | {"shard": False}).prediction.memory[0]
    state = 8 * 8 * MIB
    assert (whole.parameters, whole.gradients, whole.optimizer) == (state, state, 2 * state)
    for asked, parts, ranks in (("gradients", 1, 4), ("parameters", 2, 4), ("parameters:2", 2, 2)):
        plan = planned(2**30, DATA | {"shard": asked})
        held = plan.prediction.memory[0]
        assert plan.stages[0].shard == StageShard(what=asked.partition(":")[0], ranks=0 if ranks == 4 else 2)
        assert held.gradients == state // ranks and held.optimizer == 2 * state // ranks
        assert held.parameters == (state // ranks if parts == 2 else state)
        assert "shard: {what: " in dump(plan)


def test_a_model_that_fits_only_in_parts_is_planned_in_parts() -> None:
    state = 8 * 8 * MIB
    tight = planned(int(1.6 * state), DATA)
    assert tight.stages[0].shard == StageShard(what="parameters")
    with pytest.raises(Infeasible):
        planned(int(1.6 * state), DATA | {"shard": True})
    with pytest.raises(Infeasible):
        planned(int(1.6 * state), DATA, costs(by_element=False))


@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_a_plan_is_refused_by_the_name_of_an_optimizer_that_needs_whole_parameters(shard: str) -> None:
    plan, known = planned(2**30, DATA | {"shard": shard}), costs(by_element=False)
    (found,) = violations(plan, profile=known, cluster=machines(2**30))
    assert found.rule == "optimizer" and found.where == known.optimizer.name


def test_a_free_answer_is_no_slower_than_any_sharing_that_may_be_asked_for() -> None:
    state = 8 * 8 * MIB
    free = planned(5 * state, {})
    assert free.certificate is not None and free.certificate.bound_ns == free.prediction.step_ns
    for asked in (False, True, "gradients", "parameters", "gradients:2", "parameters:2"):
        assert free.prediction.step_ns <= planned(5 * state, {"shard": asked}).prediction.step_ns


def test_an_old_profile_plans_as_it_did() -> None:
    for memory in (5 * 64 * MIB, 3 * 64 * MIB):
        plan = planned(memory, DATA, costs(by_element=None))
        assert all(stage.shard is None for stage in plan.stages)


def _partly(known: Profile, memory: int, fix: dict[str, object]) -> bool:
    try:
        plan = solve(Question(profile=known, cluster=machines(memory), batch=8, fix=fix))
    except Infeasible:
        return False
    assert violations(plan, profile=known, cluster=machines(memory)) == []
    return any(stage.recompute_before for stage in plan.stages)


@pytest.mark.parametrize("value", ["parameters:1", "parameters:x", "all"])
def test_a_sharing_that_is_none_is_one_message(value: str) -> None:
    with pytest.raises(BadInput, match="shard is"):
        planned(2**30, {"shard": value})


def test_where_replicas_update_buffers_from_whole_parameters_these_are_not_let_go() -> None:
    state, first = 8 * 8 * MIB, COSTS.graph.layers[0].name
    vector = Buffer(
        name="u", users=(first,), shape=(4,), dtype="float32", bytes=16, mutated=True, update="own"
    )
    known = replace(COSTS, graph=replace(COSTS.graph, buffers=(vector,)))
    with pytest.raises(BadInput, match="each replica updates 'u' from whole parameters"):
        planned(2**30, DATA | {"shard": "parameters"}, known)
    with pytest.raises(Infeasible):
        planned(int(1.6 * state), DATA, known)


@pytest.mark.parametrize("family", ["zb-h1", "interleaved", "chimera"])
def test_any_family_takes_replicas_that_share(family: str) -> None:
    fix = {"data": 2, "pipeline": 2, "schedule": family, "shard": "parameters"}
    plan = solve(Question(profile=COSTS, cluster=machines(2**30), batch=8, fix=fix))
    assert violations(plan, profile=COSTS, cluster=machines(2**30)) == []
    assert {stage.shard for stage in plan.stages} == {StageShard(what="parameters")}


def test_where_some_layers_recompute_replicas_may_share_too() -> None:
    blocks = [
        Block(
            forward=10**6,
            input_grad=10**6,
            weight_grad=10**6,
            out=MIB,
            own=4 * MIB,
            weight=MIB,
            reads=(k - 1,),
        )
        for k in range(8)
    ]
    made = profile(blocks)
    known = replace(made, optimizer=replace(made.optimizer, by_element=True))
    fix = {"data": 2, "pipeline": 2, "schedule": "1f1b", "shard": "parameters"}
    assert _partly(known, 50 * MIB, fix)
