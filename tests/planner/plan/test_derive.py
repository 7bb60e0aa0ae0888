"""Orders of layers: what makes one, the model in it, and plans whose stages name one."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from planner.errors import BadInput
from planner.limits import Effort
from planner.milp import Question, solve
from planner.milp.layer_orders import orders
from planner.model import Buffer, ModelGraph, alone, misplaced
from planner.plan import (
    LayerOrders,
    Plan,
    SampleReading,
    as_planned,
    awaited_ns,
    dump,
    readers,
    reading_ns,
    with_store,
)
from planner.plan.yaml import load, parse
from planner.profile import Profile
from planner.verify import violations
from tests.planner.milp.instances import Block, chain, cluster, profile


def block(ns: int, *reads: int) -> Block:
    return Block(forward=ns, input_grad=ns, weight_grad=ns, out=100, own=100, weight=400, reads=reads)


def branches() -> Profile:
    """A branch of two long layers beside one of two short ones: 0 -> 1 -> 2 -> 5 and 0 -> 3 -> 4 -> 5."""
    return profile(
        [block(1000, -1), block(3000, 0), block(3000, 1), block(1000, 0), block(1000, 3), block(9, 2, 4)]
    )


def towers(count: int) -> Profile:
    """Layers that all read the first one, of uneven lengths."""
    return profile(
        [
            block(10, -1),
            *(block(1000 * (k % 5 + 1), 0) for k in range(count)),
            block(10, *range(1, count + 1)),
        ]
    )


MACHINES = cluster(2)
FIX = {"pipeline": 2, "data": 1}


def planned(costs: Profile, **fix: object) -> Plan:
    plan = solve(Question(profile=costs, cluster=MACHINES, batch=8, schedules=["1f1b"], fix={**FIX, **fix}))
    assert violations(plan, profile=costs, cluster=MACHINES) == []
    return plan


def names(graph: ModelGraph) -> list[str]:
    return [layer.name for layer in graph.layers]


def test_the_model_in_another_order_is_the_same_model() -> None:
    graph = branches().graph
    moved = graph.ordered(["l0", "l3", "l1", "l4", "l2", "l5"])
    assert moved.fingerprint == graph.fingerprint
    assert moved.value["v0"].consumers == ("l3", "l1")
    assert moved.index["l3"] == 1
    assert moved.ordered(names(graph)) == graph
    assert graph.ordered(names(graph)) is graph


def test_values_states_that_are_written_and_the_loss_bind_the_order() -> None:
    graph = branches().graph
    assert not list(misplaced(graph, ["l0", "l3", "l4", "l1", "l2", "l5"]))
    assert list(misplaced(graph, ["l0", "l2", "l1", "l3", "l4", "l5"])) == [("l2", "l1")]
    assert ("l5", "l4") in list(misplaced(graph, ["l0", "l1", "l2", "l3", "l5", "l4"]))
    counter = Buffer(name="seen", users=("l1", "l3"), shape=(), dtype="int64", bytes=8, mutated=True)
    written = replace(graph, buffers=(counter,))
    assert list(misplaced(written, ["l0", "l3", "l4", "l1", "l2", "l5"])) == [("l3", "l1")]


def test_only_a_chain_has_no_other_order() -> None:
    assert alone(profile(chain(6, 1, skips=3)).graph)
    assert not alone(branches().graph)


def test_stages_may_hold_parts_of_both_branches() -> None:
    """In the order of the model no cut has less than 6 of 9 on one stage."""
    plan = planned(branches())
    own = planned(branches(), cuts="l2")
    assert plan.prediction.step_ns < own.prediction.step_ns
    assert [set(stage.layers) for stage in plan.stages] == [{"l0", "l1", "l3"}, {"l2", "l4", "l5"}]
    assert plan.certificate is not None and plan.certificate.space is not None
    assert plan.certificate.gap == 0
    assert plan.certificate.space.layer_orders == LayerOrders(searched="all", others=5, proved=5)
    assert as_planned(branches().graph, plan).captured_order == tuple(names(branches().graph))


def test_a_users_stages_in_another_order_are_priced_as_they_stand() -> None:
    plan = planned(branches())
    stages = [list(stage.layers) for stage in plan.stages]
    again = planned(branches(), stages=stages)
    assert [list(stage.layers) for stage in again.stages] == stages
    assert again.prediction.step_ns == plan.prediction.step_ns
    assert planned(branches(), stages=stages, gather="none").prediction == again.prediction


@pytest.mark.parametrize(
    "fix", [{"gather": "l3"}, {"gather": "end"}, {"regrid": "l3:samples"}, {"spatial": 2}]
)
def test_stages_in_another_order_are_not_split_in_space_without_a_word(fix: dict[str, object]) -> None:
    stages = [["l0", "l1", "l3"], ["l2", "l4", "l5"]]
    with pytest.raises(BadInput, match=r"stages|in space"):
        planned(branches(), stages=stages, **fix)


def test_many_orders_are_looked_at_by_their_best_balanced_stages() -> None:
    plan = planned(towers(9))
    assert plan.certificate is not None and plan.certificate.space is not None
    orders = plan.certificate.space.layer_orders
    assert (orders.searched, orders.others) == ("balanced", 1)
    given = solve(
        Question(
            profile=towers(9),
            cluster=MACHINES,
            batch=8,
            schedules=["1f1b"],
            fix={**FIX, "stages": _halves(plan)},
        )
    )
    assert plan.prediction.step_ns == given.prediction.step_ns
    assert sum(t.forward_ns for t in plan.times) == sum(t.forward_ns for t in given.times)
    spread = [t.forward_ns for t in plan.times]
    assert max(spread) - min(spread) <= 1000


def _halves(plan: Plan) -> list[list[str]]:
    return [list(stage.layers) for stage in plan.stages]


def test_too_many_orders_leave_that_of_the_model_and_say_so() -> None:
    found = orders.searched(
        Question(profile=towers(20), cluster=MACHINES, batch=4, schedules=["1f1b"], fix=FIX).instance(),
        Effort(),
    )
    assert found.orders.searched == "too_many"
    assert found.best.instance.profile.graph.captured_order == ()


@pytest.mark.parametrize("fix", [{"cuts": "l2"}, {"pipeline": 1, "data": 2}])
def test_what_is_fixed_leaves_the_order_of_the_model(fix: dict[str, object]) -> None:
    plan = planned(branches(), **fix)
    assert [name for stage in plan.stages for name in stage.layers] == names(branches().graph)


def test_the_same_question_has_the_same_order() -> None:
    assert dump(planned(towers(9))) == dump(planned(towers(9)))


def test_no_stage_reads_what_comes_later() -> None:
    plan = planned(branches())
    late, early = plan.stages[1].layers, plan.stages[0].layers
    swapped = [s.model_copy(update={"layers": x}) for s, x in zip(plan.stages, (late, early), strict=True)]
    found = violations(plan.model_copy(update={"stages": tuple(swapped)}), profile=branches())
    assert any("which it hangs on" in str(each) for each in found)


def test_samples_cut_in_space_keep_the_order_of_the_model() -> None:
    plan = planned(branches())
    axes = plan.axes.model_copy(update={"spatial": 2})
    spatial = plan.model_copy(update={"axes": axes, "places": (*plan.places, *plan.places)})
    found = violations(spatial, profile=branches())
    assert any("leaves the order of the model" in str(each) for each in found)


def reading(sample_ns: int, store: Literal["none", "ram"] = "none", **batch: object) -> Plan:
    """A plan of 10 ms whose ranks read 8 samples a step."""
    found = load("plans/mlp-chimera.yaml")
    changed = found.batch.model_copy(update={"micro": 2, "micros": 4, **batch})
    step = found.prediction.model_copy(update={"step_ns": 10_000_000})
    data = SampleReading(sample_ns=sample_ns, sample_bytes=4, store=store)
    return found.model_copy(update={"batch": changed, "prediction": step, "data": data})


def test_a_step_is_no_shorter_than_what_the_readers_of_a_rank_deliver() -> None:
    slow = reading(5_000_000)
    assert reading_ns(slow) == 40_000_000
    assert [awaited_ns(slow, workers) for workers in (0, 1, 2, 3, 4, 9)] == [
        50_000_000,
        40_000_000,
        20_000_000,
        13_333_334,
        10_000_000,
        10_000_000,
    ]
    assert awaited_ns(load("plans/mlp-chimera.yaml"), 0) == load("plans/mlp-chimera.yaml").prediction.step_ns
    assert reading_ns(reading(5_000_000, shares=(1, 6))) == 60_000_000  # of the rank that reads the most
    assert reading_ns(reading(5_000_000, "ram")) == 0
    assert slow.data is not None
    joined = slow.model_copy(update={"data": slow.data.model_copy(update={"batch_ns": 500_000})})
    assert reading_ns(joined) == 42_000_000 and awaited_ns(joined, 3) == 14_000_000  # four batches a step


def test_a_run_that_keeps_samples_elsewhere_than_its_plan_waits_for_what_is_left_to_do_there() -> None:
    plan = reading(5_000_000)
    assert plan.data is not None
    plan = plan.model_copy(update={"data": plan.data.model_copy(update={"finish_ns": 1_000_000})})
    kept = with_store(plan, "ram")
    assert reading_ns(kept) == 8_000_000 and awaited_ns(kept, 0) == 18_000_000
    assert with_store(kept, "none") == plan and readers(kept, 64) == 1 < readers(plan, 64)
    silent = load("plans/mlp-chimera.yaml")
    assert with_store(silent, "ram") == silent


def test_the_least_readers_that_hide_it_are_taken_within_the_cores_of_a_rank() -> None:
    assert [
        readers(reading(ns), cores=64) for ns in (0, 12_000, 13_000, 1_250_000, 1_251_000, 5_000_000)
    ] == [
        0,
        0,
        1,
        1,
        2,
        4,
    ]
    assert [readers(reading(5_000_000), cores) for cores in (0, 1, 2, 3, 4, 5)] == [1, 1, 1, 2, 3, 4]


def test_what_reading_takes_comes_back_from_a_file_and_is_left_out_where_it_is_unknown() -> None:
    for plan in (reading(7), reading(7, "ram")):
        assert parse(dump(plan)) == plan and ("store" in dump(plan)) == (plan.data != reading(7).data)
    assert "data:\n" not in dump(load("plans/mlp-chimera.yaml")).replace(" data:", "")
