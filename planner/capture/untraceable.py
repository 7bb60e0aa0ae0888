"""Refuses what a forward pass does and a graph would not know: switched gradients, changed attributes, drawn numbers."""

from __future__ import annotations

import collections
import contextlib
import copy
import ctypes
import random
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from planner.capture.traced_graph import line_that_names
from planner.errors import BadInput

NOTHING = object()  # where there was no value
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
NO_DATA = (type, property, staticmethod, classmethod, types.ModuleType, *FUNCTIONS)
MISSING = "missing"
MADE = "every module made in __init__, of the kind that forward() goes on with"
OFF = "detach() what the frozen part takes from it, or requires_grad_(False) once, where the module is built"


@contextlib.contextmanager
def watching_switches(module: nn.Module) -> Iterator[list[str]]:
    """Watches the user's own code for switches of gradients that no trace sees, while it is entered.

    Yields: a list that gets the lines, of the user's or of a library's, that read '.data'.
    Raises: BadInput where `requires_grad` is turned off; `inference_mode` is traced as `no_grad`.
    """
    with _refusing_off(module), _watched_data(module) as reads, _inference_as_no_grad():
        yield reads


@contextlib.contextmanager
def _watched_data(module: nn.Module) -> Iterator[list[str]]:
    """Takes `buffer.data = x`, which no trace sees, for `module.buffer = x`; the data of others is refused."""
    plain, reads = Tensor.data, list[str]()

    def read(tensor: Tensor) -> Tensor:
        caller = sys._getframe(1)
        if not caller.f_code.co_filename.startswith((str(Path(torch.__file__).parent), "<")):
            reads.append(f"{caller.f_code.co_filename}:{caller.f_lineno}")
        return plain.__get__(tensor)  # type: ignore[attr-defined, no-any-return]

    def assigned(tensor: Tensor, value: Tensor) -> None:
        holders = [
            (x._buffers, key) for x in module.modules() for key in x._buffers if x._buffers[key] is tensor
        ]
        if not holders:
            named = (f"parameter '{name}'" for name, x in module.named_parameters() if x is tensor)
            raise BadInput(
                f"forward() assigns '.data' of {next(named, 'a tensor')}, which a plan would not do",
                allowed="'with torch.no_grad()' around what writes the tensor itself",
            )
        for buffers, key in holders:
            buffers[key] = value

    try:
        setattr(Tensor, "data", property(read, assigned))  # noqa: B010
        yield reads
    finally:
        del Tensor.data  # what is inherited is there again


@contextlib.contextmanager
def _refusing_off(module: nn.Module) -> Iterator[None]:
    """Refuses requires_grad turned off, which no trace sees; turned on, it is traced as ever.

    A TorchFunctionMode would see the same, but stand in the traceback of every operation.
    """
    plain, method = Tensor.requires_grad, Tensor.requires_grad_

    def check(tensor: Tensor, on: bool) -> None:
        if tensor.requires_grad and not on:
            named = (f"parameter '{name}'" for name, x in module.named_parameters() if x is tensor)
            said = f"forward() turns requires_grad of {next(named, 'a tensor')} off"
            raise BadInput(f"{said}, which a plan would not do", allowed=OFF)

    def assigned(tensor: Tensor, on: bool) -> None:
        check(tensor, on)
        plain.__set__(tensor, on)  # type: ignore[attr-defined]

    def called(tensor: Tensor, requires_grad: bool = True) -> Tensor:
        check(tensor, requires_grad)
        return method(tensor, requires_grad)

    try:
        setattr(Tensor, "requires_grad", property(plain.__get__, assigned))  # type: ignore[attr-defined]  # noqa: B010
        setattr(Tensor, "requires_grad_", called)  # noqa: B010
        yield
    finally:
        del Tensor.requires_grad, Tensor.requires_grad_  # what is inherited is there again


@contextlib.contextmanager
def _inference_as_no_grad() -> Iterator[None]:
    """Runs `inference_mode`, which no trace sees, as `no_grad`, which computes the same."""
    kind = torch.inference_mode
    enter, leave = kind.__enter__, kind.__exit__

    def entered(self: torch.inference_mode) -> None:
        self._instead = torch.no_grad() if self.mode else torch.enable_grad()  # type: ignore[attr-defined]
        self._instead.__enter__()  # type: ignore[attr-defined]

    def left(self: torch.inference_mode, *error: object) -> None:
        self._instead.__exit__(*error)  # type: ignore[attr-defined]

    try:
        kind.__enter__, kind.__exit__ = entered, left  # type: ignore[method-assign]
        yield
    finally:
        kind.__enter__, kind.__exit__ = enter, leave  # type: ignore[method-assign]


Attributes = dict[tuple[str, str], object]


def plain_attributes(module: nn.Module) -> Attributes:
    """Returns the numbers, texts and lists of them that modules keep in plain attributes.

    Returns: copies by (path of the module, attribute).
    """
    return {
        (path, key): copy.deepcopy(value)
        for path, part in module.named_modules()
        for key, value in vars(part).items()
        if key != "training" and _plain(value)
    }


def _plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


def changed(before: Attributes, after: Attributes) -> list[tuple[str, str]]:
    """Returns the keys of attributes whose values differ.

    Args: `before` and `after` are around a forward pass.
    Returns: a value that was replaced by something else, such as a tensor, is not among them.
    """
    return [key for key, value in after.items() if repr(before.get(key, MISSING)) != repr(value)]


def assign(module: nn.Module, values: Attributes, keys: list[tuple[str, str]]) -> None:
    """Sets plain attributes of modules to given values.

    Args: `keys` name the attributes; one that `values` does not have is removed.
    """
    parts = dict(module.named_modules())
    for path, key in keys:
        if path not in parts:
            raise BadInput(f"forward() makes module '{path}' anew, which a plan would not have", allowed=MADE)
        if (path, key) in values:
            parts[path].__dict__[key] = copy.deepcopy(values[path, key])
        else:
            parts[path].__dict__.pop(key, None)


@contextlib.contextmanager
def refusing_draws(module: nn.Module) -> Iterator[None]:
    """Refuses numbers drawn by Python or numpy, while it is entered.

    Args: `module` is what runs.
    Raises: BadInput at the end. To an export such numbers are constants: others on each rank, the same in all steps.
    """
    before = _drawn()
    with _refusing_seeds():
        yield
    for name, state in _drawn().items():
        if state != before[name]:
            raise BadInput(
                f"forward() draws from '{name}', which a plan would hold at what it is at the capture",
                where=line_that_names(module, "random"),
                allowed="torch.rand and the like; in transformers, apply_spec_augment=False",
            )


@contextlib.contextmanager
def _refusing_seeds() -> Iterator[None]:
    # The functions themselves stay as they are: dynamo keeps a table of them, and may fill it while this is entered.
    module: Any = torch.random
    original = module.default_generator
    try:
        module.default_generator = _RefusesSeeds(original)
        yield
    finally:
        module.default_generator = original


class _RefusesSeeds:
    """The generator that torch.manual_seed and torch.seed reach, as it is but for being seeded."""

    def __init__(self, original: torch.Generator) -> None:
        self.original = original

    def __getattr__(self, name: str) -> object:
        return getattr(self.original, name)

    def manual_seed(self, *_: object) -> NoReturn:
        raise BadInput(
            "forward() seeds the random numbers of torch, which a plan draws by step, sample and operation",
            allowed="numbers without a seed of their own; fixed ones as a buffer made in __init__",
        )

    seed = manual_seed

    def set_state(self, state: Tensor) -> torch.Generator:
        caller, library = sys._getframe(1), str(Path(torch.__file__).parent)
        while caller.f_back is not None and caller.f_code.co_filename == torch.random.__file__:
            caller = caller.f_back
        if not caller.f_code.co_filename.startswith((library, "<", contextlib.__file__)):
            raise BadInput(
                "forward() puts random numbers of torch back to where they were, and a plan draws every one anew",
                where=f"{caller.f_code.co_filename}:{caller.f_lineno}",
                allowed="one tensor of random numbers, used twice",
            )
        return self.original.set_state(state)


def _drawn() -> dict[str, object]:
    name, keys, *place = np.random.get_state()
    return {
        "torch": torch.initial_seed(),
        "random": random.getstate(),
        "numpy.random": (name, np.asarray(keys).tobytes(), place),
    }


def refill(container: Any, kept: Any) -> None:
    """Puts back the entries of a dictionary, list, deque or set, if they are others by now.

    Args: `kept` is a dictionary or list of the entries that `container` had.
    """
    base, named = _base(container), isinstance(container, dict)
    rows = [[x for row in entries(each) for x in (row if named else row[1:])] for each in (container, kept)]
    if len(rows[0]) != len(rows[1]) or any(a is not b for a, b in zip(*rows, strict=True)):
        base.clear(container)
        (base.extend if hasattr(base, "extend") else base.update)(container, kept)


def _base(container: object) -> Any:
    """Returns the class of Python's own that a container is of: methods of a subclass may do anything, as import."""
    kinds = (collections.OrderedDict, dict, list, tuple, collections.deque, set, frozenset)
    return next((kind for kind in kinds if isinstance(container, kind)), None)


def entries(container: Any) -> list[tuple[Any, Any]]:
    """Returns keys or numbers with the values of a container; none of one that is not of Python's own."""
    base = _base(container)
    if isinstance(container, dict):
        return list(base.items(container))
    return list(enumerate(base.__iter__(container))) if base else []


def write(value: Any, kept: bytes) -> None:
    if memoryview(value).tobytes() != kept:
        (ctypes.c_char * len(kept)).from_buffer(value).raw = kept


def content(cell: types.CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing was assigned yet
        return ()


def fill(cell: types.CellType, content: tuple[object, ...]) -> None:
    if content:
        cell.cell_contents = content[0]


def set_attribute(value: object, key: str, kept: object) -> None:
    if getattr(value, key, None) is not kept:
        object.__setattr__(value, key, kept)  # also where its class is frozen


def set_back(kind: type, data: Mapping[str, object]) -> None:
    for key in [key for key, x in vars(kind).items() if not key.startswith("__") and is_data(x)]:
        if key not in data:
            delattr(kind, key)
    for key, value in data.items():
        if vars(kind).get(key) is not value:
            setattr(kind, key, value)


def is_data(value: object) -> bool:
    return not isinstance(value, NO_DATA) and not hasattr(type(value), "__get__")
