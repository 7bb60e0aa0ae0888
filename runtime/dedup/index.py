"""Writes and reads the index of the samples to keep, and trains on these alone.

The file is an array of numpy: a row (-1, number of samples), then a row (index, content) for each sample that is kept,
where the content is eight bytes of the digest of its picture. So the file knows the dataset that it is of.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from planner.arrays import IntArray
from planner.errors import BadInput
from planner.files import open_regular, write_whole
from planner.workload import Workload, has_raw
from runtime.data import raw_of

ROW = np.dtype([("index", "<i8"), ("content", "<u8")])
COMPARED = 16  # samples of a dataset that an index file is compared with


def parts_of(sample: object) -> tuple[object, object]:
    """Returns the picture of a sample and its label, None where that is no single number or text.

    Args: `sample` is a tuple or mapping with the picture first, or the picture alone.
    """
    values = list(sample.values()) if isinstance(sample, Mapping) else sample
    picture, label = (*values, None)[:2] if isinstance(values, list | tuple) and values else (values, None)
    if label is not None and not isinstance(label, str):
        label = np.asarray(label).item() if np.asarray(label).size == 1 else None
    return picture, label


def content_of(picture: object) -> np.uint64:
    """Returns eight bytes of a digest.

    Args: `picture` is an array or tensor.
    """
    array = np.ascontiguousarray(np.asarray(picture))
    digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def save_index(path: Path, kept: IntArray, contents: NDArray[np.uint64]) -> None:
    """Writes an index file.

    Args: `kept` are the samples to keep; `contents` are those of all samples.
    """
    rows = np.zeros(len(kept) + 1, ROW)
    rows[0] = -1, len(contents)
    rows["index"][1:], rows["content"][1:] = kept, contents[kept]
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    write_whole(path, buffer.getvalue())


def load_index(path: Path, data: Sequence[Any]) -> IntArray:
    """Returns the indices of an index file.

    Raises: BadInput where the file is none, or is of another dataset than `data`.
    """
    rows = _rows(path)
    kept, count = rows["index"][1:], int(rows["content"][0])
    if count != len(data):
        raise _other(path, f"it had {count} samples, and this one has {len(data)}")
    for place in np.unique(np.linspace(1, len(kept), min(COMPARED, len(kept))).astype(int)).tolist():
        index = int(rows["index"][place])
        if content_of(parts_of(raw_of(data, index))[0]) != rows["content"][place]:
            raise _other(path, f"sample {index} is another one")
    return np.asarray(kept)


def _rows(path: Path) -> NDArray[Any]:
    try:
        with open_regular(path) as file:
            _check_first_row(file, path)
            rows = np.load(file, allow_pickle=False)
    except BadInput:
        raise
    except Exception as error:  # numpy names no class for what it refuses
        raise BadInput(f"cannot be read: {error}", where=str(path), allowed="what dedup wrote") from None
    sound = isinstance(rows, np.ndarray) and rows.dtype == ROW and rows.ndim == 1 and len(rows) > 1
    kept = rows["index"][1:] if sound else np.zeros(0, np.int64)
    if not len(kept) or rows["index"][0] != -1 or kept.min() < 0 or kept.max() >= rows["content"][0]:
        raise BadInput("is no index of samples", where=str(path), allowed="what dedup wrote")
    return np.asarray(rows)


def _check_first_row(file: BinaryIO, path: Path) -> None:
    """Reads the head and the first row alone, so that nothing is read whole that cannot be an index.

    Raises: BadInput where they are no index's; ValueError where there is no head.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    begin, size = file.tell(), os.fstat(file.fileno()).st_size
    first = np.frombuffer(file.read(ROW.itemsize).ljust(ROW.itemsize, b"\0"), ROW)[0]
    whole = kind == ROW and len(shape) == 1 and begin + shape[0] * ROW.itemsize == size
    if not whole or first["index"] != -1 or first["content"] < shape[0] - 1:
        raise BadInput("is no index of samples", where=str(path), allowed="what dedup wrote")
    file.seek(0)


def _other(path: Path, why: str) -> BadInput:
    return BadInput(f"is the index of another dataset: {why}", where=str(path), allowed="dedup of this one")


def index_digest(samples: str) -> str:
    """Returns a hash of an index file.

    Args: `samples` is its path, or empty.
    Returns: "none" where there is no file.
    Raises: BadInput where the file is no index.
    """
    return hashlib.sha256(_rows(Path(samples)).tobytes()).hexdigest()[:16] if samples else "none"


class KeptSamples:
    """A dataset of the user's with the samples that an index file names, in its order."""

    def __init__(self, data: Any, path: Path) -> None:  # Any: whatever has indices
        self._data, self._kept = data, load_index(path, data)
        self.regions = getattr(data, "regions", False) is True
        if has_raw(data):
            self.raw, self.finish = self._raw, data.finish

    def _raw(self, index: int) -> object:
        return self._data.raw(int(self._kept[index]))

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, asked: Any) -> Any:  # Any: an index, or one with a region
        if isinstance(asked, tuple):
            return self._data[int(self._kept[asked[0]]), asked[1]]
        return self._data[int(self._kept[asked])]


def keeping(workload: Workload, samples: str) -> Workload:
    """Returns a workload whose dataset has the samples of an index file alone.

    Args: `samples` is the path of the file; where it is empty, the workload stays as it is.
    """
    if not samples:
        return workload

    def dataset() -> object:
        data = workload.dataset()
        if data is None or isinstance(data, IterableDataset):
            raise BadInput(
                "has no dataset() with indices", where=workload.where, allowed="one, for --samples"
            )
        return KeptSamples(data, Path(samples))

    return replace(workload, functions={**workload.functions, "dataset": dataset})
