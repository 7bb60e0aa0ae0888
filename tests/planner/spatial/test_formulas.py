"""Figures of CosmoFlow that follow from its definition alone: work, memory, and what a cut sends."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import pytest

from planner.capture import Captured, capture
from planner.capture.operations import operations_of
from planner.errors import BadInput
from planner.spatial import Operation, Segment, price, to_text
from planner.spatial.layout import shard_elements
from planner.spatial.operation import from_text
from planner.spatial.segment import cut_model
from planner.spatial.traffic import cut_layers, ends, traffic
from planner.workload import workload

GIB, MIB = 2**30, 2**20
SIZES = ("paper128", "paper256", "paper512")


@lru_cache(maxsize=3)
def _captured(size: str) -> Captured:
    return capture(workload.load("cosmoflow", {"size": size}))


@lru_cache(maxsize=3)
def _operations(size: str) -> tuple[Operation, ...]:
    return operations_of(_captured(size).layout)


def _samples(operations: tuple[Operation, ...]) -> int:
    return next(x for x in operations if x.operation == "given.input").outputs[0][0]


@pytest.mark.parametrize(("size", "gflop"), list(zip(SIZES, (55.55, 443.8, 3550.0), strict=True)))
def test_a_training_step_of_cosmoflow_takes_as_much_work_as_its_convolutions(size: str, gflop: float) -> None:
    graph = _captured(size).graph
    forward = sum(layer.flops(1) for layer in graph.layers if "aten.conv3d" in " ".join(layer.operations))
    assert 3 * forward / 1e9 == pytest.approx(gflop, rel=5e-4)


@pytest.mark.parametrize(("size", "gib"), list(zip(SIZES, (0.824, 6.59, 52.7), strict=True)))
def test_activations_and_errors_of_the_trunk_take_what_lbann_counts(size: str, gib: float) -> None:
    operations = _operations(size)
    kinds = ("aten.conv3d", "aten.leaky_relu", "aten.avg_pool3d")
    trunk = [x for x in operations if x.operation in kinds and len(x.outputs[0]) == 5]
    given = next(x for x in operations if x.operation == "given.input")
    elements = 2 * prod(given.outputs[0]) + sum(prod(x.outputs[0]) for x in trunk)
    assert 2 * 4 * elements / _samples(operations) / GIB == pytest.approx(gib, rel=1e-3)


def _one_face_bytes(segment: Segment, samples: int) -> float:
    """What the convolutions' inputs send over one cut in one direction."""
    total = 0
    for done in segment.placed:
        if done.operation.operation == "aten.conv3d" and done.step is not None:
            (fetch,) = done.step.fetches["input"]
            plane = prod(next(iter(done.inputs.values())).shape) // fetch.size
            total += 4 * plane * sum(rows for sender, to, rows in fetch.messages() if (sender, to) == (0, 1))
    return total / samples


@pytest.mark.parametrize(("size", "mib"), list(zip(SIZES, (0.70, 2.80, 11.20), strict=True)))
def test_halos_of_the_convolutions_grow_with_the_face(size: str, mib: float) -> None:
    operations = _operations(size)
    segment = cut_model(operations, (2,))
    assert _one_face_bytes(segment, _samples(operations)) / MIB == pytest.approx(mib, rel=5e-3)


def test_what_is_priced_is_what_the_rules_send() -> None:
    operations = _operations("paper128")
    segment = cut_model(operations, (2,))
    priced = traffic(segment)
    from_convolutions = _one_face_bytes(segment, 1)
    halos = sum(cost.halo_bytes for cost in priced.values())
    assert halos > from_convolutions  # pools of three rows overlap, too
    assert ends(segment)  # the map is gathered before the linear layers
    assert not cut_layers(segment) & {layer for layer in ends(segment) if layer.startswith("head")}


def test_a_cut_leaves_each_rank_its_part_of_the_memory() -> None:
    operations = _operations("paper256")
    whole, cut = cut_model(operations, (1,)), cut_model(operations, (4,))
    name = next(x.name for x in operations if x.operation == "aten.conv3d")
    full = shard_elements(whole.layouts[name][0], (1,))
    assert shard_elements(cut.layouts[name][0], (4,)) == full // 4


def test_a_model_is_priced_without_torch_from_its_profile() -> None:
    graph = _captured("paper128").graph
    found = price(graph, (4,))
    assert found.layers["trunk.0"].share == pytest.approx(0.25)
    assert found.layers["trunk.0"].traffic.rounds >= 1
    assert found.layers["loss"].share == 1.0  # gathered before
    assert found.values["input"] == pytest.approx(0.25)
    assert found.gathered


@pytest.mark.parametrize(
    ("grid", "what"), [((129,), "129 ranks for 128 rows"), ((2, 2, 2, 2), "4 dimensions")]
)
def test_a_grid_that_does_not_fit_is_refused(grid: tuple[int, ...], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        price(_captured("paper128").graph, grid)


def test_operations_survive_as_text() -> None:
    operations = _operations("paper128")
    assert tuple(from_text(to_text(x)) for x in operations) == operations
