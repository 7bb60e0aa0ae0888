"""Refuses what a forward pass does and a graph would not know: switched gradients, changed attributes, drawn numbers.

Hooks that change gradients are refused, too: a captured graph has no place for them. Those of forward passes are traced.
An opaque module runs its own hooks as ever, except those of its parameters, whose place others take.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, fx, nn

from planner.capture.traced_graph import Traced, line_that_names
from planner.errors import BadInput

MISSING = "missing"
MADE = "every module made in __init__, of the kind that forward() goes on with"
OFF = "detach() what the frozen part takes from it, or requires_grad_(False) once, where the module is built"


@contextlib.contextmanager
def watching_switches(module: nn.Module) -> Iterator[None]:
    """Watches the user's own code for switches of gradients that no trace sees, while it is entered.

    Raises: BadInput where `requires_grad` is turned off; `inference_mode` is traced as `no_grad`.
    """
    with _refusing_off(module), _assigned_data(module), _inference_as_no_grad():
        yield


@contextlib.contextmanager
def _assigned_data(module: nn.Module) -> Iterator[None]:
    """Takes `buffer.data = x`, which no trace sees, for `module.buffer = x`; the data of others is refused."""
    plain = Tensor.data

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
        setattr(Tensor, "data", property(plain.__get__, assigned))  # type: ignore[attr-defined]  # noqa: B010
        yield
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


def refuse_changes(changes: list[tuple[str, str]], where: str) -> None:
    """Refuses a module whose forward pass goes on changing plain attributes.

    Args: `changes` are the keys of these attributes; an empty list is well.
    Raises: BadInput, which names the first three.
    """
    if changes:
        names = ", ".join(f"'{path}.{key}'".replace("'.", "'") for path, key in changes[:3])
        raise BadInput(
            f"forward() changes {names}, which a plan would hold at what it is at the capture",
            where=where,
            allowed="a tensor, by register_buffer, for what one step leaves to the next",
        )


def same_graph(one: Traced, other: Traced) -> bool:
    """Returns whether two graphs have the same operations with the same arguments.

    Args: names of nodes do not count.
    """
    return _lines(one.graph) == _lines(other.graph)


def _lines(graph: fx.Graph) -> list[str]:
    place: dict[fx.Node, str] = {}
    lines = []
    for i, node in enumerate(graph.nodes):
        place[node] = f"%{i}"
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda x: place[x])
        name = getattr(node.target, "__name__", str(node.target))
        lines.append(f"{name if node.op != 'placeholder' else ''} {args} {kwargs} {node.meta.get('context')}")
    return lines


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


def _drawn() -> dict[str, object]:
    name, keys, *place = np.random.get_state()
    return {
        "torch": torch.initial_seed(),
        "random": random.getstate(),
        "numpy.random": (name, np.asarray(keys).tobytes(), place),
    }


INSTEAD = "the same in an autograd.Function that forward() calls, or in the workload's optimizer"


def refuse_hooks(module: nn.Module, where: str, opaque: Collection[str]) -> None:
    """Refuses hooks on gradients that were registered before the capture.

    Args: modules below the paths in `opaque` may have hooks of their own.
    Raises: BadInput, which names the parameter or module.
    """
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks:
            raise _refused(f"the gradient of parameter '{name}' has a hook (register_hook)", where)
        if parameter._post_accumulate_grad_hooks:
            hook = "register_post_accumulate_grad_hook"
            raise _refused(f"the gradient of parameter '{name}' has a hook ({hook})", where)
    inside = tuple(f"{path}." for path in opaque)
    for name, part in module.named_modules():
        if f"{name}.".startswith(inside):
            continue
        for kind in ("backward_hook", "backward_pre_hook"):
            if getattr(part, f"_{kind}s"):
                said = f"module '{name}'" if name else "the model"
                raise _refused(f"{said} has a hook on its gradients (register_full_{kind})", where)


@contextlib.contextmanager
def refusing_hooks() -> Iterator[None]:
    """Refuses hooks that are registered on tensors while it is entered.

    Raises: BadInput where `forward` registers one.
    """
    kinds = ("register_hook", "register_post_accumulate_grad_hook")
    originals = {kind: getattr(Tensor, kind) for kind in kinds}

    def refused(kind: str) -> object:
        def register(tensor: Tensor, hook: object) -> None:
            raise _refused(f"forward() registers a hook on the gradient of a tensor ({kind})", "")

        return register

    try:
        for kind in kinds:
            setattr(torch.Tensor, kind, refused(kind))
        yield
    finally:
        for kind, original in originals.items():
            setattr(torch.Tensor, kind, original)


def _refused(what: str, where: str) -> BadInput:
    return BadInput(f"{what}, which a plan would not run", where=where, allowed=INSTEAD)
