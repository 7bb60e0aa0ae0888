"""The modules of torch itself, with the settings and inputs of torch's own tests (`module_db`).

A parameter that scales every input gives gradients to the modules that have none of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.zoo.parts import Case, Make, squares

MOST = 10  # inputs of one module; some have hundreds that differ in a flag
SECOND = (
    nn.RNNBase,
    nn.Transformer,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.MultiheadAttention,
)


class Scaled(nn.Module):
    """A module of torch behind a scale that is trained; what its call takes beside tensors is fixed."""

    def __init__(self, inner: nn.Module, rest: list[object], spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.ones(()))
        self.rest, self.spec = tuple(rest), [spec]

    def forward(self, *tensors: Tensor) -> object:
        given = iter(x * self.scale if x.is_floating_point() else x for x in tensors)
        leaves = [next(given) if x is Tensor else x for x in self.rest]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec[0])
        return self.inner(*args, **kwargs)


def cases() -> dict[str, Make]:
    """Returns cases for the inputs that torch's tests have of every module."""
    from torch.testing._internal.common_modules import module_db

    found: dict[str, Make] = {}
    for info in module_db:
        usable = [i for i, made in enumerate(_inputs(info)) if _samples(info, made)]
        for i in usable[:: 1 + len(usable) // MOST]:
            found[f"{info.name} {i}"] = partial(_case, info, i)
    return found


def _samples(info: object, made: object) -> bool:
    """Returns whether an input has samples: torch's tests also give some modules one sample without its dimension."""
    kind: type = info.module_cls  # type: ignore[attr-defined]
    taken = made.forward_input  # type: ignore[attr-defined]
    tensors = [x for x in pytree.tree_leaves((taken.args, taken.kwargs)) if isinstance(x, Tensor)]
    least = 3 if issubclass(kind, SECOND) else 1
    return "no_batch" not in made.desc and bool(tensors) and tensors[0].ndim >= least  # type: ignore[attr-defined]


def _inputs(info: object) -> list[object]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: list[object] = info.module_inputs_func(  # type: ignore[attr-defined]
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
        )
    return made


def _case(info: object, index: int) -> Case:
    made = _inputs(info)[index]
    args, kwargs = made.constructor_input.args, made.constructor_input.kwargs  # type: ignore[attr-defined]
    inner = info.module_cls(*args, **kwargs)  # type: ignore[attr-defined]
    taken = made.forward_input  # type: ignore[attr-defined]
    leaves, spec = pytree.tree_flatten((taken.args, taken.kwargs))
    rest = [Tensor if isinstance(x, Tensor) else x for x in leaves]
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    return Scaled(inner, rest, spec), _growing(inner, tensors), squares


def _growing(inner: nn.Module, tensors: list[Tensor]) -> Callable[[int], tuple[object, object]]:
    """Returns a function that repeats samples; they lie along the second dimension where a module has them there."""
    second = isinstance(inner, SECOND) and not getattr(inner, "batch_first", False)
    states = isinstance(inner, nn.RNNBase)

    def take(i: int, x: Tensor, n: int) -> Tensor:
        dim = 1 if (second or (states and i > 0)) and x.ndim > 1 else 0
        if not x.ndim:
            return x.clone()
        return x.index_select(dim, torch.arange(n) % x.shape[dim]).clone()

    def batch(n: int) -> tuple[object, object]:
        return tuple(take(i, x, n) for i, x in enumerate(tensors)), torch.zeros(n)

    return batch
