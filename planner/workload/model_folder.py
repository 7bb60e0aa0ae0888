"""A model that travels as data: a folder that `load` takes in the place of a module file.

`model.json` holds the captured model and how it is trained, `weights.safetensors` its tensors, and
`samples.safetensors` one batch. Nothing in it is code. Classes of optimizers and schedules, and factories of datasets,
are imported by their names when they are needed.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from planner.errors import BadInput
from planner.files import check_tensor_file, read_json
from planner.workload.served import SOCKET, ServedSample, ServedSamples, tensor_rows, unflat
from planner.workload.user_file import kind_of

if TYPE_CHECKING:
    import torch

VERSION = 1
MODEL, WEIGHTS, SAMPLES = "model.json", "weights.safetensors", "samples.safetensors"
PARTS = {"captured": dict, "evaluation": dict, "batch": list, "recipe": dict}  # of model.json
MOST_BYTES = 2**27  # of model.json
# What damaged data raises where it is read.
DAMAGES = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, AssertionError)
CALLBACKS = ("on_step", "on_evaluation", "on_checkpoint", "on_failure")
STORED = "stored"  # the batch itself is the dataset
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
        found = read_json(file, max_bytes=MOST_BYTES)
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
            check_tensor_file(self.path / name)
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
        with self._reading("batch"):
            inputs, targets = (unflat(part, tensors, numbers) for part in shape)
        return inputs, targets

    @contextmanager
    def _reading(self, part: str) -> Iterator[None]:
        """Turns whatever a damaged part of the folder raises into one message."""
        try:
            yield
        except DAMAGES as error:
            said = f"its {part} is not what was written: {type(error).__name__}: {error}"
            raise BadInput(said, where=str(self.path), allowed="a folder that sw.Workload wrote") from error

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
            "dataset": partial(self.dataset, "dataset"),
            "valid_dataset": partial(self.dataset, "valid_dataset"),
            "sampler": self.sampler,
        }
        named = {role: function for role, function in known.items() if recipe.get(role)}
        called = {role: partial(self._call, role) for role in CALLBACKS if recipe.get(role)}
        return found | named | called | ({"collate": self.collate} if "dataset" in named else {})

    def _call(self, role: str, happened: object) -> object:
        return self._factory(role)(happened)

    def optimizer(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        """Makes the optimizer of the recipe for the parameters that a rank holds."""
        import torch

        recipe, held = self.data["recipe"]["optimizer"], dict(named_parameters)
        with self._reading("optimizer"):
            made = imported(recipe["class"], torch.optim.Optimizer, str(self.path))
            given = _options(recipe["options"])
            groups: list[dict[str, Any]] = []
            for group in recipe["groups"]:
                own = _options(group["options"])
                made(
                    [torch.zeros(1)], **given | {key: x for key, x in own.items() if key in given}
                )  # it judges them
                groups.append({"params": [held[name] for name in group["names"] if name in held], **own})
            rows = groups or [{"params": list(held.values())}]
            return made([row for row in rows if row["params"]], **given)  # type: ignore[no-any-return]

    def lr_schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """Makes the schedule of the recipe."""
        import torch

        recipe = self.data["recipe"]["lr_schedule"]
        with self._reading("lr_schedule"):
            made = imported(recipe["class"], torch.optim.lr_scheduler.LRScheduler, str(self.path))
            return made(optimizer, **_options(recipe["options"]))  # type: ignore[no-any-return]

    def dataset(self, role: str) -> object:
        """Returns a dataset that the recipe's factory makes, or one that a notebook on this machine serves.

        Args: `role` is dataset or valid_dataset.
        """
        address = str(self.data["recipe"][role])
        if address.startswith(SOCKET):
            return ServedSamples(address)
        return self._factory(role)() if address != STORED else range(self._stored)

    def sampler(self, data: object, seed: int, epoch: int) -> object:
        """Returns the indices of an epoch, by the recipe's function or the sampler of the notebook's loader."""
        address = str(self.data["recipe"]["sampler"])
        if address.startswith(SOCKET):
            return ServedSamples(address).order(seed, epoch)
        return self._factory("sampler")(data, seed, epoch)

    @property
    def _stored(self) -> int:
        tensors, shape = self._samples
        with self._reading("batch"):
            return next(tensors[x["tensor"]].shape[0] for part in shape for x in tensor_rows(part))

    def collate(self, samples: list[object]) -> object:
        """Joins samples by the recipe's function, by torch's own, or where the notebook serves them."""
        first, recipe = samples[0], self.data["recipe"]
        if isinstance(first, ServedSample):
            return ServedSamples(first.address).joined(cast(list[ServedSample], samples))
        if recipe["dataset"] == STORED and isinstance(first, int) and not recipe.get("collate"):
            return self._rows(cast(list[int], samples))
        from torch.utils.data import default_collate

        joined = self._factory("collate")(samples) if recipe.get("collate") else default_collate(samples)
        return whole_batch(joined) if recipe.get("whole") else joined

    def _factory(self, role: str) -> Callable[..., object]:
        found = _attribute(self.data["recipe"][role], str(self.path))
        if not callable(found):
            raise BadInput(f"{role} is {kind_of(found)}", where=str(self.path), allowed="module:function")
        return found


def whole_batch(batch: object) -> tuple[object, tuple[()]]:
    """Returns a batch as the inputs of a model that takes all of it, with no targets."""
    if isinstance(batch, Mapping):
        return dict(batch), ()
    return (tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)), ()


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
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise BadInput(
            f"'{name}' cannot be imported: {error}",
            where=where,
            allowed="module:name, importable in every process of the run; PYTHONPATH names folders to import from",
        ) from error


def _options(given: Mapping[str, Json]) -> dict[str, object]:
    """Returns options with tuples in the place of lists, as torch's optimizers have them.

    Raises: ValueError for a number that is not finite.
    """
    for name, value in given.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"{name} is {number}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
