"""A model that travels as data: a folder that `load` takes in the place of a module file.

`model.json` holds the captured model and how it is trained, `weights.safetensors` its tensors, and
`samples.safetensors` one batch. Nothing in it is code. Classes of optimizers and schedules, and factories of datasets,
are imported by their names when they are needed.
"""

from __future__ import annotations

import importlib
import json
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from planner.errors import BadInput
from planner.files import read_text
from planner.workload.user_file import kind_of

if TYPE_CHECKING:
    import torch

VERSION = 1
MODEL, WEIGHTS, SAMPLES = "model.json", "weights.safetensors", "samples.safetensors"
PARTS = {"captured": dict, "evaluation": dict, "batch": list, "recipe": dict}  # of model.json
MOST_BYTES = 2**30
STORED = "stored"  # the batch itself is the dataset
SOCKET = "socket:"  # the address of a dataset that a notebook on this machine serves
Json = Any  # what json.loads gives


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a captured model, its weights, one batch, and how it is trained."""

    path: Path

    @cached_property
    def data(self) -> Mapping[str, Json]:
        """Returns what `model.json` says.

        Raises: BadInput where it is no such file.
        """
        file = self.path / MODEL
        text = read_text(file, max_bytes=MOST_BYTES)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"cannot be read: {error}", where=str(file)) from error
        if not isinstance(found, dict) or found.get("version") != VERSION:
            raise BadInput(
                "is no model of this version", where=str(file), allowed=f"version {VERSION}; or update"
            )
        for part, kind in PARTS.items():
            if not isinstance(found.get(part), kind):
                raise BadInput(f"has no '{part}'", where=str(file), allowed="a file that sw.Workload wrote")
        return found

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Returns the tensors of one of the folder's files, by name.

        Raises: BadInput where it cannot be read.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(self.path / name)
        except (OSError, SafetensorError) as error:
            raise BadInput(f"cannot be read: {error}", where=str(self.path / name)) from error

    @cached_property
    def _samples(self) -> tuple[dict[str, torch.Tensor], Json]:
        return self.tensors(SAMPLES), self.data["batch"]

    def batch(self, n: int) -> tuple[object, object]:
        """Returns a batch of `n` samples: those of the stored one, repeated where it has fewer."""
        return self._rows(range(n))

    def _rows(self, numbers: Sequence[int]) -> tuple[object, object]:
        tensors, shape = self._samples
        inputs, targets = (_unflat(part, tensors, numbers) for part in shape)
        return inputs, targets

    def refuse(self, *given: object) -> object:
        """Refuses what only the user's code could do."""
        raise BadInput("is a captured model, which has no code of the user's", where=str(self.path))

    def functions(self) -> dict[str, Callable[..., object]]:
        """Returns the functions of a workload by role."""
        found: dict[str, Callable[..., object]] = {
            "build": self.refuse,
            "loss": self.refuse,
            "batch": self.batch,
        }
        recipe = self.data["recipe"]
        known: dict[str, Callable[..., object]] = {
            "optimizer": self.optimizer,
            "lr_schedule": self.lr_schedule,
            "dataset": self.dataset,
            "collate": self.collate,
        }
        address = str(recipe.get("dataset"))
        joined = {"collate"} if address == STORED or address.startswith(SOCKET) else set()
        named = {role for role in known if recipe.get(role)} | joined
        return found | {role: known[role] for role in known if role in named}

    def optimizer(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        """Makes the optimizer of the recipe for the parameters that a rank holds."""
        import torch

        recipe, held = self.data["recipe"]["optimizer"], dict(named_parameters)
        made = imported(recipe["class"], torch.optim.Optimizer, str(self.path))
        groups: list[dict[str, Any]] = [
            {"params": [held[name] for name in group["names"] if name in held], **_tupled(group["options"])}
            for group in recipe["groups"]
        ]
        rows = groups or [{"params": list(held.values())}]
        return made([row for row in rows if row["params"]], **_tupled(recipe["options"]))  # type: ignore[no-any-return]

    def lr_schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """Makes the schedule of the recipe."""
        import torch

        recipe = self.data["recipe"]["lr_schedule"]
        made = imported(recipe["class"], torch.optim.lr_scheduler.LRScheduler, str(self.path))
        return made(optimizer, **_tupled(recipe["options"]))  # type: ignore[no-any-return]

    def dataset(self) -> object:
        """Returns the dataset that the recipe's factory makes, or the one that a notebook on this machine serves."""
        address = str(self.data["recipe"]["dataset"])
        if address.startswith(SOCKET):
            return self._served
        return self._factory("dataset")() if address != STORED else range(self._stored)

    @property
    def _stored(self) -> int:
        tensors, shape = self._samples
        return next(tensors[x["tensor"]].shape[0] for part in shape for x in _tensor_rows(part))

    @cached_property
    def _served(self) -> ServedSamples:
        path, _, length = str(self.data["recipe"]["dataset"]).removeprefix(SOCKET).rpartition(":")
        return ServedSamples(path, int(length))

    def collate(self, samples: list[object]) -> object:
        """Joins samples by the recipe's function, or where the notebook serves them."""
        if self.data["recipe"]["dataset"] == STORED:
            return self._rows(cast(list[int], samples))
        if str(self.data["recipe"]["dataset"]).startswith(SOCKET):
            return self._served.joined(samples)
        return self._factory("collate")(samples)

    def _factory(self, role: str) -> Callable[..., object]:
        found = _attribute(self.data["recipe"][role], str(self.path))
        if not callable(found):
            raise BadInput(f"{role} is {kind_of(found)}", where=str(self.path), allowed="module:function")
        return found


class ServedSamples:
    """A dataset of the notebook that launched a run: what is asked for here is drawn there, under the seed of here."""

    def __init__(self, path: str, length: int) -> None:
        self._path, self._length = path, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Returns what stands for a sample: its index, and the seed that it is to be drawn under."""
        import torch

        if not 0 <= index < self._length:
            raise IndexError(index)
        return index, torch.initial_seed()

    def joined(self, drawn: Sequence[Any]) -> object:
        """Returns the batch of samples, drawn and joined by the notebook's own loader.

        Raises: BadInput where the notebook has ended, or its dataset raised.
        """
        from safetensors.torch import load

        asked = {"indices": [index for index, _ in drawn], "seeds": [seed for _, seed in drawn]}
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(self._path)
                connection.sendall(json.dumps(asked).encode() + b"\n")
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
        tensors = load(body)
        inputs, targets = (_unflat(part, tensors, ()) for part in head["batch"])
        return inputs, targets


def _received(connection: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        part = connection.recv(min(left, 2**20))
        if not part:
            raise ConnectionError("it closed its end")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def imported(name: str, base: type, where: str) -> type:
    """Returns a class by its name, module:class.

    Raises: BadInput where there is no class of this name that is a `base`.
    """
    found = _attribute(name, where)
    if not isinstance(found, type) or not issubclass(found, base):
        raise BadInput(f"'{name}' is {kind_of(found)}", where=where, allowed=f"a {base.__name__}")
    return found


def _attribute(name: str, where: str) -> object:
    module, _, attribute = str(name).partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"'{name}' cannot be imported: {error}", where=where, allowed="module:name, importable here"
        ) from error


def _tupled(options: Mapping[str, Json]) -> dict[str, object]:
    """Returns options with tuples in the place of lists, as torch's optimizers have them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


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


def _tensor_rows(shape: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """Yields the tensors of a nesting that grow with the batch."""
    if shape.get("rows"):
        yield shape
    for inner in shape.values():
        for part in inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ():
            yield from _tensor_rows(part)


def _unflat(shape: Mapping[str, Json], tensors: Mapping[str, torch.Tensor], n: Sequence[int]) -> object:
    if "tensor" in shape:
        import torch

        tensor = tensors[shape["tensor"]]
        return tensor[torch.tensor(list(n)) % tensor.shape[0]] if shape["rows"] else tensor
    if "dict" in shape:
        return {key: _unflat(x, tensors, n) for key, x in shape["dict"].items()}
    if "plain" in shape:
        return shape["plain"]
    ((kind, parts),) = shape.items()
    made: Sequence[object] = [_unflat(x, tensors, n) for x in parts]
    return tuple(made) if kind == "tuple" else made
