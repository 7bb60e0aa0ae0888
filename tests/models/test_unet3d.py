from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from models import unet3d


def test_the_unet_of_mlperf_has_31_190_243_parameters(count: Callable[..., int]) -> None:
    assert count(unet3d.build, size="mlperf") == 31_190_243


def test_the_deepest_map_of_mlperf_has_4_voxels_an_edge() -> None:
    with torch.device("meta"):
        model = unet3d.build(size="mlperf")
        x = model.get_submodule("input")(unet3d.batch(1, size="mlperf")[0])
        for down in model.get_submodule("down").children():
            x = down(x)
    assert x.shape == (1, 320, 4, 4, 4)


def test_a_sure_and_right_answer_has_no_loss() -> None:
    _, labels = unet3d.batch(2, size="tiny")
    logits = 100 * F.one_hot(labels, unet3d.CLASSES).movedim(-1, 1).float()
    assert unet3d.loss(logits, labels).item() == pytest.approx(0, abs=1e-6)


def test_a_sure_and_wrong_answer_has_no_overlap() -> None:
    _, labels = unet3d.batch(2, size="tiny")
    wrong = F.one_hot((labels + 1) % unet3d.CLASSES, unet3d.CLASSES).movedim(-1, 1).float()
    assert unet3d.loss(10 * wrong, labels).item() == pytest.approx((10 + 1) / 2, abs=1e-3)


def test_volumes_of_any_edge_that_divides_keep_their_edge() -> None:
    model = unet3d.build(size="tiny")
    volume, labels = unet3d.batch(1, size="tiny", side=12)
    assert model(volume).shape == (1, unet3d.CLASSES, *labels.shape[1:])


def test_an_edge_that_does_not_divide_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="side=10: size 'tiny' takes 8, 12, 16 and so on"):
        unet3d.batch(1, size="tiny", side=10)
