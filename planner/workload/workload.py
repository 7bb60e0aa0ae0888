"""The workload: what a user hands over, a Python file or module with plain functions that are found by name.

`load("file.py")`, `load("package.module")`, `load("gpt2")` (the file of that name in models/) or `load("folder")` (a
captured model), with the text that `--set name=value` gave. A value goes to every function that names it, converted to the type of its default.
A list `opaque` names modules that are taken as layers without a look into them, by their paths.
Whatever is wrong there is a BadInput that names the file and the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from planner import files
from planner.errors import BadInput, ShardwrightError
from planner.workload.model_folder import CALLBACKS, MODEL, ModelFolder
from planner.workload.user_file import Scalar, bind, import_named, kind_of, parse_settings, where_raised

if TYPE_CHECKING:
    import torch

REQUIRED = ("build", "batch", "loss")
OPTIONAL = (
    "optimizer",
    "lr_schedule",
    "dataset",
    "collate",
    "valid_dataset",
    "sampler",
    "metrics",
    *CALLBACKS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The functions of a workload, each with the arguments that `--set` gave it already bound."""

    name: str  # as the user wrote it
    where: str  # the file it came from
    arguments: Mapping[str, Scalar]
    functions: Mapping[str, Callable[..., object]] = field(repr=False)
    opaque: tuple[str, ...] = ()  # paths of modules that are taken as layers without a look into them
    folder: ModelFolder | None = None  # of a captured model, which is taken as it stands there

    def build(self) -> torch.nn.Module:
        """Builds the user's module.

        Returns: a new module, with the weights that the user's code gives it.
        Raises: BadInput where build() fails or returns anything else.
        """
        import torch

        module = self.call("build")
        if not isinstance(module, torch.nn.Module):
            raise BadInput(
                f"build() returned {kind_of(module)}", where=self.where, allowed="a torch.nn.Module"
            )
        return module

    def batch(self, n: int) -> tuple[object, object]:
        """Makes a batch of `n` samples.

        Returns: (inputs, targets), tensors or any nesting of tuples and dicts.
        Raises: BadInput where batch() fails or returns anything else.
        """
        return self._pair("batch", n)

    def loss(self, outputs: object, targets: object) -> object:
        """Computes the user's loss. Its errors are not wrapped, so that a trace shows the user's own lines.

        Args: `outputs` are the module's; `targets` come from `batch`.
        """
        return self.functions["loss"](outputs, targets)

    def optimizer(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        """Makes the user's optimizer, or AdamW with torch's own settings.

        Args: `named_parameters` are those that a rank holds.
        Raises: BadInput for anything but an optimizer whose step() needs no argument.
        """
        import torch

        if "optimizer" not in self.functions:
            return torch.optim.AdamW([parameter for _, parameter in named_parameters])
        made = self.call("optimizer", named_parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise BadInput(
                f"optimizer() returned {kind_of(made)}",
                where=self.where,
                allowed="one torch.optim.Optimizer; in the place of several, its groups of parameters",
            )
        self._refuse_asking("optimizer", made, "an optimizer whose step() takes nothing but gradients")
        return made

    def lr_schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
        """Makes the user's schedule of the learning rate, which is stepped once a training step.

        Returns: None where the learning rate stays.
        Raises: BadInput for anything but a schedule whose step() needs no argument.
        """
        import torch

        if "lr_schedule" not in self.functions:
            return None
        made = self.call("lr_schedule", optimizer)
        if not isinstance(made, torch.optim.lr_scheduler.LRScheduler):
            raise BadInput(
                f"lr_schedule() returned {kind_of(made)}",
                where=self.where,
                allowed="a torch.optim.lr_scheduler.LRScheduler",
            )
        self._refuse_asking("lr_schedule", made, "a schedule that only the number of steps moves")
        return made

    def _refuse_asking(
        self, role: str, made: torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler, allowed: str
    ) -> None:
        """Refuses an optimizer or schedule whose step() has a required argument, such as a closure.

        A step of a plan evaluates the loss once, and each rank updates what it holds without knowing the loss.
        """
        for parameter in inspect.signature(made.step).parameters.values():
            named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if named and parameter.default is parameter.empty:
                raise BadInput(
                    f"{role}() returned {kind_of(made)}, whose step() asks for '{parameter.name}'",
                    where=self.where,
                    allowed=allowed,
                )

    def dataset(self) -> object | None:
        """Returns the user's dataset, map-style or an IterableDataset that states its length; None where batches come
        from `batch`."""
        from torch.utils.data import IterableDataset

        if "dataset" not in self.functions:
            return None
        data = self.call("dataset")
        if not (
            hasattr(data, "__len__") and (hasattr(data, "__getitem__") or isinstance(data, IterableDataset))
        ):
            allowed = "a map-style dataset (__len__ and __getitem__), or an IterableDataset with __len__"
            raise BadInput(f"dataset() returned {kind_of(data)}", where=self.where, allowed=allowed)
        return data

    def valid_dataset(self) -> object | None:
        """Returns the user's dataset to evaluate between steps, which is map-style; None where there is none."""
        if "valid_dataset" not in self.functions:
            return None
        return evaluable(self.call("valid_dataset"), f"{self.where}: valid_dataset()")

    def sampler(self, data: object) -> Callable[[int, int], object] | None:
        """Returns the user's function of (seed, epoch) to the indices of an epoch; None where there is none.

        Args: `data` is the dataset of the training.
        """
        return partial(self.call, "sampler", data) if "sampler" in self.functions else None

    def collate(self, samples: list[object]) -> tuple[object, object]:
        """Joins samples of the dataset into a batch, by the user's function or torch's own.

        Returns: (inputs, targets).
        Raises: BadInput where collate() fails or returns anything else.
        """
        if "collate" in self.functions:
            return self._pair("collate", samples)
        from torch.utils.data import default_collate

        inputs, targets = default_collate(samples)
        return inputs, targets

    def call(self, name: str, *values: object) -> object:
        """Calls one of the functions.

        Args: `values` come before the arguments that `--set` gave.
        Raises: BadInput that names the user's line, where the function raises.
        """
        try:
            return self.functions[name](*values)
        except ShardwrightError:
            raise
        except (Exception, SystemExit) as error:
            place = where_raised(error, self.where)
            raise BadInput(f"{name}() raised {type(error).__name__}: {error}", where=place) from error

    def _pair(self, name: str, value: object) -> tuple[object, object]:
        made = self.call(name, value)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise BadInput(
                f"{name}() returned {kind_of(made)}", where=self.where, allowed="(inputs, targets)"
            )
        return made[0], made[1]


def evaluable(data: object, where: str) -> object:
    """Returns a dataset that can be evaluated: one with indices, since its last samples make a batch of their own.

    Raises: BadInput for anything else.
    """
    from torch.utils.data import IterableDataset

    indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if not indexed or isinstance(data, IterableDataset):  # which has a __getitem__ that only raises
        raise BadInput(kind_of(data), where=where, allowed="a map-style dataset: __len__ and __getitem__")
    return data


def has_raw(data: object) -> bool:
    """Returns whether a dataset reads a sample in two halves: `raw(index)` draws nothing, `finish(raw)` may draw."""
    return callable(getattr(data, "raw", None)) and callable(getattr(data, "finish", None))


def load(name: str, settings: Mapping[str, str] | None = None) -> Workload:
    """Finds and imports a workload.

    Args: `name` is a file, a module or a model of ours; `settings` are what `--set` gave, as text.
    Raises: BadInput where there is none, it cannot be imported, or it lacks a function.
    Example: load("gpt2", {"size": "tiny"})
    """
    if (Path(name) / MODEL).is_file():
        return _from_folder(name, settings or {})
    module, where = import_named(name)
    found: dict[str, Callable[..., object]] = {}
    for role in (*REQUIRED, *OPTIONAL):
        function = getattr(module, role, None)
        if function is None:
            continue
        if not callable(function):
            raise BadInput(f"'{role}' is {kind_of(function)}", where=where, allowed="a function")
        found[role] = function
    missing = [role for role in REQUIRED if role not in found]
    if missing:
        raise BadInput(
            f"has no function '{missing[0]}'", where=where, allowed=f"functions {', '.join(REQUIRED)}"
        )
    arguments, bound = bind(found, settings or {}, where)
    return Workload(
        name=name, where=where, arguments=arguments, functions=bound, opaque=_opaque(module, where)
    )


def _from_folder(name: str, settings: Mapping[str, str]) -> Workload:
    if settings:
        raise BadInput("a captured model takes no settings", where=name, allowed="no --set")
    folder = ModelFolder(Path(name))
    return Workload(name=name, where=name, arguments={}, functions=folder.functions(), folder=folder)


def _opaque(module: ModuleType, where: str) -> tuple[str, ...]:
    paths = getattr(module, "opaque", ())
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise BadInput(f"'opaque' is {kind_of(paths)}", where=where, allowed="a list of module paths")
    return tuple(paths)


def arguments_of(config: Path | None, texts: Iterable[str]) -> dict[str, str]:
    """Returns the text of each argument of a workload, by name, as `load` takes them.

    Args: `config` is a YAML file of names and plain values, with interpolations where OmegaConf is installed; `texts`
        are those of `--set`, which go before it.
    Raises: BadInput for what is no argument, such as a section or a list.
    """
    given = (
        {}
        if config is None
        else _plain(files.parse_yaml(files.read_text(config), name=str(config)), str(config))
    )
    found: dict[str, str] = {}
    for name, value in given.items():
        if not name.isidentifier() or not isinstance(value, str | int | float | bool):
            said = f"'{name}' is {'empty' if value is None else type(value).__name__}"
            raise BadInput(said, where=str(config), allowed="names of arguments with plain values")
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found | parse_settings(texts)


def _plain(data: Mapping[str, object], where: str) -> Mapping[str, object]:
    """Returns data with its interpolations filled in, such as ${width}."""
    if "${" not in str(data):
        return data
    try:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError:
        said = "has interpolations, and OmegaConf is not installed"
        raise BadInput(
            said, where=where, allowed="pip install 'shardwright[omegaconf]', or plain values"
        ) from None
    try:
        return cast(Mapping[str, object], OmegaConf.to_container(OmegaConf.create(dict(data)), resolve=True))
    except OmegaConfBaseException as error:
        raise BadInput(str(error).partition("\n")[0], where=where) from None
