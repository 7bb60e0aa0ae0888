"""Captured workloads that the processes of a test run share: one captures a model, the others read it as data."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

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


@lru_cache(maxsize=256)
def _captured(workload: str, arguments: Arguments, micro: int) -> tuple[Workload, Captured]:
    from planner.workload import workload as workloads

    loaded = workloads.load(workload, dict(arguments))
    return loaded, shared(loaded, micro=micro)


def share() -> None:
    """Has profiles and runs of this process take what any process of the test run has captured."""
    from planner.measure import bench
    from runtime.train import prepare

    bench.capture = prepare.capture = shared  # type: ignore[attr-defined]


def shared(workload: Workload, *, micro: int | Sequence[int] = (1, 2)) -> Captured:
    """Captures a workload as `planner.capture.capture` does, unless a process of this run has done so before.

    A capture for any batch size serves every micro-batch, but for 1 only where a batch of one was looked at. Settings of
    functions that a capture does not call, such as those of an optimizer, make no other capture.

    Args: `micro` is the micro-batch to be served, or several.
    """
    from planner.capture import capture
    from planner.capture.capture import origin_of

    asked = (micro,) if isinstance(micro, int) else tuple(micro)
    every, several, own = (_path(workload, served) for served in ("every", "several", micro))
    if every is None or several is None or own is None or workload.opaque or workload.folder is not None:
        return capture(workload, micro=micro)
    one = not isinstance(micro, int) or micro == 1
    for path in (every, own) if one else (every, several, own):
        found = _kept(path)
        if found is not None and (path == own or all(map(found.graph.serves, asked))):
            return replace(found, origin=origin_of(workload))
    found = capture(workload, micro=micro)
    anyhow = found.graph.symbolic_batch and not found.left_out
    _keep(own if not anyhow else every if one else several, found)
    return found


def spare_garbage() -> None:
    """Nobody who looks for garbage need walk again through what is there by now; captures leave a lot."""
    if (run := sys.modules.get("planner.capture.fake_run")) is not None:
        run._caches()  # those that are hidden now are known
    gc.collect()
    gc.freeze()


CALLED = ("build", "batch", "loss", "metrics")  # of a workload, by a capture
_read: dict[Path, Captured] = {}  # by this process, or written by it


def _taken(workload: Workload) -> list[object]:
    """Returns the settings that were bound to each function that a capture calls."""
    found: list[object] = []
    for role in CALLED:
        function = workload.functions.get(role)
        names = getattr(getattr(function, "__code__", None), "co_freevars", ())
        cells = getattr(function, "__closure__", None) or ()
        bound = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
        found.append(bound.get("given"))
    return found


def _beside(workload: Workload) -> list[tuple[str, int, int]]:
    """Returns what tells the user's other files apart, which the workload may import."""
    folder = Path(workload.where).absolute().parent
    if folder.is_relative_to(ROOT):
        return []
    stats = [(str(file), file.stat()) for file in sorted(folder.glob("*.py"))]
    return [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]


def _path(workload: Workload, micro: object) -> Path | None:
    folder, file = os.environ.get(FOLDER), Path(workload.where)
    if not folder:
        return None
    source = file.read_bytes() if file.is_file() else b""
    key = repr((str(file.absolute()), _taken(workload), _beside(workload), micro))
    return Path(folder) / hashlib.sha256(key.encode() + source).hexdigest()


def _keep(path: Path, captured: Captured) -> None:
    from safetensors.torch import save_file

    from planner.capture.travel import to_data

    try:
        data = to_data(captured)
    except BadInput:  # what only the user's code computes is captured by each process
        return
    why = {"alone": captured.alone, "left_out": list(captured.left_out.items())}
    made = path.with_suffix(f".{os.getpid()}")
    made.mkdir()
    (made / "model.json").write_text(json.dumps([data, why]))
    tensors = {name: x.detach().clone() for name, x in captured.layout.traced.constants.items()}
    save_file(tensors, made / "constants.safetensors")
    with contextlib.suppress(OSError):  # another process was faster
        made.rename(path)
    _read[path] = captured
    spare_garbage()


def _kept(path: Path) -> Captured | None:
    from safetensors.torch import load_file

    from planner.capture.travel import from_data

    if path not in _read and path.exists():
        data, why = json.loads((path / "model.json").read_text())
        found = from_data(data, load_file(path / "constants.safetensors"))
        _read[path] = replace(found, alone=why["alone"], left_out=dict(why["left_out"]))
    return _read.get(path)
