"""The block of a `with` in which a number's bits do not depend on what is computed beside it."""

from __future__ import annotations

from math import prod
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.same_bits.places import SUMS, each_alone, rounds, sums_alone, threads
from runtime.same_bits.products import Plain, convolved, in_blocks, of_pairs, spread

ATEN = torch.ops.aten
MADE: Final = frozenset(
    (*SUMS, ATEN.mm.default, ATEN.addmm.default, ATEN.bmm.default)
)  # in ways of their own
THIN: Final = 32  # channels, below which a product is quicker than oneDNN's convolution of single voxels


class SameBits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has the numbers of results depend neither on the size of a part nor on that of threads, in a `with` block.

    In double precision, and where there is no oneDNN, every number is computed in one way, whatever rows stand around
    it; torch is to have one thread. In single precision oneDNN takes all convolutions. For few rows torch takes a loop
    that is ten times slower; and over single voxels it takes a matrix product on one thread and oneDNN on several. So
    the numbers of a box would depend on how many workers share a machine. Of few channels, the product is quicker, and
    is taken on one thread. Functions of single numbers are computed in
    one way in any type. All else is torch's own, as everything is on other devices, where products are not rounded to
    ten bits (TF32) as torch lets convolutions be. Gradients are not to be asked for.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rounding = False

    def __enter__(self) -> Self:
        self._rounding = torch._C._get_cudnn_allow_tf32()
        torch._C._set_cudnn_allow_tf32(False)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, where)  # type: ignore[no-untyped-call]
        torch._C._set_cudnn_allow_tf32(self._rounding)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Returns what an operation gives."""
        kwargs = kwargs or {}
        if func is ATEN.convolution.default:
            return _convolution(*args, **kwargs)
        single = rounds(func, kwargs)
        if not single and func not in MADE:
            return func(*args, **kwargs)
        given = [x for x in args if isinstance(x, Tensor) and x.dim() and of_host(x)]
        if given and single:
            return each_alone(func, args, kwargs)
        if func in SUMS and given:
            with threads(1):
                return sums_alone(func, args, kwargs) if by_blocks(given[0]) else func(*args, **kwargs)
        if not any(by_blocks(x) for x in given):
            return func(*args, **kwargs)
        if func is ATEN.mm.default:
            return in_blocks(args[1].t(), args[0].t()).t()
        if func is ATEN.addmm.default and not kwargs:
            return in_blocks(args[2].t(), args[1].t()).t() + args[0]
        return of_pairs(*args) if func is ATEN.bmm.default else func(*args, **kwargs)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    *given, transposed, extra, groups = rest
    count = weight.dim() - 2
    stride, padding, dilation = (list(v) * (count if len(v) == 1 else 1) for v in given)
    if by_blocks(x):
        way = Plain(stride, padding, dilation, groups)
        made = spread(x, weight, way, extra) if transposed else convolved(x, weight, way)
        return made if bias is None else made.add_(bias.view(-1, *[1] * count))
    if transposed or not by_onednn(x, weight):
        found: Tensor = ATEN.convolution(x, weight, bias, *rest)
        return found
    thin = min(weight.shape[:2]) < THIN and groups == 1 and max(stride) == 1 and not any(padding)
    if prod(weight.shape[2:]) > 1 or not thin:
        found = ATEN.mkldnn_convolution(x, weight, bias, padding, stride, dilation, groups)
        return found
    with threads(1):  # several share the sums
        made = (weight.flatten(1) @ x.flatten(2)).view(len(x), len(weight), *x.shape[2:])
    return made if bias is None else made.add_(bias.view(-1, *[1] * count))


def of_host(x: Tensor) -> bool:
    """Returns whether a tensor has real numbers in the host's memory."""
    return x.device.type == "cpu" and x.is_floating_point() and x.numel() > 0


def by_blocks(x: Tensor) -> bool:
    """Returns whether products with a tensor, and sums of it, are taken in blocks of one size."""
    if not of_host(x):
        return False
    return x.dtype == torch.float64 or (x.dtype == torch.float32 and not onednn())


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Returns whether oneDNN takes a convolution."""
    plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return plain and onednn() and x.numel() > 0


def onednn() -> bool:
    """Returns whether torch has oneDNN, and may use it."""
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)  # type: ignore[no-untyped-call]
