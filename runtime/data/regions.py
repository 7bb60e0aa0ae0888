"""Parts of samples: what a rank needs of each tensor of the batch, and what a dataset that reads regions gives of it.

A dataset that is asked for a region gives each tensor in that part, or whole. A rank can use a part where it
is the one that it computes on. Where it is not (targets of a loss on whole samples, behind a gather), whole
samples are read and cut here. So which rank needs what stays out of the dataset.

Before the first step the first micro-batch is read both ways and compared. A dataset may read other rows than
it was asked for, or draw noise of the shape of the part. It then trains on something else, and no shape
tells.

Readers hand over the small tensors of a batch by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from planner.errors import BadInput
from planner.model import ModelGraph

Rows = tuple[tuple[int, int, int], ...]  # dimension, first row, end
Region = tuple[tuple[int, int], ...]  # first row and end along every spatial dimension of a sample
Read = Callable[[], dict[str, Tensor]]

COMPARED_BYTES = 256 << 20  # a first micro-batch of more bytes, whole, is not read only to compare it
SMALL_BYTES = 2**18  # of a tensor: readers hand over larger ones in shared memory
ROUNDINGS = 16  # of the largest number, that a part may be away from the same part of the whole


@dataclass
class Feed:
    """The batch of the step at hand, by micro-batch."""

    reads: Mapping[int, Sequence[str]]  # stage -> Values of the batch
    device: torch.device
    parts: Mapping[str, Rows] = field(default_factory=dict)  # of what is shared in space
    region: Region = ()
    values: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    copies: bool = (
        False  # also where the batch is on the device already: so that memory is counted as elsewhere
    )

    def __call__(self, stage: int, micro: int) -> dict[str, Tensor]:
        names, device, copy = self.reads[stage], self.device, self.copies
        return {name: self.values[micro][name].to(device, non_blocking=True, copy=copy) for name in names}


@dataclass(frozen=True, kw_only=True)
class Needed:
    """The tensors of a batch on which a rank computes, and the part that it asks a dataset for; () is
    whole samples."""

    graph: ModelGraph
    micro: int
    parts: Mapping[str, Rows]
    region: Region = ()

    def whole(self, name: str, tensor: Tensor) -> bool:
        """Returns whether a tensor has the shape and type of whole samples.

        Args: `name` is that of its Value.
        """
        return self._has(name, tensor, tuple(tensor.shape))

    def part(self, name: str, tensor: Tensor) -> bool:
        """Returns whether a tensor is the part of samples on which this rank computes, of the right type.

        Args: `name` is that of its Value.
        """
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
    """Decides whether samples are read by the region, by reading the first micro-batch both ways.

    Args: `by_region` and `as_wholes` read the same samples under the same seeds.
    Returns: False where some tensor must be read whole.
    Raises: BadInput where a part is not that part of the whole sample, or a tensor fits neither.
    """
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
    """Returns this rank's part of a tensor; what was read as that part stays.

    Args: `rows` are the rank's, empty for the whole; `region` is what the dataset was asked for.
    """
    return tensor if is_part(tensor, rows, region) else cut(tensor, rows).contiguous()


def is_part(tensor: Tensor, rows: Rows, region: Region) -> bool:
    """Returns whether a tensor has the shape of these rows, and was asked for by a region that has them.

    Args: `rows` are the rank's; `region` is what the dataset was asked for.
    """
    return (
        bool(rows and region)
        and all(dim < tensor.ndim and tensor.shape[dim] == end - first for dim, first, end in rows)
        and all(region[dim - tensor.ndim :][:1] == ((first, end),) for dim, first, end in rows)
    )


def cut(tensor: Tensor, rows: Rows) -> Tensor:
    """Returns a view of some rows along each of some dimensions.

    Args: `rows` has dimension, first row and end.
    """
    for dim, first, end in rows:
        tensor = tensor.narrow(dim, first, end - first)
    return tensor


def alike(part: Tensor, expected: Tensor) -> bool:
    """Returns whether two tensors are equal, but for a few roundings of the largest number.

    Args: `part` was read by the region, `expected` cut from the whole.
    """
    if not part.is_floating_point():
        return torch.equal(part, expected)
    largest = float(expected.abs().nan_to_num().amax()) if expected.numel() else 0.0
    near = ROUNDINGS * torch.finfo(part.dtype).eps * largest
    return torch.allclose(part, expected, rtol=0.0, atol=near, equal_nan=True)


def check_shapes(values: Mapping[str, Tensor], needed: Needed) -> None:
    """Raises BadInput where a tensor has another shape or type than the model was captured with.

    Another shape would be an error deep inside, or silently wrong.
    Args: `values` by the names of their Values; `needed` tells which part of samples is allowed, too.
    """
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
    """Returns a region as text, such as "[0:4, 0:8]".

    Args: `region` has first row and end along each spatial dimension.
    """
    return "[" + ", ".join(f"{first}:{end}" for first, end in region) + "]"


class ByValue(NamedTuple):
    """A small tensor on its way from a reader to its rank. Shared memory takes longer to open than this to copy."""

    numbers: NDArray[np.uint8]
    dtype: torch.dtype
    shape: torch.Size

    @classmethod
    def of(cls, tensor: Tensor) -> Tensor | ByValue:
        """Returns a tensor as it is handed over: as it stands where it is large, or not plain numbers."""
        odd = type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.requires_grad
        if odd or tensor.nbytes > SMALL_BYTES or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
            return tensor
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        return cls(flat.numpy(), tensor.dtype, tensor.shape)

    def tensor(self) -> Tensor:
        return torch.from_numpy(self.numbers).view(self.dtype).view(self.shape)


def received(batch: tuple[list[int], tuple[object, object]]) -> tuple[list[int], tuple[object, object]]:
    """Returns a batch of a reader with all of its tensors.

    Args: `batch` has the numbers of its samples first.
    """
    return batch[0], pytree.tree_map(
        lambda x: x.tensor() if isinstance(x, ByValue) else x,
        batch[1],
        is_leaf=lambda x: isinstance(x, ByValue),
    )


def odd_one(numbers: Sequence[int], samples: Sequence[object]) -> str:
    """Returns words for the first sample that is not like the one before; empty where all are alike.

    Args: `numbers` are those of the `samples`.
    """
    kinds = [[_kind(leaf) for leaf in pytree.tree_leaves(each)] for each in samples]
    for number, kind, last in zip(numbers[1:], kinds[1:], kinds, strict=False):
        if kind != last:
            return f"; sample {number} is {', '.join(kind)}, the one before {', '.join(last)}"
    return ""


def _kind(leaf: object) -> str:
    if not isinstance(leaf, Tensor):
        return type(leaf).__name__
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"


def listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
