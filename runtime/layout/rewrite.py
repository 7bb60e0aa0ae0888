"""Rewrites a graph once, before anything runs, so that it computes one rank's parts.

    graph = propagate(operations, mesh, granted(wishes, operations), trained)
    localise(stage._run, nodes, graph, CutGroup(mesh, wire))

Conversions become nodes of the graph, one for each tensor and layout, and all that reads the tensor so shares it.
Operations that are torch's own on parts stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from planner.layout import GroupLayout, LocalGraph, LocalOperation, gathers_parameter, path
from planner.spatial import GETITEM
from runtime.draws import Draw, draw_of
from runtime.layout.convert import Convert, GatheredWeights, GatherParameter
from runtime.layout.kernels import SIZED, LocalCall, OwnPlaces, OwnRows, own_places
from runtime.layout.moves import CutGroup
from runtime.spatial import called


def localise(
    module: fx.GraphModule, nodes: Mapping[str, fx.Node], graph: LocalGraph, group: CutGroup
) -> None:
    """Rewrites a graph for one rank of a group, in place.

    Args: `nodes` has the graph's node for each tensor of `graph` that it has; other operations are left out.
    """
    _Localiser(module, dict(nodes), graph, group).write()


def is_view(module: fx.GraphModule, node: fx.Node) -> bool:
    """Returns whether a call that stands in a rewritten graph makes what lies in the memory of what it reads.

    Args: `node` is any of the graph; those of torch's own operations are none.
    """
    if node.target is not called or not isinstance(held := node.args[0], fx.Node):
        return False
    call = getattr(module, str(held.target), None)
    if isinstance(call, Convert):
        return all(step.forward == "none" for step in call.steps)
    return isinstance(call, LocalCall) and call.placed.operation.operation in SIZED


class _Localiser:
    """The rewriting of one graph; `converted` has each tensor in each layout that it was brought to."""

    def __init__(
        self, module: fx.GraphModule, nodes: dict[str, fx.Node], graph: LocalGraph, group: CutGroup
    ) -> None:
        self.module, self.nodes, self.graph, self.group = module, nodes, graph, group
        self.converted: dict[tuple[str, GroupLayout], fx.Node] = {}
        self.gathered, self.stored = GatheredWeights(), False
        self.count = 0

    def write(self) -> None:
        for done in self.graph.placed:
            node = self.nodes.get(done.operation.name)
            if node is not None and node.op != "placeholder":  # what another stage makes comes in as it lies
                self._convert_inputs(done)
                self._place(done)
                self._resolve(done.operation.name)
        self.module.graph.lint()
        self.module.recompile()
        if self.stored:
            _keep_none(self.module, self.gathered)

    def _convert_inputs(self, done: LocalOperation) -> None:
        node = self.nodes[done.operation.name]
        if done.operation.operation == GETITEM:
            return
        for argument, name in done.reads():
            source, target = self.graph.layouts[name][0], done.inputs[argument]
            if source != target:
                _put(node, argument, self._converted(name, target, node), draw_of(self.module, node))

    def _converted(self, name: str, target: GroupLayout, reader: fx.Node) -> fx.Node:
        if (name, target) not in self.converted:
            source = self.graph.layouts[name][0]
            steps = path(source, target, self.graph.mesh, trained=name in self.graph.trained)
            convert = Convert(steps, self.group)
            done: Convert | GatherParameter = convert
            if gathers_parameter(name, steps):
                done, self.stored = GatherParameter(convert, self.gathered), True
            with self.module.graph.inserting_before(reader):
                made = self._call(done, self.nodes[name])
            self.converted[name, target] = made
        return self.converted[name, target]

    def _place(self, done: LocalOperation) -> None:
        node = self.nodes[done.operation.name]
        own = self.group.position, self.group.mesh
        same = all(out.local_shape(*own) == out.shape for out in done.outputs)
        if not done.kernels and (same or done.operation.operation not in SIZED):
            return
        with self.module.graph.inserting_before(node):
            draw = draw_of(self.module, node)
            target, given = (node.target, node.args) if draw is None else (draw.target, node.args[1:])
            call = LocalCall(target, done, self.group, draw)  # type: ignore[arg-type]
            if "vocabulary" in done.kernels.values():
                new = self._taken(node, own_places(call))
            else:
                new = self._call(call, *given, **node.kwargs)
        node.replace_all_uses_with(new)
        self.module.graph.erase_node(node)
        self.nodes[done.operation.name] = new

    def _taken(self, node: fx.Node, places: OwnPlaces) -> fx.Node:
        """Returns the rows of a table in parts; taking them stays torch's own operation, which can owe its gradient."""
        weight, indices, *others = node.args
        local = self._call(places, indices)
        if others:
            assert isinstance(others[0], int)
            others[0] = places.padding(others[0])
        found = self.module.graph.call_function(node.target, (weight, local, *others))  # type: ignore[arg-type]
        return self._call(OwnRows(places), found, indices)

    def _resolve(self, name: str) -> None:
        """Sums up addends at once where they must not stay so."""
        if name not in self.graph.made:
            return
        node, (source,), (target,) = self.nodes[name], self.graph.made[name], self.graph.layouts[name]
        steps = path(source, target, self.graph.mesh, trained=name in self.graph.trained)
        users = list(node.users)
        with self.module.graph.inserting_after(node):
            held = self._held(Convert(steps, self.group))
        with self.module.graph.inserting_after(held):
            made = self.module.graph.call_function(called, (held, node))
        for user in users:
            user.replace_input_with(node, made)
        self.nodes[name] = made

    def _call(self, what: object, *args: object, **kwargs: object) -> fx.Node:
        return self.module.graph.call_function(called, (self._held(what), *args), kwargs)  # type: ignore[arg-type]

    def _held(self, what: object) -> fx.Node:
        name = f"layout_{self.count}"
        self.count += 1
        setattr(self.module, name, what)
        return self.module.graph.create_node("get_attr", name)  # get_attr() would warn that it is no tensor


def _put(node: fx.Node, argument: str, new: fx.Node, draw: Draw | None) -> None:
    """Puts a node in the place of one argument of another one; a numbered argument is an entry of a list."""
    name, _, index = argument.partition(".")
    target = node.target if draw is None else draw.target
    assert isinstance(target, OpOverload), node
    place = [x.name for x in target._schema.arguments].index(name) + (draw is not None)
    given = node.args[place] if place < len(node.args) else node.kwargs[name]
    value: Argument = new
    if index:
        assert isinstance(given, list | tuple)
        value = [*given[: int(index)], new, *given[int(index) + 1 :]]
    if place < len(node.args):
        node.args = (*node.args[:place], value, *node.args[place + 1 :])
    else:
        node.kwargs = {**node.kwargs, name: value}


def _keep_none(module: fx.GraphModule, gathered: GatheredWeights) -> None:
    """Has a graph run without autograd keeping what was gathered, also once the graph is edited further."""

    def forward(*given: object) -> object:
        units = getattr(module, "units", None)
        gathered.beside = units if units is not None and units.gathers else None
        with gathered.not_kept():
            return type(module).forward(module, *given)

    module.forward = forward
