"""Samples as data: the nesting of a batch with its tensors apart, and datasets that a notebook serves to ranks.

Samples are drawn under seeds of their own; the generators that this takes are here, too.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from planner.errors import BadInput
from planner.workload.user_file import kind_of

if TYPE_CHECKING:
    import torch

SOCKET = "socket:"  # begins the address of a dataset that a notebook on this machine serves
Json = Any  # what json.loads gives


class ServedSample(NamedTuple):
    """What stands for a sample of a notebook: where it is asked for, its number there, and the seed to draw it under."""

    address: str
    number: int
    seed: int


class ServedSamples:
    """A dataset of the notebook that launched a run: what is asked for here is drawn there, under the seed of here.

    Its address is `socket:PATH#PART:LENGTH`, where the part is `train` or `valid`.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        place, _, length = address.removeprefix(SOCKET).rpartition(":")
        self._path, _, self._part = place.rpartition("#")
        self._length = int(length)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> ServedSample:
        """Returns what stands for a sample: its index, and the seed that it is to be drawn under."""
        import torch

        if not 0 <= index < self._length:
            raise IndexError(index)
        return ServedSample(self._address, index, torch.initial_seed())

    def joined(self, drawn: Sequence[ServedSample]) -> object:
        """Returns the batch of samples, drawn and joined by the notebook's own loader.

        Raises: BadInput where the notebook has ended, or its dataset raised.
        """
        from safetensors.torch import load

        head, body = self._asked({"indices": [x.number for x in drawn], "seeds": [x.seed for x in drawn]})
        tensors = load(body)
        inputs, targets = (unflat(part, tensors, ()) for part in head["batch"])
        return inputs, targets

    def order(self, seed: int, epoch: int) -> object:
        """Returns the indices that the loader's own sampler gives for an epoch."""
        return self._asked({"order": [seed, epoch]})[0]["order"]

    def _asked(self, what: Mapping[str, Json]) -> tuple[Json, bytes]:
        """Returns what the notebook answers: data, and the bytes of tensors."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(self._path)
                connection.sendall(json.dumps({"part": self._part, **what}).encode() + b"\n")
                sizes = struct.unpack(">QQ", _received(connection, 16))
                text, body = (_received(connection, size) for size in sizes)
        except OSError as error:
            raise BadInput(
                f"the dataset's process has ended: {error}",
                where=self._path,
                allowed="launch from a notebook that runs, or Workload(dataset='module:function')",
            ) from error
        head = json.loads(text)
        if "error" in head:
            raise BadInput(f"the dataset raised {head['error']}", where="loader")
        return head, body


def _received(connection: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        part = connection.recv(min(left, 2**20))
        if not part:
            raise ConnectionError("it closed its end")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def flat(tree: object, tensors: dict[str, torch.Tensor], rows: int) -> Json:
    """Returns the nesting of a batch as data, and puts its tensors into `tensors`.

    Args: a tensor of `rows` along its first dimension grows with the batch.
    Raises: BadInput for leaves that are neither tensors nor numbers, texts or None.
    """
    import torch

    if isinstance(tree, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = tree.detach().cpu().contiguous().clone()
        return {"tensor": name, "rows": bool(tree.ndim and tree.shape[0] == rows)}
    if isinstance(tree, Mapping) and all(isinstance(key, str) for key in tree):
        return {"dict": {key: flat(x, tensors, rows) for key, x in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [flat(x, tensors, rows) for x in cast(Sequence[object], tree)]}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"plain": tree}
    raise BadInput(
        f"a batch holds {kind_of(tree)}",
        allowed="tensors, numbers, texts in plain tuples, lists and dictionaries by text",
    )


def tensor_rows(shape: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """Yields the tensors of a nesting that grow with the batch."""
    if shape.get("rows"):
        yield shape
    for inner in shape.values():
        for part in inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ():
            yield from tensor_rows(part)


def unflat(shape: Mapping[str, Json], tensors: Mapping[str, torch.Tensor], n: Sequence[int]) -> object:
    if "tensor" in shape:
        import torch

        tensor = tensors[shape["tensor"]]
        return tensor[torch.tensor(list(n)) % tensor.shape[0]] if shape["rows"] else tensor
    if "dict" in shape:
        return {key: unflat(x, tensors, n) for key, x in shape["dict"].items()}
    if "plain" in shape:
        return shape["plain"]
    ((kind, parts),) = shape.items()
    made: Sequence[object] = [unflat(x, tensors, n) for x in parts]
    return tuple(made) if kind == "tuple" else made


@contextmanager
def spared() -> Iterator[None]:
    """Puts the generators of torch, numpy and Python back afterwards as if nothing had been drawn."""
    import torch

    before, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(arrays)


def reseed(seed: int) -> None:
    """Seeds torch, numpy and Python.

    Without an accelerator torch.manual_seed would keep each call, with a traceback, for devices that never come.
    """
    import torch

    (torch if torch.accelerator.is_available() else torch.default_generator).manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch, numpy and Python, and puts their generators back afterwards as if nothing had been."""
    with spared():
        reseed(seed)
        yield
