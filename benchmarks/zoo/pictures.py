"""Models of pictures, untrained: timm's, one or more of each of its families, and all of torchvision's."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.zoo.parts import Case, Make

CLASSES, SIDE = 5, 64

TIMM = [
    "test_byobnet",
    "test_convnext",
    "test_convnext2",
    "test_convnext3",
    "test_efficientnet",
    "test_efficientnet_gn",
    "test_efficientnet_ln",
    "test_mambaout",
    "test_nfnet",
    "test_resnet",
    "test_vit",
    "test_vit2",
    "test_vit3",
    "test_vit4",
    "coat_lite_tiny",
    "convnext_atto",
    "convnextv2_atto",
    "convit_tiny:img",
    "cs3darknet_s",
    "dla46_c",
    "edgenext_xx_small:path",
    "efficientformerv2_s0:img",
    "efficientnet_b0:path",
    "efficientvim_m1",
    "efficientvit_b0",
    "efficientvit_m0:img",
    "fasternet_t0:path",
    "fastvit_t8:path",
    "fbnetc_100",
    "focalnet_tiny_srf:path",
    "ghostnet_050",
    "gmlp_ti16_224:img",
    "hardcorenas_a",
    "hgnetv2_b0",
    "hrnet_w18_small",
    "inception_next_atto:path",
    "lcnet_035",
    "mambaout_femto:path",
    "mixer_s32_224:img",
    "mnasnet_small",
    "mobilenetv2_035:path",
    "mobilenetv3_small_050:path",
    "mobilenetv4_conv_small_035",
    "mobileone_s0",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "nf_regnet_b0",
    "pit_ti_224:img",
    "poolformerv2_s12:path",
    "pvt_v2_b0:path",
    "regnetx_002:path",
    "repghostnet_050",
    "repvgg_a0",
    "repvit_m0_9",
    "resnest14d",
    "resnet10t:path",
    "resnet18:path",
    "resnetv2_18:path",
    "rexnet_100",
    "selecsls42",
    "shvit_s1",
    "skresnet18",
    "starnet_s050:path",
    "swiftformer_xs",
    "tinynet_e",
    "tf_mixnet_s",
    "tiny_vit_5m_224:img",
    "twins_svt_small:path",
    "deit_tiny_patch16_224:img,path",
    "vit_tiny_patch16_224:img,path",
    "eva02_tiny_patch14_224:img",
    "xcit_nano_12_p16_224:img,path",
    "ese_vovnet19b_slim_dw:path",
    "densenet121",
    "inception_v3",
    "gernet_s",
]
SETTINGS: dict[str, dict[str, object]] = {"img": {"img_size": SIDE}, "path": {"drop_path_rate": 0.1}}
LARGER = {"inception_v3": 96, "eva02_tiny_patch14_224": 56}
SIDES = {"vit_h_14": 56, "inception_v3": 96, "alexnet": 96, "maxvit_t": 224}  # a window of 7 in a 32nd
VISION: dict[str, dict[str, object]] = {
    "vit_h_14": {"image_size": 56},
    **{key: {"image_size": SIDE} for key in ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32")},
    **{key: {"init_weights": False} for key in ("googlenet", "inception_v3")},
}


def timm() -> dict[str, Make]:
    """Returns models of timm; some with a stochastic depth."""
    return {line.partition(":")[0]: partial(_timm, line) for line in TIMM}


def _timm(line: str) -> Case:
    import timm

    name, _, words = line.partition(":")
    given = {key: value for word in words.split(",") if word for key, value in SETTINGS[word].items()}
    side = LARGER.get(name, SIDE)
    if "img_size" in given:
        given["img_size"] = side
    return timm.create_model(name, num_classes=CLASSES, **given), partial(labelled, side=side), classes


def torchvision() -> dict[str, Make]:
    """Returns every classifier and every segmentation of torchvision."""
    from torchvision import models

    kinds = dict.fromkeys(models.list_models(module=models), _classifier)
    kinds |= dict.fromkeys(models.list_models(module=models.segmentation), _segmentation)
    return {name: partial(kind, name) for name, kind in kinds.items()}


def _classifier(name: str) -> Case:
    from torchvision import models

    side = SIDES.get(name, SIDE)
    module = models.get_model(name, weights=None, num_classes=CLASSES, **VISION.get(name, {}))
    return module, partial(labelled, side=side), classes


def _segmentation(name: str) -> Case:
    from torchvision import models

    module = models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES)
    return module, partial(masked, side=SIDE), every_pixel


def labelled(n: int, side: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, side, side), torch.randint(0, CLASSES, (n,))


def masked(n: int, side: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, side, side), torch.randint(0, CLASSES, (n, side, side))


def classes(outputs: object, targets: Tensor) -> Tensor:
    """Returns the cross-entropy; heads beside the main one, which a model has in training, count by 0.3."""
    heads = list(outputs) if isinstance(outputs, tuple) else [outputs]
    return sum_of([F.cross_entropy(x, targets) for x in heads if isinstance(x, Tensor)], 0.3)


def every_pixel(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return sum_of([F.cross_entropy(x, targets) for x in outputs.values()], 0.5)


def sum_of(losses: list[Tensor], weight: float) -> Tensor:
    total = losses[0]
    for loss in losses[1:]:
        total = total + weight * loss
    return total
