from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster import catalogue as devices
from planner.profile import OperationWork, seconds
from tests.planner.graphs import chain
from tests.planner.rooflines import from_graph

DEVICE = replace(
    devices.find("cpu"),
    fp32_flop_per_s=1e9,
    bf16_flop_per_s=1e10,
    memory_bytes_per_s=1e9,
    launch_s=1e-6,
)


@pytest.mark.parametrize(
    ("work", "expected_s"),
    [
        (OperationWork(flops=10**6, traffic_bytes=10, precision="fp32"), 1e-3),
        (OperationWork(flops=10**6, traffic_bytes=10, precision="bf16"), 1e-4),
        (OperationWork(flops=10, traffic_bytes=10**6, precision="fp32"), 1e-3),
        (OperationWork(flops=10, traffic_bytes=10, precision="fp32"), 1e-6),
    ],
    ids=["arithmetic", "arithmetic in bf16", "memory", "launch"],
)
def test_an_operation_takes_what_holds_it_up(work: OperationWork, expected_s: float) -> None:
    assert seconds([work], DEVICE).median == pytest.approx(expected_s)


def test_operations_run_one_after_the_other() -> None:
    work = OperationWork(flops=10**6, traffic_bytes=10, precision="fp32")
    assert seconds([work] * 3, DEVICE).median == pytest.approx(3e-3)


def test_a_profile_of_a_graph_alone_prices_every_layer_at_every_micro_batch() -> None:
    graph = chain(3)
    found = from_graph(graph, DEVICE, micros=(1, 2))
    assert found.source == "roofline"
    assert [setting.micro for setting in found.settings] == [1, 2]
    for setting in found.settings:
        for layer in graph.layers:
            cost = found.cost(layer.name, setting)
            assert cost.backward.median == pytest.approx(cost.input_grad.median + cost.weight_grad.median)


def test_the_first_layer_has_no_input_gradient_and_the_loss_no_weight_gradient() -> None:
    found = from_graph(chain(3), DEVICE, micros=(1,))
    (setting,) = found.settings
    assert found.cost("a0", setting).input_grad.median == 0
    assert found.cost("a1", setting).input_grad.median > 0
    assert found.cost("loss", setting).weight_grad.median == 0
