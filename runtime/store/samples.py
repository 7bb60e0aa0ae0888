"""Makes bytes of a sample and a sample of bytes: type, shape and numbers of each tensor and array, never a pickle.

A sample is read here without what is random about it. A dataset that draws has `raw(index)`, which does not, and
`finish(raw)`, which may; `dataset[index]` is then `finish(raw(index))`.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from planner.errors import BadInput
from planner.workload import has_raw, seeded
from runtime.data import Region

Json = Any  # what json.loads gives
_ALIGNED = 16  # bytes, so that numbers of any type may be read where they lie
_PLAIN = (bool, int, float, str, type(None))
_HALVES = "a dataset with raw(index), which draws nothing, and finish(raw), which may draw; or no store"


def flattened(sample: object) -> bytes:
    """Returns a sample as bytes.

    Args: `sample` is what a dataset gives.
    Raises: BadInput where the sample holds anything but tensors, arrays, numbers, texts and plain nestings of them.
    """
    parts: list[bytes] = []
    head = json.dumps(_put(sample, parts)).encode()
    start = struct.pack("<q", len(head)) + head
    return b"".join((start + bytes(-len(start) % _ALIGNED), *parts))


def _put(tree: object, parts: list[bytes]) -> Json:
    kind = type(tree)
    if (
        isinstance(tree, Tensor)
        and kind is Tensor
        and tree.layout is torch.strided
        and not tree.requires_grad
    ):
        whole = tree.detach().cpu().contiguous()
        name = str(whole.dtype).removeprefix("torch.")
        return _bytes({"tensor": name, "shape": list(whole.shape)}, _raw(whole), parts)
    if isinstance(tree, np.ndarray | np.generic) and tree.dtype.kind in "?biufcmMSU":
        array = np.ascontiguousarray(tree)
        word = "array" if kind is np.ndarray else "scalar"
        return _bytes({word: tree.dtype.str, "shape": list(np.shape(tree))}, array.tobytes(), parts)
    if kind is bytes:
        return _bytes({"bytes": True}, tree, parts)  # type: ignore[arg-type]
    if kind in _PLAIN:
        return {"plain": tree}
    if kind in (tuple, list):
        return {kind.__name__: [_put(x, parts) for x in tree]}  # type: ignore[attr-defined]
    if isinstance(tree, dict) and kind is dict and all(type(key) is str for key in tree):
        return {"dict": {key: _put(x, parts) for key, x in tree.items()}}
    raise BadInput(
        f"a sample holds {kind.__module__}.{kind.__qualname__}",
        where="store",
        allowed="tensors, arrays, numbers and texts in plain tuples, lists and dictionaries by text",
    )


def _raw(tensor: Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _bytes(head: dict[str, Json], body: bytes, parts: list[bytes]) -> Json:
    parts.append(body + bytes(-len(body) % _ALIGNED))
    return head | {"size": len(body)}


def restored(data: memoryview) -> object:
    """Returns the sample that bytes stand for, in memory of its own.

    Args: `data` is what `flattened` gave.
    """
    (length,) = struct.unpack_from("<q", data)
    head = json.loads(bytes(data[8 : 8 + length]))
    at = 8 + length + -(8 + length) % _ALIGNED
    found, _ = _take(head, data, at)
    return found


def _take(head: Mapping[str, Json], data: memoryview, at: int) -> tuple[object, int]:
    """Returns what a head stands for, and where the bytes after it begin."""
    if "size" in head:
        size = head["size"]
        return _made(head, bytearray(data[at : at + size])), at + size + -size % _ALIGNED
    if "plain" in head:
        return head["plain"], at
    ((kind, inner),) = head.items()
    found = []
    for each in inner.values() if kind == "dict" else inner:
        part, at = _take(each, data, at)
        found.append(part)
    if kind == "dict":
        return dict(zip(inner, found, strict=True)), at
    return (tuple(found) if kind == "tuple" else found), at


def _made(head: Mapping[str, Json], body: bytearray) -> object:
    if "tensor" in head:
        dtype = getattr(torch, head["tensor"])
        flat = torch.frombuffer(body, dtype=dtype) if body else torch.empty(0, dtype=dtype)
        return flat.reshape(head["shape"])
    if "bytes" in head:
        return bytes(body)
    array = np.frombuffer(body, head.get("array", head.get("scalar"))).reshape(head["shape"])
    return array if "array" in head else array[()]


def read_raw(data: Any, index: int, region: Region) -> object:
    """Reads a sample without what is random about it.

    Args: `data` is the user's dataset, which has indices; `region` is the part that a rank asks for, or empty.
    Raises: BadInput where reading has drawn random numbers.
    """
    asked = (index, tuple(slice(*rows) for rows in region)) if region else index
    before = _generators()
    try:
        found: object = data.raw(asked) if has_raw(data) else data[asked]
    except BadInput:
        raise
    except Exception as error:  # the user's dataset: it may raise anything
        raise BadInput(
            f"sample {index} raised {type(error).__name__}: {error}",
            where="dataset()",
            allowed=f"{len(data)} samples, as its length says",
        ) from error
    if _generators() != before:
        raise _draws(index)
    return found


def _draws(index: int) -> BadInput:
    return BadInput(f"sample {index} draws random numbers when it is read", where="store", allowed=_HALVES)


def _generators() -> tuple[object, ...]:
    arrays: Any = np.random.get_state()
    return random.getstate(), arrays[1].tobytes(), arrays[2:], torch.get_rng_state().numpy().tobytes()


def no_indices() -> BadInput:
    """Returns the refusal of synthetic samples and streams."""
    return BadInput(
        "there is no dataset with indices to keep", where="store", allowed="dataset(), or no store"
    )


def refuse_unstorable(data: Any) -> None:
    """Refuses a dataset whose samples cannot be kept: one that draws, or of other things than numbers and texts.

    Args: `data` is the user's dataset; its first sample is read twice.
    Raises: BadInput with what is allowed.
    """
    if data is None or not hasattr(data, "__getitem__") or isinstance(data, torch.utils.data.IterableDataset):
        raise no_indices()
    if getattr(data, "regions", False) is True and not has_raw(data):
        return  # a whole sample may be larger than the memory of this machine
    one, two = (flattened(read_raw(data, 0, ())) for _ in range(2))
    if one != two:
        raise _draws(0)
    if has_raw(data):
        with seeded(1):
            whole = flattened(data[0])
        with seeded(1):
            halves = flattened(data.finish(restored(memoryview(one))))
        if whole != halves:
            raise BadInput(
                "sample 0 is another one by finish(raw(0)) than by itself, under the same seed",
                where="dataset()",
                allowed="finish(raw(index)) for dataset[index]",
            )
