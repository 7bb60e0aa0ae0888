"""Checkpoints that outlive the plan: safetensors and a JSON index, keyed by parameter name, never by rank.

A checkpoint is a folder. Each rank writes one part with the tensors that it is the first holder of; when all parts
are there the index is written and the folder gets its name, so a folder with that name is complete. Any plan reads
it: a rank takes from the parts what it holds. Optimizer state stands beside each parameter, under its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from planner.errors import BadInput
from planner.files import check_tensor_file
from runtime.checkpoint.integrity import (
    AVERAGE,
    INDEX,
    KEPT,
    MODEL,
    OF_PIECES,
    OUTER,
    STATE,
    VERSION,
    Facts,
    PiecesOfTensor,
    complete,
    inside,
    read_index,
)
from runtime.checkpoint.tensor_file import Elements, TensorFile

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    folder: Path
    facts: Facts
    files: Mapping[str, str]  # tensor -> part
    settings: dict[str, dict[str, dict[str, object]]]  # of groups, and plain state, by parameter
    names: Mapping[str, str]  # in the state_dict of the user's module, and of the tensors
    pieces: Mapping[str, PiecesOfTensor] = field(default_factory=dict)
    _headers: dict[str, TensorFile] = field(default_factory=dict)  # of parts that were read in part

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Opens a checkpoint by its index; tensors are read when they are asked for.

        Args: `folder` is the checkpoint's own.
        Raises: BadInput where there is no index, or it is none of this version.
        """
        index = read_index(folder)
        if index.version not in (VERSION, OF_PIECES):
            allowed = f"{VERSION}, {OF_PIECES}"
            raise BadInput(f"version {index.version}", where=str(folder / INDEX), allowed=allowed)
        return cls(folder, index.facts, index.files, index.settings, index.names, index.pieces)

    @property
    def held(self) -> list[str]:
        """Returns the names of all parameters and buffers that it has, in order."""
        keys = {*self.files, *self.pieces}
        return sorted(key.removeprefix(MODEL) for key in keys if key.startswith(MODEL))

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
        for name in names:
            if not self._has(MODEL + name):
                raise BadInput(f"has no '{MODEL + name}'", where=str(self.folder))
        return {name: self._shape(MODEL + name) for name in names}

    def state(self, names: Iterable[str]) -> dict[str, dict[str, Tensor]]:
        """Reads the optimizer state of some parameters, which is empty before the first update.

        Returns: name -> key -> tensor, on the host.
        """
        wanted = {STATE + name for name in names}
        keys = {key: key for key in (*self.files, *self.pieces) if key.rpartition("/")[0] in wanted}
        found: dict[str, dict[str, Tensor]] = {}
        for key, tensor in self._read(keys).items():
            name, _, part = key.removeprefix(STATE).rpartition("/")
            found.setdefault(name, {})[part] = tensor
        return found

    def kept(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Reads the indices of the entries that the state of pruned parameters has; whole ones have none."""
        return self._read({name: KEPT + name for name in names if KEPT + name in self.files})

    def momentum(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Reads the momentum of the step that islands take together, where there is any."""
        return self._read({name: OUTER + name for name in names if OUTER + name in self.files})

    def averages(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Reads the averages of some parameters, where the run has kept any."""
        return self._read({name: AVERAGE + name for name in names if self._has(AVERAGE + name)})

    def averages_of(self, parts: Iterable[Elements]) -> dict[str, Tensor]:
        """Reads the averages of parts of parameters, where the run has kept any; each in one dim."""
        return {
            part.name: self._elements(AVERAGE + part.name, part.start, part.stop)
            for part in parts
            if self._has(AVERAGE + part.name)
        }

    def whole(self, *, averaged: bool = False) -> dict[str, Tensor]:
        """Returns the state_dict of the user's module, with tied tensors under each of their names.

        Args: with `averaged`, trained parameters are the averages that the run has kept.
        """
        tensors = self.parameters(set(self.names.values()))
        tensors |= self.averages(tensors) if averaged else {}
        return {name: tensors[own] for name, own in self.names.items()}

    def region(self, name: str, start: int, stop: int) -> Tensor:
        """Reads some elements of a parameter, and nothing else.

        Args: elements are those of the tensor laid flat.
        Returns: a tensor of one dim, on the host.
        Raises: BadInput where the checkpoint lacks them.
        """
        return self._elements(MODEL + name, start, stop)

    def state_of(self, part: Elements) -> dict[str, tuple[Tensor, bool]]:
        """Reads the optimizer state of a part of a parameter.

        Returns: tensors by key, and whether the state has the parameter's shape: then they are the part's elements,
            in one dim; otherwise all of the state.
        """
        if KEPT + part.name in self.files:
            return self._expanded(part)
        keys = [k for k in (*self.files, *self.pieces) if k.rpartition("/")[0] == STATE + part.name]
        alike = {key for key in keys if self._shape(key) == part.shape}
        whole = self._read({key: key for key in keys if key not in alike})
        found = whole | {key: self._elements(key, part.start, part.stop) for key in alike}
        return {key.rpartition("/")[2]: (tensor, key in alike) for key, tensor in found.items()}

    def _expanded(self, part: Elements) -> dict[str, tuple[Tensor, bool]]:
        """Reads the state of a part of a parameter of which this checkpoint has some entries; others are zero."""
        from runtime.kept import expanded  # loads torch, which is slow, and `status` reads checkpoints

        name, index = part.name, self.kept([part.name])[part.name]
        found = {}
        for key, tensor in self.state([name]).get(name, {}).items():
            whole = expanded(tensor, index, part.shape)
            alike = tuple(whole.shape) == part.shape
            found[key] = (whole.reshape(-1)[part.start : part.stop] if alike else whole, alike)
        return found

    def _has(self, key: str) -> bool:
        return key in self.files or key in self.pieces

    def _file(self, part: str) -> TensorFile:
        if part not in self._headers:
            self._headers[part] = TensorFile.open(inside(self.folder, part))
        return self._headers[part]

    def _shape(self, key: str) -> tuple[int, ...]:
        return self.pieces[key].shape if key in self.pieces else self._file(self.files[key]).shape(key)

    def _elements(self, key: str, start: int, stop: int) -> Tensor:
        import torch  # slow to load, and `status` reads checkpoints

        if key in self.files:
            return self._file(self.files[key]).read(key, start, stop)
        if key not in self.pieces:
            raise BadInput(f"has no '{key}'", where=str(self.folder))
        spans = ((part, a, max(a, start), min(b, stop)) for part, (a, b) in self.pieces[key].parts.items())
        read = [
            (low, self._file(part).read(key, low - a, high - a)) for part, a, low, high in spans if low < high
        ]
        return torch.cat([tensor for _, tensor in sorted(read, key=lambda each: each[0])])

    def _read(self, keys: Mapping[str, str]) -> dict[str, Tensor]:
        apart = {name: key for name, key in keys.items() if key in self.pieces}
        found = self._read_whole({name: key for name, key in keys.items() if name not in apart})
        for name, key in apart.items():
            row = self.pieces[key]
            found[name] = self._elements(key, 0, prod(row.shape)).view(row.shape)
        return found

    def _read_whole(self, keys: Mapping[str, str]) -> dict[str, Tensor]:
        by_part: dict[str, list[tuple[str, str]]] = {}
        for name, key in keys.items():
            part = self.files.get(key)
            if part is None:
                raise BadInput(f"has no '{key}'", where=str(self.folder))
            by_part.setdefault(part, []).append((name, key))
        found: dict[str, Tensor] = {}
        for part, wanted in by_part.items():
            try:
                path = inside(self.folder, part)
                check_tensor_file(path)
                with safe_open(path, framework="pt") as file:
                    found |= {name: file.get_tensor(key) for name, key in wanted}
            except (OSError, SafetensorError) as error:
                raise BadInput(f"cannot be read: {error}", where=str(self.folder / part)) from error
        return found


def of_run(path: Path) -> Checkpoint | None:
    """Returns the last checkpoint of a run folder, or the one in a folder itself; None for any other path.

    Args: `path` may be anything.
    """
    if (path / INDEX).is_file():
        return Checkpoint.open(path)
    return latest(path / "checkpoints") if (path / "checkpoints").is_dir() else None


def latest(folder: Path) -> Checkpoint | None:
    """Returns the newest complete checkpoint, or None.

    Args: `folder` has the checkpoints of a run.
    """
    return Checkpoint.open(steps[-1]) if (steps := complete(folder)) else None
