"""Refuses optimizers that mix the entries of a tensor, before anything is trained with them.

An update of kept entries alone is right only if an optimizer updates each entry by itself. So it is tried: some updates
of stand-ins, compressed and whole with the same mask on gradients, must be equal to the bit. Every pruned parameter has
a stand-in under its name. It has the parameter's shape, cut to 64 numbers, and a few have many more, since there are
optimizers that treat large tensors otherwise.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from planner.errors import BadInput
from planner.model import ModelGraph, Parameter
from planner.workload import shrunk
from runtime.update import Make, OwnPart, made

NUMBERS, MANY = 64, 2**16
MOST = 12  # stand-ins of many numbers
UPDATES = 8  # RAdam updates otherwise from its sixth on
SCALES = (1.0, 1e3, 1e-3)  # of gradients, in turn
ALLOWED = "an optimizer that updates each entry by itself, such as AdamW or SGD; or a dense plan"


def refuse_mixing(make: Make, graph: ModelGraph, kept: Mapping[str, int], where: str = "") -> None:
    """Raises BadInput where the user's optimizer cannot update kept entries as it updates them in whole parameters.

    Args: `kept` names the pruned parameters of the model; `where` is the workload in messages.
    """
    tried = _stand_ins([graph.parameter[name] for name in kept])
    name = "the optimizer"
    try:
        ends = []
        for compressed in (False, True):
            pieces = [each.piece(compressed) for each in tried]
            optimizer = made(make, pieces)
            if optimizer is None:
                return
            name = type(optimizer).__name__
            _refuse_fused(optimizer, where)
            for step in range(UPDATES):
                for each, piece in zip(tried, pieces, strict=True):
                    piece.tensor.grad = each.gradient(step, compressed)
                optimizer.step()
            ends.append([piece.tensor.detach().reshape(-1) for piece in pieces])
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"{name} cannot update the kept entries of pruned weights: {type(error).__name__}: {error}",
            where=where,
            allowed="an optimizer that steps from gradients alone, and each entry by itself, such as AdamW or SGD",
        ) from error
    for each, whole, leaf in zip(tried, *ends, strict=True):
        if not torch.equal(whole[each.index], leaf):
            raise BadInput(
                f"{name} mixes the entries of a tensor, so that those kept of '{each.name}' would be updated otherwise",
                where=where,
                allowed=ALLOWED,
            )


def _refuse_fused(optimizer: torch.optim.Optimizer, where: str) -> None:
    """Raises BadInput where updates are fused: they round the last entries of a tensor otherwise than the first."""
    if any(group.get("fused") for group in optimizer.param_groups):
        raise BadInput(
            f"{type(optimizer).__name__} with fused=True rounds an entry by its place in the tensor, and kept entries "
            "have another place",
            where=where,
            allowed="fused=False",
        )


def _stand_ins(rows: Sequence[Parameter]) -> list[_StandIn]:
    """Returns one stand-in of each parameter; the first of a shape has many numbers."""
    found, many = [], set[tuple[tuple[int, ...], str]]()
    for row in rows:
        kind = shrunk(row.shape, MANY), row.dtype
        large = kind not in many and len(many) < MOST
        many |= {kind} if large else set()
        found.append(_StandIn.of(row, MANY if large else NUMBERS))
    return found


@dataclass(frozen=True)
class _StandIn:
    """A small tensor in the place of a pruned parameter, about a third of which is kept."""

    name: str
    start: Tensor  # zero where it is pruned
    index: Tensor  # of the kept entries
    draw: torch.Generator

    @classmethod
    def of(cls, row: Parameter, most: int) -> _StandIn:
        shape, draw = shrunk(row.shape, most), torch.Generator().manual_seed(zlib.crc32(row.name.encode()))
        dtype = getattr(torch, row.dtype)
        stays = torch.rand(prod(shape), generator=draw) < 1 / 3
        stays[0], stays[-1] = True, False
        start = torch.randn(shape, generator=draw, dtype=_drawn_in(dtype)).to(dtype)
        return cls(row.name, start * stays.view(shape), stays.nonzero().view(-1), draw)

    def piece(self, compressed: bool) -> OwnPart:
        """Returns what an optimizer is made for; gradients are drawn anew from then on."""
        self.draw.manual_seed(zlib.crc32(self.name.encode()) + 1)
        whole = nn.Parameter(self.start.clone())
        if not compressed:
            return OwnPart(self.name, 0, whole.numel(), whole)
        return OwnPart(
            self.name, 0, len(self.index), nn.Parameter(self._entries(self.start)), whole, self._entries
        )

    def gradient(self, step: int, compressed: bool) -> Tensor:
        """Returns the next gradient, zero where it is pruned."""
        dtype = self.start.dtype
        drawn = torch.randn(self.start.shape, generator=self.draw, dtype=_drawn_in(dtype)).to(dtype)
        entries = self._entries(drawn * SCALES[step % len(SCALES)])
        if compressed:
            return entries
        masked = torch.zeros_like(drawn)
        masked.view(-1)[self.index] = entries.reshape(-1)
        return masked

    def _entries(self, whole: Tensor) -> Tensor:
        """Returns the kept entries, as many dims as the whole has."""
        return whole.reshape(-1)[self.index].view(*[1] * (whole.ndim - 1), -1)


def _drawn_in(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which numbers are drawn for one of a model's."""
    return torch.complex64 if dtype.is_complex else torch.float32
