"""The traced graph: flat, with what each of its placeholders stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

Kind = Literal["parameter", "buffer", "constant", "input", "target"]
Context = tuple[tuple[object, ...], ...]  # ("grad", False), ("autocast", device, dtype, enabled, cache)
LOSS = "loss"
MODEL = "model"
LAYER = "layer"  # in the meta of a stage's operations: index of the layer that each belongs to
SYNCHRONISED = "synchronised"  # in the meta of a normalisation whose statistics are those of all replicas
OWNERS = {"parameter", "buffer", "constant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The meaning of a placeholder of the graph: a state of the module, or a part of the batch, by its name."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Like:
    """The shape of a placeholder at every batch: each size and step as (fixed, slope), `fixed + n * slope`."""

    shape: tuple[tuple[int, int], ...]
    steps: tuple[tuple[int, int], ...]
    dtype: torch.dtype


@dataclass(slots=True, kw_only=True)
class Traced:
    """A flat graph of operations with the meaning of its placeholders."""

    graph: fx.Graph
    sources: dict[fx.Node, Source]
    constants: dict[str, torch.Tensor]
    outputs: tuple[fx.Node, ...]
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    saved: dict[str, str] = field(default_factory=dict)  # names in the state_dict, and of the tensors
    symbolic: bool
    micro: int


class CannotTrace(Exception):
    """The user's module, or its export, raised what is the cause of this."""


def call(module: nn.Module, inputs: object) -> object:
    """Returns what a module gives for inputs in a workload's form.

    Args: a tuple among `inputs` holds positional arguments, a dict keyword arguments; anything else is one argument.
    """
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, tuple | list):
        return module(*inputs)
    return module(inputs)


def named_leaves(role: str, tree: object) -> Iterator[tuple[str, object]]:
    """Yields the leaves of nested tuples and dicts under names such as `input.0` or `input.image`.

    Args: `role` is the first word of the names.
    """
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        yield ".".join([role, *parts]), leaf


def line_of(node: fx.Node) -> str:
    """Returns the line of the user's code that a node came from.

    Returns: "file:line" as the export noted it; empty where it did not.
    """
    trace = str(node.meta.get("trace") or node.meta.get("stack_trace") or "")
    frames = re.findall(r'File "(.+?)", line (\d+)', trace)
    ours = str(Path(__file__).parents[1])
    other = [f"{file}:{line}" for file, line in frames if not file.startswith((ours, "<"))]
    own = [place for place in other if "site-packages" not in place]
    return own[-1] if own else ""
