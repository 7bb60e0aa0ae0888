"""Makes in-place operations functional, so that a cut between two layers never has a write cross it.

Where an operation has an out-of-place twin that gives the same tensor to the stride, the twin takes its place.
Otherwise the tensor that owns the memory is cloned. The views up to the one written are taken again from the clone,
and the write goes there. Later readers of the tensor, or of any view of it, read the new one. Writes into parameters
and buffers stay: they are state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from planner.capture.export_workarounds import average_batch_norm
from planner.capture.fake_run import Probe, after, arguments, entered, probe
from planner.capture.opaque import OpaqueLayer
from planner.capture.traced_graph import OWNERS, Traced, line_of
from planner.errors import BadInput

# Written by these although their schemas do not say so: positions of the running statistics, and of the switch.
STATISTICS = {"aten.batch_norm.default": (3, 4, 5), "aten.instance_norm.default": (3, 4, 5)}

# Their gradients are rounded otherwise in place, where the result has to stand for the input; that of copy_ has no gradient.
NO_TWINS = {"copy_", "elu_", "celu_", "selu_", "rrelu_", "rrelu_with_noise_"}

# What gives back its argument where there is nothing to do; gradients pass as through nothing.
IDENTITIES = {"aten.dropout", "aten.feature_dropout", "aten.alpha_dropout", "aten.contiguous", "aten.to"}


def functionalise(traced: Traced, trainable: Mapping[str, bool], n: int) -> Traced:
    """Returns the graph without writes into anything but parameters and buffers.

    Args: `trainable` says which parameters need a gradient; `n` is a batch size that the trace serves.
    Raises: BadInput for an operation that writes several tensors at once.
    """
    states = {x for x, source in traced.sources.items() if source.kind in OWNERS}
    if any(x not in states for node in traced.graph.nodes for x in written(node)):
        return _Functional(traced, probe(traced, n, trainable)).run()
    drop_unused(traced.graph, set(traced.outputs))
    return traced


def written(node: fx.Node) -> list[fx.Node]:
    """Returns the arguments that an operation writes into, by its schema.

    Args: `node` may be any node; one without a schema writes nothing.
    """
    if not isinstance(node.target, OpOverload):
        return []
    found: list[fx.Node] = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        found += [
            x for x in (given if isinstance(given, list | tuple) else [given]) if isinstance(x, fx.Node)
        ]
    return found


def states_written(node: fx.Node) -> list[fx.Node]:
    """Returns the parameters, buffers and other arguments that an operation writes into.

    Args: `node` may also be a normalisation, whose schema does not say that it updates running statistics.
    """
    if isinstance(node.target, OpaqueLayer):
        return node.target.buffers(node)
    if node.target is average_batch_norm:
        return [x for x in node.args[3:5] if isinstance(x, fx.Node)]
    if str(node.target) not in STATISTICS:
        return written(node)
    mean, variance, training = STATISTICS[str(node.target)]
    if not node.args[training]:
        return []
    return [x for x in (node.args[mean], node.args[variance]) if isinstance(x, fx.Node)]


def random(node: fx.Node) -> bool:
    """Returns whether an operation draws numbers.

    Args: `node` counts by its tag, and a dropout of nothing draws none; an opaque layer may draw.
    """
    if isinstance(node.target, OpaqueLayer):
        return True
    if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    schema = node.target._schema
    given = {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
    given = {argument.name: argument.default_value for argument in schema.arguments} | given | node.kwargs
    if "dropout" in schema.name and given.get("train") is False:
        return False
    switch = "p" if "dropout" in schema.name else "dropout_p" if "dropout_p" in given else "dropout"
    return not (switch in given and given[switch] == 0)


class _Functional:
    def __init__(self, traced: Traced, probe: Probe) -> None:
        self.traced, self.probe = traced, probe
        self.graph = fx.Graph()
        self.current: dict[fx.Node, fx.Node] = {}
        self.placed: dict[fx.Node, fx.Node] = {}  # placeholders, also of what is written later
        self.parent: dict[fx.Node, fx.Node] = {}  # the tensor that this one is a view of
        self.family: dict[fx.Node, list[fx.Node]] = {}  # root -> every view of it

    def run(self) -> Traced:
        for node in self.traced.graph.nodes:
            self._step(node)
        sources = {self.placed[node]: source for node, source in self.traced.sources.items()}
        outputs = tuple(self._get(node, node) for node in self.traced.outputs)
        drop_unused(self.graph, set(outputs))
        return replace(self.traced, graph=self.graph, sources=sources, outputs=outputs)

    def _step(self, node: fx.Node) -> None:
        targets = written(node)
        states = [x for x in targets if self._is_state(self._root(x))]
        if len(targets) > len(states) + 1:
            raise BadInput(
                f"{node.target} writes several tensors at once",
                where=line_of(node),
                allowed="the same for each tensor by itself: for x in tensors: x.mul_(rate)",
            )
        plain = [x for x in targets if x not in states]
        if plain:
            self._rewrite(node, plain[0])
        else:
            self.current[node] = self._emit(node, node)
        if node.op == "placeholder":
            self.placed[node] = self.current[node]
        source = plain[0] if plain else self._viewed(node)
        if source is not None:
            self.parent[node] = source
            self.family.setdefault(self._root(node), []).append(node)

    def _viewed(self, node: fx.Node) -> fx.Node | None:
        own = self._memory(node)
        if own is None:
            return None
        return next((x for x in node.all_input_nodes if self._memory(x) == own), None)

    def _memory(self, node: fx.Node) -> int | None:
        value = self.probe.value.get(node)
        if isinstance(value, list | tuple) and value and all(isinstance(x, Tensor) for x in value):
            memories = {x.untyped_storage()._cdata for x in value}
            return memories.pop() if len(memories) == 1 else None
        return value.untyped_storage()._cdata if isinstance(value, Tensor) else None

    def _root(self, node: fx.Node) -> fx.Node:
        while node in self.parent:
            node = self.parent[node]
        return node

    def _is_state(self, node: fx.Node) -> bool:
        return node in self.traced.sources and self.traced.sources[node].kind in OWNERS

    def _get(self, node: fx.Node, user: fx.Node) -> fx.Node:
        """Returns the node that stands for `node` now; a view of a tensor written since is taken again."""
        if node not in self.current and written(node):
            self.current[node] = self._get(self.parent[node], user)
        if node not in self.current:
            again = self.graph.node_copy(node, lambda x: self._get(x, user))
            again.meta = {**user.meta, "val": node.meta["val"], "context": node.meta["context"]}
            self.current[node] = again
        return self.current[node]

    def _emit(self, node: fx.Node, user: fx.Node) -> fx.Node:
        inputs = {x: self._get(x, user) for x in node.all_input_nodes}
        new = self.graph.node_copy(node, lambda x: inputs[x])
        new.meta = dict(node.meta)
        return new

    def _rewrite(self, node: fx.Node, given: fx.Node) -> None:
        target = given
        while target in self.parent and self._is_its_argument(target):
            target = self.parent[target]
        root = self._root(target)
        twin = None if target in self.parent or ("grad", False) in node.meta["context"] else self._twin(node)
        if twin is not None:
            new = self._emit(node, node)
            new.target = twin
        else:
            new = self._write_into_clone(node, given, target, root)
        for member in self.family.get(root, ()):
            self.current.pop(member, None)
        self.current[root] = new
        self.current[node] = new if target is root else self._get(target, node)

    def _is_its_argument(self, node: fx.Node) -> bool:
        """Returns whether a node is its argument: what an operation in place returns, or a dropout of nothing."""
        name = node.target._schema.name.replace("::", ".") if isinstance(node.target, OpOverload) else ""
        if name not in IDENTITIES or ("grad", False) in node.meta["context"]:
            return bool(written(node))
        made, given = (self.probe.value[x] for x in (node, self.parent[node]))
        assert isinstance(made, Tensor) and isinstance(given, Tensor)
        return (made.shape, made.stride(), made.dtype) == (given.shape, given.stride(), given.dtype)

    def _write_into_clone(self, node: fx.Node, given: fx.Node, target: fx.Node, root: fx.Node) -> fx.Node:
        context = tuple(part for part in node.meta["context"] if part[0] != "grad")
        old = self._get(root, node)
        for x in node.all_input_nodes:
            self._get(x, node)  # before the views are taken anew, what is read must be there
        fresh = self.graph.call_function(torch.ops.aten.clone.default, (old,))
        fresh.meta = {**node.meta, "val": root.meta["val"], "context": context}
        moved = {root: fresh}
        chain: list[fx.Node] = []
        step = target
        while step is not root:
            chain.append(step)
            step = self.parent[step]
        for view in reversed(chain):
            if self._is_its_argument(view):
                moved[view] = moved[self.parent[view]]
                continue
            moved[view] = self.graph.node_copy(view, lambda x: moved.get(x) or self._get(x, node))
            moved[view].meta = {**node.meta, "val": view.meta["val"], "context": context}
        position = {x: self._get(x, node) for x in node.all_input_nodes if x is not given}
        write = self.graph.node_copy(node, lambda x: moved[target] if x is given else position[x])
        write.meta = {**node.meta, "local": True}
        for part in {*moved.values()}:
            part.meta["until"] = write
        done = self.graph.call_function(after, (fresh, write))
        done.meta = {**node.meta, "val": root.meta["val"], "context": context}
        return done

    def _twin(self, node: fx.Node) -> OpOverload | None:
        """Returns the operation out of place, if it gives a tensor of the same shape, type and strides."""
        assert isinstance(node.target, OpOverload)
        name = node.target._schema.name.split("::")[1]
        packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
        overload = node.target._overloadname
        if (
            random(node)
            or name in NO_TWINS
            or not name.endswith("_")
            or packet is None
            or overload not in packet.overloads()
        ):
            return None
        twin = getattr(packet, overload)
        names = [argument.name for argument in twin._schema.arguments]
        if names != [argument.name for argument in node.target._schema.arguments]:
            return None
        values = self.probe.value
        args, kwargs = arguments(node, values)
        target = values[written(node)[0]]
        assert isinstance(target, Tensor)
        with target.fake_mode, torch.no_grad(), entered(node.meta["context"]):  # type: ignore[attr-defined]
            made = twin(*args, **kwargs)
        same = (made.shape, made.dtype, made.stride()) == (target.shape, target.dtype, target.stride())
        return twin if same else None


def drop_unused(graph: fx.Graph, outputs: set[fx.Node]) -> None:
    """Removes nodes that nothing reads, except placeholders and operations with an effect.

    Args: `outputs` stay, too.
    """
    for node in reversed(graph.nodes):
        effect = random(node) or (states_written(node) and "local" not in node.meta)
        if not (node.users or node in outputs or node.op == "placeholder" or effect):
            graph.erase_node(node)


def drawing_order(graph: fx.Graph) -> dict[fx.Node, int]:
    """Returns the number of each random operation of a model, whatever the order of its layers."""
    return {node: i for i, node in enumerate(filter(random, graph.nodes))}
