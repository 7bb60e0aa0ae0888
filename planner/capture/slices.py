"""Takes a run of consecutive layers as operations in order, with what they read from outside.

Free nodes are taken along once a slice. Sizes are never handed over. Two probes tell how a size depends on the
batch, and the batch is read off the first tensor of the slice that has it in its shape.

Restores the causal flag of attention where the trace holds a dense mask in its place.

Fast kernels take the flag and refuse the mask. A mask is replaced only where three things are proven. It is made of
nothing but constants, it is the same for every batch, and its values are those of the flag.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, fx

from planner.capture.fake_run import Probe, arguments
from planner.capture.functional import drop_unused, random
from planner.capture.layers import FREE, Grouping
from planner.capture.traced_graph import OWNERS, Traced

ATEN = torch.ops.aten
SIZES = {
    ATEN.sym_size.int,
    ATEN.sym_numel.default,
    ATEN.sym_stride.int,
    ATEN.sym_storage_offset.default,
}


@dataclass(frozen=True, slots=True)
class Size:
    """A number that depends on the batch as `fixed + n * slope`."""

    fixed: int
    slope: int


@dataclass(frozen=True, slots=True)
class Reference:
    """The place where a slice reads the batch: `n = (size of dim - fixed) // slope`."""

    node: fx.Node
    dim: int
    size: Size


@dataclass(slots=True)
class Slice:
    """The operations of consecutive layers, with what they read from outside."""

    nodes: list[fx.Node] = field(default_factory=list)
    reads: dict[fx.Node, None] = field(default_factory=dict)  # tensors of the batch and of earlier layers
    states: dict[fx.Node, None] = field(default_factory=dict)  # parameters, buffers and constants
    batch: Reference | None = None


@dataclass(frozen=True)
class Slicing:
    """The functional graph, its layers and its two probes: all that slices are taken from."""

    traced: Traced
    grouping: Grouping
    probes: tuple[Probe, Probe]

    @cached_property
    def order(self) -> dict[fx.Node, int]:
        """Returns the position of each node in the graph."""
        return {node: i for i, node in enumerate(self.traced.graph.nodes)}

    @cached_property
    def by_layer(self) -> dict[int, list[fx.Node]]:
        """Returns the nodes of each layer in order; free nodes are under FREE."""
        found: dict[int, list[fx.Node]] = defaultdict(list)
        for node in self.order:
            if node.op != "placeholder":
                found[self.grouping.layer_of[node]].append(node)
        return found

    @cached_property
    def crossing(self) -> dict[fx.Node, str]:
        """Returns the name of each tensor that another layer reads, or that is the loss; its count comes after it."""
        names: dict[fx.Node, str] = {}
        for layer, name in enumerate(self.grouping.names):
            made = [node for node in self.by_layer[layer] if self._leaves(node, layer)]
            made = [
                *(x for x in made if x not in self.traced.outputs),
                *(x for x in self.traced.outputs if x in made),
            ]
            names |= {node: f"{name}:{k}" for k, node in enumerate(made)}
        return names

    def _leaves(self, node: fx.Node, layer: int) -> bool:
        if node in self.traced.outputs:
            return True
        layer_of = self.grouping.layer_of
        return any(layer_of[x] not in (layer, FREE) for x in node.users) and not self.is_size(node)

    def name(self, node: fx.Node) -> str:
        """Returns the name of a Value, a state or a part of the batch by its node.

        Args: `node` is a placeholder, or makes a tensor that another layer reads.
        """
        source = self.traced.sources.get(node)
        return source.name if source is not None else self.crossing[node]

    def is_size(self, node: fx.Node) -> bool:
        """Returns whether a node is a number that is read off a tensor's shape.

        Args: `node` is of the graph.
        """
        return type(self.probes[0].value[node]) is int and node.target in SIZES

    def size(self, node: fx.Node, dim: int | None = None) -> Size:
        """Returns how a number, or a dimension of a tensor, depends on the batch.

        Args: `dim` is the dimension where the node is a tensor.
        """
        values = [probe.value[node] for probe in self.probes]
        low, high = (x.shape[dim or 0] if isinstance(x, Tensor) else x for x in values)
        assert isinstance(low, int) and isinstance(high, int)
        return affine(low, high, self.probes)

    def take(self, first: int, last: int) -> Slice:
        """Returns the operations of consecutive layers.

        Args: layers `first` to `last`, both included.
        """
        taken = Slice()
        inside: set[fx.Node] = set()
        for layer in range(first, last + 1):
            for node in self.by_layer[layer]:
                for part in (*self._free_before(node, inside), node):
                    inside.add(part)
                    taken.nodes.append(part)
                    self._sort_inputs(part, taken, inside)
        if any(self.is_size(node) and self.size(node).slope for node in taken.nodes):
            taken.batch = self._reference(taken)
            taken.reads.setdefault(taken.batch.node)
        return taken

    def _free_before(self, node: fx.Node, inside: set[fx.Node]) -> list[fx.Node]:
        found: set[fx.Node] = set()
        open_ = [node]
        while open_:
            top = open_.pop()
            if self.is_size(top):
                continue
            for x in top.all_input_nodes:
                if x not in found and x not in inside and self.grouping.layer_of.get(x) == FREE:
                    found.add(x)
                    open_.append(x)
        return sorted(found, key=self.order.__getitem__)

    def _sort_inputs(self, node: fx.Node, taken: Slice, inside: set[fx.Node]) -> None:
        if self.is_size(node):
            return
        for x in node.all_input_nodes:
            source = self.traced.sources.get(x)
            if source is not None and source.kind in OWNERS:
                taken.states.setdefault(x)
            elif x not in inside:
                taken.reads.setdefault(x)

    def _reference(self, taken: Slice) -> Reference:
        batch = [x for x, source in self.traced.sources.items() if source.kind in ("input", "target")]
        for node in (*taken.reads, *batch):
            tensor = self.probes[0].tensor(node)
            for dim in range(tensor.ndim if tensor is not None else 0):
                size = self.size(node, dim)
                if size.slope:
                    return Reference(node, dim, size)
        raise AssertionError("a size depends on the batch and no tensor of the batch does")


def affine(low: int, high: int, probes: tuple[Probe, Probe]) -> Size:
    """Returns the line through the sizes that two probes saw.

    Args: `low` and `high` are the sizes at the batches of the first and the second probe.
    """
    first, second = probes[0].n, probes[1].n
    if first == second:
        return Size(low, 0)
    slope, rest = divmod(high - low, second - first)
    assert rest == 0
    return Size(low - first * slope, slope)


ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
MASK, CAUSAL = 3, 5  # positions of its arguments
DEFAULTS = (None, 0.0, False)  # mask, dropout, causal
LARGEST = 2**26  # elements of a mask that are looked at: 8,192 by 8,192


def restore_causal_flags(traced: Traced, probe: Probe) -> None:
    """Replaces masks that are proven causal by the flag, in place.

    Args: `probe` is a run of the graph on fake tensors, for the shapes.
    """
    known: dict[fx.Node, bool] = {}
    for node in traced.graph.nodes:
        if node.target is not ATTENTION or len(node.args) <= MASK or node.kwargs.get("is_causal"):
            continue
        mask = node.args[MASK]
        if not isinstance(mask, fx.Node) or (len(node.args) > CAUSAL and node.args[CAUSAL]):
            continue
        if mask not in known:
            known[mask] = _is_causal(traced, probe, mask)
        if known[mask]:
            given = [*node.args, *DEFAULTS[len(node.args) - MASK :]]
            given[MASK], given[CAUSAL] = None, True
            node.args = tuple(given)
    drop_unused(traced.graph, set(traced.outputs))


def _is_causal(traced: Traced, probe: Probe, mask: fx.Node) -> bool:
    """Returns whether a mask is proven causal; batch and heads may only have been expanded."""
    shape = probe.tensor(mask)
    assert shape is not None
    rows, columns = shape.shape[-2:]
    while mask.target is torch.ops.aten.expand.default and isinstance(mask.args[0], fx.Node):
        mask = mask.args[0]
    inner = probe.tensor(mask)
    if inner is None or inner.ndim < 2 or inner.shape[-2:] != (rows, columns) or inner.numel() > LARGEST:
        return False
    needed = _constant_ancestors(traced, mask)
    if needed is None or inner.numel() != rows * columns:
        return False
    return _says_causal(_evaluate(needed)[mask].reshape(rows, columns))


def _constant_ancestors(traced: Traced, node: fx.Node) -> list[fx.Node] | None:
    """Returns the nodes that a node is computed from, in order.

    None stands for a node that depends on the batch, on a weight or on chance.
    """
    found: set[fx.Node] = set()
    open_ = [node]
    while open_:
        top = open_.pop()
        if top in found:
            continue
        if top.op != "call_function" or random(top) or str(top.target) == "aten.sym_size.int":
            return None
        found.add(top)
        open_ += top.all_input_nodes
    return [x for x in traced.graph.nodes if x in found]


def _evaluate(nodes: list[fx.Node]) -> dict[fx.Node, Tensor]:
    values: dict[fx.Node, object] = {}
    with torch.no_grad():
        for node in nodes:
            args, kwargs = arguments(node, values)
            assert callable(node.target)
            values[node] = node.target(*args, **kwargs)
    return {node: value for node, value in values.items() if isinstance(value, Tensor)}


def _says_causal(mask: Tensor) -> bool:
    lower = torch.ones(mask.shape, dtype=torch.bool).tril()
    if mask.dtype == torch.bool:
        return torch.equal(mask, lower)
    if not mask.is_floating_point():
        return False
    # The most negative number hides as well as infinity does: its exponential is zero beside any score.
    hidden = mask <= torch.finfo(mask.dtype).min
    return torch.equal(mask == 0, lower) and torch.equal(hidden, ~lower)
