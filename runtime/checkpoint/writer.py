"""Writes checkpoints: each rank its part, the first one the index; and says how often to.

With cost C of a checkpoint and mean time M between failures, Young's interval is sqrt(2 C M). Daly's keeps
the next terms: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C for C < 2 M, and M otherwise.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.checkpoint.checkpoint import Checkpoint
from runtime.checkpoint.integrity import (
    AVERAGE,
    INDEX,
    MODEL,
    OF_PIECES,
    STATE,
    SUM_OF_INDEX,
    VERSION,
    Facts,
    complete,
    folder_of,
    settle,
)
from runtime.checkpoint.tensor_file import Elements

if TYPE_CHECKING:
    from torch import Tensor

POLL_S = 0.05
PARTS_S = 600.0  # how long the first rank waits for the parts of the others
SAMPLE_BYTES = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class CheckpointPart:
    """One rank's contribution to a checkpoint."""

    rank: int
    tensors: Mapping[str, Tensor]  # parameters and buffers by name
    state: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Mapping[str, object]]] = field(default_factory=dict)
    elements: Mapping[str, Elements] = field(default_factory=dict)  # of which tensors have only some
    averages: Mapping[str, Tensor] = field(default_factory=dict)  # of parameters by name

    def copied(self) -> CheckpointPart:
        """Returns a copy on the host, apart from what training goes on to change."""
        return CheckpointPart(
            rank=self.rank,
            tensors={name: _copy(tensor) for name, tensor in self.tensors.items()},
            state={name: {key: _copy(x) for key, x in row.items()} for name, row in self.state.items()},
            settings=self.settings,
            elements=self.elements,
            averages={name: _copy(tensor) for name, tensor in self.averages.items()},
        )

    def split(self) -> Mapping[str, Elements]:
        """Returns which elements the tensors have that are in several parts, by their name in the file.

        State without the shape of its parameter, such as a count of steps, is whole, and the first part has it.
        """
        apart = {name: own for name, own in self.elements.items() if own.stop - own.start < prod(own.shape)}
        found = {MODEL + name: own for name, own in apart.items()}
        return found | {
            f"{STATE}{name}/{key}": own
            for name, own in apart.items()
            for key, tensor in self.state.get(name, {}).items()
            if tensor.shape == self.tensors[name].shape
        }


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _apart(tensor: Tensor) -> Tensor:
    """Returns the tensor itself where it has its memory to itself, otherwise a copy."""
    alone = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor.detach() if alone else _copy(tensor)


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
        self._error: BaseException | None = None

    def save(self, part: CheckpointPart, facts: Facts, spared: int | None = None) -> None:
        """Starts to write a checkpoint; returns when the tensors are copied.

        Args: `part` is this rank's; `facts` are the same on all ranks; the checkpoint of step `spared` stays.
        Raises: the error of the checkpoint before, if it failed.
        """
        self.wait()
        copied = part.copied()
        self._thread = threading.Thread(target=self._guarded, args=(copied, facts, spared))
        self._thread.start()

    def wait(self) -> None:
        """Waits until no write is under way; raises its error if it failed."""
        while self._thread is not None:
            self._thread.join(POLL_S)
            self._beat()
            if not self._thread.is_alive():
                self._thread = None
        if self._error is not None:
            raise self._error

    def _guarded(self, part: CheckpointPart, facts: Facts, spared: int | None) -> None:
        try:
            self._write(part, facts, spared)
        except BaseException as error:
            self._error = error

    def _write(self, part: CheckpointPart, facts: Facts, spared: int | None) -> None:
        folder = folder_of(self._folder, facts.step)
        if (folder / INDEX).exists():
            return  # a run that was resumed from an earlier step has come here before
        building = folder.with_suffix(".partial")
        building.mkdir(parents=True, exist_ok=True)
        write_part(building, part)
        if self._rank == self._ranks[0]:
            publish(building, folder, self._ranks, facts, self._names)
            stays = None if spared is None else folder_of(self._folder, spared)
            for old in complete(self._folder)[: -self._keep]:
                if old != stays:
                    shutil.rmtree(old)
        else:
            _until(folder.exists, f"'{folder.name}' was never complete")


def write_part(folder: Path, part: CheckpointPart) -> None:
    """Writes one rank's part whole or not at all, with the sum of its file."""
    flat = {MODEL + name: tensor for name, tensor in part.tensors.items()}
    flat |= {AVERAGE + name: tensor for name, tensor in part.averages.items()}
    flat |= {f"{STATE}{name}/{key}": x for name, row in part.state.items() for key, x in row.items()}
    split = part.split()
    later = {name for name, own in part.elements.items() if own.start > 0}
    doubled = {f"{STATE}{name}/{key}" for name in later for key in part.state.get(name, {})}
    flat = {key: tensor for key, tensor in flat.items() if key in split or key not in doubled}
    file = f"part-{part.rank:05d}.safetensors"
    new = folder / (file + ".new")
    try:
        from safetensors.torch import save_file  # torch is slow to load, and `status` reads checkpoints

        save_file(flat, new)
    except BaseException:
        new.unlink(missing_ok=True)  # where the disk is full, others need the room to say so
        raise
    new.rename(folder / file)
    sums = {file: settle(folder / file)}
    pieces = {key: {"shape": own.shape, "parts": {file: (own.start, own.stop)}} for key, own in split.items()}
    fragment = {
        "files": {key: file for key in flat if key not in split},
        "settings": part.settings,
        "sums": sums,
        "pieces": pieces,
    }
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
    pieces: dict[str, dict[str, Any]] = {}
    for rank in ranks:
        path = building / f"part-{rank:05d}.json"
        _until(path.exists, f"rank {rank} wrote no part of '{folder.name}'")
        fragment = json.loads(path.read_text())
        files |= fragment["files"]
        settings |= fragment["settings"]
        sums |= fragment["sums"]
        for key, row in fragment["pieces"].items():
            pieces.setdefault(key, {**row, "parts": {}})["parts"] |= row["parts"]
        path.unlink()
    index = {
        "version": OF_PIECES if pieces else VERSION,
        "facts": asdict(facts),
        "files": files,
        "settings": settings,
        "names": dict(names),
        "sums": sums,
        **({"pieces": pieces} if pieces else {}),
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
    target = folder_of(folder, facts.step)
    building = target.with_suffix(".partial")
    building.mkdir(parents=True)
    write_part(
        building, CheckpointPart(rank=0, tensors={name: _apart(tensor) for name, tensor in tensors.items()})
    )
    publish(building, target, [0], facts, names)
    return Checkpoint.open(target)


def _until(done: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PARTS_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(otherwise)
        time.sleep(POLL_S)


def interval_s(cost_s: float, failures_every_s: float) -> float:
    """Returns Daly's interval between checkpoints, in seconds.

    Args: `cost_s` is the time that a checkpoint takes; `failures_every_s` the mean time between failures.
    """
    ratio = cost_s / (2 * failures_every_s)
    if ratio >= 1:
        return failures_every_s
    young = math.sqrt(2 * cost_s * failures_every_s)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def steps_between(step_s: float, cost_s: float, failures_every_s: float) -> int:
    """Returns how many steps to do between checkpoints, at least one.

    Args: `step_s` is the time of a step, `cost_s` that of a checkpoint, `failures_every_s` the mean between
        failures.
    """
    return max(1, round(interval_s(cost_s, failures_every_s) / max(step_s, 1e-9)))


def write_s(folder: Path, size_bytes: int) -> float:
    """Estimates the time to put some bytes on disk, from a file of 32 MiB.

    Args: `folder` lies on that disk.
    Returns: seconds for `size_bytes`.
    """
    block = os.urandom(2**20)
    with tempfile.TemporaryFile(dir=folder) as file:
        begin = time.perf_counter()
        for _ in range(SAMPLE_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        took = time.perf_counter() - begin
    return took * size_bytes / SAMPLE_BYTES
