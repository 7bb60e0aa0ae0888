"""Writes checkpoints in the background: each rank its part, and the first rank the index.

Each rank writes one part with the tensors that it is the first holder of. When all parts are there the index is
written and the folder gets its name, so a folder with that name is complete.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.checkpoint.integrity import INDEX, Facts, complete, folder_of, remove, step_of
from runtime.checkpoint.part import POLL_S, CheckpointPart, publish, until, write_part
from runtime.checkpoint.storage import Copies, Keeping

if TYPE_CHECKING:
    pass

LOOK_S = 1.0  # at what the other ranks have written


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
        self._on_file = threading.Event()
        self._error: BaseException | None = None
        self._unsent = ""  # why the last copy was not made
        self._waiting = False
        self._moves = 0
        self._seen: tuple[int, object] = (0, None)
        self._building: Path | None = None
        self._look_s = 0.0

    def save(self, part: CheckpointPart, facts: Facts, spared: int | None = None) -> None:
        """Starts to write a checkpoint. No tensor may be updated before `until_on_file` has returned.

        Args: `part` is this rank's; `facts` are the same on all ranks; the checkpoint of step `spared` stays.
        Raises: the error of the checkpoint before, if it failed.
        """
        self.wait()
        self._waiting = False
        self._on_file.clear()
        self._thread = threading.Thread(target=self._guarded, args=(part.on_host(), facts, spared))
        self._thread.start()

    def until_on_file(self) -> None:
        """Waits until the tensors of a checkpoint are written, if one is under way, and may be updated."""
        if self._thread is None or self._on_file.is_set():
            return
        self._beat(False)
        while not self._on_file.wait(POLL_S):
            if self._has_moved():
                self._beat(False)

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

    def _guarded(self, part: CheckpointPart, facts: Facts, spared: int | None) -> None:
        try:
            self._write(part, facts, spared)
        except BaseException as error:
            self._error = error
        finally:
            self._on_file.set()

    def _write(self, part: CheckpointPart, facts: Facts, spared: int | None) -> None:
        folder = folder_of(self._folder, facts.step)
        if (folder / INDEX).exists():
            return  # a run that was resumed from an earlier step has come here before
        self._building = building = folder.with_suffix(".partial")
        if not self._folder.parent.is_symlink():  # which somebody may have put in the place of the run
            self._folder.mkdir(exist_ok=True)
        building.mkdir(exist_ok=True)
        write_part(building, part, self._moved, self._on_file.set)
        self._waiting = True
        if self._rank != self._ranks[0]:
            until(folder.exists, f"'{folder.name}' was never complete")
            return
        publish(building, folder, self._ranks, facts, self._names)
        self._waiting = False
        if self._keep.copies is not None:
            self._copy(folder, self._keep.copies, spared)
        steps = {step_of(path): path for path in complete(self._folder)}
        for step in self._keep.old(sorted(steps)):
            if step != spared:
                remove(steps[step])

    def _copy(self, folder: Path, copies: Copies, spared: int | None) -> None:
        """Copies a checkpoint. Where that fails the run goes on, says so, and tries with the next one."""
        try:
            copies.put(folder, self._moved)
            for step in self._keep.old(copies.steps()):
                if step != spared:
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
