"""What one rank contributes to a checkpoint, and how it gets to disk: its part, then the index of all parts."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.checkpoint.checkpoint import Checkpoint
from runtime.checkpoint.integrity import (
    AVERAGE,
    INDEX,
    KEPT,
    MODEL,
    OF_PIECES,
    OUTER,
    STATE,
    SUM_OF_INDEX,
    VERSION,
    Facts,
    folder_of,
    settle,
)
from runtime.checkpoint.tensor_file import Elements, write

if TYPE_CHECKING:
    from torch import Tensor

POLL_S = 0.05
PARTS_S = 600.0  # how long the first rank waits for the parts of the others

Moved = Callable[[], None]  # called while bytes move, so that who watches sees no standstill


@dataclass(frozen=True, kw_only=True)
class CheckpointPart:
    """One rank's contribution to a checkpoint."""

    rank: int
    tensors: Mapping[str, Tensor]  # parameters and buffers by name
    state: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Mapping[str, object]]] = field(default_factory=dict)
    elements: Mapping[str, Elements] = field(default_factory=dict)  # of which tensors have only some
    averages: Mapping[str, Tensor] = field(default_factory=dict)  # of parameters by name
    kept: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # the entries of pruned parameters that `state` has
    momentum: Mapping[str, Tensor] = field(default_factory=dict)  # of the step that islands take together
    moving: frozenset[str] = frozenset()  # names that a forward pass writes, before any update

    def on_host(self) -> CheckpointPart:
        """Returns the part with all its tensors on the host. Only those are copied that were not, or are `moving`."""
        return replace(
            self,
            tensors={name: _on_host(x, name in self.moving) for name, x in self.tensors.items()},
            state={name: {key: _on_host(x) for key, x in row.items()} for name, row in self.state.items()},
            averages={name: _on_host(x) for name, x in self.averages.items()},
            kept={name: _on_host(x) for name, x in self.kept.items()},
        )

    def split(self) -> Mapping[str, Elements]:
        """Returns which elements the tensors have that are in several parts, by their name in the file.

        State without the shape of its parameter, such as a count of steps, is whole, and the first part has it.
        """
        apart = {name: own for name, own in self.elements.items() if own.stop - own.start < prod(own.shape)}
        found = {MODEL + name: own for name, own in apart.items()}
        found |= {AVERAGE + name: own for name, own in apart.items() if name in self.averages}
        return found | {
            f"{STATE}{name}/{key}": own
            for name, own in apart.items()
            for key, tensor in self.state.get(name, {}).items()
            if tensor.shape == self.tensors[name].shape
        }


def _on_host(tensor: Tensor, copy: bool = False) -> Tensor:
    return tensor.detach().to("cpu", copy=copy)


def write_part(
    folder: Path,
    part: CheckpointPart,
    moved: Moved = lambda: None,
    on_file: Callable[[], None] = lambda: None,
) -> None:
    """Writes one rank's part whole or not at all, with the sum of its file.

    Args: `moved` is called again and again while bytes go to the disk; `on_file` when the tensors are written, and
        may change.
    Raises: OSError with the path and the bytes where the disk is full.
    """
    flat = {MODEL + name: tensor for name, tensor in part.tensors.items()}
    flat |= {AVERAGE + name: tensor for name, tensor in part.averages.items()}
    flat |= {OUTER + name: tensor for name, tensor in part.momentum.items()}
    flat |= {KEPT + name: tensor for name, tensor in part.kept.items()}
    flat |= {f"{STATE}{name}/{key}": x for name, row in part.state.items() for key, x in row.items()}
    split = part.split()
    later = {name for name, own in part.elements.items() if own.start > 0}
    doubled = {f"{STATE}{name}/{key}" for name in later for key in part.state.get(name, {})}
    flat = {key: tensor for key, tensor in flat.items() if key in split or key not in doubled}
    file = f"part-{part.rank:05d}.safetensors"
    new = folder / (file + ".new")
    try:
        write(flat, new)
    except BaseException as error:
        new.unlink(missing_ok=True)  # where the disk is full, others need the room to say so
        _say_if_full(error, new, sum(tensor.nbytes for tensor in flat.values()))
        raise
    on_file()
    moved()
    new.rename(folder / file)
    sums = {file: settle(folder / file, moved)}
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


def _say_if_full(error: BaseException, path: Path, size: int) -> None:
    """Raises OSError with what was to be written, where an error of writing says that the disk is full."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what = f"{os.strerror(error.errno)}: a part of a checkpoint of {size} bytes"
        raise OSError(error.errno, what, str(path)) from error


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
        until(path.exists, f"rank {rank} wrote no part of '{folder.name}'")
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
    folder: Path,
    tensors: Mapping[str, Tensor],
    facts: Facts,
    names: Mapping[str, str],
    before: Checkpoint | None = None,
) -> Checkpoint:
    """Writes checkpoint 0 before any rank starts, as one part.

    Args: `folder` has the checkpoints of a run; `tensors` are all of the model's, by name; optimizer state is that of
        the checkpoint `before`, if any.
    Returns: the checkpoint.
    """
    part = CheckpointPart(rank=0, tensors=tensors)
    if before is not None:
        plain = {name: {"state": row.get("state", {})} for name, row in before.settings.items()}
        part = replace(part, state=before.state(tensors), kept=before.kept(tensors), settings=plain)
    return write_alone(folder, part, facts, names)


def write_alone(
    folder: Path, part: CheckpointPart, facts: Facts, names: Mapping[str, str], *, by: str = ""
) -> Checkpoint:
    """Writes a checkpoint as one part, by one process.

    Args: `folder` has the checkpoints of a run; `by` tells this process from others that write the same one, of which
        the first to be done counts.
    Returns: the checkpoint, whoever has written it.
    Raises: OSError where it cannot be written.
    """
    target = folder_of(folder, facts.step)
    building = target.with_suffix(f"{by and '.'}{by}.partial")
    building.mkdir(parents=True)
    try:
        write_part(building, part.on_host())
        publish(building, target, [0], facts, names)
    except OSError:
        shutil.rmtree(building, ignore_errors=True)
        if not by or not (target / INDEX).is_file():
            raise
    return Checkpoint.open(target)


def until(done: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PARTS_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(otherwise)
        time.sleep(POLL_S)
