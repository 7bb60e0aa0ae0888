"""Finds which of its own tensors a forward pass writes, which it reads, and what its updates depend on.

The tensors themselves count, and views of them. What only updates a tensor does not read it: a forward without the
update would give the same. Several holders of a tensor can keep it equal in two ways. Where every write is linear
in what it held, and nobody reads it, holders add up their parts. Where an update depends on nothing but parameters
and other such tensors, each holder makes all updates of a step itself.

A pass may also assign: `self.average = 0.9 * self.average + ...` is a write like `copy_`. A trace sees operations, not
assignments. So the wrapper around the module compares the tensors of all modules before and after the pass, and
returns those that were assigned. The flat graph then reads a copy of the state, and writes the new value into the
state. A plain attribute that held a tensor is treated as a buffer if the pass reads it first.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from planner.capture.export_workarounds import average_batch_norm
from planner.capture.functional import STATISTICS, random
from planner.capture.opaque import OpaqueLayer
from planner.capture.traced_graph import OWNERS, Traced, line_of
from planner.errors import BadInput
from planner.model import BufferUpdate

ATEN = torch.ops.aten
_ADDING = {
    ATEN.add_.Tensor,
    ATEN.add_.Scalar,
    ATEN.sub_.Tensor,
    ATEN.sub_.Scalar,
    ATEN.index_add_.default,
    ATEN.scatter_add_.default,
}
Held = dict[tuple[str, str], Tensor]  # by path of the module and name in it
SAME = "a value of the same shape and type in every pass"
Way = Literal["read", "view", "write", "move", "update"]  # "move" gives nothing back, "update" reads, too


@dataclass(frozen=True)
class StateUse:
    """The states that a forward pass writes and reads, by names of parameters, buffers and constants."""

    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    views: dict[fx.Node, str] = field(default_factory=dict)  # the tensors themselves among them
    whole: set[fx.Node] = field(
        default_factory=set
    )  # the tensors themselves, and what writes into them gives

    def written_by(self, node: fx.Node) -> list[fx.Node]:
        """Returns the states, or views of them, that an operation writes.

        Args: `node` is one of the graph's.
        """
        return [x for x, way in _uses(node) if way in ("write", "move", "update") and x in self.views]


def use_of_states(graph: fx.Graph, states: Mapping[fx.Node, str]) -> StateUse:
    """Returns which states the operations of a graph write and read.

    Args: `states` has the name of each placeholder that is a parameter, buffer or constant.
    """
    found = StateUse(views=dict(states), whole=set(states))
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
                if way == "write" and x in found.whole:
                    found.whole.add(node)
    return found


class Decay(NamedTuple):
    """The factor of what a state held that one forward leaves; of an average it is the factor of its sum."""

    factor: float = 1.0
    counter: str = ""  # of an average: what counts the batches in it


def decays(graph: fx.Graph, use: StateUse) -> dict[str, Decay]:
    """Returns the decay of each state that a forward only moves: all its writes are linear, and nothing reads it.

    Args: `use` is that of the graph's states.
    Returns: decays by the names of states.
    """
    writes: dict[str, list[Decay | None]] = defaultdict(list)
    for node in graph.nodes:
        for x in use.written_by(node):
            writes[use.views[x]].append(_decay(node, x, use))
    found: dict[str, Decay] = {}
    for name, rows in writes.items():
        linear = [row for row in rows if row is not None]
        if name in use.read or len(linear) < len(rows):
            continue
        counters, factor = {row.counter for row in linear}, 1.0
        for row in linear:
            factor *= row.factor
        if len(counters) == 1:
            found[name] = Decay(factor, counters.pop())
    return found


def _decay(node: fx.Node, written: fx.Node, use: StateUse) -> Decay | None:
    """Returns what one operation leaves of a state that it writes; None where that is not linear in it."""
    target, args = node.target, node.args
    if target is average_batch_norm:
        count = args[6]
        assert isinstance(count, fx.Node)
        return Decay() if written is count else Decay(counter=use.views[count])
    if target in (ATEN.batch_norm.default, ATEN.instance_norm.default):
        momentum = args[6]
        return Decay(1 - float(momentum)) if isinstance(momentum, int | float) else None
    if target in _ADDING:
        return Decay()
    whole = written in use.whole
    if whole and target in (ATEN.mul_.Tensor, ATEN.mul_.Scalar) and isinstance(args[1], int | float):
        return Decay(float(args[1]))
    if whole and target is ATEN.lerp_.Scalar and isinstance(args[2], int | float):
        return Decay(1 - float(args[2]))
    return None


def updates_of(graph: fx.Graph, use: StateUse) -> dict[str, BufferUpdate]:
    """Returns how several holders can keep each written state equal: "" where they add up its parts.

    Args: `use` is that of the graph's states; other placeholders are the batch.
    Returns: by the names of the states that are written.
    """
    if not use.written:
        return {}
    linear, after = decays(graph, use), _after_samples(graph, use)
    return {name: "" if name in linear else "samples" if name in after else "own" for name in use.written}


def _after_samples(graph: fx.Graph, use: StateUse) -> set[str]:
    """Returns the states whose updates depend on the samples, on drawn numbers or on states that do."""
    names: set[str] = set()
    while True:
        nodes, before = {x for x, name in use.views.items() if name in names}, len(names)
        for node in graph.nodes:
            batch = node.op == "placeholder" and node not in use.views
            if batch or random(node) or any(x in nodes for x in node.all_input_nodes):
                nodes.add(node)
                names |= {use.views[x] for x in use.written_by(node)}
        if len(names) == before:
            return names


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
            where=line_of(value) or f"module '{name.rpartition('.')[0]}'",
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
