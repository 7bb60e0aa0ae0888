"""Writes checkpoints in the background: each rank its part, and the first rank the index.

Each rank writes one part with the tensors that it is the first holder of. When all parts are there the index is
written and the folder gets its name, so a folder with that name is complete.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from runtime.checkpoint.checkpoint import MODEL, STATE, VERSION, Checkpoint
from runtime.checkpoint.integrity import INDEX, PREFIX, SUM_OF_INDEX, Facts, complete, settle, step_of
from runtime.checkpoint.storage import Copies, Keeping

if TYPE_CHECKING:
    from torch import Tensor

POLL_S = 0.05
LOOK_S = 1.0  # at what the other ranks have written
PARTS_S = 600.0  # how long the first rank waits for the parts of the others

Moved = Callable[[], None]  # called while bytes move, so that who watches sees no standstill


@dataclass(frozen=True, kw_only=True)
class CheckpointPart:
    """One rank's contribution to a checkpoint."""

    rank: int
    tensors: Mapping[str, Tensor]  # parameters and buffers by name
    state: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Mapping[str, object]]] = field(default_factory=dict)

    def copied(self) -> CheckpointPart:
        """Returns a copy on the host, apart from what training goes on to change."""
        return CheckpointPart(
            rank=self.rank,
            tensors={name: _copy(tensor) for name, tensor in self.tensors.items()},
            state={name: {key: _copy(x) for key, x in row.items()} for name, row in self.state.items()},
            settings=self.settings,
        )


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
        keep: Keeping,
        beat: Callable[[bool], None] = lambda waiting: None,
    ) -> None:
        """Prepares the writing of one rank's parts.

        Args: `ranks` are all that write, of which the first publishes; `names` are those of the user's
            state_dict; `beat` is called whenever a write that is waited for has moved, with whether it moves on
            other ranks only.
        """
        self._beat = beat
        self._folder, self._rank, self._ranks, self._names, self._keep = folder, rank, ranks, names, keep
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._unsent = ""  # why the last copy was not made
        self._waiting = False
        self._moves = 0
        self._seen: tuple[int, object] = (0, None)
        self._building: Path | None = None
        self._look_s = 0.0

    def save(self, part: CheckpointPart, facts: Facts) -> None:
        """Starts to write a checkpoint; returns when the tensors are copied.

        Args: `part` is this rank's; `facts` are the same on all ranks.
        Raises: the error of the checkpoint before, if it failed.
        """
        self.wait()
        copied = part.copied()
        self._waiting = False
        self._thread = threading.Thread(target=self._guarded, args=(copied, facts))
        self._thread.start()

    def wait(self) -> None:
        """Waits until no write is under way; raises its error if it failed."""
        if self._thread is not None:
            self._beat(False)
        while self._thread is not None:
            self._thread.join(POLL_S)
            if self._has_moved():
                self._beat(self._waiting)
            if not self._thread.is_alive():
                self._thread = None
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Waits until no write is under way.

        Raises: its error if it failed; OSError where the last checkpoint could not be copied.
        """
        self.wait()
        if self._unsent:
            raise OSError(self._unsent)

    def _has_moved(self) -> bool:
        """Returns whether this rank, or any other, has written on since the last call.

        A rank that waits for the parts of others sees them grow. Where none does, it stands still as they do.
        """
        stamp = self._seen[1]
        if time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + LOOK_S
            stamp = _stamp(self._building)
        before, self._seen = self._seen, (self._moves, stamp)
        return before != self._seen

    def _moved(self) -> None:
        self._moves += 1

    def _guarded(self, part: CheckpointPart, facts: Facts) -> None:
        try:
            self._write(part, facts)
        except BaseException as error:
            self._error = error

    def _write(self, part: CheckpointPart, facts: Facts) -> None:
        folder = self._folder / f"{PREFIX}{facts.step:08d}"
        if (folder / INDEX).exists():
            return  # a run that was resumed from an earlier step has come here before
        self._building = building = folder.with_suffix(".partial")
        building.mkdir(parents=True, exist_ok=True)
        write_part(building, part, self._moved)
        self._waiting = True
        if self._rank != self._ranks[0]:
            _until(folder.exists, f"'{folder.name}' was never complete")
            return
        publish(building, folder, self._ranks, facts, self._names)
        self._waiting = False
        if self._keep.copies is not None:
            self._copy(folder, self._keep.copies)
        steps = {step_of(path): path for path in complete(self._folder)}
        for step in self._keep.old(sorted(steps)):
            shutil.rmtree(steps[step])

    def _copy(self, folder: Path, copies: Copies) -> None:
        """Copies a checkpoint. Where that fails the run goes on, says so, and tries with the next one."""
        try:
            copies.put(folder, self._moved)
            for step in self._keep.old(copies.steps()):
                copies.remove(step)
            self._unsent = ""
        except Exception as error:  # every kind of storage has errors of its own
            self._unsent = f"checkpoint {folder.name} was not copied to {copies.url}: {error}"
            print(self._unsent, flush=True)


def _stamp(building: Path | None) -> object:
    """Returns what changes when any rank writes on in a checkpoint: names, sizes and times of its files."""
    if building is None:
        return None
    try:
        with os.scandir(building) as rows:
            found = [(row.name, row.stat()) for row in rows]
        return sorted((name, state.st_size, state.st_mtime_ns) for name, state in found)
    except OSError:
        return building.exists()


def write_part(folder: Path, part: CheckpointPart, moved: Moved = lambda: None) -> None:
    """Writes one rank's part whole or not at all, with the sum of its file.

    Args: `moved` is called again and again while bytes go to the disk.
    Raises: OSError with the path and the bytes where the disk is full.
    """
    flat = {MODEL + name: tensor for name, tensor in part.tensors.items()}
    flat |= {f"{STATE}{name}/{key}": x for name, row in part.state.items() for key, x in row.items()}
    file = f"part-{part.rank:05d}.safetensors"
    new = folder / (file + ".new")
    try:
        from safetensors.torch import save_file  # torch is slow to load, and `status` reads checkpoints

        save_file(flat, new)
    except BaseException as error:
        new.unlink(missing_ok=True)  # where the disk is full, others need the room to say so
        _say_if_full(error, new, sum(tensor.nbytes for tensor in flat.values()))
        raise
    moved()
    new.rename(folder / file)
    sums = {file: settle(folder / file, moved)}
    fragment = {"files": dict.fromkeys(flat, file), "settings": part.settings, "sums": sums}
    path = folder / f"part-{part.rank:05d}.json"
    path.with_suffix(".new").write_text(json.dumps(fragment))
    path.with_suffix(".new").rename(path)


def _say_if_full(error: BaseException, path: Path, size: int) -> None:
    """Raises OSError with what was to be written, where an error of writing says that the disk is full."""
    for number in (errno.ENOSPC, errno.EDQUOT):
        told = os.strerror(number)
        if getattr(error, "errno", None) == number or (
            isinstance(error, SafetensorError) and told in str(error)
        ):
            raise OSError(number, f"{told}: a part of a checkpoint of {size} bytes", str(path)) from error


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
    write_part(
        building, CheckpointPart(rank=0, tensors={name: _apart(tensor) for name, tensor in tensors.items()})
    )
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
