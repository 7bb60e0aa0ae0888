"""Parts of samples: what a rank needs of each tensor of the batch, and what a dataset that reads regions gives of it.

A dataset that is asked for a region gives each tensor in that part, or whole. A rank can use a part where it is the
one that it computes on; where it is not (targets of a loss on whole samples, behind a gather), whole samples are read
and cut here. So which rank needs what stays out of the dataset.

Before the first step the first micro-batch is read both ways and compared: a dataset that reads other rows than it was
asked for, or draws noise of the shape of the part, trains on something else, and no shape tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from planner.errors import BadInput
from planner.model import ModelGraph

Rows = tuple[tuple[int, int, int], ...]  # dimension, first row, end
Region = tuple[tuple[int, int], ...]  # first row and end along every spatial dimension of a sample
Read = Callable[[], dict[str, Tensor]]

COMPARED_BYTES = 256 << 20  # a first micro-batch of more bytes, whole, is not read only to compare it
ROUNDINGS = 16  # of the largest number, that a part may be away from the same part of the whole


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What a rank computes on of the batch, and the part that it asks a dataset for; () is whole samples."""

    graph: ModelGraph
    micro: int
    parts: Mapping[str, Rows]
    region: Region = ()

    def whole(self, name: str, tensor: Tensor) -> bool:
        return self._has(name, tensor, tuple(tensor.shape))

    def part(self, name: str, tensor: Tensor) -> bool:
        rows, shape = self.parts.get(name, ()), list(tensor.shape)
        if not is_part(tensor, rows, self.region):
            return False
        for dim, _, _ in rows:
            shape[dim] = self.graph.value[name].shape[dim]
        return self._has(name, tensor, tuple(shape))

    def _has(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> bool:
        row = self.graph.value[name]
        differing = sum(a != b for a, b in zip(shape, row.shape, strict=False))
        size = prod(shape) * tensor.element_size()
        same = len(shape) == len(row.shape) and differing <= 1 and size == row.bytes(self.micro)
        return same and str(tensor.dtype).removeprefix("torch.") == row.dtype


def settled(needed: Needed, by_region: Read, as_wholes: Read) -> bool:
    """Whether samples are to be read by the region; BadInput where what comes so is not what it should be."""
    found = by_region()
    unfit = [name for name, x in found.items() if not needed.part(name, x) and not needed.whole(name, x)]
    if any(needed.graph.value[name].role == "input" for name in unfit):
        check_shapes(found, needed)
    size = sum(needed.graph.value[name].bytes(needed.micro) for name in found)
    if not unfit and size > COMPARED_BYTES:
        return True
    try:
        whole = as_wholes()
    except (
        Exception
    ) as error:  # the user's dataset: it may read regions alone, and raise anything for the rest
        if not unfit:
            return True
        raise _unreadable(unfit[0], found[unfit[0]], needed) from error
    check_shapes(whole, replace(needed, region=()))
    for name in (name for name in found if name not in unfit):
        expected = whole[name] if needed.whole(name, found[name]) else cut(whole[name], needed.parts[name])
        if not alike(found[name], expected):
            raise BadInput(
                f"'{name}' read by the region {shown(needed.region)} is not that part of the sample read whole",
                where="the data",
                allowed="the same numbers under the same seed: the rows asked for, and noise drawn for the whole "
                "sample, then cut",
            )
    return not unfit


def part_of(tensor: Tensor, rows: Rows, region: Region) -> Tensor:
    """A part of what was read whole; what was read as a part stays."""
    return tensor if is_part(tensor, rows, region) else cut(tensor, rows).contiguous()


def is_part(tensor: Tensor, rows: Rows, region: Region) -> bool:
    """Of the shape of these rows, and asked for by a region that has them."""
    return (
        bool(rows and region)
        and all(dim < tensor.ndim and tensor.shape[dim] == end - first for dim, first, end in rows)
        and all(region[dim - tensor.ndim :][:1] == ((first, end),) for dim, first, end in rows)
    )


def cut(tensor: Tensor, rows: Rows) -> Tensor:
    for dim, first, end in rows:
        tensor = tensor.narrow(dim, first, end - first)
    return tensor


def alike(part: Tensor, expected: Tensor) -> bool:
    if not part.is_floating_point():
        return torch.equal(part, expected)
    largest = float(expected.abs().nan_to_num().amax()) if expected.numel() else 0.0
    near = ROUNDINGS * torch.finfo(part.dtype).eps * largest
    return torch.allclose(part, expected, rtol=0.0, atol=near, equal_nan=True)


def check_shapes(values: Mapping[str, Tensor], needed: Needed) -> None:
    """A graph was captured for one shape of sample; another would be an error deep inside, or silently wrong."""
    for name, tensor in values.items():
        if not needed.whole(name, tensor) and not needed.part(name, tensor):
            row, rows = needed.graph.value[name], needed.parts.get(name, ())
            allowed = f"{row.dtype}{list(row.shape)} a sample, as the model was captured with"
            if rows and needed.region:
                shape = list(row.shape)
                for dim, first, end in rows:
                    shape[dim] = end - first
                allowed = f"{row.dtype}{shape} a sample, which is this rank's part, or whole {allowed}"
            raise BadInput(f"{_given(name, tensor, needed)}", where="the data", allowed=allowed)


def _unreadable(name: str, tensor: Tensor, needed: Needed) -> BadInput:
    row = needed.graph.value[name]
    return BadInput(
        f"{_given(name, tensor, needed)}; this plan needs it whole here, as samples are whole again before the loss, "
        "and the dataset cannot be read without a region",
        where="the data",
        allowed=f"{row.dtype}{list(row.shape)} a sample for any region, or dataset()[index] for whole samples",
    )


def _given(name: str, tensor: Tensor, needed: Needed) -> str:
    asked = f", asked for the region {shown(needed.region)}," if needed.region else ""
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"'{name}' of a micro-batch of {needed.micro}{asked} is {kind}{list(tensor.shape)}"


def shown(region: Region) -> str:
    return "[" + ", ".join(f"{first}:{end}" for first, end in region) + "]"
