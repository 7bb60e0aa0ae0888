"""A stage on shards: its graph is rewritten once, before anything runs, by the rules of `planner.halo`.

    analysed = analyse(module, grid)                          # pure; NoRule names what cannot be done
    shard(module, analysed, Mesh(grid, GroupWire(group)))     # after materialise and key_random_operations,
                                                              # before store_weights
    analysed.outputs      # Layout of each Value that the stage makes
    analysed.partial      # parameters whose gradients are to be summed over the group; others are whole on each rank
    analysed.uncounted    # the names of those others: to be counted on one rank of the group only

From then on the module gives this rank's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from planner.capture_operations import named_arguments, operation_of
from planner.cut import StageModule
from planner.halo import Layout, Step, entry, whole
from planner.halo.fetch import Fetch, take
from planner.halo.segment import Operation, Placed, Ref, Segment, call_of, propagate
from runtime.spatial import convolution, overlap
from runtime.spatial.exchange import enter, fetched, memory_format
from runtime.spatial.mesh import Mesh
from runtime.spatial.shapes import plain
from runtime.spatial.site import Site, Use
from runtime.spatial.table import KERNELS

ATEN = torch.ops.aten
IMAGE = 3  # dimensions that no image or volume has so few of


@dataclass(frozen=True)
class Analysed:
    grid: tuple[int, ...]
    segment: Segment
    inputs: Mapping[str, Layout]  # by name of the Value: as it comes
    outputs: Mapping[str, Layout]
    partial: frozenset[str]
    uses: Mapping[str, Mapping[str, Use]]  # operation -> argument
    takes: Mapping[str, tuple[Fetch, ...]]  # Values that are cut on entry
    parameters: frozenset[str]

    @property
    def uncounted(self) -> frozenset[str]:
        """Parameters whose whole gradient every rank has: a sum over the group counts one rank's."""
        return self.parameters - self.partial


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


def entries(module: StageModule, grid: Sequence[int]) -> dict[str, Layout]:
    """What the stage reads of the batch, cut evenly behind the channels; targets stay whole, the loss slices them."""
    sources = {module._layout.name(node): node for node in module._slice.reads}
    return {
        name: entry(shape, grid)
        for name, shape in value_shapes(module).items()
        if _kind(module, sources[name]) != "target"
    }


def analyse(
    module: StageModule,
    grid: Sequence[int],
    delivered: Mapping[str, Layout] | None = None,
    gather_before: Collection[str] = (),
) -> Analysed:
    """`delivered`: layouts of the Values that come cut; the others come whole, and are cut on entry."""
    layout, shapes = module._layout, value_shapes(module)
    inputs = {name: whole(shape) for name, shape in shapes.items()} | dict(delivered or {})
    wanted = _wanted(module, inputs, grid if not gather_before else ())
    given = {node.name: wanted[layout.name(node)] for node in module._slice.reads}
    given |= {node.name: _whole(layout.probes[0].tensor(node)) for node in module._slice.states}
    segment = propagate(operations_of(module), given, gather_before)
    outputs = {name: segment.layouts[node.name][0] for node, name in module._made.items()}
    states = {node.name: layout.traced.sources[node] for node in module._slice.states}
    parameters = {name: source.name for name, source in states.items() if source.kind == "parameter"}
    uses, partial = _uses(segment.placed, parameters)
    takes = {name: tuple(_takes(wanted[name])) for name in inputs if inputs[name] != wanted[name]}
    held = frozenset(parameters.values())
    return Analysed(tuple(grid), segment, inputs, outputs, partial, uses, takes, held)


def _wanted(module: StageModule, inputs: Mapping[str, Layout], grid: Sequence[int]) -> dict[str, Layout]:
    """Samples are cut where they come whole; what earlier stages made, only if it is as much an image."""
    wanted = dict(inputs)
    for node in module._slice.reads:
        name = module._layout.name(node)
        kind, shape = _kind(module, node), inputs[name].shape
        if inputs[name].whole and (kind == "input" or (kind == "" and len(shape) > IMAGE)):
            wanted[name] = entry(shape, grid)
    return wanted


def _kind(module: StageModule, node: fx.Node) -> str:
    """ "input" or "target" of the batch, or nothing."""
    source = module._layout.traced.sources.get(node)
    return "" if source is None else source.kind


def _takes(layout: Layout) -> Iterator[Fetch]:
    for dim in layout.cut_dims:
        cut = layout.cuts[dim]
        assert cut is not None
        yield take(dim, cut)


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


def shard(module: StageModule, analysed: Analysed, mesh: Mesh, *, overlap: bool = True) -> None:
    """With `overlap` convolutions compute while halos travel; without, they stay nodes that may owe weight gradients."""
    writer = _Writer(module, analysed, mesh, overlap)
    writer.write()


class _Writer:
    def __init__(self, module: StageModule, analysed: Analysed, mesh: Mesh, overlap: bool) -> None:
        self.overlapping = overlap
        self.module, self.run, self.mesh, self.analysed = module, module._run, mesh, analysed
        self.nodes = matched(module)
        self.gathered: dict[fx.Node, fx.Node] = {}
        self.count = 0

    def write(self) -> None:
        self._take_inputs()
        for done in self.analysed.segment.placed:
            node = self.nodes[done.operation.name]
            if done.gathers:
                self._gather(node, done)
            elif done.step is not None:
                self._place(node, done, done.step)
        self.run.graph.lint()
        self.run.recompile()

    def _take_inputs(self) -> None:
        placeholders = [node for node in self.run.graph.nodes if node.op == "placeholder"]
        for name, node in zip(self.module.inputs, placeholders, strict=False):
            if name in self.analysed.takes:
                users = list(node.users)
                with self.run.graph.inserting_after(placeholders[-1]):
                    held = self._held(Take(self.analysed.takes[name], self.mesh))
                with self.run.graph.inserting_after(held):
                    taken = self.run.graph.call_function(called, (held, node))
                for user in users:
                    if user.target is not ATEN.sym_size.int:
                        user.replace_input_with(node, taken)
                self.nodes = {key: taken if value is node else value for key, value in self.nodes.items()}

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
        if kernel is convolution.convolution and self._convolve(node, done, step, uses):
            return
        site = Site(target, kernel, call_of(done.operation, done.inputs), step, self.mesh, uses)  # type: ignore[arg-type]
        with self.run.graph.inserting_before(node):
            new = self._call(site, *node.args, **node.kwargs)
        node.replace_all_uses_with(new)
        self.run.graph.erase_node(node)
        self.nodes[done.operation.name] = new

    def _convolve(self, node: fx.Node, done: Placed, step: Step, uses: Mapping[str, Use]) -> bool:
        """A convolution stays torch's own, so that its weight gradient can be put off: only its input is fetched."""
        call = call_of(done.operation, done.inputs)
        plain = convolution.plain_arguments(call, step)
        if plain is None or not all(self._idle(use) for use in uses.values()):
            return False
        assert isinstance(node.target, OpOverload)
        named = named_arguments(node.target, node.args, node.kwargs)
        if self.overlapping and self._overlapped(node, done, step, plain, named):
            return True
        with self.run.graph.inserting_before(node):
            fetched_input = self._call(Gather(step.fetches["input"], self.mesh), named["input"])
        node.target = convolution.PLAIN[len(plain.stride)]
        node.args = (fetched_input, named["weight"], named["bias"], *plain)  # type: ignore[assignment]
        node.kwargs = {}
        return True

    def _overlapped(
        self, node: fx.Node, done: Placed, step: Step, plain: convolution.Plain, named: Mapping[str, object]
    ) -> bool:
        """Along the last dimension that rows are sent for; the others are fetched first."""
        fetches = [fetch for fetch in step.fetches["input"] if not fetch.trivial]
        if not fetches or not any(fetches[-1].messages()):
            return False
        *others, last = fetches
        cut = step.output.cuts[last.dim]
        position = last.dim - (len(step.output.shape) - len(plain.stride))
        kernel = call_of(done.operation, done.inputs).tensor("weight").shape[2 + position]
        assert cut is not None
        plans = [overlap.plan(last, cut, plain, position, kernel, i) for i in range(len(last.runs))]
        if not all(found is not None and found.worthwhile for found in plans):  # the same way on every rank
            return False
        mine = plans[self.mesh.coordinates[last.axis]]
        assert mine is not None
        with self.run.graph.inserting_before(node):
            site = overlap.Overlapped(tuple(others), mine, self.mesh)
            new = self._call(site, named["input"], named["weight"], named["bias"])
        node.replace_all_uses_with(new)
        self.run.graph.erase_node(node)
        self.nodes[done.operation.name] = new
        return True

    def _idle(self, use: Use) -> bool:
        cut = {axis for axis, parts in enumerate(self.mesh.grid) if parts > 1}
        return use.parameter and use.missing >= cut

    def _call(self, what: object, *args: object, **kwargs: object) -> fx.Node:
        return self.run.graph.call_function(called, (self._held(what), *args), kwargs)  # type: ignore[arg-type]

    def _held(self, what: object) -> fx.Node:
        name = f"spatial_{self.count}"
        self.count += 1
        setattr(self.run, name, what)
        return self.run.graph.create_node("get_attr", name)  # get_attr() would warn that it is no tensor


def site_of(run: fx.GraphModule, node: fx.Node) -> Site | None:
    """The operation on shards that a node of a rewritten graph stands for."""
    if node.target is not called or not isinstance(node.args[0], fx.Node):
        return None
    held = getattr(run, str(node.args[0].target))
    return held if isinstance(held, Site) else None


def called(what: Callable[..., object], *args: object, **kwargs: object) -> object:
    return what(*args, **kwargs)


@dataclass(frozen=True)
class Take:
    """This rank's part of a tensor that comes whole."""

    fetches: tuple[Fetch, ...]
    mesh: Mesh

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x = enter(x, self.mesh, frozenset(fetch.axis for fetch in self.fetches))
        for fetch in self.fetches:
            (run,) = fetch.runs[self.mesh.coordinates[fetch.axis]]
            x = x.narrow(fetch.dim, run.start, run.length)
        return x.contiguous(memory_format=memory_format(x))


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
