"""The files of an inference: where weights lie, how a module gets them, and digests by which workers know all files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from planner.capture import Forward
from planner.errors import BadInput
from runtime import checkpoint as checkpoints
from runtime.infer.storage import parted
from runtime.runfolder import Paths

INDEX = "index.json"


def weights_of(name: str) -> Path:
    """Returns the file or folder of weights that a run or a file stands for.

    Args: `name` is a run folder, of which the last complete checkpoint counts, or a safetensors file or folder.
    Raises: BadInput where there is none.
    """
    path = Path(name)
    if Paths(path).checkpoints.is_dir():
        last = checkpoints.latest(Paths(path).checkpoints)
        if last is None:
            raise BadInput("has no complete checkpoint", where=name, allowed="a run that has saved one")
        return last.folder
    if not path.exists():
        raise BadInput(
            "is neither a run nor a file", where=name, allowed="a run folder or a .safetensors file"
        )
    return path


def digest_of(path: Path) -> str:
    """Returns a digest of a file, or of all files in a folder, by which workers know the same weights."""
    found = hashlib.sha256()
    for file in sorted(x for x in path.rglob("*") if x.is_file()) if path.is_dir() else [path]:
        found.update(file.name.encode())
        with file.open("rb") as data:
            while block := data.read(2**20):
                found.update(block)
    return found.hexdigest()[:16]


def stamp_of(names: Iterable[str]) -> str:
    """Returns a digest that changes when the files of volumes are written, replaced or renamed.

    Their numbers are not read: volumes may be larger than what can be read in a day.
    Args: `names` are those of volumes, as `opened` takes them; empty ones are left out.
    """
    found = hashlib.sha256()
    for path in (parted(name)[0] for name in names if name):
        files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        for file in files:
            facts = file.stat()
            found.update(f"{file.relative_to(path)}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]


def load_weights(module: nn.Module, path: Path, forward: Forward) -> None:
    """Gives a module its weights, in place; buffers that no state_dict has stay as they were built.

    Args: `path` is from `weights_of`; `forward` is of the same model.
    Raises: BadInput where a parameter, or a buffer that the forward pass reads, is missing or has another shape.
    """
    captured = forward.captured
    known = dict(module.named_parameters()) | dict(module.named_buffers())
    if (path / INDEX).is_file():
        found = checkpoints.Checkpoint.open(path).whole()
        wanted = {name: tensor.shape for name, tensor in known.items() if name in captured.graph.parameter}
        wrong = [name for name in wanted if name not in found or found[name].shape != wanted[name]]
        if wrong:
            raise BadInput(f"has no '{wrong[0]}' of shape {tuple(wanted[wrong[0]])}", where=str(path))
    else:
        found = checkpoints.read(path, captured)
    kept = captured.graph.buffer.keys() & module.state_dict().keys() - found.keys()
    read = {name for operation in forward.operations for name in operation.reads()}
    missing = [x.name for name, x in forward.states.items() if name in read and x.name in kept]
    if missing:
        raise BadInput(
            f"has no '{missing[0]}', which the model reads",
            where=str(path),
            allowed="parameters and buffers, as state_dict() has them",
        )
    with torch.no_grad():
        for name, tensor in found.items():
            if name in known:
                known[name].copy_(tensor)
