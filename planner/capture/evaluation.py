"""Captures a model in evaluation mode, as layers of the same names in the same order as it trains with.

What runs then may be other operations: a dropped path is kept, an auxiliary head is left out. Each operation belongs
to the layer that its module call is in training, but to none before those that feed it. Parameters, buffers and
tensors of the batch stay with the layers that hold them in training. Where another layer reads them, they pass to it
as Values. A state that no layer holds in training never changes, and is read where it is needed.

What evaluation writes into a buffer is written into a copy. So nothing of it is left for the training that follows.
"""

from __future__ import annotations

import contextlib
import operator
import random as python_random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from planner.capture.batch import Span
from planner.capture.capture import Sizes, Tracing, probed
from planner.capture.captured import Captured, LossAndMetrics, Recorded
from planner.capture.describe import describe
from planner.capture.fake_run import Probe
from planner.capture.functional import STATISTICS, states_written
from planner.capture.layers import FREE, Grouper, Grouping, stack_of
from planner.capture.slices import SIZES, Slicing
from planner.capture.state_use import use_of_states
from planner.capture.traced_graph import OWNERS, Source, Traced, line_of
from planner.errors import BadInput
from planner.model import ModelGraph

ATEN = torch.ops.aten
WAITS = -2  # fed by nothing: joins the layer that reads it first
OWN = "evaluation."  # before the names of constants that the trace in evaluation mode has lifted


def evaluation_of(captured: Captured, micro: int) -> Captured:
    """Returns a model as `eval()` makes it run, with the layers of the captured training.

    Args: `captured` has its layers in the order of the plan; `micro` is the micro-batch that is to be served.
    Returns: layers of the same names in the same order, of which some may do nothing.
    Raises: BadInput with the user's line, where the model cannot be captured in evaluation mode.
    """
    if isinstance(captured.origin, Recorded):
        return captured.origin.evaluated_as(captured, micro)
    measured = LossAndMetrics(captured.origin.loss, captured.origin.metrics)

    def read(traced: Traced, module: nn.Module, sizes: Sizes) -> tuple[ModelGraph, Slicing]:
        functional, probes = probed(without_writes(_renamed(traced, own)), module, sizes)
        layout = _placed(captured, functional, probes)
        return describe(layout, module, training=False, more=2 * len(measured.names)), layout

    graph, own = captured.graph, OWN if micro > 1 else OWN + "one."
    span = Span(small=captured.layout.probes[0].n, least=graph.least_micro, most=graph.most_micro or None)
    several = (
        graph.symbolic_batch and graph.serves(micro) and micro > 1
    )  # an export takes it for granted that a batch is none of one
    try:
        with _undisturbed():
            made = Tracing.of(replace(captured.origin, loss=measured), training=False)
            graph, layout = made.read(span if several else None, micro, read)
        if graph.loss_kind != captured.graph.loss_kind:
            raise BadInput("loss() gives another number of tensors than in training", where="loss")
    except BadInput as error:
        said = f"in evaluation mode: {error.what}"
        raise BadInput(said, where=error.where, allowed=error.allowed) from error
    return Captured(graph, layout, captured.origin, metrics=measured.names)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Leaves the random numbers that the training draws next as they would be."""
    plain, numbers = python_random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        python_random.setstate(plain)
        np.random.set_state(numbers)


def _renamed(traced: Traced, own: str) -> Traced:
    """Returns the graph with other names for the constants that have none of the user's; training has such, too."""
    names = {name: own + name for name in traced.constants if name.startswith("constant.")}
    sources = {
        x: replace(s, name=names.get(s.name, s.name)) if s.kind == "constant" else s
        for x, s in traced.sources.items()
    }
    constants = {names.get(name, name): tensor for name, tensor in traced.constants.items()}
    return replace(traced, sources=sources, constants=constants)


def without_writes(traced: Traced) -> Traced:
    """Returns the graph in which every state that it writes has a copy, which is written in its place."""
    states = {x: source.name for x, source in traced.sources.items() if source.kind in OWNERS}
    written = use_of_states(traced.graph, states).written
    for x in [x for x, name in states.items() if name in written]:
        copy = _ahead(traced, ATEN.clone.default, x)
        x.replace_all_uses_with(copy, delete_user_cb=partial(operator.is_not, copy))
    return traced


def _ahead(traced: Traced, operation: OpOverload, x: fx.Node) -> fx.Node:
    """Adds an operation on a source, ahead of all others."""
    first = next(node for node in traced.graph.nodes if node.op != "placeholder")
    with traced.graph.inserting_before(first):
        node = traced.graph.call_function(operation, (x,))
    node.meta = {"val": x.meta["val"], "context": ()}
    return node


def _placed(captured: Captured, traced: Traced, probes: tuple[Probe, Probe]) -> Slicing:
    """Returns the graph in the layers of the training, with what layers do not hold passed to them."""
    holders = _Holders(captured, traced).by_source()
    grouping = (placer := _Placer(captured, traced, probes[0], holders)).run()
    passed: dict[tuple[fx.Node, int], fx.Node] = {}
    for node in placer.nodes:
        layer = grouping.layer_of[node]
        for x in node.all_input_nodes if layer != FREE else ():
            if layer in holders.get(x, (layer,)):
                continue
            holder = max(i for i in holders[x] if i < layer)
            if (x, holder) not in passed:
                passed[x, holder] = _ahead(traced, ATEN.alias.default, x)
            node.replace_input_with(x, passed[x, holder])
    for (x, holder), node in passed.items():
        grouping.layer_of[node] = holder
        for probe in probes:
            probe.value[node] = probe.value[x]
    _check_writes(traced, grouping)
    return Slicing(traced, grouping, probes)


def _check_writes(traced: Traced, grouping: Grouping) -> None:
    """Refuses a copy of a state that an operation writes unseen and that another layer reads, from a copy of its own."""
    for node in traced.graph.nodes:
        for x in states_written(node) if "local" not in node.meta else ():
            layers = {grouping.layer_of[user] for user in x.users}
            if len(layers) > 1 and any(str(user.target) not in STATISTICS for user in x.users):
                raise BadInput(
                    f"{getattr(node.target, '__name__', node.target)} writes a buffer that another layer reads",
                    where=line_of(node),
                    allowed="buffers that evaluation does not write, or that one module alone uses",
                )


class _Holders:
    """Tells which layers hold a parameter, a buffer or a tensor of the batch while the model trains."""

    def __init__(self, captured: Captured, traced: Traced) -> None:
        self.captured, self.traced = captured, traced

    def by_source(self) -> dict[fx.Node, tuple[int, ...]]:
        """Returns the layers in order; a state that no layer holds, or a constant of the trace, is left out."""
        found = {}
        for x, source in self.traced.sources.items():
            if not any(node.target not in SIZES for node in x.users):
                continue
            layers = self._layers(x, source)
            if layers:
                found[x] = layers
        return found

    def _layers(self, x: fx.Node, source: Source) -> tuple[int, ...]:
        graph, name = self.captured.graph, source.name
        place = next(filter(None, map(line_of, x.users)), "")
        if source.kind in ("input", "target"):
            if name not in self.read:
                said = f"the model reads '{name}' of the batch, which training does not read, so that no rank has it"
                raise BadInput(said, where=place, allowed="tensors of the batch that training reads, too")
            return tuple(sorted(self.read[name]))
        row = graph.parameter.get(name) or graph.buffer.get(name)
        if row is None and isinstance(self.traced.constants.get(name), FakeTensor):
            said = f"the model reads '{name}', a tensor that is no buffer and that training does not read"
            raise BadInput(said, where=place, allowed="register_buffer for tensors that a module keeps")
        return () if row is None else tuple(sorted(graph.index[user] for user in row.users))

    @cached_property
    def read(self) -> dict[str, set[int]]:
        """Returns the layers that read each tensor of the batch itself, not only its size."""
        layout = self.captured.layout
        batch = {x: s.name for x, s in layout.traced.sources.items() if s.kind in ("input", "target")}
        found: dict[str, set[int]] = defaultdict(set)
        for layer in range(len(layout.grouping.names)):
            for node in layout.take(layer, layer).nodes:
                for x in node.all_input_nodes if not layout.is_size(node) else ():
                    if x in batch:
                        found[batch[x]].add(layer)
        return found


class _Placer(Grouper):
    """Finds the layer of the training for each node of the graph in evaluation mode.

    One pass gives each node the first layer that its inputs, its module call and the states that it reads allow. Passes
    are repeated where a value that cannot cross layers would, and where a node that each reader computes for itself
    reads what one of them does not hold. Layers only ever rise, so this ends.
    """

    def __init__(
        self, captured: Captured, traced: Traced, probe: Probe, holders: dict[fx.Node, tuple[int, ...]]
    ) -> None:
        super().__init__(traced, probe)
        self.names, self.holders = list(captured.layout.grouping.names), holders
        self.last = len(self.names) - 1
        self.at_least: dict[fx.Node, int] = {}
        self.shared: set[fx.Node] = set()  # sources that only their holders may read
        self.layers_of_call: dict[tuple[str, str], set[int]] = defaultdict(set)
        for node, layer in captured.layout.grouping.layer_of.items():
            for call in stack_of(node) if layer not in (FREE, self.last) else ():
                self.layers_of_call[call].add(layer)
        self.layers_of_path: dict[str, list[int]] = defaultdict(list)
        for (path, _), layers in self.layers_of_call.items():
            if len(layers) == 1:
                self.layers_of_path[path] += layers

    def run(self) -> Grouping:
        self._walk()
        while self._raise() or self._share():
            self._walk()
        return Grouping(self.names, self.layer_of)

    def _walk(self) -> None:
        self.layer_of.clear()
        self.held.clear()
        for node in self.nodes:
            if "until" in node.meta:
                self.held[node.meta["until"]].append(node)
                continue
            layer = FREE if self._is_free(node) else self._layer(node)
            self.layer_of |= dict.fromkeys((*self.held[node], node), layer)
        for node in reversed(self.nodes):
            if self.layer_of[node] == WAITS:
                layers = [self.layer_of[user] for user in node.users]
                self.layer_of[node] = min((layer for layer in layers if layer != FREE), default=0)

    def _is_free_input(self, node: fx.Node) -> bool:
        return node not in self.shared and super()._is_free_input(node)

    def _layer(self, node: fx.Node) -> int:
        if node.meta.get("in_loss") or node in self.traced.outputs:
            return self.last
        inputs = self._inputs(node)
        fed = max((self.layer_of[x] for x in inputs if x in self.layer_of), default=FREE)
        layer = max(FREE, fed, self.at_least.get(node, FREE))
        layer = max(layer, self._home(node, layer))
        layer = max([layer, *(self.holders[x][0] for x in inputs if x in self.holders)])
        return layer if layer != FREE else WAITS

    def _home(self, node: fx.Node, fed: int) -> int:
        """Returns the layer in training of the outermost call around a node that lies in one layer.

        A call that comes too late for its own layer takes the next one of its module.
        """
        for path, key in stack_of(node):
            layers = self.layers_of_call.get((path, key), set())
            if len(layers) == 1:
                later = [x for x in self.layers_of_path[path] if x >= fed]
                return min(layers) if min(layers) >= fed else min(later, default=FREE)
        return FREE

    def _raise(self) -> bool:
        """Raises what makes a value that cannot cross layers to the layer that reads it; returns whether any was."""
        found = False
        for node in self.nodes:
            if self.layer_of[node] == FREE or self._may_cross(node):
                continue
            needed = max([self.layer_of[node], *(self.layer_of[x] for x in node.users)])
            if self.layer_of[node] < needed:
                self.at_least[node] = needed
                found = True
        return found

    def _share(self) -> bool:
        """Finds sources of free nodes that one of their readers does not hold; returns whether there are any."""
        sources: dict[fx.Node, set[fx.Node]] = {}
        found: set[fx.Node] = set()
        for node in self.nodes:
            layer = self.layer_of[node]
            read = {x for x in node.all_input_nodes if x in self.holders}
            below = set().union(*(sources.get(x, set()) for x in node.all_input_nodes))
            if layer == FREE:
                sources[node] = set() if node.target in SIZES else read | below
            else:
                found |= {x for x in below if layer not in self.holders[x]}
        self.shared |= found
        return bool(found)
