"""Captured workloads that the processes of a test run share: one captures a model, the others read it as data."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file

from planner.errors import BadInput

if TYPE_CHECKING:
    from planner.capture import Captured
    from planner.workload import Workload

ROOT = Path(__file__).parents[1]
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


def share() -> None:
    """Has profiles and runs of this process take what any process of the test run has captured."""
    from planner.measure import bench
    from runtime.train import prepare

    bench.capture = prepare.capture = shared  # type: ignore[attr-defined]


def shared(workload: Workload, *, micro: int | Sequence[int] = (1, 2)) -> Captured:
    """Captures a workload as `planner.capture.capture` does, unless a process of this run has done so before.

    Args: `micro` is the micro-batch to be served, or several; a capture for any batch size serves them all.
    """
    from planner.capture import capture

    asked = (micro,) if isinstance(micro, int) else tuple(micro)
    arguments = tuple((name, str(value)) for name, value in sorted(workload.arguments.items()))
    own, every = (_path(workload.where, arguments, (which, _beside(workload))) for which in (micro, None))
    if own is None or every is None or workload.opaque or workload.folder is not None:
        return capture(workload, micro=micro)
    for path in (every, own):
        if path.exists():
            found = _read(path, workload)
            if path == own or all(map(found.graph.serves, asked)):
                return found
    found = capture(workload, micro=micro)
    if found.left_out or found.alone:  # why is not written
        return found
    looked_at_one = not isinstance(micro, int) or micro == 1
    _write(every if found.graph.symbolic_batch and looked_at_one else own, found)
    return found


def _beside(workload: Workload) -> list[tuple[str, int, int]]:
    """Returns what tells the user's other files apart, which the workload may import."""
    folder = Path(workload.where).absolute().parent
    if folder.is_relative_to(ROOT):
        return []
    stats = [(str(file), file.stat()) for file in sorted(folder.glob("*.py"))]
    return [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]


def _path(workload: str, arguments: Arguments, micro: object) -> Path | None:
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
