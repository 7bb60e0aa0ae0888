from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.capture import Captured, LiveBytes, capture, materialise, storage_of
from planner.capture.stage_modules import whole
from planner.cluster import catalogue as devices
from planner.measure.bench import Bench
from planner.measure.footprint import Reserves, SavedTensors, footprint
from planner.measure.measure import with_slack
from planner.measure.rows import Counter, counted_rows
from planner.measure.specimens import Way, fake_specimen, in_precision, real_specimen, situations
from planner.profile import OptimizerCost, Profile, Seconds, check
from planner.workload import load
from tests.planner.graphs import saved_bytes
from tests.planner.library_models import LIBRARY

MODELS = {
    "gpt2": {"size": "tiny"},
    "bert": {"size": "tiny"},
    "resnet50": {"width": "8", "side": "64"},
    "unet3d": {"size": "tiny"},
    "lstm": {"size": "tiny"},
}
FOREIGN = ["ViT", "UNet", "T5"]
DEVICE = devices.find("H100-80GB")


def counted(bench: Bench, micro: int) -> Profile:
    rows = list(counted_rows(replace(bench, micros=(micro,)), DEVICE))
    found = Profile(
        workload="test",
        arguments={},
        graph=bench.captured.graph,
        device=DEVICE.name,
        source="roofline",
        costs={row.key: row.cost for row in rows},
        optimizer=OptimizerCost(
            name="sgd", state_bytes_per_parameter=0, seconds_per_parameter=Seconds(median=0)
        ),
        versions={},
    )
    return check(with_slack(found, rows))


def bench_of(
    captured: Captured, batch: Callable[[int], tuple[object, object]], precision: str = "fp32"
) -> Bench:
    return Bench(
        batch_of=batch, captured=captured, micros=(1,), execution="eager", way=Way(precision=precision)
    )


@cache
def bench_of_model(name: str, precision: str = "fp32") -> Bench:
    workload = load(name, MODELS[name])
    captured = capture(workload)
    return bench_of(captured, workload.batch, precision)


def bench_of_foreign(name: str) -> Bench:
    module, batch, loss = LIBRARY[name]()
    captured = capture(module, batch, loss)
    return bench_of(captured, batch)


def kept_by_the_whole(captured: Captured, batch: dict[str, Tensor], precision: str) -> int:
    """What autograd holds after one forward of the model in one piece, by its own account."""
    graph = captured.graph
    with FakeTensorMode(), Reserves():
        tensors = {
            row.name: torch.empty(row.shape, dtype=getattr(torch, row.dtype))
            for row in (*graph.parameters, *graph.buffers)
        }
        module = materialise(whole(captured), tensors)
        values = {name: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for name, x in batch.items()}
        saved = SavedTensors()
        with saved.watching(), in_precision(precision, "cpu"):
            module(values)
        known = {storage_of(x) for x in (*module.parameters(), *module.buffers())}
        return sum(x.untyped_storage().nbytes() for key, x in saved.kept.items() if key not in known)


def assert_sums_agree(bench: Bench, micro: int, tolerance: float) -> None:
    found = counted(bench, micro)
    (setting,) = found.settings
    layers = [layer.name for layer in found.graph.layers]
    kept = kept_by_the_whole(bench.captured, dict(bench.batch(micro)), bench.way.precision)
    assert kept > 0
    assert saved_bytes(found, layers, setting) == pytest.approx(kept, rel=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_saved_bytes_of_the_layers_are_what_the_whole_model_keeps(name: str) -> None:
    assert_sums_agree(bench_of_model(name), micro=3, tolerance=0.001)


@pytest.mark.parametrize("name", FOREIGN)
def test_and_of_models_that_nobody_here_wrote(name: str) -> None:
    assert_sums_agree(bench_of_foreign(name), micro=2, tolerance=0.01)


def test_and_in_bf16_where_values_are_smaller() -> None:
    assert_sums_agree(bench_of_model("gpt2", "bf16"), micro=2, tolerance=0.001)


def test_counted_blindly_the_layers_of_a_resnet_keep_far_more() -> None:
    """So the test above can fail: without the sets of Values it would."""
    bench = bench_of_model("resnet50")
    found = counted(bench, 2)
    (setting,) = found.settings
    layers = [layer.name for layer in found.graph.layers]
    apart = sum(saved_bytes(found, [name], setting) for name in layers)
    assert apart > 1.2 * saved_bytes(found, layers, setting)


def test_fake_tensors_tell_the_same_as_real_ones() -> None:
    bench = bench_of_model("resnet50")
    batch = bench.batch(2)
    for situation in situations(bench.captured, batch, bench.way):
        real = footprint(real_specimen(bench.captured, situation, batch, bench.way))
        with FakeTensorMode():
            fake = footprint(fake_specimen(bench.captured, situation, bench.way))
        assert fake == real, situation.layer.name


def test_a_forward_takes_less_for_itself_than_a_backward() -> None:
    """Forwards a layer makes its output beside what it keeps; on its way back it has a gradient of each."""

    def batch(n: int) -> tuple[object, object]:
        return torch.randn(n, 16), torch.randn(n, 16)

    captured = capture(nn.Sequential(nn.Linear(16, 16), nn.GELU()), batch, nn.functional.mse_loss)
    found = counted(bench_of(captured, batch), 4)
    line, loss = (found.cost(layer.name, found.settings[0]) for layer in found.graph.layers)
    one = 4 * 16 * 4
    assert (line.own_saved_bytes, line.forward_workspace_bytes, loss.forward_workspace_bytes) == (one, one, 4)
    assert line.workspace_bytes >= 2 * one and loss.workspace_bytes > 4


class Sliced(nn.Module):
    """The second linear layer keeps one row in eight of what the norm makes, and with it the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        first: Tensor = self.norm(x)[:, 0]
        return self.head(first)


def test_a_slice_keeps_all_that_it_is_a_slice_of() -> None:
    def batch(n: int) -> tuple[object, object]:
        return torch.randn(n, 8, 16), torch.randn(n, 4)

    captured = capture(Sliced(), batch, nn.functional.mse_loss)
    bench = bench_of(captured, batch)
    assert_sums_agree(bench, micro=2, tolerance=0)


def test_live_bytes_follow_storages_and_not_tensors() -> None:
    with LiveBytes() as live:
        x = torch.empty(100)
        view = x[:50]
        assert live.now == 400
        del x
        assert live.now == 400, "the view holds it"
        del view
        assert (live.now, live.peak) == (0, 400)


def work_of(action: Callable[[], object]) -> tuple[int, int]:
    with FakeTensorMode(), Counter() as counter:
        action()
    return sum(x.flops for x in counter.work), sum(x.traffic_bytes for x in counter.work)


def test_a_matrix_product_is_counted() -> None:
    assert work_of(lambda: torch.empty(8, 16) @ torch.empty(16, 4)) == (2 * 8 * 16 * 4, 4 * (128 + 64 + 32))


def test_a_view_costs_nothing() -> None:
    assert work_of(lambda: torch.empty(8, 16).t()[:3].unsqueeze(0)) == (0, 0)


def test_a_lookup_reads_the_rows_it_is_asked_for() -> None:
    def look_up() -> object:
        return nn.functional.embedding(torch.empty(3, dtype=torch.int64), torch.empty(10**6, 4))

    assert work_of(look_up) == (0, 3 * 8 + 2 * 3 * 16)


def test_a_lookup_with_sparse_gradients_and_padding_costs_at_most_all_of_its_rows() -> None:
    def look_up() -> object:
        table = torch.empty(100, 4, requires_grad=True)
        with Reserves():
            ids = torch.empty(3, dtype=torch.int64)
            nn.functional.embedding(ids, table, padding_idx=0, sparse=True).sum().backward()
        return table.grad

    _, traffic = work_of(look_up)
    assert 0 < traffic < 100 * 16


def test_attention_on_fake_tensors_counts_both_of_its_products() -> None:
    def attend() -> object:
        q, k, v = (torch.empty(2, 4, 16, 8) for _ in range(3))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    flops, _ = work_of(attend)
    assert flops == 2 * (2 * 2 * 4 * 16 * 16 * 8)


def test_a_larger_micro_batch_asks_for_more_of_everything() -> None:
    bench = bench_of_model("unet3d")
    small, large = counted(bench, 1), counted(bench, 4)
    for layer in small.graph.layers:
        a, b = (x.cost(layer.name, x.settings[0]) for x in (small, large))
        assert a.forward.median <= b.forward.median
        assert a.own_saved_bytes <= b.own_saved_bytes
        assert a.workspace_bytes <= b.workspace_bytes
    assert replace(small, costs={}) == replace(large, costs={})
