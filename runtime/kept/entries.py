"""Optimizer state of kept entries and of whole parameters: one form made from the other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from planner.errors import BadInput


def leaf_shape(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Returns the shape of so many kept entries of a parameter: as many dims, all but the last of one.

    Args: `shape` is the parameter's, `count` the number of its kept entries.
    """
    return (*[1] * (len(shape) - 1), count)


def expanded(state: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns a state with its parameter's shape, zero where entries are pruned; any other state as it is.

    Args: `index` has the kept entries of a parameter of this `shape`.
    """
    if tuple(state.shape) != leaf_shape(shape, len(index)):
        return state
    whole = state.new_zeros(shape)
    whole.view(-1).index_copy_(0, index.long(), state.reshape(-1))
    return whole


def fitting(
    state: Mapping[str, Tensor],
    index: Tensor | None,
    shape: tuple[int, ...],
    *,
    saved: Tensor | None,
    where: str = "",
) -> dict[str, Tensor]:
    """Returns the state of one parameter as this run updates it.

    Args: `index` has the entries that this run keeps, `saved` those that `state` has; None is all of them.
    Raises: BadInput where the state is of other entries than those that this run keeps.
    """
    if index is not None and saved is not None:
        if not torch.equal(index.cpu(), saved):
            raise BadInput(
                "the checkpoint has the state of other entries than those kept here",
                where=where,
                allowed="the masks that it was trained with, or --weights with safetensors that hold its weights alone",
            )
        return dict(state)
    if saved is not None:
        return {key: expanded(tensor, saved, shape) for key, tensor in state.items()}
    if index is None:
        return dict(state)
    return {key: _compressed(tensor, index.cpu(), shape) for key, tensor in state.items()}


def _compressed(state: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(state.shape) != shape:
        return state
    return state.reshape(-1).index_select(0, index).view(leaf_shape(shape, len(index)))
