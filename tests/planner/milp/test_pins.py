"""Decisions that the user fixes: one by one, all of them, and those that exclude each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.configurations.pins import pins
from planner.errors import BadInput, Infeasible
from planner.milp import Question, solve
from planner.model import Buffer
from planner.plan import Plan, Rival
from planner.profile import Profile
from planner.show import plan_lines, proof_text
from planner.verify import violations
from tests.planner.milp.instances import chain, cluster, profile

COSTS = profile(chain(6, 3), micros=(1, 2))
MACHINES = cluster(4)


@pytest.mark.parametrize(
    ("fix", "says"),
    [
        ({"micro": 3}, r"micro=3 excludes every one; there are 4 devices.*\(1, 2\)"),
        ({"data": 3}, "data=3 excludes every one; .* is no multiple of 3;"),
        ({"data": 3, "micro": 2}, "data=3 excludes every one"),
        ({"pipeline": 7}, "pipeline=7 excludes every one.*6 layers"),
        (
            {"schedule": "chimera", "pipeline": 3},
            "schedule=chimera and pipeline=3 exclude every one, and either.*3 workers .allowed: an even number",
        ),
        ({"schedule": "zb-v", "chunks": 1}, "schedule=zb-v and chunks=1 exclude"),
        ({"devices": 1, "pipeline": 2}, "pipeline=2 and devices=1 exclude"),
        ({"cuts": "2", "pipeline": 3}, "pipeline=3 and stages=2 given exclude"),
        ({"micro": 3, "data": 3}, "micro=3, data=3 exclude each other"),
        ({"shard": True, "data": 1, "pipeline": 1}, "shard=true and pipeline=1 and data=1 exclude"),
    ],
)
def test_what_excludes_every_plan_is_named(fix: dict[str, object], says: str) -> None:
    with pytest.raises(Infeasible, match=says):
        solve(Question(profile=COSTS, cluster=MACHINES, batch=8, fix=fix))


@pytest.mark.parametrize("cuts", ["l2,l4", "2,4", "l2, 4", ["l2", "l4"]])
def test_a_cut_may_be_given_by_the_layers_that_open_a_stage(cuts: object) -> None:
    plan = solve(
        Question(profile=COSTS, cluster=MACHINES, batch=8, fix={"cuts": cuts, "data": 1}, schedules=["1f1b"])
    )
    assert [stage.layers for stage in plan.stages] == [("l0", "l1"), ("l2", "l3"), ("l4", "l5")]


def test_no_cut_at_all_is_one_stage() -> None:
    assert len(solve(Question(profile=COSTS, cluster=MACHINES, batch=8, fix={"cuts": ""})).stages) == 1


@pytest.mark.parametrize(
    ("cuts", "says"),
    [
        ("l9", "no layer is called 'l9'"),
        ("4,2", "leave a stage empty or go back.*layers 1 to 5"),
        ("0,3", "leave a stage empty"),
        ("9", "leave a stage empty"),
        ("2,2", "leave a stage empty"),
        (3, "cuts is 3"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(cuts: object, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        solve(Question(profile=COSTS, cluster=MACHINES, batch=8, fix={"cuts": cuts}))


def test_cuts_and_stages_are_not_fixed_both() -> None:
    with pytest.raises(BadInput, match="both cuts and stages"):
        solve(Question(profile=COSTS, cluster=MACHINES, batch=8, fix={"cuts": "l3", "stages": [["l0"]]}))


@pytest.mark.parametrize(
    ("word", "shard", "held"),
    [
        ("none", False, ""),
        ("state", True, ""),
        (False, False, ""),
        ("true", True, ""),
        ("gradients", False, "gradients"),
    ],
)
def test_what_replicas_share_is_said_in_the_words_of_a_plan(word: object, shard: bool, held: str) -> None:
    found = pins({"shard": word}, None)
    assert (found.shard, found.held) == (shard, held)


@pytest.mark.parametrize("word", ["all", "parameters:1", "state:2", "parameters:x"])
def test_another_word_for_what_replicas_share_names_all_that_are_known(word: str) -> None:
    with pytest.raises(BadInput, match="none, state, gradients or parameters"):
        pins({"shard": word}, None)


@pytest.mark.parametrize(
    ("family", "workers", "pairs", "chunks", "update", "recompute", "shard"),
    [
        ("1f1b", 2, 1, 1, "barrier", False, False),
        ("zb-h2", 2, 1, 1, "rolling", False, False),
        ("gpipe", 4, 1, 1, "barrier", True, False),
        ("interleaved", 2, 1, 2, "barrier", False, True),
        ("chimera", 4, 2, 1, "barrier", True, True),
        ("zb-v", 2, 1, 2, "barrier", False, False),
    ],
)
def test_all_fixed_the_solver_prices_that_plan_and_no_other(
    family: str, workers: int, pairs: int, chunks: int, update: str, recompute: bool, shard: bool
) -> None:
    depth = workers * chunks
    cuts = [f"l{k}" for k in range(6 - depth + 1, 6)]
    fix: dict[str, object] = {
        "data": 4 // workers,
        "pipeline": workers,
        "spatial": 1,
        "micro": 1,
        "schedule": family,
        "pairs": pairs,
        "chunks": chunks,
        "update": update,
        "recompute": recompute,
        "shard": shard,
        "cuts": cuts,
    }
    plan = solve(Question(profile=COSTS, cluster=MACHINES, batch=8, fix=fix))
    assert violations(plan, profile=COSTS, cluster=MACHINES) == []
    assert (plan.axes.data, plan.axes.pipeline, plan.axes.spatial) == (4 // workers, workers, 1)
    assert (plan.batch.micro, plan.schedule.family, plan.schedule.update) == (1, family, update)
    assert (plan.schedule.pairs, plan.schedule.chunks, plan.shard_optimizer) == (pairs, chunks, shard)
    assert {stage.recompute for stage in plan.stages} == {recompute}
    assert [stage.layers[0] for stage in plan.stages] == ["l0", *cuts]
    assert plan.certificate is not None
    assert plan.certificate.gap == 0


def kept(update: str) -> Profile:
    """A model whose first layer writes and reads a buffer in its forward."""
    graph = COSTS.graph
    buffer = Buffer(
        name="ema",
        users=("l0",),
        shape=(2,),
        dtype="float32",
        bytes=8,
        mutated=True,
        remembered=True,
        update=update,  # type: ignore[arg-type]
    )
    layers = (replace(graph.layers[0], buffers=("ema",)), *graph.layers[1:])
    return replace(COSTS, graph=replace(graph, layers=layers, buffers=(buffer,)))


def test_a_model_that_replicas_cannot_keep_equal_is_planned_without_them_and_the_plan_says_why() -> None:
    free = solve(Question(profile=kept("own"), cluster=MACHINES, batch=8))
    assert free.axes.data > 1 and not violations(free, profile=kept("own"))
    plan = solve(Question(profile=kept("samples"), cluster=MACHINES, batch=8))
    assert plan.axes.data == 1 and len(plan.schedule.place) == 1 and plan.axes.pipeline > 1
    assert violations(plan, profile=kept("samples"), cluster=MACHINES) == []
    (line,) = [line for line in plan_lines(plan) if "'ema'" in line]
    assert line.strip() == (
        "only data: 1, spatial: 1 and no Chimera, because the forward pass writes and reads 'ema', "
        "which depends on the samples that it sees"
    )
    assert "'ema'" in proof_text(plan)
    assert all(rival.configuration is None or rival.configuration.data == 1 for rival in rivals_of(plan))
    assert [found.rule for found in violations(free, profile=kept("samples"))] == ["state"]


@pytest.mark.parametrize(
    "fix", [{"data": 2}, {"schedule": "chimera"}, {"data": 2, "schedule": "1f1b"}, {"data": "4"}]
)
def test_replicas_that_a_model_cannot_keep_equal_are_refused_before_anything_is_solved(
    fix: dict[str, object],
) -> None:
    said = " ".join(f"{key}={value}" for key, value in fix.items())
    with pytest.raises(BadInput, match=rf"^fix {said}: the forward pass writes and reads 'ema'.*data: 1, "):
        Question(profile=kept("samples"), cluster=MACHINES, batch=8, fix=fix).instance()
    assert Question(profile=kept("own"), cluster=MACHINES, batch=8, fix=fix).instance().pins


def test_a_number_that_no_checkpoint_holds_is_refused_before_anything_is_solved() -> None:
    wide = replace(COSTS.graph.parameters[0], dtype="complex128")
    graph = replace(COSTS.graph, parameters=(wide, *COSTS.graph.parameters[1:]))
    with pytest.raises(BadInput, match=r"^'w0': is complex128.*complex64"):
        Question(profile=replace(COSTS, graph=graph), cluster=MACHINES, batch=8).instance()


def rivals_of(plan: Plan) -> tuple[Rival, ...]:
    assert plan.certificate is not None
    return plan.certificate.rivals
