"""Volumes that are folders of many files: TIFF slices, and what Neuroglancer reads.

Neuroglancer's format "precomputed" has a file `info`, which lists scales, and a folder for each scale. Its volume has the
dimensions channel, z, y, x. A raw chunk is a file, named by its places along x, y, z, in which x runs fastest.
"""

from __future__ import annotations

import gzip
import importlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.errors import BadInput
from planner.files import read_bytes, write_whole
from planner.spatial import Box

EXTRA: Final = "pip install 'shardwright[volumes]'"
TIFF: Final = (".tif", ".tiff")
WRITTEN: Final = ".npy, .zarr, .h5 or .precomputed"
INFO: Final = "info"
INFO_BYTES = 2**20
KINDS: Final = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64", "float32")
KEY: Final = "0"  # the scale that is written


def at(box: Box) -> tuple[slice, ...]:
    """Returns a box as an index."""
    return tuple(slice(low, high) for low, high in box)


def library(name: str) -> Any:
    """Returns a module that is not installed with us.

    Raises: BadInput where it is missing.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadInput(f"{name} is not installed", where="volumes", allowed=EXTRA) from error


class PrecomputedVolume:
    """One scale of a folder; a chunk that has no file is zeros."""

    def __init__(self, path: Path, inner: str) -> None:
        """Reads what the folder says of a scale.

        Args: `inner` is the key of a scale; the first one counts where it is empty.
        Raises: BadInput where there is no such scale, or its chunks are not raw files of their own.
        """
        found = _info(path)
        keys = [str(scale["key"]) for scale in found["scales"]]
        if inner and inner not in keys:
            raise BadInput(f"has no scale '{inner}'", where=str(path), allowed=", ".join(keys))
        scale = found["scales"][keys.index(inner) if inner else 0]
        if scale.get("encoding") != "raw" or scale.get("sharding") is not None:
            said = f"scale '{scale['key']}' is {scale.get('encoding')}"
            raise BadInput(said, where=str(path), allowed="raw chunks, not sharded")
        if found["data_type"] not in KINDS:
            raise BadInput(f"holds {found['data_type']}", where=str(path), allowed=", ".join(KINDS))
        self.dtype: np.dtype[Any] = np.dtype(found["data_type"]).newbyteorder("<")
        self._folder = path / str(scale["key"])
        self._offset = _three(scale.get("voxel_offset", [0, 0, 0]))
        self.shape: tuple[int, ...] = (int(found["num_channels"]), *_three(scale["size"]))
        self.chunks: tuple[int, ...] = (self.shape[0], *_three(scale["chunk_sizes"][0]))

    @classmethod
    def create(
        cls, path: Path, shape: Sequence[int], dtype: np.dtype[Any], chunks: Sequence[int]
    ) -> PrecomputedVolume:
        """Makes a folder of zeros.

        Raises: BadInput where the volume has no three axes of space, or numbers of another type.
        """
        if len(shape) != 4 or dtype.name not in KINDS:
            said = f"{len(shape) - 1} axes of {dtype.name}"
            raise BadInput(said, where=str(path), allowed=f"three axes of one of {', '.join(KINDS)}")
        scale = {
            "key": KEY,
            "size": [*shape[:0:-1]],
            "chunk_sizes": [[*chunks[:0:-1]]],
            "encoding": "raw",
            "resolution": [1, 1, 1],
            "voxel_offset": [0, 0, 0],
        }
        made = {"@type": "neuroglancer_multiscale_volume", "type": "image", "data_type": dtype.name}
        (path / KEY).mkdir(parents=True)
        write_whole(path / INFO, json.dumps(made | {"num_channels": shape[0], "scales": [scale]}))
        return cls(path, KEY)

    def _files(self, box: Box) -> Iterator[tuple[Path, Box]]:
        """Yields the file of each chunk that a box of space meets, and the chunk's own box."""
        axes = list(zip(box, self.chunks[1:], self.shape[1:], strict=True))
        along = [range(low // rows * rows, high, rows) for (low, high), rows, _ in axes]
        for starts in itertools.product(*along):
            own = tuple((a, min(a + rows, n)) for a, (_, rows, n) in zip(starts, axes, strict=True))
            pairs = [
                f"{low + shift}-{high + shift}"
                for (low, high), shift in zip(own[::-1], self._offset[::-1], strict=True)
            ]
            yield self._folder / "_".join(pairs), own

    def _chunk(self, file: Path, own: Box) -> NDArray[Any]:
        sizes = [self.shape[0], *(high - low for low, high in own)]
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            packed = file.with_name(file.name + ".gz")
            if not packed.exists():
                return np.zeros(sizes, self.dtype)
            data = gzip.decompress(packed.read_bytes())
        found = np.frombuffer(data, self.dtype)
        if found.size != np.prod(sizes):
            raise BadInput(f"holds {found.size} numbers", where=str(file), allowed=f"{np.prod(sizes)}")
        return found.reshape(sizes)

    def read(self, box: Box) -> NDArray[Any]:
        channels, *space = box
        made = np.empty([high - low for low, high in box], self.dtype)
        for file, own in self._files(tuple(space)):
            inner = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(own, space, strict=True)]
            source = (slice(*channels), *_within(inner, own))
            made[(slice(None), *_within(inner, space))] = self._chunk(file, own)[source]
        return made

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Writes whole chunks, each a file that appears at once.

        Raises: OSError where one cannot be written.
        """
        _, *space = box
        for file, own in self._files(tuple(space)):
            assert all(a <= c and d <= b for (a, b), (c, d) in zip(space, own, strict=True)), "whole chunks"
            part = values[(slice(None), *_within(own, space))]
            beside = file.with_name(f".{file.name}.{os.getpid()}")
            beside.write_bytes(np.ascontiguousarray(part, self.dtype).tobytes())
            with beside.open("rb+") as done:
                os.fsync(done.fileno())
            beside.replace(file)


def _within(inner: Sequence[tuple[int, int]], outer: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(inner, outer, strict=True))


def _three(values: Sequence[Any]) -> tuple[int, int, int]:
    """Returns numbers along x, y, z in the order z, y, x."""
    x, y, z = (int(value) for value in values)
    return z, y, x


def _info(path: Path) -> dict[str, Any]:
    """Returns what the file `info` says.

    Raises: BadInput where it does not say what a volume needs.
    """
    try:
        found = json.loads(read_bytes(path / INFO, max_bytes=INFO_BYTES))
        for scale in found["scales"]:
            sizes = [*_three(scale["size"]), *_three(scale["chunk_sizes"][0]), int(found["num_channels"])]
            if not re.fullmatch(r"\w[\w.+-]*", str(scale["key"])) or min(sizes) < 1:
                raise ValueError("a scale without a key or a size")
        found["data_type"], found["scales"][0]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        allowed = "the info of a precomputed volume"
        raise BadInput(f"cannot be read: {error}", where=str(path / INFO), allowed=allowed) from error
    return dict(found)


def _check_order(names: Sequence[str], path: Path) -> None:
    """Raises BadInput where numbers in names would put slices in another order than the names themselves."""

    def counted(name: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]

    for before, after in pairwise(names):
        if counted(after) < counted(before):
            raise BadInput(
                f"'{before}' comes before '{after}' by name, and behind it by number",
                where=str(path),
                allowed="numbers of one length, such as 007 and 010",
            )


class TiffSlices:
    """A folder of TIFF files in the order of their names, each one slice of the volume; read only."""

    def __init__(self, path: Path) -> None:
        self._tiff = library("tifffile")
        self._files = sorted(file for file in path.iterdir() if file.suffix.lower() in TIFF)
        _check_order([file.stem for file in self._files], path)
        with self._tiff.TiffFile(self._files[0]) as first:
            page = first.pages[0]
            self.shape, self.dtype = (len(self._files), *page.shape), np.dtype(page.dtype)
        self.chunks = (1, *self.shape[1:])

    def read(self, box: Box) -> NDArray[Any]:
        (low, high), *inner = box
        slices = [self._slice(file)[at(tuple(inner))] for file in self._files[low:high]]
        return np.stack(slices) if slices else np.empty([b - a for a, b in box], self.dtype)

    def _slice(self, file: Path) -> NDArray[Any]:
        found = np.asarray(self._tiff.imread(file))
        if found.shape != self.shape[1:]:
            raise BadInput(
                f"is {found.shape}", where=str(file), allowed=f"{self.shape[1:]}, as the first slice"
            )
        return found

    def write(self, box: Box, values: NDArray[Any]) -> None:
        raise BadInput("slices are only read", where="output", allowed=WRITTEN)
