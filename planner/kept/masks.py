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
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

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
MOST_DIMS = 64  # that torch has; sizes of more are not read
_INDICES, _BOOL = ("I32", "I64"), "BOOL"  # as safetensors names what masks consist of
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
                said = self.elements.get(name, total)
                met = f"of {said} elements" if said != total else f"with index {int(index[-1])}"
                raise BadInput(
                    f"the mask of '{name}' is for another model, {met}",
                    where=where,
                    allowed=f"the {total} elements of shape {tuple(row.shape)}",
                )
            if self.shapes.get(name, row.shape) != row.shape:
                raise BadInput(
                    f"the mask of '{name}' has shape {self.shapes[name]}",
                    where=where,
                    allowed=f"that of the parameter, {row.shape}",
                )
            if not np.array_equal(found.get(row.name, index), index):
                raise BadInput(
                    f"'{row.name}' has another mask under its other name",
                    where=where,
                    allowed="one mask, or the same one under each name",
                )
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
            found = {name: _read(file, name, path) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(
            f"cannot be read: {error}", where=str(path), allowed="masks from `shardwright prune`"
        ) from None
    found = {name: x for name, x in found.items() if x.size or x.dtype != np.bool_}  # of an empty parameter
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
        return {str(name): tuple(int(size) for size in islice(shape, MOST_DIMS)) for name, shape in found}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"its shapes of parameters cannot be read: {error}", where=str(path)) from None


def _read(file: Any, name: str, path: Path) -> NDArray[np.generic]:  # Any: what safe_open gives has no types
    """Returns one tensor, which is of a kind and size that masks have before it takes memory."""
    told = file.get_slice(name)
    kind, shape = str(told.get_dtype()), tuple(told.get_shape())
    if kind != _BOOL and (kind not in _INDICES or len(shape) != 1):
        raise BadInput(
            f"'{name}' is {kind} of shape {shape}",
            where=str(path),
            allowed="indices in one dim, as I32 or I64, or BOOL in the parameter's shape",
        )
    if prod(shape) > MOST_ELEMENTS:
        raise BadInput(f"'{name}' is too large", where=str(path), allowed=f"{MOST_ELEMENTS} elements")
    found: NDArray[np.generic] = file.get_tensor(name)
    return found


def _index(name: str, given: NDArray[np.generic], path: Path) -> Indices:
    """Returns the kept entries of a parameter as sorted indices; checks those that are indices already."""
    if given.dtype == np.bool_:
        index: Indices = np.flatnonzero(given).astype(np.int32)
    else:
        if given.size and (int(given.min()) < 0 or int(given.max()) > MOST_ELEMENTS):
            raise BadInput(
                f"an index of '{name}' is out of range",
                where=str(path),
                allowed=f"from 0 to less than {MOST_ELEMENTS}",
            )
        wrong = np.flatnonzero(np.diff(given.astype(np.int64)) <= 0)
        if len(wrong):
            at = int(wrong[0])
            raise BadInput(
                f"index {at + 1} of '{name}' is {int(given[at + 1])} after {int(given[at])}",
                where=str(path),
                allowed="indices in increasing order, each once",
            )
        index = given.astype(np.int32)
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
    if given is None:
        return ()
    with suppress(OSError):  # of a name that is too long for a file, as that of many shares may be
        if Path(given).is_file():
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
    """Returns what is kept of a model; everything where nothing is given, and of several shares the least.

    Raises: BadInput where a file has no masks of this model.
    """
    shares = shares_asked(given)
    if given is None:
        return WHOLE
    if shares:
        return KeptEntries.of_share(graph, min(shares))
    masks = load_masks(Path(given)).fitted(graph, given)
    return KeptEntries.of_masks(graph, masks.counts, masks.digest)
