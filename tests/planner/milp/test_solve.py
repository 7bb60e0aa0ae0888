"""The solver at the edges: tiny and odd machines, pins, what fits nowhere, the same bytes every time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from planner.cluster import Cluster, NodeGroup, Rates, with_node_groups
from planner.errors import BadInput, Infeasible
from planner.limits import Effort, effort_named
from planner.milp import Question, solve
from planner.plan import Plan, dump
from planner.profile import Profile
from planner.verify import violations
from tests.planner.milp.instances import Block, chain, cluster, keeping, profile, with_bf16


def plan_of(
    costs: Profile,
    machines: Cluster,
    batch: int,
    fix: Mapping[str, object] | None = None,
    schedules: tuple[str, ...] | None = None,
) -> Plan:
    """A plan that verify has nothing against and that no trivial plan beats."""
    plan = solve(Question(profile=costs, cluster=machines, batch=batch, fix=fix or {}, schedules=schedules))
    assert violations(plan, profile=costs, cluster=machines) == []
    assert plan.certificate is not None
    assert plan.certificate.bound_ns <= plan.certificate.objective_ns == plan.prediction.step_ns
    assert plan.prediction.low_ns <= plan.prediction.step_ns <= plan.prediction.high_ns
    if not fix and not schedules:
        rivals = [rival.step_ns for rival in plan.certificate.rivals if rival.step_ns is not None]
        assert all(plan.prediction.step_ns <= ns for ns in rivals)
    return plan


@pytest.mark.parametrize(
    ("layers", "nodes", "devices", "batch"),
    [
        pytest.param(6, 1, 1, 8, id="one device"),
        pytest.param(6, 7, 1, 14, id="a prime number of nodes"),
        pytest.param(6, 1, 5, 10, id="a prime number of devices on one node"),
        pytest.param(6, 3, 2, 1, id="one sample"),
        pytest.param(1, 4, 1, 8, id="one layer"),
        pytest.param(6, 8, 2, 3, id="a batch smaller than the cluster"),
        pytest.param(6, 2, 2, 7, id="a batch that nothing divides"),
        pytest.param(9, 2, 4, 16, id="two levels of links"),
    ],
)
def test_a_plan_is_found_on_odd_machines(layers: int, nodes: int, devices: int, batch: int) -> None:
    plan = plan_of(profile(chain(layers, 1, skips=min(1, layers - 1))), cluster(nodes, devices), batch)
    assert plan.certificate is not None
    assert plan.certificate.gap == 0


def test_a_slow_node_slows_the_stage_that_stands_on_it() -> None:
    costs = profile(chain(8, 2), scale=100)
    costs = replace(costs, device="A100-80GB")
    fast = NodeGroup(count=2, device="A100-80GB", devices_per_node=1)
    slow = NodeGroup(count=1, device="V100-32GB", devices_per_node=1)
    links = cluster(2).links
    mixed = Cluster(name="mixed", nodes=(fast, slow), links=links)
    alike = Cluster(name="alike", nodes=(fast.model_copy(update={"count": 3}),), links=links)
    pinned = {"pipeline": 3, "data": 1, "schedule": "1f1b"}
    hampered, free = plan_of(costs, mixed, 6, pinned), plan_of(costs, alike, 6, pinned)
    assert hampered.prediction.step_ns > free.prediction.step_ns
    assert len(hampered.stages[2].layers) <= len(free.stages[2].layers)


def test_rates_that_a_probe_found_tell_nodes_apart_and_slow_none_of_a_uniform_cluster() -> None:
    costs = replace(
        profile(chain(8, 2), scale=100), device="cpu"
    )  # the catalogue's is far faster than 48 GFLOP/s
    links = cluster(2).links

    def step_ns(*rates: float) -> int:
        groups = tuple(
            NodeGroup(count=1, device="cpu", devices_per_node=1, rates=Rates(fp32_flop_per_s=rate))
            for rate in rates
        )
        found = plan_of(
            costs, Cluster(name="probed", nodes=groups, links=links), 6, {"pipeline": len(rates), "data": 1}
        )
        return found.prediction.step_ns

    alone = plan_of(costs, cluster(1), 6).prediction.step_ns
    assert step_ns(48e9) == alone
    assert step_ns(48e9, 24e9) > step_ns(48e9, 48e9)


def test_a_batch_that_no_order_could_list_is_refused_at_once() -> None:
    with pytest.raises((BadInput, Infeasible), match="micro-batch"):
        solve(Question(profile=profile(chain(6, 1)), cluster=cluster(2), batch=10**23))


def test_the_same_question_gets_the_same_bytes() -> None:
    costs, machines = profile(chain(9, 5, skips=2), micros=(1, 2)), cluster(4)
    assert dump(solve(Question(profile=costs, cluster=machines, batch=8))) == dump(
        solve(Question(profile=costs, cluster=machines, batch=8))
    )


@pytest.mark.parametrize(
    "fix",
    [
        {"data": 2},
        {"pipeline": "4"},
        {"schedule": "gpipe", "pipeline": 2},
        {"schedule": "chimera", "pipeline": 4, "pairs": 2},
        {"schedule": "interleaved", "chunks": 2, "pipeline": 2},
        {"micro": 2},
        {"recompute": "true"},
        {"shard": True, "data": 2},
        {"update": "rolling", "pipeline": 2},
        {"data": 1, "pipeline": 1, "spatial": 1},
    ],
    ids=str,
)
def test_what_is_fixed_stays_fixed(fix: dict[str, object]) -> None:
    plan = plan_of(profile(chain(8, 3), micros=(1, 2)), cluster(4), 8, fix)
    found: dict[str, object] = {
        "data": plan.axes.data,
        "pipeline": plan.axes.pipeline,
        "spatial": plan.axes.spatial,
        "schedule": plan.schedule.family,
        "pairs": plan.schedule.pairs,
        "chunks": plan.schedule.chunks,
        "micro": plan.batch.micro,
        "recompute": plan.stages[0].recompute,
        "shard": plan.shard_optimizer,
        "update": plan.schedule.update,
    }
    for key, value in fix.items():
        assert str(found[key]).lower() == str(value).lower()


def test_a_cut_of_the_users_own_is_priced_as_it_stands() -> None:
    costs = profile(chain(6, 4))
    stages = [["l0"], ["l1", "l2", "l3", "l4"], ["l5"]]
    plan = plan_of(costs, cluster(3), 6, {"stages": stages, "schedule": "1f1b", "data": 1})
    assert [list(stage.layers) for stage in plan.stages] == stages
    free = plan_of(costs, cluster(3), 6, {"schedule": "1f1b", "data": 1, "pipeline": 3})
    assert free.prediction.step_ns < plan.prediction.step_ns


@pytest.mark.parametrize(
    ("fix", "says"),
    [
        ({"depth": 2}, "nothing to fix is called 'depth'.*data, pipeline"),
        ({"data": 0}, "data is 0.*1 or more"),
        ({"pipeline": "two"}, "pipeline is 'two'"),
        ({"recompute": "perhaps"}, "recompute is 'perhaps'.*true or false"),
        ({"schedule": "2f2b"}, "no family '2f2b'.*1f1b"),
        ({"update": "sometimes"}, "update is 'sometimes'.*rolling or barrier"),
        ({"spatial": 2}, "no samples were profiled that are cut in space.*profile --spatial"),
        ({"stages": [["l1"], ["l0"]]}, "leave the order of the model at 'l1'"),
    ],
)
def test_a_pin_that_means_nothing_is_named(fix: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        solve(Question(profile=profile(chain(2, 0)), cluster=cluster(2), batch=2, fix=fix))


def heavy(weight: int, count: int = 3) -> Profile:
    block = Block(forward=100, input_grad=100, weight_grad=100, out=400, own=400, weight=weight, reads=(-1,))
    return profile([replace(block, reads=(k - 1,)) for k in range(count)])


def test_what_fits_nowhere_says_which_stage_lacks_how_many_bytes() -> None:
    with pytest.raises(Infeasible) as raised:
        solve(Question(profile=heavy(4000), cluster=cluster(2, memory=26_000), batch=2))
    text = str(raised.value)
    assert "layers 'l0' to 'l1'" in text or "layers 'l1' to 'l2'" in text
    assert "26000 are free" in text
    assert "bytes more on each device would fit" in text
    assert "2 times the nodes would fit" in text


def test_the_bytes_that_are_said_to_be_missing_are_enough_and_one_less_is_not() -> None:
    costs = heavy(4000)
    with pytest.raises(Infeasible) as raised:
        solve(Question(profile=costs, cluster=cluster(2, memory=20_000), batch=2))
    short = int(str(raised.value).split("free: ")[1].split(" ")[0])
    plan_of(costs, cluster(2, memory=20_000 + short), 2)
    with pytest.raises(Infeasible):
        solve(Question(profile=costs, cluster=cluster(2, memory=20_000 + short - 1), batch=2))


def test_one_worker_has_several_stages_where_only_they_fit() -> None:
    """One of two stages recomputes whole, where 1F1B has one stage and can spare only its first layers."""
    first = Block(forward=500, input_grad=200, weight_grad=400, out=1000, own=9000, weight=4000, reads=(-1,))
    last = Block(forward=100, input_grad=900, weight_grad=800, out=400, own=9000, weight=400, reads=(0,))
    plan = plan_of(profile([first, last]), cluster(1, memory=28797), 1)
    assert [stage.recompute for stage in plan.stages] == [True, False]
    with pytest.raises(Infeasible):
        plan_of(profile([first, last]), cluster(1, memory=28797), 1, schedules=("1f1b",))


def test_the_certificate_names_what_is_left_out_unless_it_is_asked_for() -> None:
    costs = profile(chain(6, 1))
    free, named = (plan_of(costs, cluster(2), 2, schedules=each).certificate for each in (None, ("wave",)))
    assert free is not None and free.space is not None
    assert (free.space.parts, free.space.most_forwards) == ("one_worker", 1024)
    assert named is not None and named.space is not None
    assert (named.space.families, named.space.free_chunks) == (("wave",), 2)


def tied(made: Profile, first: str, again: str) -> Profile:
    """The weight of one layer is used by another as well."""
    name = made.graph.layer[first].parameters[0]
    return replace(
        made,
        graph=replace(
            made.graph,
            layers=tuple(
                replace(layer, parameters=(*layer.parameters, name)) if layer.name == again else layer
                for layer in made.graph.layers
            ),
            parameters=tuple(
                replace(each, users=(first, again)) if each.name == name else each
                for each in made.graph.parameters
            ),
        ),
    )


def test_a_stage_that_has_both_users_of_a_tied_weight_is_found_where_a_cut_between_them_pays_a_sum() -> None:
    blocks = [
        Block(
            forward=10_000, input_grad=10_000, weight_grad=10_000, out=100, own=100, weight=w, reads=(k - 1,)
        )
        for k, w in enumerate((400_000, 400, 400, 400, 0))
    ]
    costs, machines = tied(profile(blocks), "l0", "l3"), cluster(2, bandwidth=1e7)
    free, two = (plan_of(costs, machines, 4, fix, schedules=("1f1b",)) for fix in ({}, {"pipeline": 2}))
    assert free.prediction.step_ns == two.prediction.step_ns
    assert [stage.layers[-1] for stage in free.stages] == ["l3", "l4"]


def test_nodes_that_differ_only_in_what_was_measured_are_tried_with_the_replicas_innermost_and_outermost() -> (
    None
):
    one = cluster(1).nodes[0]
    rates = [Rates(fp32_flop_per_s=rate) for rate in (4e12, 4e12, 1e12, 1e12)]
    machines = with_node_groups(
        cluster(4, latency_s=1e-9, bandwidth=1e11),
        tuple(one.model_copy(update={"rates": rate}) for rate in rates),
    )
    costs = profile(chain(6, 1))
    free = plan_of(costs, machines, 8)
    fixed = {"data": free.axes.data, "pipeline": free.axes.pipeline}
    for data, pipeline in ((1, 4), (2, 2), (4, 1)):
        found = plan_of(costs, machines, 8, {"data": data, "pipeline": pipeline})
        assert free.prediction.step_ns <= found.prediction.step_ns, fixed


def test_stages_that_are_fixed_as_the_plan_has_them_take_no_longer() -> None:
    for seed in range(4):
        costs, machines = profile(chain(6, seed)), cluster(2, bandwidth=1e8)
        free = plan_of(costs, machines, 4)
        again = plan_of(costs, machines, 4, {"stages": [list(stage.layers) for stage in free.stages]})
        assert again.prediction.step_ns <= free.prediction.step_ns


def test_layers_that_take_no_time_may_be_a_stage_of_their_own() -> None:
    none = Block(forward=0, input_grad=0, weight_grad=0, out=100, own=100, weight=0, reads=(-1,))
    some = replace(none, forward=1000, input_grad=1000, weight_grad=1000)
    blocks = [replace(block, reads=(k - 1,)) for k, block in enumerate((some, some, none, none))]
    plan_of(profile(blocks), cluster(2), 4, {"data": 1, "pipeline": 2, "cuts": "2"})


def test_a_batch_of_more_actions_than_an_order_may_have_is_refused_for_that() -> None:
    with pytest.raises(Infeasible, match="more than 131,072 actions"):
        solve(Question(profile=profile(chain(4, 0)), cluster=cluster(1), batch=10**9))


@pytest.mark.parametrize("memory", [14_000, 20_000, 26_000])
def test_less_memory_than_is_named_as_the_nearest_is_not_enough(memory: int) -> None:
    costs = keeping(profile(chain(4, 3)), 3)
    with pytest.raises(Infeasible) as told:
        solve(Question(profile=costs, cluster=cluster(1, memory=memory), batch=1))
    more = int(re.search(r"(\d+) bytes more on each", str(told.value)).group(1))  # type: ignore[union-attr]
    assert plan_of(costs, cluster(1, memory=memory + more), 1)
    with pytest.raises(Infeasible):
        solve(Question(profile=costs, cluster=cluster(1, memory=memory + more - 1), batch=1))


@pytest.mark.parametrize(
    ("devices", "memory", "fix"),
    [
        (2, 181_813, {"pipeline": 1}),
        (4, 168_890, {"pipeline": 1}),
        (1, 223_811, {}),
        (2, 142_950, {"pipeline": 2}),
    ],
)
def test_the_least_effort_finds_a_plan_where_memory_leaves_few(
    devices: int, memory: int, fix: dict[str, object]
) -> None:
    costs, machines = keeping(profile(chain(6, 0)), 1), cluster(devices, memory=memory)
    plan = solve(Question(profile=costs, cluster=machines, batch=4, fix=fix, effort=effort_named("quick")))
    assert violations(plan, profile=costs, cluster=machines) == []


def test_a_pin_in_the_way_is_named_as_the_nearest_change() -> None:
    with pytest.raises(Infeasible, match="leaving pipeline free would fit"):
        solve(Question(profile=heavy(4000), cluster=cluster(4, memory=30_000), batch=4, fix={"pipeline": 1}))


def test_a_batch_that_no_micro_batch_divides_is_no_plan() -> None:
    with pytest.raises(Infeasible, match=r"no plan of 3 samples.*\(2\)"):
        solve(Question(profile=profile(chain(4, 0), micros=(2,)), cluster=cluster(2), batch=3))


def test_recomputation_is_taken_where_only_it_fits() -> None:
    block = Block(forward=100, input_grad=100, weight_grad=100, out=100, own=10_000, weight=400, reads=(-1,))
    costs = profile([replace(block, reads=(k - 1,)) for k in range(8)])
    pinned = {"pipeline": 2, "data": 1, "schedule": "gpipe"}
    roomy = plan_of(costs, cluster(2, memory=1 << 30), 8, pinned)
    tight = plan_of(costs, cluster(2, memory=100_000), 8, pinned)
    assert not roomy.stages[0].recompute
    assert tight.stages[0].recompute
    assert tight.prediction.step_ns > roomy.prediction.step_ns


def test_an_effort_cut_short_leaves_an_honest_gap() -> None:
    costs, machines = profile(chain(24, 6), scale=1000), cluster(8)
    quick = Effort(nodes=1, proposals=0, program_nodes=1, work_ns=1e7)
    hurried = solve(Question(profile=costs, cluster=machines, batch=16, effort=quick)).certificate
    done = solve(Question(profile=costs, cluster=machines, batch=16, schedules=("1f1b",))).certificate
    assert hurried is not None
    assert done is not None
    assert hurried.bound_ns <= done.objective_ns
    assert hurried.gap > 0


def test_a_tower_may_begin_a_stage_though_it_does_not_read_the_layer_before_it() -> None:
    """Two towers behind a stem, narrow at both ends: the boundary between them is the one with little to send."""
    wide, narrow = 400_000, 400
    blocks = [
        Block(
            forward=1000,
            input_grad=1000,
            weight_grad=1000,
            out=narrow if k in (0, 14, 28, 29) else wide,
            own=0,
            weight=0,
            reads={0: (-1,), 15: (0,), 29: (14, 28)}.get(k, (k - 1,)),
        )
        for k in range(30)
    ]
    costs, machines = profile(blocks), cluster(2, bandwidth=1e9)
    plan = plan_of(costs, machines, 8, {"pipeline": 2, "schedule": "1f1b"})
    assert [stage.layers[0] for stage in plan.stages] == ["l0", "l15"]
    fixed = plan_of(costs, machines, 8, {"pipeline": 2, "schedule": "1f1b", "cuts": "15"})
    assert plan.certificate is not None and plan.certificate.space is not None
    assert plan.certificate.space.cuts == "all"
    assert plan.certificate.bound_ns == plan.prediction.step_ns == fixed.prediction.step_ns


def test_however_little_is_looked_into_no_trivial_plan_is_faster() -> None:
    costs, machines = profile(chain(30, 8, loose=True), scale=100), cluster(6)
    plan = solve(
        Question(
            profile=costs,
            cluster=machines,
            batch=12,
            effort=Effort(nodes=1, proposals=0, program_nodes=1, work_ns=0.0),
        )
    )
    assert plan.certificate is not None
    rivals = [rival.step_ns for rival in plan.certificate.rivals if rival.step_ns is not None]
    assert rivals
    assert plan.prediction.step_ns <= min(rivals)


def test_a_profile_of_two_precisions_is_planned_in_the_one_that_is_asked_for() -> None:
    costs, machines = with_bf16(profile(chain(8, 3, skips=1))), cluster(4)
    pinned = {"pipeline": 4, "schedule": "1f1b"}
    full = solve(Question(profile=costs, cluster=machines, batch=8, fix=pinned))
    half = solve(Question(profile=costs, cluster=machines, batch=8, fix=pinned, precision="bf16"))
    assert (full.precision, half.precision) == ("fp32", "bf16")
    assert half.prediction.step_ns < full.prediction.step_ns
    assert violations(half, profile=costs, cluster=machines) == []
    assert violations(half, graph=costs.graph, cluster=machines) == []
    for hop in half.hops:
        assert hop.bytes == sum((costs.graph.value[name].bytes(1) + 1) // 2 for name in hop.values)


def test_a_hop_of_the_wrong_precision_is_a_violation() -> None:
    costs, machines = with_bf16(profile(chain(8, 3))), cluster(2)
    plan = solve(
        Question(
            profile=costs,
            cluster=machines,
            batch=4,
            fix={"pipeline": 2, "schedule": "1f1b"},
            precision="bf16",
        )
    )
    hops = tuple(hop.model_copy(update={"bytes": 2 * hop.bytes}) for hop in plan.hops)
    found = violations(plan.model_copy(update={"hops": hops}), profile=costs)
    assert {violation.rule for violation in found} == {"hops"}


def test_a_precision_that_was_not_profiled_is_refused() -> None:
    with pytest.raises(BadInput, match=r"precision 'bf16' was not profiled.*fp32"):
        solve(Question(profile=profile(chain(2, 0)), cluster=cluster(2), batch=2, precision="bf16"))


def test_fully_sharded_replicas_stand_beside_the_plan_with_the_price_of_their_pin() -> None:
    costs, machines = profile(chain(6, 1)), cluster(4)
    proof = plan_of(costs, machines, 8).certificate
    assert proof is not None
    fsdp = next(rival for rival in proof.rivals if rival.kind == "fsdp")
    assert fsdp.configuration is not None and fsdp.configuration.ranks == fsdp.configuration.data == 4
    pinned = {"data": 4, "pipeline": 1, "shard": "parameters", "schedule": "1f1b"}
    assert plan_of(costs, machines, 8, pinned).prediction.step_ns == fsdp.step_ns
