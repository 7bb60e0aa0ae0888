"""Works out what a stage on shards needs before anything runs: layouts, fetches, and which gradients are partial."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, fx

from planner.capture import StageModule, check_sizes, operation_of, samples_of
from planner.spatial import (
    Fetch,
    Grid,
    Grids,
    Layout,
    Operation,
    Placed,
    Ref,
    Segment,
    entry,
    grown,
    take,
    whole,
    wider,
    with_targets,
)
from runtime.spatial.operation import Use

ATEN = torch.ops.aten
IMAGE = 3  # dimensions that no image or volume has so few of


@dataclass(frozen=True)
class Analysed:
    """Everything that the rules decide about one stage on one grid; `shard` writes it into the stage's graph."""

    grid: Grid  # of all ranks, on which it begins
    segment: Segment
    inputs: Mapping[str, Layout]  # by name of the Value: as it comes
    outputs: Mapping[str, Layout]
    grids: Mapping[str, Grid]  # of all ranks, on which each of the outputs lies
    turners: Mapping[str, Operation]  # of outputs whose dimensions have been turned, see `Segment`
    around: frozenset[str]  # outputs that were gathered for an operation without a rule, see `Segment`
    partial: frozenset[str]
    uses: Mapping[str, Mapping[str, Use]]  # operation -> argument
    takes: Mapping[str, tuple[Fetch, ...]]  # Values that are cut on entry
    parameters: frozenset[str]
    batch: Mapping[str, Layout]  # what it reads of the batch, as it computes on it

    @property
    def uncounted(self) -> frozenset[str]:
        """Returns the parameters whose whole gradient every rank has: a sum over the group must count one
        rank's alone."""
        return self.parameters - self.partial


def operations_of(module: StageModule) -> list[Operation]:
    """Returns the operations of a stage as the rules of `planner.spatial` read them, in the order of its graph.

    Args: `module` is a captured stage, not rewritten yet.
    Returns: one `Operation` for each node that the rules know, with the dimensions that hold its samples.
    """
    layout = module._layout
    names, values = layout.grouping.names, layout.probes[0].value
    check_sizes(layout, module._slice.nodes)
    found = []
    for node in module._slice.nodes:
        index = layout.grouping.layer_of.get(node, -1)
        operation = operation_of(node, values, names[index] if index >= 0 else "")
        if operation is not None:
            found.append(replace(operation, samples=samples_of(layout, node)))
    return found


def value_shapes(module: StageModule) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of what a stage reads, for the batch of the captured example.

    Args: `module` is a captured stage.
    Returns: the shape of each Value, by name.
    """
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
    delivered: Mapping[str, Layout] | None = None,
    gather_before: Collection[str] = (),
    grids: Grids | None = None,
    *,
    entering: bool = True,
) -> Analysed:
    """Works out layouts, fetches and partial gradients of a stage on a grid.

    Values that are not `delivered` come whole; with `entering` they are cut on entry.
    Args: `grid` has the parts along each axis; `delivered` has the layouts of Values that come cut;
        `gather_before` names layers before which samples become whole; `grids` tells of other grids than
        `grid`, with the names of the Values that lie on them or that have been turned.
    Returns: all that `shard` needs.
    Raises: NoRule names an operation that cannot be done on shards.
    """
    grids = grids or Grids(prod(grid), tuple(grid))
    layout, shapes, known = module._layout, value_shapes(module), delivered or {}
    operations, samples = operations_of(module), _samples(module)
    if grids.shares:
        operations = [wider(x, grids.ranks) for x in operations]
        dims = {layout.name(node): samples[node.name] for node in module._slice.reads}
        shapes = {name: grown(shape, dims[name], grids.ranks) for name, shape in shapes.items()}
        known = {name: Layout(shapes[name], x.cuts) for name, x in known.items()}
    inputs = {name: known.get(name, whole(shape)) for name, shape in shapes.items()}
    wanted = _wanted(module, inputs, grid) if entering else dict(inputs)
    wanted |= {name: known[name] for name in known if name in wanted}
    given = {node.name: wanted[layout.name(node)] for node in module._slice.reads}
    given |= {node.name: _whole(layout.probes[0].tensor(node)) for node in module._slice.states}
    read = {layout.name(node): node.name for node in module._slice.reads}
    lying = {node: grids.lying.get(name, grids.mesh) for name, node in read.items()}
    turners = {read[name]: grids.turners[name] for name in read if name in grids.turners}
    plain = entering and not (gather_before or grids.turns or grids.shares)
    targets = _targets(module, shapes) if plain else {}
    around = {read[name] for name in grids.around if name in read}
    here = replace(grids, lying=lying, samples=samples, turners=turners, around=around)
    segment, given_ = with_targets(operations, given, targets, gather_before, here)
    wanted = {layout.name(node): given_[node.name] for node in module._slice.reads}
    outputs = {name: segment.layouts[node.name][0] for node, name in module._made.items()}
    lies = {name: segment.grids[node.name] for node, name in module._made.items()}
    turned = {name: node.name for node, name in module._made.items() if node.name in segment.turners}
    turned_by = {name: segment.turners[node] for name, node in turned.items()}
    gathered = frozenset(name for node, name in module._made.items() if node.name in segment.around)
    states = {node.name: layout.traced.sources[node] for node in module._slice.states}
    parameters = {name: source.name for name, source in states.items() if source.kind == "parameter"}
    uses, partial = _uses(segment.placed, parameters)
    takes = {name: tuple(_takes(wanted[name])) for name in inputs if inputs[name] != wanted[name]}
    held = frozenset(parameters.values())
    batch = {
        layout.name(node): wanted[layout.name(node)] for node in module._slice.reads if _kind(module, node)
    }
    made = inputs, outputs, lies, turned_by, gathered
    return Analysed(grids.mesh, segment, *made, partial, uses, takes, held, batch)


def _wanted(module: StageModule, inputs: Mapping[str, Layout], grid: Sequence[int]) -> dict[str, Layout]:
    """Returns how the stage wants its Values: samples are cut where they come whole, and what earlier
    stages made only if it has as many dimensions as an image."""
    wanted = dict(inputs)
    for node in module._slice.reads:
        name = module._layout.name(node)
        kind, shape = _kind(module, node), inputs[name].shape
        if inputs[name].whole and (kind == "input" or (kind == "" and len(shape) > IMAGE)):
            wanted[name] = entry(shape, grid)
    return wanted


def _samples(module: StageModule) -> dict[str, int]:
    """Returns the dimension of samples of what the stage is given, by node, as far as it is known."""
    found = {}
    for node in (*module._slice.reads, *module._slice.states):
        for dim in samples_of(module._layout, node):
            found[node.name] = dim
    return found


def inputs_of(module: StageModule) -> list[str]:
    """Returns the names of what a stage reads of a batch's inputs.

    Args: `module` is a captured stage.
    Returns: names of Values, in the order in which the stage reads them.
    """
    return [module._layout.name(node) for node in module._slice.reads if _kind(module, node) == "input"]


def _targets(module: StageModule, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the targets that the stage reads, by node."""
    names = {node: module._layout.name(node) for node in module._slice.reads}
    return {node.name: shapes[name] for node, name in names.items() if _kind(module, node) == "target"}


def _kind(module: StageModule, node: fx.Node) -> str:
    """Returns "input" or "target" where a node is part of the batch, otherwise ""."""
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
    """Returns how operations use whole tensors, and which parameters get partial gradients.

    A parameter used both on shards and on whole tensors is treated as a whole tensor: its gradient is whole.
    """
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
    """Returns (argument, tensor) for every tensor that an operation reads; a list's entries are numbered."""
    found = []
    for argument, value in done.operation.arguments.items():
        if isinstance(value, Ref):
            found.append((argument, value.name))
        elif isinstance(value, tuple):
            found += [(f"{argument}.{i}", x.name) for i, x in enumerate(value) if isinstance(x, Ref)]
    return found
