"""Masks as data: the entries of each pruned parameter that are kept, as sorted indices of the tensor laid flat.

>>> import numpy as np
>>> masks = Masks({"w": np.array([0, 3], np.int32)}, {"w": 4})
>>> masks.counts, masks.digest[:7]
({'w': 2}, 'sha256:')

A parameter without a mask is whole. In a file of masks, each parameter has a tensor of int32 under its name. A mask made
elsewhere may be a tensor of bool in the parameter's shape, true where an entry is kept. What a user asks for is a file
of masks, or a share of every pruned weight before there are masks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from planner.errors import BadInput
from planner.files import check_tensor_file, write_whole
from planner.kept.counts import WHOLE, KeptEntries
from planner.model import ModelGraph, Parameter

Indices = NDArray[np.int32]
MOST_ELEMENTS = 2**31 - 1  # of a parameter with a mask, since indices are int32
_ELEMENTS, _SHAPES = "elements", "shapes"  # in the file's own words, of every parameter


@dataclass(frozen=True)
class Masks:
    """The kept entries of every pruned parameter."""

    indices: Mapping[str, Indices]  # by parameter: sorted, each once
    elements: Mapping[str, int]  # by parameter: of the whole tensor; empty where nobody said so
    shapes: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # of the whole tensor, where it is known

    @property
    def counts(self) -> dict[str, int]:
        """Returns how many entries each pruned parameter keeps."""
        return {name: len(index) for name, index in self.indices.items()}

    @cached_property
    def digest(self) -> str:
        """Returns a hash of all names and indices; equal masks have equal ones."""
        found = hashlib.sha256()
        for name in sorted(self.indices):
            index = np.ascontiguousarray(self.indices[name], "<i4")
            found.update(json.dumps([name, len(index)]).encode())
            found.update(index.tobytes())
        return f"sha256:{found.hexdigest()}"

    def fitted(self, graph: ModelGraph, where: str = "") -> Masks:
        """Returns the masks under a model's own names, without those that keep everything.

        Args: `where` is the file in messages.
        Raises: BadInput where a mask is for no trained parameter of the model, or its indices are outside of it.
        """
        rows = {alias: row for row in graph.parameters for alias in (row.name, *row.aliases)}
        trained = {row.name for row in graph.trained}
        found: dict[str, Indices] = {}
        for name, index in self.indices.items():
            row = _named(name, rows, trained, where)
            total = prod(row.shape)
            if self.elements.get(name, total) != total or int(index[-1]) >= total:
                met = self.elements.get(name) or f"an index of {int(index[-1])}"
                raise BadInput(
                    f"the mask of '{name}' is for another model: {met}",
                    where=where,
                    allowed=f"the {total} elements of {row.shape}",
                )
            if self.shapes.get(name, row.shape) != row.shape:
                raise BadInput(
                    f"the mask of '{name}' has shape {self.shapes[name]}",
                    where=where,
                    allowed=f"that of the parameter, {row.shape}",
                )
            if row.name in found:
                raise BadInput(f"'{row.name}' has two masks, one under another name", where=where)
            found[row.name] = index
        sizes = {row.name: prod(row.shape) for row in graph.parameters}
        apart = {name: index for name, index in sorted(found.items()) if len(index) < sizes[name]}
        shapes = {name: tuple(graph.parameter[name].shape) for name in apart}
        return Masks(apart, {name: sizes[name] for name in apart}, shapes)


def _named(name: str, rows: Mapping[str, Parameter], trained: set[str], where: str) -> Parameter:
    if name not in rows:
        known = ", ".join(f"'{each}'" for each in sorted(trained)[:3])
        raise BadInput(
            f"has a mask of '{name}', which is no parameter of this model",
            where=where,
            allowed=f"its trained parameters: {known} ...; prune them with --only",
        )
    if rows[name].name not in trained:
        raise BadInput(
            f"has a mask of '{name}', which is not trained: it has no gradient and no state to spare",
            where=where,
            allowed="masks of trained parameters; prune those with --only",
        )
    if rows[name].written:
        raise BadInput(
            f"has a mask of '{name}', which the model itself writes in its forward pass",
            where=where,
            allowed="masks of other parameters; prune those with --only",
        )
    return rows[name]


def load_masks(path: Path) -> Masks:
    """Returns the masks in a safetensors file.

    Raises: BadInput where the file cannot be read, an index is out of order or repeated, or a parameter keeps nothing.
    """
    try:
        check_tensor_file(path)
        with safe_open(path, framework="np") as file:
            told = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(
            f"cannot be read: {error}", where=str(path), allowed="masks from `shardwright prune`"
        ) from None
    if not found:
        raise BadInput("has no masks", where=str(path), allowed="a tensor under the name of each parameter")
    shapes = _told_shapes(told, path) | {name: x.shape for name, x in found.items() if x.dtype == np.bool_}
    elements = _told_elements(told, path) | {name: prod(shape) for name, shape in shapes.items()}
    return Masks({name: _index(name, found[name], path) for name in sorted(found)}, elements, shapes)


def _told_elements(told: Mapping[str, str], path: Path) -> dict[str, int]:
    try:
        return {str(name): int(count) for name, count in json.loads(told.get(_ELEMENTS, "{}")).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"its sizes of parameters cannot be read: {error}", where=str(path)) from None


def _told_shapes(told: Mapping[str, str], path: Path) -> dict[str, tuple[int, ...]]:
    try:
        found = json.loads(told.get(_SHAPES, "{}")).items()
        return {str(name): tuple(int(size) for size in shape) for name, shape in found}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"its shapes of parameters cannot be read: {error}", where=str(path)) from None


def _index(name: str, given: NDArray[np.generic], path: Path) -> Indices:
    """Returns the kept entries of a parameter as sorted indices; checks those that are indices already."""
    if given.dtype == np.bool_:
        if given.size > MOST_ELEMENTS:
            raise BadInput(f"'{name}' is too large", where=str(path), allowed=f"{MOST_ELEMENTS} elements")
        index: Indices = np.flatnonzero(given).astype(np.int32)
    elif given.ndim == 1 and given.dtype in (np.int32, np.int64):
        if given.size and (int(given.min()) < 0 or int(given.max()) > MOST_ELEMENTS):
            raise BadInput(f"an index of '{name}' is out of range", where=str(path))
        wrong = np.flatnonzero(np.diff(given.astype(np.int64)) <= 0)
        if len(wrong):
            at = int(wrong[0])
            raise BadInput(
                f"index {at + 1} of '{name}' is {int(given[at + 1])} after {int(given[at])}",
                where=str(path),
                allowed="indices in increasing order, each once",
            )
        index = given.astype(np.int32)
    else:
        allowed = "int32 indices in one dim, or bool in the parameter's shape"
        raise BadInput(f"'{name}' is {given.dtype} of shape {given.shape}", where=str(path), allowed=allowed)
    if not len(index):
        raise BadInput(
            f"'{name}' keeps no entry", where=str(path), allowed="at least one entry of every parameter"
        )
    return index


def dump(masks: Masks, path: Path) -> None:
    """Writes masks as a safetensors file, whole or not at all.

    Args: `path` is replaced where it exists.
    """
    told = {_ELEMENTS: json.dumps(dict(sorted(masks.elements.items()))), "digest": masks.digest}
    if masks.shapes:
        told[_SHAPES] = json.dumps(dict(sorted(masks.shapes.items())))
    tensors = {name: np.ascontiguousarray(index, np.int32) for name, index in masks.indices.items()}
    write_whole(path, save(tensors, told))


def shares_asked(given: str | None) -> tuple[float, ...]:
    """Returns the shares that are to be kept; none where nothing is given, or a file.

    Raises: BadInput where there is neither a file of that name nor a share.

    >>> shares_asked("0.2,0.1")
    (0.2, 0.1)
    """
    if given is None or Path(given).is_file():
        return ()
    try:
        shares = tuple(float(share) for share in given.split(","))
    except ValueError:
        shares = (0.0,)
    if not all(0 < share <= 1 for share in shares):
        allowed = "a file of masks, or shares above 0 and at most 1, such as 0.1 or 0.2,0.1"
        raise BadInput(f"'{given}' is neither a file nor a share", where="--kept", allowed=allowed)
    return shares


def kept_asked(graph: ModelGraph, given: str | None) -> KeptEntries:
    """Returns what is kept of a model; everything where nothing is given, or several shares.

    Raises: BadInput where a file has no masks of this model.
    """
    shares = shares_asked(given)
    if given is None or len(shares) > 1:
        return WHOLE
    if shares:
        return KeptEntries.of_share(graph, shares[0])
    masks = load_masks(Path(given)).fitted(graph, given)
    return KeptEntries.of_masks(graph, masks.counts, masks.digest)
