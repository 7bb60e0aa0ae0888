"""Plans stated by other trainers: each states a plan whole, or names what it cannot; and prices agree on the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cluster import Cluster, total_devices
from planner.errors import BadInput
from planner.export import TRAINERS, completed, export, read_settings
from planner.export.settings import DATA_OUTSIDE, PIPELINE_OUTSIDE, settings_of
from planner.measure import profile
from planner.milp import Question, price_pins
from planner.plan import Plan, places
from planner.profile import Profile
from planner.workload import load
from tests.planner.export.examples import EXAMPLES, PLANS, costs, planned, with_latency

CASES = [(name, to) for name in EXAMPLES for to in TRAINERS]


def price(plan: Plan, text: str, priced: Profile, machines: Cluster) -> int | None:
    """Returns what settings take with the costs and machines of a plan."""
    told = read_settings(text, "settings")
    layers = [layer.name for layer in priced.graph.layers]
    devices = total_devices(machines)
    whole = completed(told, batch=plan.batch.samples, devices=devices, layers=layers, where="settings")
    asked = Question(
        profile=priced,
        cluster=machines,
        batch=plan.batch.samples,
        fix=whole.fix,
        precision=told.precision,
        execution=told.execution,
    )
    found = price_pins(asked.instance(), whole.order)
    assert found is not None
    return found.step_ns


@pytest.mark.parametrize(("name", "to"), CASES)
def test_a_plan_is_stated_with_its_price_or_refused_by_name(name: str, to: str) -> None:
    example, plan = EXAMPLES[name], planned(name)
    if to not in example.by:
        with pytest.raises(BadInput, match=f"{to} cannot state what this plan has: "):
            export(plan, to)
        return
    text = export(plan, to)
    assert price(plan, text, example.costs, example.machines) == plan.prediction.step_ns


@pytest.mark.parametrize(("name", "to"), [(name, to) for name, to in CASES if to in EXAMPLES[name].by])
def test_what_is_read_back_is_what_the_plan_decides(name: str, to: str) -> None:
    plan = planned(name)
    told, own = read_settings(export(plan, to), "settings"), settings_of(plan)
    layers = [layer for stage in plan.stages for layer in stage.layers]
    whole = completed(told, batch=plan.batch.samples, devices=4, layers=layers, where="settings")
    fields = ("batch", "micro", "accumulation", "data", "pipeline", "family", "chunks", "recompute", "share")
    for field in (*fields, "precision", "execution"):
        assert getattr(whole.settings, field) == getattr(own, field), field
    assert whole.fix["stages"] == own.stages
    assert whole.notes == ()
    if own.share in ("gradients", "parameters"):
        assert whole.fix["shard"] == f"{own.share}:{own.ranks or own.data}"


@pytest.mark.parametrize(
    ("name", "to", "said"),
    [
        ("chimera", "torchtitan", "schedule chimera, whose pipelines run both ways"),
        ("a cut through a block", "torchtitan", "a cut through module 'blocks.3'"),
        ("a cut through a block", "megatron", "a cut through block 'blocks.3'"),
        ("a cut in the head", "megatron", "a cut after the last block"),
        ("two stages", "deepspeed", "uneven cuts"),
        ("two stages", "accelerate", "pipeline 2"),
        ("zb-h1", "torchtitan", "schedule zb-h1 .it has 1f1b, gpipe, interleaved, interleaved-zb"),
        ("gradients shared by two", "deepspeed", "gradients shared by 2 of the replicas"),
        ("state shared", "fsdp2", "shard: state"),
        ("replicas that recompute", "deepspeed", "recompute without a pipeline"),
        ("rolling updates", "deepspeed", "update: rolling"),
        ("averages", "torchrun", "ema: averages"),
        (
            "state shared",
            "torchrun",
            r"allowed: .*megatron.*, which can; or a plan with --schedule 1f1b --fix shard=none",
        ),
        ("two stages", "accelerate", "which can; or a plan with --schedule 1f1b --fix pipeline=1"),
    ],
)
def test_what_cannot_be_stated_is_named(name: str, to: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        export(planned(name), to)


def test_changed_plans_are_refused_by_what_was_changed() -> None:
    plan = planned("two stages")
    stages = plan.stages
    some = (stages[0].model_copy(update={"recompute": True}), stages[1])
    part = tuple(
        stage.model_copy(update={"recompute": True, "recompute_before": stage.layers[1]}) for stage in stages
    )
    turned = plan.schedule.model_copy(update={"orders": plan.schedule.orders[::-1]})
    shares = plan.batch.model_copy(update={"shares": (3, 5)})
    for change, said in (
        ({"stages": some}, "recompute in stages 0 alone"),
        ({"stages": part}, "recompute up to layer"),
        ({"schedule": turned}, "schedule 1f1b in an order of its own"),
        ({"batch": shares}, "shares 3, 5"),
        ({"axes": plan.axes.model_copy(update={"spatial": 2})}, "spatial 2"),
    ):
        with pytest.raises(BadInput, match=said):
            export(plan.model_copy(update=change), "torchtitan")


def test_megatron_takes_no_model_whose_blocks_are_unlike() -> None:
    plan = planned("two stages")
    first, *others = plan.stages
    lost = next(name for name in first.layers if name.startswith("blocks.1."))
    thinner = first.model_copy(update={"layers": tuple(x for x in first.layers if x != lost)})
    unlike = plan.model_copy(update={"stages": (thinner, *others)})
    with pytest.raises(BadInput, match=r"blocks 'blocks\.0' and 'blocks\.1' of unlike layers"):
        export(unlike, "megatron")


def test_an_order_of_ranks_counts_where_it_puts_others_on_a_node() -> None:
    plan, machines = (
        planned("replicas of stages over nodes"),
        EXAMPLES["replicas of stages over nodes"].machines,
    )
    assert plan.axes.order == PIPELINE_OUTSIDE
    axes = plan.axes.model_copy(update={"order": DATA_OUTSIDE})
    turned = plan.model_copy(update={"axes": axes, "places": places(axes, machines)})
    with pytest.raises(BadInput, match="pipeline inside of data over 2 nodes"):
        export(turned, "torchtitan")
    assert "--use-tp-pp-dp-mapping" in export(turned, "megatron")
    assert "--use-tp-pp-dp-mapping" not in export(plan, "megatron")
    step_ns = price(turned, export(turned, "megatron"), costs(), machines)
    assert step_ns is not None and step_ns > plan.prediction.step_ns
    near = turned.model_copy(update={"places": places(axes, EXAMPLES["replicas of stages"].machines)})
    assert export(near, "torchtitan")


def test_the_plans_in_the_repository_keep_their_price_or_are_refused() -> None:
    """They were planned when a message on the laptop started in 30 microseconds."""
    machines = with_latency(Cluster.load(PLANS / "clusters" / "laptop.yaml"), 30e-6)
    measured = profile(load("mlp", {}), device="roofline:cpu", micros=(1, 2, 4, 8))
    stated = planned("mlp-two-stages")
    for to in ("torchtitan", "deepspeed"):
        assert price(stated, export(stated, to), measured, machines) == stated.prediction.step_ns
    for to in TRAINERS:
        with pytest.raises(BadInput, match="schedule chimera"):
            export(planned("mlp-chimera"), to)
    assert {path.stem for path in Path(PLANS).glob("*.yaml")} == {"mlp-two-stages", "mlp-chimera"}


def test_an_unknown_trainer_is_refused() -> None:
    with pytest.raises(BadInput, match="no trainer is called"):
        export(planned("one device"), "alpa")
