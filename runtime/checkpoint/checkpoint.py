"""Reads checkpoints that outlive the plan, and weights to begin with out of safetensors files.

A checkpoint is a folder of safetensors and a JSON index, keyed by parameter name, never by rank. Any plan reads it:
a rank takes from the parts what it holds. Optimizer state stands beside each parameter, under its name.

Weights to begin with stand under the user's own names: one file, or a folder of shards. A file may hold more than the
model has. What the model trains and the files lack is an error that names it; buffers that they lack stay as build()
made them. Floating-point numbers are converted to the type that the model has, as `load_state_dict` does. Other
conversions would change values in silence and are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from planner.errors import BadInput
from planner.files import open_regular, read_bytes
from runtime.checkpoint.integrity import INDEX, INDEX_BYTES, Facts, complete, inside, read_index

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from planner.capture import Captured

VERSION = 2
MODEL, STATE = "model/", "optimizer/"
SUFFIX = ".safetensors"
SHARDS = ".safetensors.index.json"  # as the libraries of pretrained models write beside their shards
_SHOWN = 3


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    folder: Path
    facts: Facts
    files: Mapping[str, str]  # tensor -> part
    settings: dict[str, dict[str, dict[str, object]]]  # of groups, and plain state, by parameter
    names: Mapping[str, str]  # in the state_dict of the user's module, and of the tensors

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Opens a checkpoint by its index; tensors are read when they are asked for.

        Args: `folder` is the checkpoint's own.
        Raises: BadInput where there is no index, or it is none of this version.
        """
        index = read_index(folder)
        if index.version != VERSION:
            raise BadInput(f"version {index.version}", where=str(folder / INDEX), allowed=str(VERSION))
        return cls(folder, index.facts, index.files, index.settings, index.names)

    def parameters(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Reads parameters and buffers.

        Args: `names` are those of the captured model.
        Returns: tensors by name, on the host.
        Raises: BadInput where the checkpoint lacks one.
        """
        return self._read({name: MODEL + name for name in names})

    def shapes(self, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Reads the shapes of parameters and buffers, and no numbers.

        Args: `names` are those of the captured model.
        Raises: BadInput where the checkpoint lacks one.
        """
        found: dict[str, tuple[int, ...]] = {}
        for part, wanted in self._by_part({name: MODEL + name for name in names}).items():
            with self._opened(part) as file:
                found |= {name: tuple(file.get_slice(key).get_shape()) for name, key in wanted}
        return found

    def state(self, names: Iterable[str]) -> dict[str, dict[str, Tensor]]:
        """Reads the optimizer state of some parameters, which is empty before the first update.

        Returns: name -> key -> tensor, on the host.
        """
        wanted = {STATE + name for name in names}
        keys = {key: key for key in self.files if key.startswith(STATE) and key.rpartition("/")[0] in wanted}
        found: dict[str, dict[str, Tensor]] = {}
        for key, tensor in self._read(keys).items():
            name, _, part = key.removeprefix(STATE).rpartition("/")
            found.setdefault(name, {})[part] = tensor
        return found

    def whole(self) -> dict[str, Tensor]:
        """Returns the state_dict of the user's module, with tied tensors under each of their names."""
        tensors = self.parameters(set(self.names.values()))
        return {name: tensors[own] for name, own in self.names.items()}

    def _read(self, keys: Mapping[str, str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for part, wanted in self._by_part(keys).items():
            with self._opened(part) as file:
                found |= {name: file.get_tensor(key) for name, key in wanted}
        return found

    def _by_part(self, keys: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
        found: dict[str, list[tuple[str, str]]] = {}
        for name, key in keys.items():
            part = self.files.get(key)
            if part is None:
                raise BadInput(f"has no '{key}'", where=str(self.folder))
            found.setdefault(part, []).append((name, key))
        return found

    @contextmanager
    def _opened(self, part: str) -> Iterator[Any]:
        try:
            with safe_open(inside(self.folder, part), framework="pt") as file:
                yield file
        except (OSError, SafetensorError) as error:
            raise BadInput(f"cannot be read: {error}", where=str(self.folder / part)) from error


def latest(folder: Path) -> Checkpoint | None:
    """Returns the newest complete checkpoint, or None.

    Args: `folder` has the checkpoints of a run.
    """
    return Checkpoint.open(steps[-1]) if (steps := complete(folder)) else None


def read(path: Path, captured: Captured) -> dict[str, Tensor]:
    """Reads all parameters of a captured model, and the buffers that the files have.

    Args: `path` is a file, an index of shards, or a folder with one of them.
    Returns: tensors by the model's names, in its types, on the host.
    Raises: BadInput where a parameter is missing, has another shape or kind of numbers, or is not finite in the
      model's type, or a file cannot be read.
    """
    files = _files(path)
    names = {row.name: (row.name, *row.aliases) for row in captured.graph.parameters}
    names |= {row.name: (row.name,) for row in captured.graph.buffers}
    found: dict[str, Tensor] = {}
    for file in sorted({*files.values()}):
        inside = {name for name, where in files.items() if where == file}
        with _opened(file) as tensors:
            for name, known in names.items():
                key = next((alias for alias in known if alias in inside), None)
                if key is not None:
                    found[name] = tensors.get_tensor(key)
    missing = [row.name for row in captured.graph.parameters if row.name not in found]
    if missing:
        raise BadInput(
            f"has no {_listed(missing)} of the model's {len(captured.graph.parameters)} parameters",
            where=str(path),
            allowed=f"the model's own names; the files have {_listed(sorted(files))}",
        )
    return {name: _fitting(name, tensor, captured, path) for name, tensor in found.items()}


def _fitting(name: str, tensor: Tensor, captured: Captured, path: Path) -> Tensor:
    import torch  # slow to load, and `status` reads checkpoints

    rows = captured.graph.parameter if name in captured.graph.parameter else captured.graph.buffer
    row = rows[name]
    if tuple(tensor.shape) != row.shape:
        raise BadInput(f"'{name}' is {tuple(tensor.shape)}", where=str(path), allowed=f"{row.shape}")
    wanted: torch.dtype = getattr(torch, row.dtype)
    if tensor.dtype != wanted and not (tensor.is_floating_point() and wanted.is_floating_point):
        raise BadInput(f"'{name}' is {_type(tensor.dtype)}", where=str(path), allowed=_type(wanted))
    found = tensor.to(wanted)
    if found.is_floating_point():
        _check_finite(name, tensor, found, path, trained=rows is captured.graph.parameter)
    return found


def _check_finite(name: str, given: Tensor, found: Tensor, path: Path, *, trained: bool) -> None:
    """Raises BadInput where the conversion made a number infinite, or a parameter holds one that is not finite.

    A buffer may hold infinities of its own, as masks do.
    """
    wrong = ~found.isfinite()
    count = int((wrong if trained else wrong & given.isfinite()).sum())
    if count:
        how = "" if given.dtype == found.dtype else f" as {_type(found.dtype)}"
        raise BadInput(
            f"'{name}' holds {count} numbers that are not finite{how}",
            where=str(path),
            allowed="finite numbers",
        )


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _files(path: Path) -> Mapping[str, Path]:
    """Returns the file of each tensor."""
    if path.is_dir():
        indices, files = sorted(path.glob("*" + SHARDS)), sorted(path.glob("*" + SUFFIX))
        if len(indices) == 1:
            return _sharded(indices[0])
        if len(files) != 1 or indices:
            raise BadInput(
                f"a folder with {len(files)} {SUFFIX} files and {len(indices)} indices",
                where=str(path),
                allowed=f"one file, or shards with one {SHARDS}",
            )
        return _files(files[0])
    if path.name.endswith(SHARDS):
        return _sharded(path)
    with _opened(path) as tensors:
        return dict.fromkeys(tensors.keys(), path)


def _sharded(index: Path) -> dict[str, Path]:
    try:
        table = json.loads(read_bytes(index, max_bytes=INDEX_BYTES))["weight_map"]
        return {str(name): index.parent / Path(str(file)).name for name, file in table.items()}
    except BadInput as error:
        raise BadInput(f"is no index of shards: {error.what}", where=str(index)) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"is no index of shards: {error}", where=str(index)) from error


def _opened(path: Path) -> safe_open:
    try:
        open_regular(path).close()
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path), allowed=f"a {SUFFIX} file") from error


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more
