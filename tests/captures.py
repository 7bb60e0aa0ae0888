"""Captured workloads that the processes of a test run share: one captures a model, the others read it as data."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file

from planner.errors import BadInput

if TYPE_CHECKING:
    from planner.capture import Captured
    from planner.workload import Workload

FOLDER = "SHARDWRIGHT_TEST_CAPTURES"  # of the environment; nothing is shared without it
Arguments = tuple[tuple[str, str], ...]


def captured_of(workload: str, arguments: Mapping[str, object], micro: int) -> tuple[Workload, Captured]:
    """Returns a workload with its capture, for the micro-batch if it serves only one."""
    return _captured(workload, tuple((k, str(v)) for k, v in sorted(arguments.items())), micro)


@lru_cache(maxsize=64)
def _captured(workload: str, arguments: Arguments, micro: int) -> tuple[Workload, Captured]:
    from planner.capture import capture
    from planner.workload import workload as workloads

    loaded = workloads.load(workload, dict(arguments))
    path = _path(workload, arguments, micro)
    if path is not None and path.exists():
        return loaded, _read(path, loaded)
    captured = capture(loaded)
    captured = captured if captured.graph.symbolic_batch else capture(loaded, micro=micro)
    if path is not None:
        _write(path, captured)
    return loaded, captured


def _path(workload: str, arguments: Arguments, micro: int) -> Path | None:
    folder, file = os.environ.get(FOLDER), Path(workload)
    if not folder:
        return None
    source = file.read_bytes() if file.is_file() else b""
    key = hashlib.sha256(repr((str(file.absolute()), arguments, micro)).encode() + source)
    return Path(folder) / key.hexdigest()


def _write(path: Path, captured: Captured) -> None:
    from planner.capture.travel import to_data

    try:
        data = to_data(captured)
    except BadInput:  # what only the user's code computes is captured by each process
        return
    made = path.with_suffix(f".{os.getpid()}")
    made.mkdir()
    (made / "model.json").write_text(json.dumps(data))
    tensors = {name: x.detach().clone() for name, x in captured.layout.traced.constants.items()}
    save_file(tensors, made / "constants.safetensors")
    try:
        made.rename(path)
    except OSError:  # another process was faster
        return


def _read(path: Path, loaded: Workload) -> Captured:
    """Returns the model that was written, with the user's code as its origin, as a capture has it."""
    from planner.capture.capture import origin_of
    from planner.capture.travel import from_data

    found = from_data(
        json.loads((path / "model.json").read_text()), load_file(path / "constants.safetensors")
    )
    return replace(found, origin=origin_of(loaded))
