"""Convolutions as products of one block size, a slab of the output after the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.same_bits.products import in_blocks

SLAB: Final = 2**22  # numbers of a convolution's input that are laid out as columns at a time


class Plain(NamedTuple):
    """The arguments of torch's convolution behind input, weight and bias."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def convolved(x: Tensor, weight: Tensor, way: Plain) -> Tensor:
    """Returns a convolution by products in blocks, a slab of the output after the other."""
    count, n = weight.dim() - 2, x.shape[0]
    x = F.pad(x, [p for p in reversed(way.padding) for _ in range(2)])
    for dim, (kernel, stride, dilation) in enumerate(
        zip(weight.shape[2:], way.stride, way.dilation, strict=True), 2
    ):
        x = x.unfold(dim, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    space, kernels = range(2, count + 2), range(count + 2, 2 * count + 2)
    patches = x.permute(1, *kernels, 0, *space)  # [channel, kernel..., sample, space...]
    first, kinds = count + 2, weight.flatten(1).chunk(way.groups)
    slab = max(1, SLAB * patches.shape[first] // patches.numel())
    made = []
    for part in patches.split(slab, first):  # type: ignore[no-untyped-call]
        groups = zip(kinds, part.chunk(way.groups), strict=True)
        found = torch.cat([in_blocks(rows, group.reshape(rows.shape[1], -1)) for rows, group in groups])
        made.append(found.view(-1, n, *part.shape[first:]))
    return torch.cat(made, 2).transpose(0, 1).contiguous()


def spread(x: Tensor, weight: Tensor, way: Plain, extra: Sequence[int]) -> Tensor:
    """Returns a transposed convolution: products in blocks, added up in the order of the kernel's places.

    Args: `extra` has the rows that are made behind the last one that an input reaches.
    """
    kernel, space = weight.shape[2:], x.shape[2:]
    groups = zip(weight.flatten(2).chunk(way.groups), x.transpose(0, 1).chunk(way.groups), strict=True)
    found = torch.cat([in_blocks(rows.flatten(1).t(), group.flatten(1)) for rows, group in groups])
    terms = found.view(-1, *kernel, x.shape[0], *space)
    spans = [(n - 1) * s + 1 for n, s in zip(space, way.stride, strict=True)]
    reach = [span + d * (k - 1) for span, d, k in zip(spans, way.dilation, kernel, strict=True)]
    sizes = [n - 2 * p + int(e) for n, p, e in zip(reach, way.padding, extra, strict=True)]
    held = [max(n, p + size) for n, p, size in zip(reach, way.padding, sizes, strict=True)]
    total = x.new_zeros(terms.shape[0], x.shape[0], *held)
    for place in itertools.product(*map(range, kernel)):
        starts = [at * d for at, d in zip(place, way.dilation, strict=True)]
        rows = [slice(a, a + n, s) for a, n, s in zip(starts, spans, way.stride, strict=True)]
        one: tuple[slice | int, ...] = (slice(None), *place)
        total[(slice(None), slice(None), *rows)] += terms[one]
    inside = [slice(p, p + size) for p, size in zip(way.padding, sizes, strict=True)]
    return total[(slice(None), slice(None), *inside)].transpose(0, 1).contiguous()
