"""Right plans pass, and each way to be wrong is found and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import stage_bytes
from planner.errors import BadInput, BadPlan
from planner.files import yaml_text as yaml_files
from planner.plan import Plan, schedule_of
from planner.plan import yaml as plan_yaml
from planner.profile import CostKey
from planner.program import Program, lower
from planner.simulate import peaks
from planner.verify import verify
from tests.planner import plan_examples as examples


def judged(plan: Plan) -> list[str]:
    found = verify.violations(plan, profile=examples.profile(), cluster=examples.machines())
    return [str(violation) for violation in found]


@pytest.mark.parametrize(
    "plan",
    [
        examples.plan(),
        examples.plan(cuts=(), workers=1),
        examples.plan(family="gpipe", cuts=(1, 3, 5), workers=4, data=1),
        examples.plan(family="chimera"),
        examples.plan(family="chimera", cuts=(1, 2, 4), workers=4, pairs=2),
        examples.plan(recompute=True),
    ],
    ids=["1f1b", "one stage", "gpipe", "chimera", "two pairs of chimera", "recomputed"],
)
def test_a_right_plan_violates_nothing(plan: Plan) -> None:
    assert judged(plan) == []
    assert verify.check(plan, profile=examples.profile(), cluster=examples.machines()) is plan


def test_a_layer_twice_is_found_without_the_model() -> None:
    plan = examples.edited(examples.plan(), {"stages.1.layers": ["middle", "up", "head", "loss"]})
    found = [str(violation) for violation in verify.violations(plan)]
    assert found == ["layers: layer 'middle': stands 2 times, in stages 0, 1; each stands once"]


def test_a_program_that_deadlocks_is_found_and_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_channel(*of: Any, layout: str) -> Program:
        return lower(*of, layout="channel", lookahead=99)

    monkeypatch.setattr(verify, "lower", by_channel)
    (found,) = verify.violations(examples.plan())
    assert (found.rule, found.where) == ("program", "on GPUs (NCCL)")
    assert "the program deadlocks where messages share streams by global" in found.message
    assert "worker 1: [1F0] 1B0 1F1" in found.picture
    monkeypatch.setattr(verify, "MOST_INSTRUCTIONS", 10)
    assert verify.violations(examples.plan()) == []


# changes to the 1F1B plan of two stages on two replicas, and what is said about each
WRONG: tuple[tuple[str, Mapping[str, object], str], ...] = (
    (
        "a layer twice",
        {"stages.1.layers": ["middle", "up", "head", "loss"]},
        "layers: layer 'middle': stands 2 times, in stages 0, 1; each stands once",
    ),
    (
        "a layer twice in one stage",
        {"stages.1.layers": ["up", "up", "head", "loss"]},
        "layers: layer 'up': stands 2 times, in stages 1, 1",
    ),
    (
        "a layer missing",
        {"stages.0.layers": ["embed", "middle"]},
        "layers: layer 'down': is missing",
    ),
    (
        "layers out of order",
        {"stages.1.layers": ["head", "up", "loss"]},
        "layers: layer 'head': stands in stage 1 before 'up', which it hangs on",
    ),
    (
        "stages out of order",
        {"stages.0.layers": ["up", "head", "loss"], "stages.1.layers": ["embed", "down", "middle"]},
        "layers: layer 'up': stands in stage 0 before 'middle', which it hangs on",
    ),
    (
        "a layer of another model",
        {"stages.0.layers": ["embed", "down", "middle", "attn"]},
        "layers: layer 'attn': is in stage 0, but the model has none of that name",
    ),
    (
        "an empty stage",
        {"stages.0.layers": [], "stages.1.layers": list(examples.NAMES)},
        "layers: stage 0: has no layer",
    ),
    (
        "a plan for another model",
        {"model.fingerprint": "sha256:0"},
        "model: model.fingerprint: the plan is for sha256:0, the model is sha256:",
    ),
    ("a batch that does not add up", {"batch.samples": 17}, "micro 2 x micros 4 x data 2 = 16, not 17"),
    ("an axis twice", {"axes.order": ["data", "data", "spatial"]}, "each axis stands in it once"),
    ("an axis left out", {"axes.order": ["data", "pipeline"]}, "each axis stands in it once"),
    (
        "too few places",
        {"axes.data": 3, "batch.samples": 24},
        "places: 3 x 2 x 1 ranks are 6, not 4",
    ),
    (
        "two ranks on one device",
        {"places.1.slot": 0},
        "places: rank 1: is on node 0, slot 0, and so is rank 0",
    ),
    ("a node that is not there", {"places.3.node": 7}, "there is no node 7, slot 1 in cluster 'test'"),
    ("a slot that is not there", {"places.3.slot": 2}, "there is no node 1, slot 2 in cluster 'test'"),
    (
        "a rank at the wrong coordinates",
        {"places.1.data": 1, "places.1.pipeline": 0},
        "rank 1: is (1, 0, 0) (data, pipeline, spatial); axes.order puts (0, 1, 0) there",
    ),
    ("another order of the axes", {"axes.order": ["pipeline", "data", "spatial"]}, "puts (1, 0, 0) there"),
    ("ranks that skip a number", {"places.2.rank": 5}, "rank 5: stands in row 2"),
    (
        "ranks against the order of nodes",
        {"places.0.node": 1, "places.1.node": 1, "places.2.node": 0, "places.3.node": 0},
        "rank 2: is on a device before that of rank 1",
    ),
    ("a stage without a worker", {"schedule.place": [[0]]}, "schedule.place[0]: has 1 rows; 2 stages need 2"),
    ("no pipe", {"schedule.place": []}, "schedule.place: has no pipe"),
    ("an unknown worker", {"schedule.place": [[0, 2]]}, "there is no worker 2; they are 0 to 1"),
    ("an unknown pipe", {"schedule.pipe_of": [0, 0, 1, 0]}, "there is no pipe 1; they are 0 to 0"),
    (
        "a micro-batch without a pipe",
        {"schedule.pipe_of": [0, 0, 0]},
        "schedule.pipe_of: has 3 rows; 4 micro-batches need 4",
    ),
    ("an idle worker", {"schedule.place": [[0, 0]]}, "worker 1: holds no stage"),
    ("more stages than chunks", {"schedule.place": [[0, 0]]}, "holds 2 stages of pipe 0; chunks allows 1"),
    ("pipes that are no pairs", {"schedule.pairs": 2}, "1 pipes are not 2 pairs; 4 are"),
    (
        "an idle pipe",
        {"schedule.place": [[0, 1], [1, 0]]},
        "pipe 1: carries no micro-batch",
    ),
    ("orders for fewer workers", {"schedule.orders": ["0F0"]}, "schedule.orders: has 1 rows; 2 pipeline"),
    ("an action of no stage", {"schedule.orders.0": "5F0"}, "5F0: there is no stage 5; they are 0 to 1"),
    ("an action of no pipe", {"schedule.orders.0": "0F0'"}, "there is no pipe 1; they are 0 to 0"),
    (
        "an action of no micro-batch",
        {"schedule.orders.0": "0F9"},
        "there is no micro-batch 9; they are 0 to 3",
    ),
    ("times for fewer stages", {"times": []}, "times: has 0 rows; 2 stages need 2"),
    ("a forward that takes no time", {"times.1.forward_ns": 0}, "times: stage 1: forward_ns is 0"),
    (
        "training that takes no time",
        {"times.1.backward_ns": 0},
        "backward_ns is 0, but parameters are trained",
    ),
    (
        "a stage faster than profiled",
        {"times.0.forward_ns": 10},
        "times: stage 0: forward_ns is 10, but its layers take",
    ),
    (
        "a hop left out",
        {"hops": []},
        "hops: act 0 to 1: does not carry 'm', 'skip', which the receiver needs",
    ),
    ("a value left out", {"hops.0.values": ["m"]}, "hops: act 0 to 1: does not carry 'skip'"),
    ("a value too many", {"hops.0.values": ["skip", "m", "x"]}, "carries 'x', which does not pass here"),
    (
        "a value twice",
        {"hops.0.values": ["m", "skip", "m"], "hops.0.bytes": 4800},
        "carries 'm' more than once",
    ),
    ("bytes that are wrong", {"hops.0.bytes": 3199}, "carries 3199 bytes; its values have 3200"),
    (
        "a hop against its direction",
        {"hops.0.sender": 1, "hops.0.receiver": 0},
        "act 1 to 0: goes the wrong way",
    ),
    ("a hop twice", {"hops": [examples.plan().hops[0].model_dump()] * 2}, "act 0 to 1: stands 2 times"),
    ("a hop of no stage", {"hops.0.receiver": 2}, "hops[0]: there is no stage 2"),
    (
        "another grid before a layer that is not there",
        {"stages.0.spatial": [1], "stages.0.regrid": [{"before": "nowhere", "spatial": [1]}]},
        "samples change before nowhere; layers of a stage on shards but its first",
    ),
    (
        "another grid that is not the axis",
        {"stages.0.regrid": [{"before": "nowhere", "spatial": [3]}]},
        "a grid of 3 is not 1 shards",
    ),
    (
        "samples shared before the last stage",
        {"stages.0.regrid": [{"before": "nowhere", "samples": True}]},
        "shares samples from 'nowhere' on; only the last stage does, and to its end",
    ),
    (
        "neither another grid nor samples",
        {"stages.1.regrid": [{"before": "nowhere"}]},
        "before 'nowhere' samples lie on another grid or are shared: one of the two",
    ),
    ("a grid that is not the axis", {"stages.0.spatial": [2, 2]}, "a grid of 2 x 2 is not 1 shards"),
    (
        "recomputation never done",
        {"stages.0.recompute": True, "times.0.recompute_ns": 9},
        "has 0 R actions; recompute: true needs 4",
    ),
    ("a recomputation that takes no time", {"stages.0.recompute": True}, "stage 0: recompute_ns is 0"),
    (
        "memory above its limit",
        {"prediction.memory.0.activations": 40 * 10**9},
        "memory: worker 0: needs 40",
    ),
    (
        "memory above the device's",
        {"prediction.memory.0.activations": 41 * 10**9, "prediction.memory.0.limit": 80 * 10**9},
        "are free on node 0, slot 0",
    ),
    (
        "less memory than it takes",
        {"prediction.memory.1.activations": 5},
        "memory: worker 1: needs at least",
    ),
    (
        "memory of fewer workers",
        {"prediction.memory": []},
        "prediction.memory: has 0 rows; 2 pipeline workers",
    ),
    (
        "a step time that is made up",
        {"prediction.step_ns": 7},
        "step_ns is 7; times, hops and orders amount to",
    ),
    ("a prediction outside of its error bar", {"prediction.high_ns": 1}, "outside of its error bar"),
    (
        "a micro-batch that was not profiled",
        {"batch.micro": 4, "batch.samples": 32},
        "stage 0 at micro 4, ()",
    ),
    ("a precision that was not profiled", {"precision": "bf16"}, "not profiled; there is micro 1, (), fp32"),
    ("an execution that was not profiled", {"execution": "compiled"}, "compiled: not profiled"),
)


@pytest.mark.parametrize(("changes", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_plan_is_found_out(changes: Mapping[str, object], said: str) -> None:
    plan = examples.edited(examples.plan(), changes)
    found = judged(plan)
    assert any(said in line for line in found), found
    with pytest.raises(BadPlan, match="plan: "):
        verify.check(plan, profile=examples.profile(), cluster=examples.machines())


STEP = examples.plan().prediction.step_ns
CERTIFICATE = {"objective_ns": STEP, "bound_ns": STEP}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bound_ns": STEP + 1}, f"bound_ns {STEP + 1} is above objective_ns {STEP}"),
        ({"own_order_bound_ns": STEP + 1}, f"own_order_bound_ns {STEP + 1} is above objective_ns {STEP}"),
        ({"order_free_bound_ns": STEP + 1}, f"order_free_bound_ns {STEP + 1} is above objective_ns {STEP}"),
        ({"objective_ns": 2 * STEP}, f"objective_ns {2 * STEP} is not the step_ns predicted"),
    ],
)
def test_a_certificate_that_proves_nothing_is_found_out(changes: dict[str, object], said: str) -> None:
    right = examples.edited(examples.plan(), {"certificate": CERTIFICATE})
    assert judged(right) == []
    assert any(
        said in line for line in judged(examples.edited(right, {"certificate": CERTIFICATE | changes}))
    )


def without(plan: Plan, word: str) -> Plan:
    orders = [" ".join(w for w in order.split() if w != word) for order in plan.schedule.orders]
    return examples.edited(plan, {"schedule.orders": orders})


def test_every_holder_sums_and_steps() -> None:
    found = judged(without(examples.plan(), "0SYNC"))
    assert "schedule: worker 0 never does 0SYNC" in found
    found = judged(without(examples.plan(family="chimera", data=1), "1STEP'"))
    assert "schedule: worker 0 never does 1STEP'" in found


def test_gradients_of_a_skip_go_from_consumer_to_consumer() -> None:
    plan = examples.plan(cuts=(2, 3), workers=3, data=1)
    routes = {(hop.direction, hop.sender, hop.receiver): hop.values for hop in plan.hops}
    assert routes["act", 0, 2] == ("skip",)
    assert ("grad", 2, 0) not in routes
    assert judged(plan) == []
    index = next(i for i, hop in enumerate(plan.hops) if (hop.direction, hop.sender) == ("grad", 2))
    straight = examples.edited(plan, {f"hops.{index}.receiver": 0})
    assert any("grad 2 to 0: carries 'm', 'skip', which does not pass" in line for line in judged(straight))


def test_a_plan_is_judged_with_what_is_at_hand() -> None:
    wrong = examples.edited(examples.plan(), {"batch.samples": 17, "stages.0.layers": ["embed", "middle"]})
    rules = [violation.rule for violation in verify.violations(wrong)]
    assert rules == ["batch"]
    assert "layers" in [violation.rule for violation in verify.violations(wrong, graph=examples.graph())]


def test_a_model_captured_for_one_size_takes_no_other() -> None:
    fixed = replace(examples.graph(), symbolic_batch=False, captured_micro=1)
    found = [str(violation) for violation in verify.violations(examples.plan(), graph=fixed)]
    assert found == ["batch: batch.micro: is 2, but the model was captured for micro-batch 1 only"]


LOSSES_BYTES = 4 * 8  # of all micro-batches, until the step ends


@pytest.mark.parametrize(
    ("family", "worker", "recompute", "in_flight"),
    [("1f1b", 0, False, 2), ("1f1b", 1, False, 1), ("gpipe", 1, False, 4), ("gpipe", 0, True, 4)],
)
def test_memory_is_reckoned_to_the_byte_from_the_order(
    family: str, worker: int, recompute: bool, in_flight: int
) -> None:
    plan = examples.plan(family=family, recompute=recompute)
    costs, key = examples.profile(), CostKey("", 2, (), "fp32", "eager")
    names = plan.stages[worker].layers
    weights = sum(
        costs.graph.parameter[p].bytes for name in names for p in costs.graph.layer[name].parameters
    )
    stages = [stage_bytes(costs, stage.layers, key, recompute=recompute) for stage in plan.stages]
    own = stages[worker]
    entering = 2 * 80  # the ids of both samples are all that the first stage takes in
    saved = own.saved + own.shared
    least = entering * (in_flight - 1) + saved if recompute else saved * in_flight
    passed = own.arriving + own.near + own.sent + own.handed + own.returning + own.back
    moving = peaks(schedule_of(plan), stages)[worker].bytes
    assert least + own.workspace <= moving <= least + own.workspace + 4 * passed
    need = 4 * weights + moving + (LOSSES_BYTES if worker == 1 else 0)
    nothing = {"parameters": 0, "gradients": 0, "optimizer": 0, "buffers": 0, "margin": 0, "limit": 10**9}
    for activations, right in ((need, True), (need - 1, False)):
        memory = {f"prediction.memory.{worker}": nothing | {"activations": activations}}
        found = judged(examples.edited(plan, memory))
        assert (found == []) == right, found


def test_a_sharded_optimizer_takes_its_share() -> None:
    plan = examples.plan(data=4)
    names, costs = plan.stages[1].layers, examples.profile()
    weights = sum(
        costs.graph.parameter[p].bytes for name in names for p in costs.graph.layer[name].parameters
    )
    key = CostKey("", 2, (), "fp32", "eager")
    moving = peaks(schedule_of(plan), [stage_bytes(costs, stage.layers, key) for stage in plan.stages])[
        1
    ].bytes
    nothing = {"gradients": 0, "optimizer": 0, "buffers": LOSSES_BYTES, "margin": 0, "limit": 10**9}
    state = {"parameters": 2 * weights + 2 * weights // 4, "activations": moving}
    tight = examples.edited(plan, {"prediction.memory.1": nothing | state})
    assert any("worker 1: needs at least" in line for line in judged(tight))
    assert judged(examples.edited(tight, {"shard_optimizer": True})) == []


BASES = [examples.plan(data=1), examples.plan(family="chimera", data=1), examples.plan(recompute=True)]
WORDS = st.sampled_from(["embed", "loss", "x", "skip", "0F0", "1B0'", "0R0 0B0", "", "0SYNC 0STEP", "data"])
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 5),
    WORDS,
    st.builds(list),
    st.lists(st.integers(0, 1), max_size=2),
)


@st.composite
def half_broken(draw: st.DrawFn) -> str:
    """A written plan with a few of its values changed, doubled or dropped, as a careless editor would."""
    data: Any = draw(st.sampled_from(BASES)).model_dump(mode="json")
    for _ in range(draw(st.integers(1, 3))):
        spot: Any = data
        while True:
            keys = sorted(spot) if isinstance(spot, dict) else list(range(len(spot)))
            key = draw(st.sampled_from(keys))
            if not spot[key] or not isinstance(spot[key], dict | list) or draw(st.integers(0, 4)) == 0:
                break
            spot = spot[key]
        change = draw(st.sampled_from(["set", "drop", "double"]))
        if change == "set":
            spot[key] = draw(ANYTHING)
        elif isinstance(spot, list):
            spot[key : key + 1] = [] if change == "drop" else [spot[key]] * 2
        else:
            spot[key] = draw(st.integers(0, 3))
        if not data:
            break
    return yaml_files.render(data, header="")


@settings(max_examples=150, deadline=None)
@given(half_broken())
def test_whatever_can_be_read_can_be_judged(text: str) -> None:
    try:
        plan = plan_yaml.parse(text)
    except BadInput:
        return
    for violation in verify.violations(plan, profile=examples.profile(), cluster=examples.machines()):
        assert violation.rule
        assert violation.message
