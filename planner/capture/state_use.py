"""Finds which of its own tensors a forward pass writes, and which it reads: the tensors themselves, or views of them.

What only updates a tensor does not read it: a forward without the update would give the same.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from planner.capture.export_workarounds import average_batch_norm
from planner.capture.functional import STATISTICS
from planner.capture.opaque import OpaqueLayer

Way = Literal["read", "view", "write", "move", "update"]  # "move" gives nothing back, "update" reads, too


@dataclass(frozen=True)
class StateUse:
    """The states that a forward pass writes and reads, by names of parameters, buffers and constants."""

    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    views: dict[fx.Node, str] = field(default_factory=dict)  # the tensors themselves among them


def use_of_states(graph: fx.Graph, states: Mapping[fx.Node, str]) -> StateUse:
    """Returns which states the operations of a graph write and read.

    Args: `states` has the name of each placeholder that is a parameter, buffer or constant.
    """
    found = StateUse(views=dict(states))
    for node in graph.nodes:
        for x, way in list(_uses(node)):
            if x not in found.views:
                continue
            name = found.views[x]
            if way in ("write", "move", "update"):
                found.written.add(name)
            if way in ("read", "update"):
                found.read.add(name)
            if way in ("write", "view"):  # an operation in place gives what it has written
                found.views[node] = name
    return found


def _uses(node: fx.Node) -> Iterator[tuple[fx.Node, Way]]:
    """Yields each tensor that an operation takes, and the way it is used."""
    target, special = node.target, _special(node)
    if not isinstance(target, OpOverload):
        others: Way = "view" if target is operator.getitem else "read"
        for x in node.all_input_nodes:
            yield x, special.get(x, others)
        return
    for position, argument in enumerate(target._schema.arguments):
        given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        alias = argument.alias_info
        way: Way = "read" if alias is None else "write" if alias.is_write else "view"
        for x in pytree.tree_leaves(given):
            if isinstance(x, fx.Node):
                yield x, special.get(x, way)


def _special(node: fx.Node) -> dict[fx.Node, Way]:
    """Returns uses that no schema says.

    A normalisation that trains moves its running statistics and does not use them. An opaque layer may do anything
    with its buffers.
    """
    if isinstance(node.target, OpaqueLayer):
        return dict.fromkeys(node.target.buffers(node), "update")
    if node.target is average_batch_norm:
        return {x: "move" for x in (*node.args[3:5], node.args[6]) if isinstance(x, fx.Node)}
    mean, variance, training = STATISTICS.get(str(node.target), (0, 0, None))
    if training is None or not node.args[training]:
        return {}
    return {x: "move" for x in (node.args[mean], node.args[variance]) if isinstance(x, fx.Node)}
