"""Volumes on disk, read and written box by box: npy, zarr, HDF5, and folders of TIFF slices.

    volume = opened("scan.zarr:raw")       # shape, dtype, chunks
    volume.read(((0, 64), (0, 64)))        # rows along every dimension
    created(Path("out.npy"), shape, dtype, chunks).write(box, numbers)

A write that the disk does not take raises OSError.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from planner.errors import BadInput
from planner.spatial import Box
from runtime.infer.many_files import INFO, TIFF, WRITTEN, PrecomputedVolume, TiffSlices, at, library

Numbers = NDArray[Any]
ZARR, HDF5, NPY, PRECOMPUTED = (".zarr",), (".h5", ".hdf5"), (".npy",), (".precomputed",)
READ = (
    "a .npy file, a .zarr folder, an .h5 file, a folder that Neuroglancer reads or one of .tif slices; "
    "PATH:ARRAY names an array inside"
)
DEFAULT = "output"  # the array in an HDF5 file that is written


class Volume(Protocol):
    """An array on disk."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]  # of the storage: what is written whole; ones where any box may be

    def read(self, box: Box) -> Numbers:
        """Returns the numbers in a box.

        Args: `box` has rows along every dimension.
        """

    def write(self, box: Box, values: Numbers) -> None:
        """Writes the numbers of a box.

        Args: `box` covers whole chunks, except where the array ends.
        Raises: OSError where they cannot be written.
        """


def opened(name: str) -> Volume:
    """Opens a volume to be read.

    Args: `name` is a path, with ":ARRAY" behind it where a file holds several arrays.
    Raises: BadInput where there is none, it cannot be read, or a library is missing.
    """
    path, inner = parted(name)
    try:
        if path.suffix in NPY:
            return NpyVolume(path)
        if path.suffix in ZARR:
            return ZarrVolume(path, inner, write=False)
        if path.suffix in HDF5:
            return Hdf5Volume(path, inner, write=False)
        if (path / INFO).is_file():
            return PrecomputedVolume(path, inner)
        if path.is_dir() and any(file.suffix.lower() in TIFF for file in path.iterdir()):
            return TiffSlices(path)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path), allowed=READ) from error
    raise BadInput("is no volume", where=str(path), allowed=READ)


def created(path: Path, shape: Sequence[int], dtype: np.dtype[Any], chunks: Sequence[int]) -> Volume:
    """Makes a volume of zeros.

    Args: `path` does not exist; its suffix says of which kind; `chunks` are those of the storage where it has any.
    Raises: BadInput where it cannot be made.
    """
    shape, chunks = tuple(shape), tuple(chunks)
    try:
        if path.suffix in NPY:
            return NpyVolume.create(path, shape, dtype)
        if path.suffix in ZARR:
            library("zarr").create_array(
                str(path), shape=shape, chunks=chunks, dtype=dtype, fill_value=0, zarr_format=3
            )
        elif path.suffix in PRECOMPUTED:
            return PrecomputedVolume.create(path, shape, dtype, chunks)
        elif path.suffix in HDF5:
            with library("h5py").File(path, "x") as file:
                file.create_dataset(DEFAULT, shape, dtype, chunks=chunks, fillvalue=0)
        else:
            raise BadInput("is of no kind that can be written", where=str(path), allowed=WRITTEN)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror or error}", where=str(path)) from error
    return written(path)


def written(path: Path) -> Volume:
    """Opens a volume that `created` has made, to be written further."""
    if path.suffix in NPY:
        return NpyVolume(path)
    if path.suffix in ZARR:
        return ZarrVolume(path, "", write=True)
    if path.suffix in PRECOMPUTED:
        return PrecomputedVolume(path, "")
    return Hdf5Volume(path, DEFAULT, write=True)


def one_writer(path: Path) -> bool:
    """Returns whether only one process at a time may write a volume of this kind."""
    return path.suffix in HDF5


def parted(name: str) -> tuple[Path, str]:
    """Returns the path of a volume, and the name of the array inside, which may be empty."""
    if Path(name).exists() or ":" not in name:
        return Path(name), ""
    path, _, inner = name.rpartition(":")
    return Path(path), inner


def _mapped(path: Path) -> np.memmap[Any, np.dtype[Any]]:
    """Returns the array of a .npy file where it lies.

    Raises: BadInput where the file holds no array, or less of it than its head says.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # numpy names no class for what it refuses
        what = f"cannot be read: {error}"
        raise BadInput(what, where=str(path), allowed="one array, as numpy.save writes it") from error
    if not isinstance(found, np.memmap):
        raise BadInput("is an archive", where=str(path), allowed="one array, as numpy.save writes it")
    return found


class NpyVolume:
    """One array in a .npy file; written by plain writes, so that a full disk is an error and no signal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = _mapped(path)
        self.shape, self.dtype = tuple(self._numbers.shape), self._numbers.dtype
        self.chunks = (1,) * len(self.shape)

    @classmethod
    def create(cls, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NpyVolume:
        """Makes a file of zeros with all the room that it needs.

        Raises: OSError where the disk has too little room.
        """
        kind = np.lib.format.dtype_to_descr(dtype)
        header: dict[str, Any] = {"shape": shape, "fortran_order": False, "descr": kind}
        with path.open("xb") as file:
            try:
                np.lib.format.write_array_header_2_0(file, header)
                size = file.tell() + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
                file.flush()
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                path.unlink()
                raise
        return cls(path)

    def read(self, box: Box) -> Numbers:
        return np.array(self._numbers[at(box)])

    def write(self, box: Box, values: Numbers) -> None:
        values = np.ascontiguousarray(values, self.dtype)
        whole = len(self.shape)  # of the last dimensions, those that the box has all of
        while whole and box[whole - 1] == (0, self.shape[whole - 1]):
            whole -= 1
        runs = values.reshape(*values.shape[: max(0, whole - 1)], -1)
        first = self._numbers.offset
        steps = [int(np.prod(self.shape[dim + 1 :], dtype=np.int64)) for dim in range(len(self.shape))]
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for index in np.ndindex(*runs.shape[:-1]):
                rows = (*index, *[0] * (len(box) - len(index)))
                place = sum((low + i) * step for (low, _), i, step in zip(box, rows, steps, strict=True))
                _write_all(file, runs[index].tobytes(), first + place * self.dtype.itemsize)
            os.fsync(file)
        finally:
            os.close(file)


def _write_all(file: int, data: bytes, place: int) -> None:
    left = memoryview(data)
    while left:
        count = os.pwrite(file, left, place)
        left, place = left[count:], place + count


class ZarrVolume:
    """One array of a zarr folder; a chunk is a file of its own."""

    def __init__(self, path: Path, inner: str, *, write: bool) -> None:
        found = library("zarr").open(str(path), mode="r+" if write else "r", path=inner or None)
        if not hasattr(found, "shape"):
            names = ", ".join(f"{path}:{name}" for name, _ in found.arrays()) or "an array"
            raise BadInput("is a group", where=f"{path}:{inner}" if inner else str(path), allowed=names)
        self._array = found
        self.shape, self.dtype = tuple(found.shape), np.dtype(found.dtype)
        self.chunks = tuple(found.chunks)
        self._folder = path

    def read(self, box: Box) -> Numbers:
        return np.asarray(self._array[at(box)])

    def write(self, box: Box, values: Numbers) -> None:
        self._array[at(box)] = values


class Hdf5Volume:
    """One array of an HDF5 file, which is opened anew each time; read by many, written by one."""

    def __init__(self, path: Path, inner: str, *, write: bool) -> None:
        self._path, self._h5, self._mode = path, library("h5py"), "r+" if write else "r"
        names: list[str] = []
        with self._h5.File(path, "r") as file:
            file.visititems(lambda name, found: names.append(name) if hasattr(found, "shape") else None)
            name = inner or (names[0] if len(names) == 1 else "")
            if name not in file or not hasattr(file[name], "shape"):
                allowed = ", ".join(f"{path}:{found}" for found in names)
                said = f"has no array '{name}'" if name else f"has {len(names)} arrays, and none is named"
                raise BadInput(said, where=str(path), allowed=allowed)
            self._name = name
            self.shape, self.dtype = tuple(file[name].shape), file[name].dtype
            self.chunks = tuple(file[name].chunks or (1,) * len(self.shape))

    def read(self, box: Box) -> Numbers:
        with self._h5.File(self._path, "r") as file:
            return np.asarray(file[self._name][at(box)])

    def write(self, box: Box, values: Numbers) -> None:
        with self._h5.File(self._path, self._mode) as file:
            file[self._name][at(box)] = values
        with self._path.open("rb+") as done:
            os.fsync(done.fileno())
