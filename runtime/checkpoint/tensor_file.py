"""Reads some elements of the tensors of a safetensors file, and no byte beside them; writes whole files.

A file is the length of its header, the header as JSON, and the tensors one after another. safetensors itself judges
the header; this reads from where the header says that a tensor lies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from planner.errors import BadInput
from planner.files import HEADER_BYTES, LENGTH_BYTES, check_tensor_file, open_regular

if TYPE_CHECKING:
    from torch import Tensor

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
TYPES = {name: word for word, name in _DTYPES.items()}  # in the words of safetensors


class Elements(NamedTuple):
    """Some elements of a tensor that is laid flat."""

    name: str
    shape: tuple[int, ...]  # of the whole tensor
    start: int
    stop: int


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file of which parts of tensors are read."""

    path: Path
    first: int  # byte of the first tensor
    rows: dict[str, dict[str, Any]]  # header: dtype, shape and data_offsets by name

    @classmethod
    def open(cls, path: Path) -> TensorFile:
        """Returns a file by its header.

        Args: `path` is a regular file.
        Raises: BadInput where the file is no safetensors file, or is not as long as its header says.
        """
        try:
            check_tensor_file(path)
            with safe_open(path, framework="pt"):
                pass  # it is judged, and its memory is free again
            with open_regular(path) as file:
                length = int.from_bytes(file.read(LENGTH_BYTES), "little")
                return cls(path, LENGTH_BYTES + length, json.loads(file.read(length)))
        except (OSError, SafetensorError, ValueError) as error:
            raise BadInput(f"cannot be read: {error}", where=str(path)) from error

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor.

        Raises: BadInput where the file lacks it.
        """
        return tuple(self._row(name)["shape"])

    def _row(self, name: str) -> dict[str, Any]:
        if name not in self.rows:
            raise BadInput(f"has no '{name}'", where=str(self.path))
        return self.rows[name]

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Returns some elements of a tensor, of one dim.

        Args: elements `start` to `stop` of the tensor laid flat.
        Raises: BadInput where the tensor has fewer, or is of another type than these.
        """
        import torch  # slow to load, and `status` reads checkpoints

        row, count = self._row(name), prod(self.shape(name))
        if row["dtype"] not in _DTYPES or not 0 <= start <= stop <= count:
            what = f"'{name}' has {count} elements of {row['dtype']}, and {start} to {stop} are asked for"
            raise BadInput(what, where=str(self.path), allowed=", ".join(_DTYPES))
        kind: torch.dtype = getattr(torch, _DTYPES[row["dtype"]])
        size = kind.itemsize
        with open_regular(self.path) as file:
            file.seek(self.first + row["data_offsets"][0] + start * size)
            data = file.read((stop - start) * size)
        if len(data) < (stop - start) * size:
            raise BadInput(f"ends inside of '{name}'", where=str(self.path))
        return torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)


def write(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes tensors as safetensors, straight out of their memory. They may be parts of larger storages.

    Args: `tensors` are on the host.
    Raises: BadInput for a type that the format does not have; OSError where the disk is full.
    """
    header: dict[str, object] = {}
    end = 0
    rows = sorted(tensors.items(), key=lambda row: (-row[1].itemsize, row[0]))  # so that all are aligned
    for name, x in rows:
        kind = TYPES.get(str(x.dtype).removeprefix("torch."))
        if kind is None:
            raise BadInput(f"'{name}' is {x.dtype}, which no checkpoint holds", allowed=", ".join(TYPES))
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [end, end + x.nbytes]}
        end += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_BYTES:
        what = f"{len(header)} tensors in one file have a header of {len(text)} bytes"
        raise BadInput(what, where=str(path), allowed=f"at most {HEADER_BYTES}: a plan with more ranks")
    with path.open("wb") as file:
        file.write(pack("<Q", len(text)) + text)
        for _, x in rows:
            file.write(_bytes(x))


def _bytes(tensor: Tensor) -> memoryview:
    import torch  # slow to load, and `status` reads checkpoints

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
