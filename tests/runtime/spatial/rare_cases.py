"""Settings that few networks use and most libraries forget; exact on shards, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Function = Callable[..., object]
Register = Callable[..., None]


def register(case: Register, function: Register) -> None:
    """`case` takes what makes a module, `function` what works on the inputs."""
    for name, build in {**CONVOLUTIONS, **POOLS, **NORMS}.items():
        case(f"rare {name}", build)
    for name, body in {**RESIZES, **ROWS, **REDUCTIONS}.items():
        function(f"rare {name}", body)
    for name, body in LOSSES.items():
        function(f"rare {name}", body, channels=(4, 4))
    for name, (body, around) in WITHOUT_RULE.items():
        function(f"rare {name}", _then_pooled(body), around=around)
    function("rare written into", _then_pooled(_assigned), refused="fill_")
    case("rare conv3d of three kernels", lambda: nn.Conv3d(4, 4, (1, 3, 5), (2, 1, 1), (0, 1, 2)), dims=3)
    function("rare adaptive avg 3d", lambda x: F.adaptive_avg_pool3d(x, (5, 1, 4)), dims=3)
    function(
        "rare trilinear", lambda x: F.interpolate(x, scale_factor=(1.5, 2, 0.7), mode="trilinear"), dims=3
    )
    function("rare area", lambda x: F.interpolate(x, size=(7, 5, 3), mode="area"), dims=3)


def _then_pooled(body: Function) -> Function:
    """Something behind it slides over space, so that the segment may not end there."""
    return lambda *x: F.max_pool2d(body(*x), 2, 1)  # type: ignore[call-overload]


class _Padded(nn.Module):
    def __init__(self, padding: nn.Module, conv: nn.Module) -> None:
        super().__init__()
        self.padding, self.conv = padding, conv

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(self.padding(x))
        return y


class _Sized(nn.Module):
    """The size of the output is asked for, and settles the padding of it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 4, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(x, output_size=[2 * x.shape[2], 2 * x.shape[3]])
        return y


CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "conv odd kernel, even dilation": lambda: nn.Conv2d(4, 4, 3, dilation=4, padding=3),
    "conv dilated and strided": lambda: nn.Conv2d(4, 4, 3, dilation=2, stride=3, padding=1),
    "conv strided beyond its kernel": lambda: nn.Conv2d(4, 4, 1, stride=3),
    "conv kernel 3 stride 4": lambda: nn.Conv2d(4, 4, 3, stride=4, padding=1),
    "conv padded beyond its kernel": lambda: nn.Conv2d(4, 4, 1, padding=2),
    "conv padded by its kernel": lambda: nn.Conv2d(4, 4, 3, padding=3, stride=2),
    "conv of uneven zeros": lambda: _Padded(nn.ZeroPad2d((1, 2, 0, 3)), nn.Conv2d(4, 4, 3)),
    "conv of an uneven constant": lambda: _Padded(
        nn.ConstantPad2d((1, 2, 0, 3), 1.5), nn.Conv2d(4, 4, (4, 3), 2)
    ),
    "conv even, same, dilated": lambda: nn.Conv2d(4, 4, 4, padding="same", dilation=3),
    "conv same of two kernels": lambda: nn.Conv2d(4, 4, (2, 5), padding="same", dilation=(1, 2)),
    "conv same even replicated": lambda: nn.Conv2d(4, 4, 4, padding="same", padding_mode="replicate"),
    "conv same even circular": lambda: nn.Conv2d(4, 4, 4, padding="same", padding_mode="circular"),
    "conv of one channel each, twice": lambda: nn.Conv2d(4, 8, 5, 2, 2, groups=4),
    "transposed of two strides": lambda: nn.ConvTranspose2d(4, 4, (3, 4), (2, 3), (1, 0), (1, 2)),
    "transposed kernel 1 stride 3": lambda: nn.ConvTranspose2d(4, 4, 1, 3, 0, 2),
    "transposed dilated": lambda: nn.ConvTranspose2d(4, 4, 3, 1, 2, dilation=2),
    "transposed with gaps": lambda: nn.ConvTranspose2d(4, 4, 2, 3, 1, 2),
    "transposed of one channel each": lambda: nn.ConvTranspose2d(4, 4, 4, 2, 1, groups=4),
    "transposed kernel 11": lambda: nn.ConvTranspose2d(4, 4, 11, 1, 5),
    "transposed to a size": _Sized,
}
POOLS: dict[str, Callable[[], nn.Module]] = {
    "maxpool of a corner": lambda: nn.MaxPool2d(2, 3, 0, ceil_mode=True),
    "maxpool of a padded corner": lambda: nn.MaxPool2d(4, 3, 2, ceil_mode=True),
    "maxpool dilated, of a corner": lambda: nn.MaxPool2d(3, 2, 1, dilation=3, ceil_mode=True),
    "avgpool of a corner": lambda: nn.AvgPool2d(2, 3, 0, ceil_mode=True),
    "avgpool of a counted corner": lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=True),
    "avgpool of an uncounted corner": lambda: nn.AvgPool2d(4, 3, 2, True, False),
    "avgpool of a corner by a divisor": lambda: nn.AvgPool2d(3, 2, 1, True, divisor_override=4),
    "avgpool of two kernels": lambda: nn.AvgPool2d((3, 2), (1, 2), (1, 0), True, False),
    "lppool": lambda: nn.LPPool2d(3, 3, stride=2),
}
NORMS: dict[str, Callable[[], nn.Module]] = {
    "groupnorm of one channel each": lambda: nn.GroupNorm(4, 4, affine=False),
    "batchnorm of all batches alike": lambda: nn.BatchNorm2d(4, momentum=None),
    "instancenorm with running statistics": lambda: nn.InstanceNorm2d(4, track_running_stats=True),
}


def _pyramid(x: Tensor) -> Tensor:
    levels = [F.adaptive_avg_pool2d(x, size) for size in (1, 2, 3, 6)]
    grown = [F.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=True) for y in levels]
    return torch.cat([x, *grown], 1)


def _resized(mode: str, **settings: object) -> Function:
    return lambda x: F.interpolate(x, mode=mode, **settings)


RESIZES: dict[str, Function] = {
    **{
        f"{mode} by {factor}": _resized(mode, scale_factor=factor)
        for mode in ("nearest", "bilinear", "bicubic", "area")
        for factor in (2.3, 0.37, (0.5, 1.7))
    },
    "bilinear by a factor made good": _resized("bilinear", scale_factor=2.3, recompute_scale_factor=True),
    "bilinear to corners by a factor": _resized("bilinear", scale_factor=1.3, align_corners=True),
    "bilinear to one row": _resized("bilinear", size=(1, 24), align_corners=True),
    **{f"adaptive avg {size}": lambda x, s=size: F.adaptive_avg_pool2d(x, s) for size in ((5, 7), (20, 3))},
    **{f"adaptive max {size}": lambda x, s=size: F.adaptive_max_pool2d(x, s) for size in ((5, 7), (4, None))},
    "places of an adaptive max": lambda x: F.adaptive_max_pool2d(x, 4, return_indices=True)[1] * x.mean(),
    "pyramid": _pyramid,
}


def _matrix_a_row(x: Tensor) -> Tensor:
    """All of the matrices are held by every rank, whose rows want some of them."""
    count, size = x.shape[2:]
    factors = torch.arange(count * size * size, dtype=x.dtype).view(count, size, size).sin()
    return (x.transpose(1, 2) @ (factors * x.mean())).transpose(1, 2)


ROWS: dict[str, Function] = {
    "multiplied by a matrix a row": _matrix_a_row,
    "concat of what is cut less": lambda x: torch.cat([x.mean(3, keepdim=True).expand_as(x), x], 1),
    "concat rows of what is cut less": lambda x: torch.cat([x.mean(2, keepdim=True).expand_as(x), x], 2),
    "stack of what is cut less": lambda x: torch.stack([x.mean(3, keepdim=True).expand_as(x), x], 1).sum(2),
    "expanded as the sample": lambda x: x * x.mean(2, keepdim=True).expand_as(x),
    "expanded by numbers": lambda x: x * x.mean(2, keepdim=True).expand(-1, -1, x.shape[2], -1),
    "a row expanded": lambda x: F.max_pool2d(x[:, :, 3:4].expand_as(x), 3, 1, 1) + x,
    "rows and columns multiplied": lambda x: x.mean(3)[..., None] * x.mean(2)[..., None, :],
    "transposed, pooled, and back": lambda x: F.avg_pool2d(x.transpose(2, 3), 3, 1, 1).transpose(2, 3),
    "rolled past its end": lambda x: x.roll(40, 2),
    "padded by half of itself": lambda x: F.pad(x, (4, 5, 6, 7), mode="circular"),
    "cropped in the middle": lambda x: torch.cat([x[:, :, 3:-3, 2:-2], F.avg_pool2d(x, (7, 5), 1)], 1),
    "cropped and padded": lambda x: F.pad(x, (0, 0, -2, 3)),
    "every fifth row": lambda x: x[:, :, 3:100:5],
    "shifted against itself": lambda x: x[:, :, 2:] * x[:, :, :-2] + x[:, :, 1:-1],
    "mirrored at its end": lambda x: torch.cat([x, x.flip(2)], 2),
    "four corners of blocks": lambda x: torch.cat(
        [x[:, :, i:12:2, j:8:2] for i in (0, 1) for j in (0, 1)], 1
    ),
    "positions": lambda x: x + torch.arange(x.shape[2], dtype=x.dtype).view(-1, 1),
    "positions of the sample's type": lambda x: (
        x + torch.arange(x.shape[2]).type_as(x).view(-1, 1) / torch.arange(x.shape[2]).type_as(x).sum()
    ),
    "ends in sorted rows": lambda x: x.sort(2)[0],
    "ends in rows picked by number": lambda x: x.index_select(2, torch.tensor([5, 0, 3, 7, 2, 1])),
    "ends in a cumulative sum": lambda x: x.cumsum(2),
    "ends in a softmax over space": lambda x: x.flatten(2).softmax(-1).view_as(x),
    "ends in the place of the largest": lambda x: x.argmax(2, keepdim=True) * x,
}
REDUCTIONS: dict[str, Function] = {
    "normalised over rows": lambda x: F.normalize(x, dim=2),
    "between least and largest": lambda x: (
        (x - x.amin((2, 3), keepdim=True)) / (x.amax((2, 3), keepdim=True) + 4)
    ),
    "mean of a mask": lambda x: (x.abs() * (x > 0)).sum() / (x > 0).sum(),
    "mean of the rows behind": lambda x: x.square()[:, :, 3:].mean(),
    "largest over everything": lambda x: x / x.abs().amax(),
    "weight of row means": lambda x: F.conv2d(x, x.mean((2, 3)).mean(0).view(4, 1, 1, 1), groups=4),
}


def _labels(x: Tensor) -> Tensor:
    return x.detach().argmax(1)


def _weights(x: Tensor) -> Tensor:
    return x.new_tensor([0.1, 1, 2, 3])


def _half_ignored(x: Tensor, y: Tensor) -> Tensor:
    """Some ranks count nothing at all."""
    known = torch.arange(x.shape[2]).view(-1, 1) < 6
    return F.cross_entropy(x, torch.where(known, _labels(y), -100))


def _focal(x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(x, _labels(y), reduction="none")
    return ((1 - torch.exp(-loss)) ** 2 * loss).mean()


LOSSES: dict[str, Function] = {
    "cross entropy smoothed, weighted, ignoring": lambda x, y: F.cross_entropy(
        x, _labels(y), weight=_weights(x), label_smoothing=0.2, ignore_index=1
    ),
    "cross entropy smoothed, no sum": lambda x, y: F.cross_entropy(
        x, _labels(y), label_smoothing=0.2, reduction="none"
    ),
    "cross entropy of probabilities, weighted": lambda x, y: F.cross_entropy(
        x, y.softmax(1), weight=_weights(x)
    ),
    "cross entropy of probabilities, no sum": lambda x, y: F.cross_entropy(x, y.softmax(1), reduction="none"),
    "cross entropy of a part": _half_ignored,
    "nll weighted, sum": lambda x, y: F.nll_loss(
        x.log_softmax(1), _labels(y), weight=_weights(x), reduction="sum"
    ),
    "bce of a weight a channel": lambda x, y: F.binary_cross_entropy_with_logits(
        x, y.sigmoid(), pos_weight=x.new_tensor([1.0, 2, 3, 4]).view(4, 1, 1)
    ),
    "mse against a row": lambda x, y: F.mse_loss(x, y.mean(2, keepdim=True)),
    "l1 of columns against rows": lambda x, y: F.l1_loss(x.mean(3, keepdim=True), y.mean(2, keepdim=True)),
    "focal": _focal,
    "kl of logarithms": lambda x, y: F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True),
    "largest of two": lambda x, y: torch.minimum(x, y.amax(2, keepdim=True)),
    "modulated": lambda x, y: x * y.mean((2, 3), keepdim=True) + y.amax((2, 3), keepdim=True),
}


def _assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :, 2:4] = 0.5
    return y * 2


WITHOUT_RULE: dict[str, tuple[Function, str]] = {
    "rows picked by number": (lambda x: x.index_select(2, torch.tensor([5, 0, 3, 7])), "aten.index"),
    "sorted rows": (lambda x: x.sort(2)[0], "aten.sort"),
    "largest rows": (lambda x: x.topk(4, 2)[0], "aten.topk"),
    "median over rows": (lambda x: x.median(2, keepdim=True)[0] * x, "aten.median"),
    "place of the largest": (lambda x: x.argmax(2, keepdim=True) * x, "aten.argmax"),
    "product of rows": (lambda x: x * x.prod(2, keepdim=True), "aten.prod"),
    "norm of the largest": (
        lambda x: x / x.norm(float("inf"), dim=2, keepdim=True),
        "aten.linalg_vector_norm",
    ),
    "turned": (lambda x: x.rot90(1, (2, 3)), "aten.rot90"),
    "rows times columns": (lambda x: x @ x.transpose(2, 3), "aten.matmul"),
    "its own kernel": (lambda x: F.conv2d(x, x[:, :, :4, :4], padding=2), "aten.conv2d"),
    "unfolded": (lambda x: x.unfold(2, 3, 1).mean(-1), "aten.unfold"),
    "multiplied with itself turned": (
        lambda x: x[:, :, :8, :8].transpose(2, 3) * x[:, :, :8, :8],
        "aten.mul",
    ),
    "nearest exact row at a half": (
        lambda x: F.interpolate(x[:, :, :12, :8], scale_factor=3.7, mode="nearest-exact"),
        "aten._upsample_nearest_exact2d",
    ),
    "nearest row at a half": (
        lambda x: F.interpolate(x[:, :, :12, :8], scale_factor=2.05),
        "aten.upsample_nearest2d",
    ),
}
