"""Hooks that change gradients: a captured graph has no place for them, and a model that needs them is refused.

Hooks of forward passes are traced with what they do. Inside of an opaque module its own hooks run as ever, beside
those of its parameters, whose place others take.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from planner.errors import BadInput

INSTEAD = "the same in an autograd.Function that forward() calls, or in the workload's optimizer"


def refuse_hooks(module: nn.Module, where: str, opaque: Collection[str]) -> None:
    """Of parameters and modules, as they were registered before the capture."""
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
    """While it is entered, no hook is registered on a tensor."""
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
