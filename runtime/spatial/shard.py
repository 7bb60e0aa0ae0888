"""A stage on shards: its graph is rewritten once, before anything runs, by the rules of `planner.halo`.

    analysed = analyse(module, layouts_of(module, graph, grid))     # pure; NoRule names what cannot be done
    shard(module, analysed, Mesh(grid, GroupWire(group)))           # after materialise and key_random_operations,
                                                                    # before store_weights
    analysed.outputs      # Layout of each Value that the stage makes
    analysed.partial      # parameters whose gradients are to be summed over the group; others are whole on each rank

From then on the module takes and gives this rank's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from planner.capture_operations import operation_of
from planner.cut import StageModule
from planner.halo import Layout, Step, entry, whole
from planner.halo.fetch import Fetch
from planner.halo.segment import Operation, Placed, Ref, Segment, call_of, propagate
from runtime.spatial.exchange import fetched
from runtime.spatial.mesh import Mesh
from runtime.spatial.shapes import plain
from runtime.spatial.site import Site, Use
from runtime.spatial.table import KERNELS


@dataclass(frozen=True)
class Analysed:
    segment: Segment
    inputs: Mapping[str, Layout]  # by name of the Value
    outputs: Mapping[str, Layout]
    partial: frozenset[str]
    uses: Mapping[str, Mapping[str, Use]]  # operation -> argument


def operations_of(module: StageModule) -> list[Operation]:
    layout = module._layout
    names, values = layout.grouping.names, layout.probes[0].value
    found = []
    for node in module._slice.nodes:
        index = layout.grouping.layer_of.get(node, -1)
        operation = operation_of(node, values, names[index] if index >= 0 else "")
        if operation is not None:
            found.append(operation)
    return found


def value_shapes(module: StageModule) -> dict[str, tuple[int, ...]]:
    """Of what the stage reads, for the captured example's batch."""
    layout = module._layout
    found = {}
    for node in module._slice.reads:
        tensor = layout.probes[0].tensor(node)
        assert tensor is not None
        found[layout.name(node)] = tuple(tensor.shape)
    return found


def analyse(
    module: StageModule,
    grid: Sequence[int],
    *,
    layouts: Mapping[str, Layout] | None = None,
    gather_before: Collection[str] = (),
) -> Analysed:
    """`layouts` of Values read, where they differ from an even cut of the dimensions behind the channels."""
    layout, shapes = module._layout, value_shapes(module)
    inputs = {name: _entry(module, name, shape, grid) for name, shape in shapes.items()} | dict(layouts or {})
    given = {node.name: inputs[layout.name(node)] for node in module._slice.reads}
    given |= {node.name: _whole(layout.probes[0].tensor(node)) for node in module._slice.states}
    segment = propagate(operations_of(module), given, gather_before)
    outputs = {name: segment.layouts[node.name][0] for node, name in module._made.items()}
    states = {node.name: layout.traced.sources[node] for node in module._slice.states}
    parameters = {name: source.name for name, source in states.items() if source.kind == "parameter"}
    uses, partial = _uses(segment.placed, parameters)
    return Analysed(segment, inputs, outputs, partial, uses)


def _entry(module: StageModule, name: str, shape: tuple[int, ...], grid: Sequence[int]) -> Layout:
    """Targets come whole; the loss takes the rows it needs."""
    return whole(shape) if name.split(".")[0].split(":")[0] == "target" else entry(shape, grid)


def _whole(tensor: Tensor | None) -> Layout:
    assert tensor is not None
    return whole(tuple(tensor.shape))


def _uses(
    placed: Sequence[Placed], parameters: Mapping[str, str]
) -> tuple[dict[str, dict[str, Use]], frozenset[str]]:
    """A parameter used both on shards and on whole tensors is treated as a whole tensor: its gradient is whole."""
    alike = {name for done in placed if done.step is None for name in done.operation.reads()}
    uses: dict[str, dict[str, Use]] = {}
    partial = set()
    for done in placed:
        if done.step is None:
            continue
        for argument, name in _named(done):
            missing = done.step.axes - done.inputs[name].axes
            own = name in parameters and name not in alike
            if own and missing:
                partial.add(parameters[name])
            if missing:
                uses.setdefault(done.operation.name, {})[argument] = Use(missing, own)
    return uses, frozenset(partial)


def _named(done: Placed) -> list[tuple[str, str]]:
    """(argument, tensor) of an operation, a list's entries by number."""
    found = []
    for argument, value in done.operation.arguments.items():
        if isinstance(value, Ref):
            found.append((argument, value.name))
        elif isinstance(value, tuple):
            found += [(f"{argument}.{i}", x.name) for i, x in enumerate(value) if isinstance(x, Ref)]
    return found


def shard(module: StageModule, analysed: Analysed, mesh: Mesh) -> None:
    writer = _Writer(module, analysed, mesh)
    writer.write()


class _Writer:
    def __init__(self, module: StageModule, analysed: Analysed, mesh: Mesh) -> None:
        self.run, self.mesh, self.analysed = module._run, mesh, analysed
        self.nodes = matched(module)
        self.gathered: dict[fx.Node, fx.Node] = {}
        self.count = 0

    def write(self) -> None:
        for done in self.analysed.segment.placed:
            node = self.nodes[done.operation.name]
            if done.gathers:
                self._gather(node, done)
            elif done.step is not None:
                self._place(node, done, done.step)
        self.run.graph.lint()
        self.run.recompile()

    def _gather(self, node: fx.Node, done: Placed) -> None:
        for name, fetches in done.gathers.items():
            source = self.nodes[name]
            if source not in self.gathered:
                with self.run.graph.inserting_before(node):
                    self.gathered[source] = self._call(Gather(fetches, self.mesh), source)
            node.replace_input_with(source, self.gathered[source])

    def _place(self, node: fx.Node, done: Placed, step: Step) -> None:
        target = node.target
        kernel = KERNELS[done.operation.operation]
        uses = self.analysed.uses.get(done.operation.name, {})
        if kernel is plain and not step.fetches and all(self._idle(use) for use in uses.values()):
            return
        site = Site(target, kernel, call_of(done.operation, done.inputs), step, self.mesh, uses)  # type: ignore[arg-type]
        with self.run.graph.inserting_before(node):
            new = self._call(site, *node.args, **node.kwargs)
        node.replace_all_uses_with(new)
        self.run.graph.erase_node(node)
        self.nodes[done.operation.name] = new

    def _idle(self, use: Use) -> bool:
        cut = {axis for axis, parts in enumerate(self.mesh.grid) if parts > 1}
        return use.parameter and use.missing >= cut

    def _call(self, what: object, *args: object, **kwargs: object) -> fx.Node:
        name = f"spatial_{self.count}"
        self.count += 1
        setattr(self.run, name, what)
        held = self.run.graph.create_node("get_attr", name)  # get_attr() warns of what is no tensor
        return self.run.graph.call_function(called, (held, *args), kwargs)  # type: ignore[arg-type]


def called(what: Callable[..., object], *args: object, **kwargs: object) -> object:
    return what(*args, **kwargs)


@dataclass(frozen=True)
class Gather:
    fetches: tuple[Fetch, ...]
    mesh: Mesh

    def __call__(self, x: Tensor) -> Tensor:
        for fetch in self.fetches:
            x = fetched(x, fetch, self.mesh)
        return x


def matched(module: StageModule) -> dict[str, fx.Node]:
    """Nodes of the stage's graph by the names of the captured nodes that they were written from."""
    layout, taken = module._layout, module._slice
    running = iter(module._run.graph.nodes)
    found = {}
    placeholders = [node for node in module._run.graph.nodes if node.op == "placeholder"]
    for source, node in zip((*taken.reads, *taken.states), placeholders, strict=True):
        found[source.name] = node
    for source in taken.nodes:
        if layout.is_size(source):
            continue
        found[source.name] = next(
            node for node in running if node.op == source.op and node.target == source.target
        )
    return found
