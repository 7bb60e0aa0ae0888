"""Convolutions that compute while halos travel: the same results, no copy of their input, any layout and precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.spatial import coordinates
from runtime.spatial import SampleGroup
from runtime.spatial.analyse import analyse
from runtime.spatial.kernels.overlapped_convolution import Overlapped
from runtime.spatial.kernels.pooling import Pooled
from runtime.spatial.shard import shard
from tests.runtime.spatial import threads
from tests.runtime.spatial.equality import (
    Reference,
    differences,
    entries,
    on_shards,
    part,
    reference,
    stage_of,
)


def _deep() -> nn.Module:
    return nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 4, 3, 2, 1), nn.Conv3d(4, 2, 5, 1, 2))


def _sharded(ref: Reference, grid: tuple[int, ...], wire: threads.ThreadWire, overlap: bool = True):  # type: ignore[no-untyped-def]
    stage = stage_of(ref)
    stage.materialise(ref.tensors)
    how = analyse(stage, grid, entries(stage, grid))
    shard(stage, how, SampleGroup(grid, wire), overlap=overlap)
    place = coordinates(wire.rank, grid)
    return stage, how, {name: part(x, how.inputs[name], place) for name, x in ref.inputs.items()}


def _overlapped(stage: nn.Module) -> int:
    run = stage._run
    return sum(isinstance(value, Overlapped | Pooled) for value in vars(run).values())  # type: ignore[arg-type]


@pytest.mark.parametrize("grid", [(2,), (2, 2)], ids=str)
def test_convolutions_of_a_network_overlap(grid: tuple[int, ...]) -> None:
    ref = reference(_deep(), (2, 2, 32, 32, 8))
    ranks = 2 if grid == (2,) else 4
    assert threads.run(ranks, lambda wire: _overlapped(_sharded(ref, grid, wire)[0])) == [3] * ranks
    assert (
        threads.run(ranks, lambda wire: _overlapped(_sharded(ref, grid, wire, overlap=False)[0]))
        == [0] * ranks
    )


def test_an_average_pool_overlaps_where_every_window_counts_alike() -> None:
    for pool, expected in ((nn.AvgPool3d(3, 2, 1), 1), (nn.AvgPool3d(3, 2, 1, count_include_pad=False), 0)):
        ref = reference(pool, (2, 2, 32, 12, 8))
        found = threads.run(2, lambda wire, ref=ref: _overlapped(_sharded(ref, (2,), wire)[0]))  # type: ignore[misc]
        assert found == [expected] * 2


def test_with_and_without_overlap_are_the_same_but_for_rounding() -> None:
    ref = reference(_deep(), (2, 2, 32, 32, 8))

    def outputs(overlap: bool) -> Callable[[threads.ThreadWire], dict[str, Tensor]]:
        def work(wire: threads.ThreadWire) -> dict[str, Tensor]:
            stage, _, values = _sharded(ref, (2,), wire, overlap)
            return {name: x.detach() for name, x in stage(values).items()}

        return work

    for one, other in zip(threads.run(2, outputs(True)), threads.run(2, outputs(False)), strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-13)


def test_no_padded_copy_of_the_input_is_kept() -> None:
    """The input itself is, and rows of halo that are fewer than those of a copy."""
    ref = reference(nn.Conv2d(4, 4, 3, padding=1), (2, 4, 32, 16))

    def work(wire: threads.ThreadWire) -> tuple[bool, int]:
        stage, _, values = _sharded(ref, (2,), wire)
        values = {name: x.clone().requires_grad_() for name, x in values.items()}
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            stage(values)
        rows = [x.shape[2] for x in kept if x.dim() == 4 and x.shape[1] == 4 and x.shape[3] == 16]
        return 18 in rows, max(rows)

    assert threads.run(2, work) == [(False, 16)] * 2


@pytest.mark.parametrize("overlap", [True, False])
def test_channels_last_is_taken_as_it_comes(overlap: bool) -> None:
    ref = reference(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1)), (2, 4, 16, 12))

    def work(wire: threads.ThreadWire) -> float:
        stage, how, values = _sharded(ref, (2,), wire, overlap)
        made = stage({name: x.to(memory_format=torch.channels_last) for name, x in values.items()})
        (name,) = made
        place = coordinates(wire.rank, (2,))
        return float((made[name] - part(ref.outputs[name], how.outputs[name], place)).abs().max().detach())

    assert max(threads.run(2, work)) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("overlap", [True, False])
def test_autocast_does_what_it_does_in_one_process(overlap: bool, dtype: torch.dtype) -> None:
    """It makes halves of singles, and leaves doubles alone."""
    ref = reference(_deep(), (2, 2, 32, 32, 8), dtype=dtype)
    stage = stage_of(ref)
    stage.materialise(ref.tensors)
    with torch.autocast("cpu", torch.bfloat16):
        (expected,) = stage(ref.inputs).values()

    def work(wire: threads.ThreadWire) -> tuple[torch.dtype, float]:
        sharded, how, values = _sharded(ref, (2,), wire, overlap)
        with torch.autocast("cpu", torch.bfloat16):
            ((name, made),) = sharded(values).items()
        made.float().sum().backward()
        place = coordinates(wire.rank, (2,))
        return made.dtype, float((made - part(expected, how.outputs[name], place)).abs().max().detach())

    for made, apart in threads.run(2, work):
        assert made == expected.dtype == (torch.bfloat16 if dtype == torch.float32 else dtype)
        assert apart < (0.02 if dtype == torch.float32 else 1e-12) * float(expected.detach().abs().max())


def test_gradients_asked_for_one_by_one_are_exact() -> None:
    """As a backward in two halves does."""
    ref = reference(_deep(), (2, 2, 32, 32, 8))
    how = analyse(stage_of(ref), (2,), entries(stage_of(ref), (2,)))
    made = threads.run(2, lambda wire: on_shards(ref, (2,), how, wire))
    assert max(differences(ref, how, made, (2,)).values()) < 1e-12

    def inputs_only(wire: threads.ThreadWire) -> float:
        stage, how, values = _sharded(ref, (2,), wire)
        leaves = {name: x.clone().requires_grad_() for name, x in values.items()}
        place = coordinates(wire.rank, (2,))
        ((name, made),) = stage(leaves).items()
        gradient = part(ref.gradients[name], how.outputs[name], place)
        (leaf,) = leaves
        (found,) = torch.autograd.grad(made, [leaves[leaf]], gradient)
        return float((found - part(ref.input_gradients[leaf], how.inputs[leaf], place)).abs().max())

    assert max(threads.run(2, inputs_only)) < 1e-12
