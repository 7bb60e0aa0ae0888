"""Operations that real networks use, each as a module and the shapes it takes; exact on shards, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.runtime.spatial import rare_cases

Sizes = Sequence[int]  # of the spatial dimensions
Build = Callable[[], nn.Module]


class Apply(nn.Module):
    def __init__(self, function: Callable[..., object], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*self.parts, *inputs)


@dataclass(frozen=True)
class Case:
    name: str
    build: Build
    channels: tuple[int, ...]  # of each input
    dims: int  # spatial
    refused: str = ""  # the operation that the error names; "" where it must be exact
    around: str = ""  # how the name begins of the operation without a rule, which tensors are gathered for

    def shapes(self, sizes: Sizes) -> list[tuple[int, ...]]:
        return [(2, channels, *sizes[: self.dims]) for channels in self.channels]


CASES: dict[str, Case] = {}


def case(
    name: str,
    build: Build | Callable[..., object],
    *,
    dims: int = 2,
    channels: tuple[int, ...] = (4,),
    refused: str = "",
    around: str = "",
) -> None:
    """`build` makes a module, or is a function of the inputs."""
    assert name not in CASES, name
    CASES[name] = Case(name, build, channels, dims, refused, around)  # type: ignore[arg-type]


def function(name: str, body: Callable[..., object], **settings: object) -> None:
    case(name, lambda: Apply(body), **settings)  # type: ignore[arg-type]


CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def _conv(dims: int, **settings: object) -> Build:
    return lambda: CONV[dims](4, 4, **settings)  # type: ignore[arg-type]


def _transposed(dims: int, **settings: object) -> Build:
    return lambda: TRANSPOSED[dims](4, 4, **settings)  # type: ignore[arg-type]


def _convolutions() -> None:
    table: list[dict[str, object]] = [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "padding": 1, "bias": False},
        {"kernel_size": 5, "padding": 2},
        {"kernel_size": 1},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 7, "stride": 2, "padding": 3},
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": 4, "stride": 2, "padding": 1},
        {"kernel_size": 4, "stride": 4},
        {"kernel_size": 3, "stride": 3, "padding": 1},
        {"kernel_size": 2, "stride": 3},
        {"kernel_size": 3},
        {"kernel_size": 3, "padding": 2},
        {"kernel_size": 3, "dilation": 2, "padding": 2},
        {"kernel_size": 3, "dilation": 3, "padding": 1, "stride": 2},
        {"kernel_size": 3, "padding": 1, "groups": 4},
        {"kernel_size": 3, "padding": 1, "groups": 2},
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": 4, "padding": "same"},
        {"kernel_size": 2, "padding": "same", "dilation": 3},
        {"kernel_size": 3, "padding": "valid"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        {"kernel_size": 5, "padding": 2, "padding_mode": "circular", "stride": 2},
        {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
        {"kernel_size": 5, "padding": 2, "padding_mode": "reflect"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "replicate"},
        {"kernel_size": 5, "padding": "same", "padding_mode": "replicate"},
    ]
    for dims in (1, 2, 3):
        for settings in table:
            if dims != 2 and settings.get("padding_mode") == "replicate" and settings["kernel_size"] == 5:
                continue
            label = " ".join(f"{key[:3]}={value}" for key, value in settings.items())
            case(f"conv{dims}d {label}", _conv(dims, **settings), dims=dims)
    case("conv2d kernel 17 of 8 rows each", _conv(2, kernel_size=17, padding=8))
    case("conv2d kernel 19", _conv(2, kernel_size=(19, 3), padding=(9, 1)))
    case("conv2d uneven kernel", lambda: nn.Conv2d(4, 4, (3, 5), (2, 1), (0, 2), (1, 2)))


def _transposes() -> None:
    table: list[dict[str, object]] = [
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
        {"kernel_size": 3, "stride": 1, "padding": 1},
        {"kernel_size": 4, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 5, "stride": 3, "padding": 1, "output_padding": 2, "dilation": 2},
        {"kernel_size": 2, "stride": 3, "bias": False},
        {"kernel_size": 3, "stride": 2, "padding": 1, "groups": 2},
    ]
    for dims in (1, 2, 3):
        for settings in table:
            label = " ".join(f"{key[:3]}={value}" for key, value in settings.items())
            case(f"transposed{dims}d {label}", _transposed(dims, **settings), dims=dims)


def _pools() -> None:
    table: list[dict[str, object]] = [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 1, "padding": 1},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 2, "stride": 3},
    ]
    pools = {
        "max": {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d},
        "avg": {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d},
    }
    for dims in (1, 2, 3):
        for kind, classes in pools.items():
            for settings in table:
                label = " ".join(f"{key[:3]}={value}" for key, value in settings.items())
                case(f"{kind}pool{dims}d {label}", lambda c=classes[dims], s=settings: c(**s), dims=dims)
    case("maxpool2d dilated", lambda: nn.MaxPool2d(3, 2, 1, dilation=2))
    case("avgpool2d without padding counted", lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False))
    case("avgpool3d without padding counted", lambda: nn.AvgPool3d(3, 2, 1, True, False), dims=3)
    case("avgpool2d divisor", lambda: nn.AvgPool2d(3, 2, 1, divisor_override=5))
    function("lppool2d", lambda x: F.lp_pool2d(x.abs() + 0.5, 2, 2))
    function(
        "maxpool2d with indices",
        lambda x: F.avg_pool2d(F.max_pool2d(x, 2, return_indices=True)[0], 2),
        around="aten.max_pool2d_with_indices",
    )
    for size in (1, 4, 5, (4, 1), (4, 6)):
        function(f"adaptive avg {size}", lambda x, s=size: F.adaptive_avg_pool2d(x, s))
        function(f"adaptive max {size}", lambda x, s=size: F.adaptive_max_pool2d(x, s))
    function("adaptive avg 3d", lambda x: F.adaptive_avg_pool3d(x, (4, 3, 2)), dims=3)
    function("adaptive max 3d to one", lambda x: F.adaptive_max_pool3d(x, 1), dims=3)
    function("adaptive avg 1d", lambda x: F.adaptive_avg_pool1d(x, 6), dims=1)
    function("adaptive max of ties", lambda x: F.adaptive_max_pool2d(x.relu().round(), 1))
    function("max pool of ties", lambda x: F.max_pool2d(x.relu().round(), 3, 2, 1))


def _norms() -> None:
    case("batchnorm1d", lambda: nn.BatchNorm1d(4), dims=1)
    case("batchnorm2d", lambda: nn.BatchNorm2d(4))
    case("batchnorm3d", lambda: nn.BatchNorm3d(4), dims=3)
    case("batchnorm2d without affine", lambda: nn.BatchNorm2d(4, affine=False))
    case("batchnorm2d without running", lambda: nn.BatchNorm2d(4, track_running_stats=False))
    function("batchnorm2d far from zero", lambda x: F.batch_norm(x + 30.0, None, None, training=True))
    case("instancenorm2d", lambda: nn.InstanceNorm2d(4))
    case("instancenorm3d affine", lambda: nn.InstanceNorm3d(4, affine=True), dims=3)
    case("instancenorm2d running", lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True))
    case("groupnorm 1", lambda: nn.GroupNorm(1, 4))
    case("groupnorm 2", lambda: nn.GroupNorm(2, 4), dims=3)
    case("groupnorm without affine", lambda: nn.GroupNorm(2, 4, affine=False))
    case(
        "layernorm of channels last",
        lambda: Apply(lambda n, x: n(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.LayerNorm(4)),
    )
    case(
        "layernorm over space",
        lambda: Apply(lambda c, x: c(F.layer_norm(x, x.shape[1:])), nn.Conv2d(4, 4, 3, padding=1)),
        around="aten.layer_norm",
    )
    case(
        "conv after a normed one",
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, 2)),
    )
    function("local response norm", lambda x: F.local_response_norm(x, 3))
    function("gated by channels", lambda x: F.glu(x, 1))
    function("gated by channels of a volume", lambda x: F.glu(x, -4), dims=3)
    function(
        "gated by rows",
        lambda x: F.avg_pool2d(F.glu(F.interpolate(x, scale_factor=2), 2), 2),
        around="aten.glu",
    )
    function("cosine similarity", lambda x, y: x * F.cosine_similarity(x, y, 1).unsqueeze(1), channels=(4, 4))
    function(
        "cosine similarity with the first row", lambda x: x * F.cosine_similarity(x, x[:, :, :1]).unsqueeze(1)
    )
    function("shuffled channels", lambda x: F.channel_shuffle(x, 2))
    function("normalize over channels", lambda x: F.normalize(x, dim=1))


def _resizes() -> None:
    modes = {1: ("nearest", "linear"), 2: ("nearest", "bilinear", "bicubic"), 3: ("nearest", "trilinear")}
    for dims, names in modes.items():
        for mode in names:
            for corners in (None,) if mode == "nearest" else (False, True):
                for factor in (2, 1.5):
                    function(
                        f"interpolate{dims}d {mode} {corners} x{factor}",
                        lambda x, m=mode, c=corners, f=factor: F.interpolate(
                            x, scale_factor=f, mode=m, align_corners=c
                        ),
                        dims=dims,
                    )
    for size in (7, 21, 30):
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            function(
                f"interpolate to {size} {mode}",
                lambda x, m=mode, s=size: F.interpolate(x, size=(s, s + 2), mode=m),
            )
    function(
        "interpolate to corners",
        lambda x: F.interpolate(x, size=(9, 21), mode="bilinear", align_corners=True),
    )
    function("pixel shuffle", lambda x: F.pixel_shuffle(x, 2))
    function("pixel shuffle and back", lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2))


def _rows() -> None:
    for mode in ("constant", "reflect", "replicate", "circular"):
        function(f"pad {mode}", lambda x, m=mode: F.pad(x, (2, 1, 3, 2), mode=m))
        function(f"pad3d {mode}", lambda x, m=mode: F.pad(x, (1, 1, 2, 0, 1, 3), mode=m), dims=3)
    function("pad with a value", lambda x: F.pad(x, (0, 0, 2, 1), value=3.5))
    function("crop by padding", lambda x: F.pad(x, (-1, 2, -2, -1)))
    function("slice", lambda x: x[:, :, 2:-1])
    function("slice by two", lambda x: x[:, :, 1::2, ::3])
    function("slice of a corner", lambda x: x[:, :, :6, 5:])
    function("slice of channels", lambda x: x[:, 1:3])
    function("select a row", lambda x: x[:, :, 3])
    function("select a row and use it", lambda x: x + x[:, :, 2:3])
    function("select a channel", lambda x: x[:, 2] * x[:, 0])
    function("narrow", lambda x: x.narrow(2, 3, 7))
    function("flip", lambda x: x.flip(2))
    function("flip both", lambda x: x.flip(3, 2) * x)
    function("roll", lambda x: x.roll((3, -2), (2, 3)))
    function("roll far", lambda x: x.roll(-7, 2))
    function("roll flattened", lambda x: F.avg_pool2d(x.roll(3), 2), around="aten.roll")
    function("concat channels", lambda x, y: torch.cat([x, y.relu()], 1), channels=(4, 2))
    function("concat rows", lambda x, y: torch.cat([x, y, x[:, :, :3]], 2), channels=(4, 4))
    function("concat columns", lambda x: torch.cat([x[..., 1:], x, x.flip(3)], 3))
    function("stack", lambda x: torch.stack([x, x.sin()], 1).flatten(1, 2))
    function("chunk and multiply", lambda x: torch.mul(*x.chunk(2, 1)))
    function("split along rows", lambda x: F.avg_pool2d(x.split(4, 2)[1], 1), around="aten.split")
    function("crop as a valid unet", lambda x: torch.cat([x[:, :, 2:-2, 2:-2], F.avg_pool2d(x, 5, 1)], 1))
    function("differences", lambda x: (x[:, :, 1:] - x[:, :, :-1]).abs().mean())


def _elementwise() -> None:
    for name in (
        "relu",
        "gelu",
        "silu",
        "sigmoid",
        "tanh",
        "leaky_relu",
        "elu",
        "softplus",
        "hardswish",
        "mish",
        "relu6",
        "hardsigmoid",
        "selu",
    ):
        function(f"elementwise {name}", lambda x, f=getattr(F, name): f(x))
    case("prelu", lambda: nn.PReLU(4))
    case("prelu of one weight", lambda: nn.PReLU())
    case("relu in place", lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True)))
    case(
        "relu in place after no dropout",
        lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout(0.0), nn.ReLU(inplace=True)),
    )
    case("elu in place after a norm", lambda: nn.Sequential(nn.BatchNorm2d(4), nn.ELU(inplace=True)))
    function("a chain in place", lambda x: F.elu(x.clone().sub_(0.5).div_(0.25), inplace=True))
    function("write into a part", _write_into_a_part, refused="aten.")
    function(
        "write into a row",
        _write_into_a_row,
        refused=r"aten\.fill_ on parts of a sample: it writes into a part of a tensor",
    )
    function(
        "drop out in place",
        _dropped_in_place,
        refused=r"aten\.dropout_ on parts of a sample: it has no rule in place",
    )
    function("residual of two sizes", lambda x, y: x * 2 + y.mean(1, keepdim=True), channels=(4, 2))
    function("where", lambda x: torch.where(x > 0, x, 0.1 * x * x))
    function("clamp", lambda x: x.clamp(-0.5, 0.7) + x.clamp(min=0))
    function("power and root", lambda x: (x.square() + 1).sqrt() ** 1.5)
    function("maximum", lambda x, y: torch.maximum(x, y) - torch.min(x, y), channels=(4, 4))
    case("squeeze and excite", _squeeze_and_excite)
    case("parameter of one sample", _Bias)
    case("convolution of row means", _row_means)
    case("convolution of row means and of everything", _RowMeans)
    case(
        "norm of column means and of everything",
        lambda: Apply(lambda norm, x: norm(x.mean(2, keepdim=True)) * norm(x), nn.BatchNorm2d(4)),
    )
    function("channel attention", lambda x: x * x.mean((2, 3), keepdim=True).softmax(1))
    function("spatial gate", lambda x: x * x.amax(1, keepdim=True).sigmoid())
    function("softmax of channels", lambda x: x.softmax(1) * x.log_softmax(1))
    function("softmax over rows", lambda x: F.avg_pool2d(x.softmax(2), 2), around="aten.softmax")
    function("permute and back", lambda x: x.permute(0, 2, 3, 1).sin().permute(0, 3, 1, 2))
    case(
        "linear on channels last",
        lambda: Apply(lambda f, x: f(x.movedim(1, -1)).movedim(-1, 1), nn.Linear(4, 3)),
    )
    function(
        "channel shuffle", lambda x: x.view(x.shape[0], 2, 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
    )
    function("flatten rows and sum", lambda x: x.flatten(2).square().sum(-1))
    case("standardised weight", _Standardised)
    case("tied weight", _Tied)
    function("cumulative sum", lambda x: F.avg_pool2d(x.cumsum(2), 2), around="aten.cumsum")
    function("attention over space", _attention, around="aten.")


def _write_into_a_row(x: Tensor) -> Tensor:
    y = x * 2
    y[:, :, 0] = 0.0
    return y


def _dropped_in_place(x: Tensor) -> Tensor:
    return F.dropout(x * 2, 0.5, inplace=True)


def _write_into_a_part(x: Tensor) -> Tensor:
    y = x * 2
    y[:, :, 3:].relu_()
    return F.avg_pool2d(y, 2)


def _squeeze_and_excite() -> nn.Module:
    def body(pool: nn.Module, down: nn.Module, up: nn.Module, x: Tensor) -> Tensor:
        return x * up(F.relu(down(pool(x)))).sigmoid()

    return Apply(body, nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1))


def _row_means() -> nn.Module:
    """On a grid of two dimensions the convolution is cut along one of them, and the same along the other."""
    return Apply(lambda c, x: x + c(x.mean(3, keepdim=True)), nn.Conv2d(4, 4, (3, 1), padding=(1, 0)))


class _RowMeans(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, (3, 1), padding=(1, 0)), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) * self.norm(self.conv(x.mean(3, keepdim=True)))


class _Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.randn(1, 4, 1, 11))
        self.scale = nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + F.interpolate(self.row, size=x.shape[2:])


class _Standardised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        w = self.conv.weight
        return F.conv2d(
            x, (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), keepdim=True), self.conv.bias, 1, 1
        )


class _Tied(nn.Module):
    """One convolution on shards and on a pooled tensor that every rank holds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) * self.conv(F.adaptive_avg_pool2d(x, 1))


def _attention(x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(tokens, tokens, tokens)
    return F.avg_pool2d(mixed.transpose(1, 2).reshape(x.shape), 2)


def _reductions() -> None:
    for name in ("sum", "mean", "amax", "amin", "var", "std"):
        function(f"{name} over space", lambda x, n=name: getattr(x, n)((2, 3)))
        function(f"{name} over rows kept", lambda x, n=name: getattr(x, n)(2, keepdim=True))
        function(f"{name} over channels", lambda x, n=name: getattr(x, n)(1))
    for name in ("sum", "mean", "max", "min", "std", "norm"):
        function(f"{name} of everything", lambda x, n=name: getattr(x, n)())
    function("amax of ties", lambda x: x.round().amax((2, 3)))
    function("norm over space", lambda x: torch.linalg.vector_norm(x, 2, (2, 3)))
    function("norm 1 over space", lambda x: torch.linalg.vector_norm(x, 1, (2, 3)))
    function(
        "norm 3 over space",
        lambda x: F.avg_pool2d(x / torch.linalg.vector_norm(x, 3, (2, 3), keepdim=True), 2),
        around="aten.linalg_vector_norm",
    )
    function("norm of zeros", lambda x: torch.linalg.vector_norm(x * 0, 2, (2, 3)))
    function("var without correction", lambda x: x.var((2, 3), correction=0))
    function(
        "max over rows with places",
        lambda x: F.avg_pool2d(x / x.max(2, keepdim=True)[0], 2),
        around="aten.max",
    )
    function("centred", lambda x: x - x.mean((2, 3), keepdim=True))
    function("logsumexp of channels", lambda x: x.logsumexp(1))


def _losses() -> None:
    for reduction in ("mean", "sum", "none"):
        function(f"mse {reduction}", lambda x, y, r=reduction: F.mse_loss(x, y, reduction=r), channels=(4, 4))
        function(f"l1 {reduction}", lambda x, y, r=reduction: F.l1_loss(x, y, reduction=r), channels=(4, 4))
        function(
            f"cross entropy {reduction}", lambda x, r=reduction: F.cross_entropy(x, _labels(x), reduction=r)
        )
    function("smooth l1", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), channels=(4, 4))
    function("huber", lambda x, y: F.huber_loss(x, y), channels=(4, 4))
    function(
        "bce with logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), channels=(4, 4)
    )
    function("bce", lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), channels=(4, 4))
    function(
        "kl", lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), channels=(4, 4)
    )
    function("nll 3d", lambda x: F.nll_loss(x.log_softmax(1), _labels(x)), dims=3)
    function("cross entropy ignoring", lambda x: F.cross_entropy(x, _labels(x), ignore_index=2))
    function(
        "cross entropy weighted",
        lambda x: F.cross_entropy(x, _labels(x), weight=x.new_tensor([0.1, 1, 2, 3]), ignore_index=1),
    )
    function("cross entropy smoothed", lambda x: F.cross_entropy(x, _labels(x), label_smoothing=0.1))
    function("cross entropy of probabilities", lambda x, y: F.cross_entropy(x, y.softmax(1)), channels=(4, 4))
    function("dice", _dice, dims=3)
    function("dice of a batch", lambda x: _dice(x, (0, 2, 3)))


def _labels(x: Tensor) -> Tensor:
    return x.detach().argmax(1)


def _dice(x: Tensor, dims: tuple[int, ...] = (2, 3, 4)) -> Tensor:
    truth = F.one_hot(_labels(x.flip(1)), 4).movedim(-1, 1).to(x.dtype)
    guess = x.softmax(1)
    both = (guess * truth).sum(dims)
    return 1 - ((2 * both + 1e-5) / (guess.sum(dims) + truth.sum(dims) + 1e-5)).mean()


_convolutions()
_transposes()
_pools()
_norms()
_resizes()
_rows()
_elementwise()
_reductions()
_losses()
rare_cases.register(case, function)
