"""Finds which of its own tensors a forward pass writes, and which it reads: the tensors themselves, or views of them.

What only updates a tensor does not read it: a forward without the update would give the same.

A pass may also assign: `self.average = 0.9 * self.average + ...` is a write like `copy_`. A trace sees operations, not
assignments. So the wrapper around the module compares the tensors of all modules before and after the pass, and
returns those that were assigned. The flat graph then reads a copy of the state, and writes the new value into the
state. A plain attribute that held a tensor is treated as a buffer if the pass reads it first.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from planner.capture.export_workarounds import average_batch_norm
from planner.capture.functional import STATISTICS
from planner.capture.opaque import OpaqueLayer
from planner.capture.traced_graph import OWNERS, Traced, line_of
from planner.errors import BadInput

Held = dict[tuple[str, str], Tensor]  # by path of the module and name in it
SAME = "a value of the same shape and type in every pass"
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


def held_tensors(module: nn.Module) -> Held:
    """Returns the parameters, buffers and plain tensors of all modules.

    Returns: tensors by (path of the module, attribute).
    """
    return {(path, name): x for path, part in module.named_modules() for name, x in _tensors(part)}


def _tensors(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for held in (part._parameters, part._buffers, vars(part)):
        yield from ((name, x) for name, x in held.items() if isinstance(x, Tensor))


def assigned_tensors(module: nn.Module, before: Held) -> dict[str, Tensor]:
    """Returns the new tensors that a pass has assigned to buffers and plain attributes, by the names of these.

    Args: `before` is what `held_tensors` gave before the pass.
    Raises: BadInput for a parameter that was replaced, and for a buffer that is a tensor no more.
    """
    after, found = held_tensors(module), dict[str, Tensor]()
    parts = dict(module.named_modules())
    for (path, key), old in before.items():
        new, name = after.get((path, key)), f"{path}.{key}".removeprefix(".")
        if new is old:
            continue
        if isinstance(old, nn.Parameter) and key not in vars(parts[path]):
            raise BadInput(
                f"forward() replaces parameter '{name}', which a plan would not train",
                allowed="a parameter made once, in __init__, and a tensor computed from it in forward()",
            )
        if new is not None:
            found[name] = new
        elif key in parts[path]._buffers:
            raise BadInput(f"forward() sets buffer '{name}' to no tensor", allowed=SAME)
    return found


def write_assigned(traced: Traced, values: Mapping[str, fx.Node], trained: Mapping[str, bool]) -> None:
    """Writes into the flat graph that the pass has assigned new values to states.

    Args: `values` has the nodes of the new values by the names of buffers and plain attributes; one that the graph
        does not read is no state. `trained` says of each name whether its value has a gradient.
    Raises: BadInput for a value of another shape or type, or with a gradient that the next pass would go on with.
    """
    holders = {source.name: x for x, source in traced.sources.items() if source.kind in OWNERS}
    kept = {name: x for name, x in values.items() if name in holders and _is_state(traced, holders[name])}
    old = {name: _copied(traced, holders[name]) for name in kept}
    copies = {holders[name]: copy for name, copy in old.items() if copy is not None}
    for name, value in kept.items():
        holder = holders[name]
        _check(name, holder, value, read=holder in copies, trained=trained[name])
        _write(traced.graph, holder, copies.get(value, value))


def _is_state(traced: Traced, holder: fx.Node) -> bool:
    return traced.sources[holder].kind == "buffer" or bool(holder.users)


def _copied(traced: Traced, holder: fx.Node) -> fx.Node | None:
    """Lets everything that reads a state read a copy, since a backward may need it after the write.

    Returns: the copy; None where nothing reads the state.
    """
    if not holder.users:
        return None
    first = next(node for node in traced.graph.nodes if node in holder.users)
    users = list(holder.users)
    with traced.graph.inserting_before(first):
        copy = traced.graph.call_function(torch.ops.aten.clone.default, (holder,))
    copy.meta = {**first.meta, "val": holder.meta["val"], "context": ()}
    for user in users:
        user.replace_input_with(holder, copy)
    return copy


def _check(name: str, holder: fx.Node, value: fx.Node, *, read: bool, trained: bool) -> None:
    old, new = holder.meta["val"], value.meta["val"]
    sizes = [tuple(map(str, x.shape)) for x in (old, new)]
    if sizes[0] != sizes[1] or old.dtype != new.dtype:
        shapes = [f"{str(x.dtype).removeprefix('torch.')} of {list(x.shape)}" for x in (old, new)]
        raise BadInput(
            f"forward() makes '{name}' {shapes[1]}, where it was {shapes[0]}",
            where=line_of(value),
            allowed=SAME,
        )
    if read and trained:
        raise BadInput(
            f"forward() assigns '{name}' a value with a gradient, and the next pass reads it",
            where=line_of(value),
            allowed=f"'.detach()' of what '{name}' takes, or 'with torch.no_grad()' around it",
        )


def _write(graph: fx.Graph, holder: fx.Node, value: fx.Node) -> None:
    """Writes a value into a state at the end of the pass; the write joins the layer that makes the value."""
    write = graph.call_function(torch.ops.aten.copy_.default, (holder, value))
    write.meta = {**value.meta, "val": holder.meta["val"], "context": (("grad", False),)}
