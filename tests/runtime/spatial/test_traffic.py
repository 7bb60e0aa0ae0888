"""What is priced is what is sent, and nothing is sent where nothing is cut."""

from __future__ import annotations

import pytest
import torch

from planner.capture.operations import operations_of
from planner.spatial import coordinates
from planner.spatial.segment import cut_model
from planner.spatial.traffic import traffic
from runtime.spatial import SampleGroup
from runtime.spatial.analyse import analyse
from runtime.spatial.shard import shard
from tests.runtime.spatial import threads
from tests.runtime.spatial.cases import CASES
from tests.runtime.spatial.equality import Reference, entries, part, stage_of
from tests.runtime.spatial.variants import Variant

DOUBLE = 8
HALOS_ONLY = (
    "conv2d ker=3 pad=1",
    "conv2d ker=5 pad=2",
    "conv2d ker=7 str=2 pad=3",
    "conv2d ker=2 str=2",
    "conv3d ker=3 dil=2 pad=2",
    "transposed2d ker=4 str=2 pad=1",
    "maxpool2d ker=3 str=2 pad=1",
    "interpolate2d bilinear False x2",
    "flip",
    "roll",
    "pad circular",
)


def _sent(ref: Reference, grid: tuple[int, ...], wire: threads.ThreadWire) -> int:
    stage = stage_of(ref)
    stage.materialise(ref.tensors)
    how = analyse(stage, grid, entries(stage, grid))
    shard(stage, how, SampleGroup(grid, wire))
    place = coordinates(wire.rank, grid)
    with torch.no_grad():
        stage({name: part(x, how.inputs[name], place) for name, x in ref.inputs.items()})
    return wire.sent_bytes


@pytest.mark.parametrize("grid", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("name", HALOS_ONLY)
def test_the_busiest_rank_sends_what_is_priced(name: str, grid: tuple[int, ...]) -> None:
    ref = Variant(CASES[name], "odd", grid).reference()
    segment = cut_model(operations_of(ref.captured.layout), grid)
    priced = sum(cost.halo_bytes for layer, cost in traffic(segment, DOUBLE).items() if layer != "loss")
    ranks = 1
    for parts in grid:
        ranks *= parts
    assert max(threads.run(ranks, lambda wire: _sent(ref, grid, wire))) == priced


def test_a_kernel_of_its_stride_on_even_parts_sends_nothing() -> None:
    ref = Variant(CASES["conv2d ker=2 str=2"], "even", (2,)).reference()
    assert threads.run(2, lambda wire: _sent(ref, (2,), wire)) == [0, 0]


def test_only_the_dimension_that_is_cut_is_exchanged() -> None:
    """One row of 12 columns of 4 channels of 2 samples each way, whatever the kernel is across."""
    ref = Variant(CASES["conv2d ker=3 pad=1"], "even", (2,)).reference()
    assert threads.run(2, lambda wire: _sent(ref, (2,), wire)) == [2 * 4 * 12 * DOUBLE] * 2
