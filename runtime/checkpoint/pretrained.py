"""Weights to begin with, out of safetensors files under the user's own names: one file, or a folder of shards.

A file may hold more than the model has. What the model trains and the files lack is an error that names it;
buffers that they lack stay as build() made them. Floating-point numbers are converted to the type that the model
has, as `load_state_dict` does. Other conversions would change values in silence and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from planner.errors import BadInput
from planner.files import check_tensor_file, read_json
from planner.kept import Numbers
from runtime.checkpoint.checkpoint import of_run
from runtime.checkpoint.integrity import INDEX_BYTES

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from planner.capture import Captured

_PRUNED = ("F64", "F32", "F16", "BF16", "C64")  # kinds of numbers that have magnitudes to compare
SUFFIX = ".safetensors"
SHARDS = ".safetensors.index.json"  # as the libraries of pretrained models write beside their shards
_SHOWN = 3
MOST_DIMS = 64  # that torch has


def read(path: Path, captured: Captured) -> dict[str, Tensor]:
    """Reads all parameters of a captured model, and the buffers that the files have.

    Args: `path` is a file, an index of shards, or a folder with one of them.
    Returns: tensors by the model's names, in its types, on the host.
    Raises: BadInput where a parameter is missing, has another shape or kind of numbers, or is not finite in the
      model's type, or a file cannot be read.
    """
    files = _files(path)
    names = {row.name: (row.name, *row.aliases) for row in captured.graph.parameters}
    names |= {row.name: (row.name,) for row in captured.graph.buffers}
    found: dict[str, Tensor] = {}
    for file in sorted({*files.values()}):
        inside = {name for name, where in files.items() if where == file}
        with _opened(file) as tensors:
            for name, known in names.items():
                key = next((alias for alias in known if alias in inside), None)
                if key is not None:
                    found[name] = tensors.get_tensor(key)
    missing = [row.name for row in captured.graph.parameters if row.name not in found]
    if missing:
        raise BadInput(
            f"has no {_listed(missing)} of the model's {len(captured.graph.parameters)} parameters",
            where=str(path),
            allowed=f"the model's own names; the files have {_listed(sorted(files))}",
        )
    return {name: _fitting(name, tensor, captured, path) for name, tensor in found.items()}


def numbers(path: Path) -> Numbers:
    """Returns the weights of a run or of safetensors, to be read one by one.

    Args: `path` is a run folder, a checkpoint, a file, an index of shards, or a folder with one of them.
    Returns: of a run the trained parameters, of files everything with real or complex numbers.
    Raises: BadInput where there are none.
    """
    run = of_run(path)
    if run is not None:
        names = sorted(run.settings) or sorted({*run.names.values()})
        return Numbers(run.shapes(names), lambda name: _array(run.parameters([name])[name]))
    files = _files(path)
    shapes = {}
    for file in sorted({*files.values()}):
        with _opened(file) as tensors:
            for name in sorted(name for name, where in files.items() if where == file):
                if tensors.get_slice(name).get_dtype() in _PRUNED:
                    shapes[name] = tuple(tensors.get_slice(name).get_shape())
                    if len(shapes[name]) > MOST_DIMS:
                        raise BadInput(f"'{name}' has {len(shapes[name])} dimensions", where=str(file))

    def read_one(name: str) -> NDArray[np.floating[Any]]:
        with _opened(files[name]) as tensors:
            return _array(tensors.get_tensor(name))

    return Numbers(shapes, read_one)


def _array(tensor: Tensor) -> NDArray[np.floating[Any]]:
    """Returns numbers as an array; half precision, which arrays do not have alike, as float32."""
    found: NDArray[np.floating[Any]] = (tensor if tensor.itemsize > 2 else tensor.float()).numpy()
    return found


def _fitting(name: str, tensor: Tensor, captured: Captured, path: Path) -> Tensor:
    import torch  # slow to load, and `status` reads checkpoints

    rows = captured.graph.parameter if name in captured.graph.parameter else captured.graph.buffer
    row = rows[name]
    if tuple(tensor.shape) != row.shape:
        raise BadInput(f"'{name}' is {tuple(tensor.shape)}", where=str(path), allowed=f"{row.shape}")
    wanted: torch.dtype = getattr(torch, row.dtype)
    if tensor.dtype != wanted and not (tensor.is_floating_point() and wanted.is_floating_point):
        raise BadInput(f"'{name}' is {_type(tensor.dtype)}", where=str(path), allowed=_type(wanted))
    found = tensor.to(wanted)
    if found.is_floating_point():
        _check_finite(name, tensor, found, path, trained=rows is captured.graph.parameter)
    return found


def _check_finite(name: str, given: Tensor, found: Tensor, path: Path, *, trained: bool) -> None:
    """Raises BadInput where the conversion made a number infinite, or a parameter holds one that is not finite.

    A buffer may hold infinities of its own, as masks do.
    """
    wrong = ~found.isfinite()
    count = int((wrong if trained else wrong & given.isfinite()).sum())
    if count:
        how = "" if given.dtype == found.dtype else f" as {_type(found.dtype)}"
        raise BadInput(
            f"'{name}' holds {count} numbers that are not finite{how}",
            where=str(path),
            allowed="finite numbers",
        )


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _files(path: Path) -> Mapping[str, Path]:
    """Returns the file of each tensor."""
    if path.is_dir():
        indices, files = sorted(path.glob("*" + SHARDS)), sorted(path.glob("*" + SUFFIX))
        if len(indices) == 1:
            return _sharded(indices[0])
        if len(files) != 1 or indices:
            raise BadInput(
                f"a folder with {len(files)} {SUFFIX} files and {len(indices)} indices",
                where=str(path),
                allowed=f"one file, or shards with one {SHARDS}",
            )
        return _files(files[0])
    if path.name.endswith(SHARDS):
        return _sharded(path)
    with _opened(path) as tensors:
        return dict.fromkeys(tensors.keys(), path)


def _sharded(index: Path) -> dict[str, Path]:
    try:
        table = read_json(index, max_bytes=INDEX_BYTES)["weight_map"]
        return {str(name): index.parent / Path(str(file)).name for name, file in table.items()}
    except BadInput as error:
        raise BadInput(f"is no index of shards: {error.what}", where=str(index)) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"is no index of shards: {error}", where=str(index)) from error


def _opened(path: Path) -> safe_open:
    try:
        check_tensor_file(path)
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path), allowed=f"a {SUFFIX} file") from error


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more
