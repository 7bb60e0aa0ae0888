"""Checkpoints that outlive the plan: safetensors and a JSON index, keyed by parameter name, never by rank.

A checkpoint is a folder. Each rank writes one part with the tensors that it is the first holder of; when all parts
are there the index is written and the folder gets its name, so a folder with that name is complete. Any plan reads
it: a rank takes from the parts what it holds. Optimizer state stands beside each parameter, under its name.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from planner.errors import BadInput
from runtime.checkpoint.integrity import (
    INDEX,
    PREFIX,
    SUM_OF_INDEX,
    Facts,
    complete,
    inside,
    read_index,
    settle,
)
from runtime.checkpoint.tensor_files import write

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 2
MODEL, STATE = "model/", "optimizer/"
POLL_S = 0.05
PARTS_S = 600.0  # how long the first rank waits for the parts of the others


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
        by_part: dict[str, list[tuple[str, str]]] = {}
        for name, key in keys.items():
            part = self.files.get(key)
            if part is None:
                raise BadInput(f"has no '{key}'", where=str(self.folder))
            by_part.setdefault(part, []).append((name, key))
        found: dict[str, Tensor] = {}
        for part, wanted in by_part.items():
            try:
                with safe_open(inside(self.folder, part), framework="pt") as file:
                    found |= {name: file.get_tensor(key) for name, key in wanted}
            except (OSError, SafetensorError) as error:
                raise BadInput(f"cannot be read: {error}", where=str(self.folder / part)) from error
        return found


def latest(folder: Path) -> Checkpoint | None:
    """Returns the newest complete checkpoint, or None.

    Args: `folder` has the checkpoints of a run.
    """
    return Checkpoint.open(steps[-1]) if (steps := complete(folder)) else None


@dataclass(frozen=True, kw_only=True)
class CheckpointPart:
    """One rank's contribution to a checkpoint."""

    rank: int
    tensors: Mapping[str, Tensor]  # parameters and buffers by name
    state: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Mapping[str, object]]] = field(default_factory=dict)
    moving: frozenset[str] = frozenset()  # names that a forward pass writes, before any update

    def on_host(self) -> CheckpointPart:
        """Returns the part with all its tensors on the host. Only those are copied that were not, or are `moving`."""
        return CheckpointPart(
            rank=self.rank,
            tensors={name: _on_host(x, name in self.moving) for name, x in self.tensors.items()},
            state={name: {key: _on_host(x) for key, x in row.items()} for name, row in self.state.items()},
            settings=self.settings,
        )


def _on_host(tensor: Tensor, copy: bool = False) -> Tensor:
    return tensor.detach().to("cpu", copy=copy)


class CheckpointWriter:
    """Writes checkpoints of a run in the background, one at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        ranks: Sequence[int],
        names: Mapping[str, str],
        keep: int,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepares the writing of one rank's parts.

        Args: `ranks` are all that write, of which the first publishes; `names` are those of the user's
            state_dict; `keep` counts complete checkpoints that stay; `beat` is called while a write is waited
            for, which may take long and is no hanging.
        """
        self._beat = beat
        self._folder, self._rank, self._ranks, self._names, self._keep = folder, rank, ranks, names, keep
        self._thread: threading.Thread | None = None
        self._on_file = threading.Event()
        self._error: BaseException | None = None

    def save(self, part: CheckpointPart, facts: Facts) -> None:
        """Starts to write a checkpoint. No tensor may be updated before `until_on_file` has returned.

        Args: `part` is this rank's; `facts` are the same on all ranks.
        Raises: the error of the checkpoint before, if it failed.
        """
        self.wait()
        self._on_file.clear()
        self._thread = threading.Thread(target=self._guarded, args=(part.on_host(), facts))
        self._thread.start()

    def until_on_file(self) -> None:
        """Waits until the tensors of a checkpoint are written, if one is under way, and may be updated."""
        while self._thread is not None and not self._on_file.wait(POLL_S):
            self._beat()

    def wait(self) -> None:
        """Waits until no write is under way; raises its error if it failed."""
        while self._thread is not None:
            self._thread.join(POLL_S)
            self._beat()
            if not self._thread.is_alive():
                self._thread = None
        if self._error is not None:
            raise self._error

    def _guarded(self, part: CheckpointPart, facts: Facts) -> None:
        try:
            self._write(part, facts)
        except BaseException as error:
            self._error = error
        finally:
            self._on_file.set()

    def _write(self, part: CheckpointPart, facts: Facts) -> None:
        folder = self._folder / f"{PREFIX}{facts.step:08d}"
        if (folder / INDEX).exists():
            return  # a run that was resumed from an earlier step has come here before
        building = folder.with_suffix(".partial")
        building.mkdir(parents=True, exist_ok=True)
        write_part(building, part, self._on_file.set)
        if self._rank == self._ranks[0]:
            publish(building, folder, self._ranks, facts, self._names)
            for old in complete(self._folder)[: -self._keep]:
                shutil.rmtree(old)
        else:
            _until(folder.exists, f"'{folder.name}' was never complete")


def write_part(folder: Path, part: CheckpointPart, on_file: Callable[[], None] = lambda: None) -> None:
    """Writes one rank's part whole or not at all, with the sum of its file.

    Args: `on_file` is called when the tensors are written, and may change.
    """
    flat = {MODEL + name: tensor for name, tensor in part.tensors.items()}
    flat |= {f"{STATE}{name}/{key}": x for name, row in part.state.items() for key, x in row.items()}
    file = f"part-{part.rank:05d}.safetensors"
    new = folder / (file + ".new")
    try:
        write(flat, new)
    except BaseException:
        new.unlink(missing_ok=True)  # where the disk is full, others need the room to say so
        raise
    on_file()
    new.rename(folder / file)
    sums = {file: settle(folder / file)}
    fragment = {"files": dict.fromkeys(flat, file), "settings": part.settings, "sums": sums}
    path = folder / f"part-{part.rank:05d}.json"
    path.with_suffix(".new").write_text(json.dumps(fragment))
    path.with_suffix(".new").rename(path)


def publish(
    building: Path, folder: Path, ranks: Sequence[int], facts: Facts, names: Mapping[str, str]
) -> None:
    """Waits for every part, writes the index and gives the folder its name.

    Args: `building` has the parts; `folder` is its final name; `names` are those of the user's state_dict.
    Raises: TimeoutError where a rank writes no part in time.
    """
    files: dict[str, str] = {}
    settings: dict[str, object] = {}
    sums: dict[str, str] = {}
    for rank in ranks:
        path = building / f"part-{rank:05d}.json"
        _until(path.exists, f"rank {rank} wrote no part of '{folder.name}'")
        fragment = json.loads(path.read_text())
        files |= fragment["files"]
        settings |= fragment["settings"]
        sums |= fragment["sums"]
        path.unlink()
    index = {
        "version": VERSION,
        "facts": asdict(facts),
        "files": files,
        "settings": settings,
        "names": dict(names),
        "sums": sums,
    }
    (building / INDEX).write_text(json.dumps(index, sort_keys=True))
    (building / SUM_OF_INDEX).write_text(settle(building / INDEX))
    building.rename(folder)


def write_initial(
    folder: Path, tensors: Mapping[str, Tensor], facts: Facts, names: Mapping[str, str]
) -> Checkpoint:
    """Writes checkpoint 0 before any rank starts, as one part.

    Args: `folder` has the checkpoints of a run; `tensors` are all of the model's, by name.
    Returns: the checkpoint.
    """
    target = folder / f"{PREFIX}{facts.step:08d}"
    building = target.with_suffix(".partial")
    building.mkdir(parents=True)
    write_part(building, CheckpointPart(rank=0, tensors=tensors).on_host())
    publish(building, target, [0], facts, names)
    return Checkpoint.open(target)


def remove_partial(folder: Path) -> None:
    """Removes checkpoints that a run was ended in the middle of.

    Args: `folder` has the checkpoints of a run.
    """
    for path in folder.glob(PREFIX + "*.partial"):
        shutil.rmtree(path)


def _until(done: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PARTS_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(otherwise)
        time.sleep(POLL_S)
