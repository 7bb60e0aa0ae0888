"""Real networks on shards train as they do in one process, ours and those that others wrote."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import cosmoflow, resnet50, unet3d
from planner.capture import cut
from planner.capture.stage_modules import whole
from planner.errors import BadInput
from planner.spatial import NoRule, price
from runtime.spatial.analyse import analyse
from runtime.spatial.ranks import analyse_stages
from tests.draws import covering
from tests.runtime.spatial.training import Job, Trained, alone, alone_nearby, job, on_shards

GRIDS = ((2,), (4,), (2, 2))


def _volumes(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, 16, 16, 16), torch.randint(0, 2, (n, 1, 16, 16, 16))


def _segmentation(logits: Tensor, labels: Tensor) -> Tensor:
    """Soft Dice and cross entropy."""
    truth = F.one_hot(labels[:, 0], 2).movedim(-1, 1).to(logits.dtype)
    guess, dims = logits.softmax(1), (0, 2, 3, 4)
    dice = (2 * (guess * truth).sum(dims) + 1e-5) / (guess.sum(dims) + truth.sum(dims) + 1e-5)
    return 1 - dice.mean() + F.cross_entropy(logits, labels[:, 0])


def _monai(name: str) -> nn.Module:
    nets = pytest.importorskip("monai.networks.nets")
    if name == "UNet":
        return nets.UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=1)
    if name == "SegResNet":
        return nets.SegResNet(3, 8, 1, 2, blocks_down=(1, 1, 1), blocks_up=(1, 1))
    return nets.VNet(3, 1, 2, dropout_prob_down=0.0, dropout_prob_up=(0.0, 0.0))


def _resnet() -> Job:
    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 3, 64, 64), torch.arange(n) % 10

    return job(resnet50.build(width=8, classes=10), batch, F.cross_entropy)


MODELS: dict[str, Callable[[], Job]] = {
    "cosmoflow": lambda: job(
        cosmoflow.build("tiny", 0.0), lambda n: cosmoflow.batch(n, "tiny"), cosmoflow.loss
    ),
    "unet3d": lambda: job(unet3d.build("tiny"), lambda n: unet3d.batch(n, "tiny"), unet3d.loss),
    "resnet50": _resnet,
    "monai UNet": lambda: job(_monai("UNet"), _volumes, _segmentation),
    "monai SegResNet": lambda: job(_monai("SegResNet"), _volumes, _segmentation),
}


@cache
def _job(name: str) -> tuple[Job, Trained, float]:
    torch.manual_seed(0)
    given = MODELS[name]()
    expected = alone(given)
    return given, expected, _far(alone_nearby(given), expected)


def _far(got: Trained, expected: Trained) -> float:
    """Largest relative difference of losses, weights and running statistics."""
    pairs = [(torch.tensor(got.losses), torch.tensor(expected.losses))]
    pairs += [(x.double(), expected.tensors[name].double()) for name, x in got.tensors.items()]
    return max(float((a - b).abs().max() / max(1.0, float(b.abs().max()))) for a, b in pairs)


@pytest.mark.parametrize(("name", "grid"), covering(product(MODELS, GRIDS), kinds=lambda case: case), ids=str)
def test_five_steps_on_shards_equal_those_of_one_process(name: str, grid: tuple[int, ...]) -> None:
    given, expected, rounding = _job(name)
    assert rounding < 1e-4
    for mine in on_shards(given, grid):
        assert mine.losses[0] == pytest.approx(expected.losses[0], rel=1e-12)
        assert _far(mine, expected) < max(
            1e-12, 50 * rounding
        )  # a small ResNet amplifies rounding a millionfold


def test_a_network_that_pools_below_its_ranks_is_gathered_there() -> None:
    torch.manual_seed(0)
    given = job(_monai("VNet"), _volumes, _segmentation, steps=1)
    how = analyse(whole(given.captured), (4,))
    gathered = [done.operation.layer for done in how.segment.placed if done.gathers]
    assert gathered == ["down_tr128.down_conv"]  # 2 rows are left there


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        tokens = y.flatten(2).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(tokens, tokens, tokens)
        out: Tensor = self.last(mixed.transpose(1, 2).reshape(y.shape))
        return out


class _Written(nn.Module):
    """A write behind a layer, in code that has no parameters: it is counted to that layer, and is not in it."""

    def __init__(self, part: nn.Module | None) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        out: Tensor = self.last(self.part(y) if self.part is not None else _without_first_row(y))
        return out


class _Rowless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _without_first_row(x)


def _without_first_row(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :, 0] = 0.0
    return y


@pytest.mark.parametrize(("part", "what"), [(None, r"forward of the model .*"), (_Rowless(), r"part .*")])
def test_what_belongs_to_no_layer_is_named_with_the_module_that_it_is_written_in(
    part: nn.Module | None, what: str
) -> None:
    """When a stage is cut, and when a plan is made of a profile, which knows operations as text."""
    given = job(_Written(part), lambda n: (torch.randn(n, 1, 8, 8), torch.randn(n, 1, 8, 8)), F.mse_loss)
    for refused in (lambda: analyse(whole(given.captured), (2,)), lambda: price(given.captured.graph, (2,))):
        with pytest.raises(NoRule, match=rf"^{what}: aten\.fill_ on parts .*allowed: whole samples") as error:
            refused()
        assert error.value.layer == "first"
        assert "(counted to layer 'first')" in error.value.where


def test_samples_are_gathered_around_attention_over_space_and_the_price_knows_it() -> None:
    torch.manual_seed(0)
    given = job(_Attention(), lambda n: (torch.randn(n, 1, 8, 8), torch.randn(n, 1, 8, 8)), F.mse_loss)
    expected = alone(given)
    for mine in on_shards(given, (2,)):
        assert _far(mine, expected) < 1e-12
    found = price(given.captured.graph, (2,))
    assert found.gathered == {"first": "aten.scaled_dot_product_attention"} and found.around == {"first"}
    whole_bytes = 4 * 8 * 8 * 2 * 8  # of two samples in double precision
    sent = found.layers["first"].traffic, found.layers["last"].traffic
    assert sent[0].gather_bytes == whole_bytes // 2
    assert sent[1].back_resplit_bytes == whole_bytes // 2 and sent[1].resplit_bytes == 0
    assert found.layers["last"].on_shards


def test_samples_are_cut_again_in_the_next_stage_too() -> None:
    given = job(_Attention(), lambda n: (torch.randn(n, 1, 8, 8), torch.randn(n, 1, 8, 8)), F.mse_loss)
    later = analyse_stages(cut(given.captured, [1]), [(2,), (2,)], 2)[1].segment.placed[0]
    assert later.operation.operation == "aten.conv2d" and later.step is not None and later.resplits


def test_a_size_that_values_tell_is_refused_when_a_stage_is_cut() -> None:
    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 3, 8, 8), torch.randint(0, 4, (n, 8, 8))

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.movedim(1, -1)[labels != 2], labels[labels != 2])

    given = job(nn.Conv2d(3, 4, 3, padding=1), batch, loss)
    with pytest.raises(BadInput, match=r"^loss\(\): how much aten\.index gives depends .* ignore_index"):
        analyse(whole(given.captured), (2,))
