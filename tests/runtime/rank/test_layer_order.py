"""Plans whose stages name the layers in another order than the capture: the same training to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planner.capture import Captured, cut
from planner.capture.stage_modules import whole
from planner.errors import BadPlan
from planner.plan import Plan
from runtime.messages import in_order_of
from runtime.train import Model
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import run
from tests.runtime.plans import plan_for
from tests.runtime.test_equality import HERE

WORKLOAD = HERE + "parallel.py"
ORDER = ["stem", "right.0", "left.0", "left.3", "right.3", "left.4", "right.4", "head", "loss"]


def captured() -> Captured:
    return captured_of(WORKLOAD, {}, 2)[1]


def planned(order: list[str], **shape: object) -> Plan:
    graph = captured().graph.ordered(order)
    return plan_for(graph, WORKLOAD, micros=3, **shape)  # type: ignore[arg-type]


def names() -> list[str]:
    return [layer.name for layer in captured().graph.layers]


def test_another_order_of_the_layers_trains_to_the_same_bits(pool: Pool, tmp_path: Path) -> None:
    """Dropout and running statistics too: what is random is numbered as captured."""
    shape = {"family": "zb-h1", "workers": 3, "cuts": [2, 6]}
    kept = run(pool, planned(names(), **shape), tmp_path / "kept", steps=2)
    moved = run(pool, planned(ORDER, **shape), tmp_path / "moved", steps=2)
    assert moved.losses == kept.losses
    assert moved.grads.keys() == kept.grads.keys()
    assert all(torch.equal(grad, kept.grads[name]) for name, grad in moved.grads.items())
    assert all(torch.equal(tensor, kept.after[-1][name]) for name, tensor in moved.after[-1].items())


def test_stages_of_another_order_hold_the_layers_that_it_names() -> None:
    moved = captured().ordered(ORDER)
    assert [stage.layers for stage in cut(moved, [2, 6])] == [
        tuple(ORDER[:2]),
        tuple(ORDER[2:6]),
        tuple(ORDER[6:]),
    ]
    assert moved.graph.fingerprint == captured().graph.fingerprint
    assert whole(moved.ordered(names())).layers == tuple(names())
    assert Model(planned(ORDER), captured_of(WORKLOAD, {}, 2)[0], moved).captured is moved


def test_an_order_that_is_none_is_refused_by_the_layer_that_stands_too_early() -> None:
    plan = planned(ORDER, workers=2, cuts=[4])
    wrong = plan.stages[0].model_copy(update={"layers": ("left.3", *plan.stages[0].layers[1:])})
    swapped = tuple("stem" if name == "left.3" else name for name in plan.stages[0].layers[1:])
    wrong = wrong.model_copy(update={"layers": ("left.3", *swapped)})
    with pytest.raises(BadPlan, match=r"'left\.0' stands before 'stem'"):
        in_order_of(plan.model_copy(update={"stages": (wrong, *plan.stages[1:])}), captured())
