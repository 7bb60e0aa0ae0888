"""Interpolation row by row from fetched rows, and pixel shuffles.

Along a cut dimension the rows are mixed here, with weights computed as torch computes them. Along the others
torch's own operation works, told that the cut dimensions keep their size.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from planner.errors import BadInput
from planner.spatial import COUNTS, CUBIC
from runtime.spatial.operation import Kernel, Local

ATEN = torch.ops.aten
SINGLE = 2**24  # rows that single precision tells apart
RESIDUES = 8  # rows that are told apart: those that are mixed, and some on either side


def interpolation(local: Local) -> Tensor:
    """Interpolates fetched rows to this rank's rows of the output.

    Args: `local` has the fetched input, and sizes or factors.
    Returns: this rank's part of the output.
    Raises: BadInput where torch rounds to a row that was not fetched.
    """
    x = local.tensor("input")
    count = COUNTS[local.call.operation]
    first = x.dim() - count
    dims = local.step.output.cut_dims
    for dim in dims:
        x = _along(local, x, dim, dim - first)
    if len(dims) == count:
        return x
    factors = local.arguments.get("scale_factors")
    sizes = [x.shape[d] if d in dims else _size(local, x, d, d - first) for d in range(first, x.dim())]
    scales = [None if d in dims or not factors else factors[d - first] for d in range(first, x.dim())]  # type: ignore[index]
    operation = getattr(ATEN, local.call.operation.removeprefix("aten.")).default
    corners = () if "nearest" in local.call.operation else (local.call.flag("align_corners"),)
    result: Tensor = operation(x, sizes, *corners, *scales)
    return result


def _size(local: Local, x: Tensor, dim: int, position: int) -> int:
    """Returns the rows to make of all that there are, which the batch may tell."""
    given = local.arguments.get("output_size")
    if isinstance(given, list | tuple):
        return int(given[position])
    return int(x.shape[dim] * local.arguments["scale_factors"][position])  # type: ignore[index]


def _along(local: Local, x: Tensor, dim: int, position: int) -> Tensor:
    low, high = local.rows(local.step.output, dim)
    fetch = local.step.fetch("input", dim)
    assert fetch is not None
    runs = fetch.runs[local.place(fetch.axis)]
    base = runs[0].start
    if "nearest" in local.call.operation:
        with _disable_current_modes():
            index = _nearest(local, x, dim, position)[low:high] - base
            least, most = int(index.min()), int(index.max())
        if least < 0 or most >= x.shape[dim]:
            raise BadInput(
                f"{local.call.operation} rounds to a row that its sizes do not give", where=local.call.where
            )
        return x.index_select(dim, _beside(x, index))
    size = local.call.tensor("input").shape[dim]
    total: Tensor | None = None
    with _disable_current_modes():
        taps = [
            ((tap.clamp(0, size - 1) - base).clamp(0, x.shape[dim] - 1), weight)
            for tap, weight in _taps(local, x, low, high, dim, position)
        ]
    for index, weight in taps:
        shape = [1] * x.dim()
        shape[dim] = -1
        term = x.index_select(dim, _beside(x, index)) * _beside(x, weight).to(x.dtype).view(shape)
        total = term if total is None else total + term
    assert total is not None
    return total


def _beside(x: Tensor, given: Tensor) -> Tensor:
    """Returns rows or weights, which are numbers even where a layer is only counted, as `x` can be computed with them."""
    return x.fake_mode.from_tensor(given) if isinstance(x, FakeTensor) else given.to(x.device)


def _device(x: Tensor) -> torch.device:
    """Returns where torch is asked: where it computes, or here where nothing is computed."""
    return torch.device("cpu") if isinstance(x, FakeTensor) else x.device


def _taps(
    local: Local, x: Tensor, low: int, high: int, dim: int, position: int
) -> list[tuple[Tensor, Tensor]]:
    """Returns the input rows that each output row mixes, with the weights of torch's own arithmetic."""
    size, made = local.call.tensor("input").shape[dim], local.step.output.shape[dim]
    factors, cubic = local.arguments.get("scale_factors"), local.call.operation in CUBIC
    factor = float(factors[position]) if factors else None  # type: ignore[index]
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    corners = local.call.flag("align_corners")
    found = _weights(cubic, size, made, corners, factor, kind, _device(x))[:, low:high].cpu()

    def weight_of(rows: Tensor) -> Tensor:
        given = found.gather(0, rows.remainder(RESIDUES).unsqueeze(0)).squeeze(0)
        return given * ((rows >= 0) & (rows < size))

    rows = torch.arange(low, high, dtype=torch.float64)
    floor = _source(local, rows, dim, position).floor().long()
    if not cubic:  # torch may have rounded to the row before or behind
        floor = floor - (weight_of(floor - 1) != 0).long() + (weight_of(floor + 2) != 0).long()
    return [(floor + i, weight_of(floor + i)) for i in (range(-1, 3) if cubic else range(2))]


@lru_cache(maxsize=32)
def _weights(
    cubic: bool,
    size: int,
    made: int,
    corners: bool,
    factor: float | None,
    kind: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Returns the weights of rows, by the rest of their number, for each output row; torch itself is asked.

    It rounds positions to single precision, which in long volumes moves a weight by more than any sum does.
    """
    names = torch.arange(size, device=device) % RESIDUES
    ones = (names == torch.arange(RESIDUES, device=device)[:, None]).to(kind).unsqueeze(0)
    with torch.no_grad():
        if cubic:  # of columns of one number each
            found: Tensor = ATEN.upsample_bicubic2d.default(ones[..., None], [made, 1], corners, factor)
            return found[0, :, :, 0]
        found = ATEN.upsample_linear1d.default(ones, [made], corners, factor)
    return found[0]


def _factor(local: Local, dim: int, position: int) -> float:
    """Returns how many input rows an output row takes, as torch rounds it."""
    size, made = local.call.tensor("input").shape[dim], local.step.output.shape[dim]
    if local.call.flag("align_corners"):
        return (size - 1) / (made - 1) if made > 1 else 0.0
    factors = local.arguments.get("scale_factors")
    return 1.0 / factors[position] if factors else size / made  # type: ignore[index]


def _source(local: Local, rows: Tensor, dim: int, position: int) -> Tensor:
    factor = _factor(local, dim, position)
    if local.call.flag("align_corners"):
        return rows * factor
    source = (rows + 0.5) * factor - 0.5
    return source if local.call.operation in CUBIC else source.clamp(min=0)


def _nearest(local: Local, x: Tensor, dim: int, position: int) -> Tensor:
    """Returns the row that torch takes for each output row; torch itself is asked, in the precision of `x`."""
    size, made = local.call.tensor("input").shape[dim], local.step.output.shape[dim]
    factors = local.arguments.get("scale_factors")
    exact = "_exact" in local.call.operation
    operation = (ATEN._upsample_nearest_exact1d if exact else ATEN.upsample_nearest1d).default
    kind = torch.float64 if x.dtype == torch.float64 or size > SINGLE else torch.float32
    names = torch.arange(size, dtype=kind, device=_device(x)).view(1, 1, -1)
    scale = factors[position] if factors else None  # type: ignore[index]
    with torch.no_grad():
        rows: Tensor = operation(names, [made], scale)
    return rows.flatten().long()


KERNELS: Final[Mapping[str, Kernel]] = dict.fromkeys(COUNTS, interpolation) | {
    "aten.pixel_shuffle": Local.run,
    "aten.pixel_unshuffle": Local.run,
}
