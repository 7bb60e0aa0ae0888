"""What cannot be done on parts of tensors is one message, the same from `verify` and from a run that is prepared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from planner.errors import BadPlan
from planner.measure import profile as measured
from planner.plan import Plan, graph_on_group
from planner.verify import violations
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.layout.test_plans import HEADS, LLAMA, WORDS, in_parts, plan_of
from tests.runtime.plans import plan_for

ODD = "tests/runtime/layout/workloads/odd.py"
TAKEN = "tests/runtime/layout/workloads/odd_taken.py"
PAIR = {"up": "out", "down": "in"}
ROWS = {"*": "sequence"}


def odd(what: str, lines: Mapping[str, str], mesh: tuple[int, ...] = (2,), workload: str = ODD) -> Plan:
    arguments = {"odd": what}
    _, captured = captured_of(workload, arguments, 2)
    return in_parts(plan_for(captured.graph, workload, arguments=arguments, workers=1, micros=2), lines, mesh)


def messages(plan: Plan) -> list[str]:
    """Returns what `verify` says of a plan's cut."""
    _, captured = captured_of(plan.model.workload, plan.model.arguments, 2)
    found = violations(plan, graph=captured.graph)
    return [str(x) for x in found if x.rule not in ("times", "prediction")]


def said_by_the_run(plan: Plan, folder: Path) -> str:
    """Returns what a run of a plan is refused with before it starts."""
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, 2))
    with pytest.raises(BadPlan) as error:
        prepare(model, folder, job_of(plan, 2, {}))
    return str(error.value)


def meshed(plan: Plan, *mesh: int) -> Plan:
    stages = tuple(stage.model_copy(update={"mesh": mesh}) for stage in plan.stages)
    return plan.model_copy(update={"stages": stages})


REFUSED = {
    "heads that ranks cannot share": (
        lambda: plan_of(HEADS, (3,), workers=1),
        "blocks.0.attention.qkv: aten.linear on parts of tensors: 48 columns in 3 parts do not fit",
    ),
    "more ranks than groups of keys, in Ulysses": (
        lambda: odd("groups", ROWS | {"attention": "ulysses"}, (4,)),
        "2 of 'heads' for 4 ranks (allowed: up to 2 ranks, or rows of the query by 'ring' or 'dim2'",
    ),
    "more ranks than groups of keys, by heads": (
        lambda: plan_of(LLAMA, (4,), workers=1, arguments={"model": "llama"}),
        "8 columns in 4 parts do not fit the aten",
    ),
    "dropout in an attention by heads": (
        lambda: odd("dropout", {"attention": "heads"}),
        "draws the dropout of attention inside (allowed: a dropout of 0 in attention",
    ),
    "a trained mask in a ring": (
        lambda: odd("mask", {"attention": "ring"} | ROWS),
        "no ring: its mask is trained (allowed: 'ulysses', or 'dim2'",
    ),
    "an operation without a rule": (
        lambda: odd("bounded", {"up": "out"}),
        "middle (counted to layer 'up'): aten.renorm on parts of tensors: it has no rule (allowed: tensors that are alike before layer 'up'",
    ),
    "a write into a tensor in parts": (
        lambda: odd("write", {"up": "samples"}),
        "middle (counted to layer 'up'): aten.fill_ on parts of tensors: it writes in place into a tensor that ranks hold in parts",
    ),
    "a factor that there is not": (
        lambda: odd("", {"up": "columns"}),
        "factor 'columns' (allowed: heads, hidden",
    ),
    "a factor that a layer has not": (
        lambda: odd("", {"up": "vocabulary"}),
        "no operation of 'up' has the factor 'vocabulary' (allowed: dim0, dim1, in, out)",
    ),
    "a module that is taken as it is": (
        lambda: odd("", PAIR, workload=TAKEN),
        "taken (counted to layer 'up'): opaque_Taken on parts of tensors: it has no rule",
    ),
    "a parameter under two cuts": (
        lambda: plan_of({"token": "vocabulary"}, (2,), workers=1),
        "parameter 'token.weight' is used under two cuts: S(0) by 0 by layer 'token' and I by layer 'head'",
    ),
    "a mesh whose product is not the group": (
        lambda: meshed(plan_of(HEADS, (2,), workers=1), 2, 2),
        "a mesh of 2 x 2 is 4 ranks on 2 axes; the group has 2",
    ),
    "a forward that writes a buffer": (
        lambda: odd("norm", {"up": "out"}),
        "a forward writes 'middle.norm.running_mean'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_on_parts_is_one_message(name: str, tmp_path: Path) -> None:
    make, said = REFUSED[name]
    plan = make()
    (found,) = messages(plan)
    assert said in found
    assert said_by_the_run(plan, tmp_path / "run") == found


def test_an_optimizer_that_looks_at_whole_weights_is_refused_by_its_name(tmp_path: Path) -> None:
    plan = plan_of(HEADS, (2,), workers=1, arguments={"kind": "whole"})
    workload, _ = captured_of(WORDS, plan.model.arguments, 2)
    profile = measured(workload, device="roofline:cpu", micros=(2,), precision="fp32")
    (found,) = [str(x) for x in violations(plan, profile=profile) if x.rule == "cut"]
    assert "adafactor looks at whole parameters, and ranks have parts: an element-wise optimizer" in found
    assert said_by_the_run(plan, tmp_path / "run") == found


def test_no_addend_passes_between_stages(pool: Pool, tmp_path: Path) -> None:
    """A stage that ends with a linear layer by `in` sums its addends up, and trains as one process does."""
    _, captured = captured_of(ODD, {"odd": ""}, 2)
    border = [layer.name for layer in captured.graph.layers].index("loss")
    plain = plan_for(captured.graph, ODD, arguments={"odd": ""}, cuts=[border], micros=2)
    plan = in_parts(plain, PAIR, (2,))
    graph = graph_on_group(plan, captured.graph)
    passed = {value for hop in plan.hops for value in hop.values if hop.direction == "act"}
    assert passed and passed <= graph.made.keys()
    assert not any(graph.layouts[name][0].partial for name in passed)
    have = run(pool, plan, tmp_path, steps=2, compare_holders=False)
    assert distance(expected(plan, tmp_path, steps=2), have).worst() < 1e-10
