"""Layouts of ours and of meta-pytorch/autoparallel in each other's words, on one model and one machine.

Both say of an operation how it reads its activation and makes its result along each axis of the mesh, and of a weight
how it rests: "S0" where dimension 0 is cut, "R" whole, "P" an addend. Those of embeddings, linear layers and norms are
handed over. What lies between them, and all of the backward, is the choice of the program that prices.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from planner.choose import Decisions, FoldedGraph, GroupWork, decisions_of, folded, graph_of, price, program
from planner.choose.prices import anywhere, elements, held_prices, resting_in
from planner.choose.solve import LayoutProgram
from planner.cluster import Cluster, Device, Link, Links, NodeGroup
from planner.group import MeshOnCluster, on_cluster
from planner.layout import GroupLayout, LocalGraph, LocalOperation, Mesh, of_path

ACTIVATIONS = {"aten.linear": "input", "aten.layer_norm": "input", "aten.embedding": "indices"}
STATE = "state:"
_SOLVES = 12  # of a limit of parameters, to find the price of memory that keeps it


def device() -> Device:
    """Returns a device with the rates that their cost model gives an H100, which are shares of the peaks."""
    share = 0.7
    return Device(
        name="H100 as AutoParallel has it",
        memory_bytes=80 * 10**9,
        fp32_flop_per_s=share * 494e12,
        fp16_flop_per_s=share * 989e12,
        bf16_flop_per_s=share * 989e12,
        memory_bytes_per_s=share * 3.35 * 1024**4,
        launch_s=7e-6,
    )


def cluster(nodes: int, devices: int) -> Cluster:
    """Returns nodes with the links that their cost model gives a node of eight H100, a network card for each device."""
    group = NodeGroup(count=nodes, device="H100-80GB", devices_per_node=devices, devices_per_card=1)
    links = Links(
        node=Link(latency_s=4e-6, bandwidth_bytes_per_s=3.2e11),
        rack=Link(latency_s=1e-5, bandwidth_bytes_per_s=5e10),
    )
    return Cluster(name=f"{nodes} x {devices} H100", nodes=(group,), links=links)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A layout in words that both have, with its price by our costs."""

    ns: float
    elements: float  # of weights, a rank
    operations: dict[str, dict[str, list[str]]]
    resting: dict[str, list[str]]
    processor_s: float = 0.0
    asked: int = 0  # operations of the other's layout
    granted: int = 0  # and those of them that we have, too


def placement(layout: GroupLayout, axis: int) -> str:
    """Returns what a tensor is along an axis, in their words; ours says besides who owes a sum of its gradient."""
    kind = layout.kind(axis)
    return f"S{layout.dim(axis)}" if kind == "S" else "P" if kind == "P" else "R"


def told(local: LocalOperation, axes: int) -> dict[str, list[str]]:
    """Returns how an operation reads its activation and makes its result."""
    read = local.inputs[ACTIVATIONS[local.operation.operation]]
    sides = {"input": read, "output": local.outputs[0]}
    return {side: [placement(layout, axis) for axis in range(axes)] for side, layout in sides.items()}


def compared(local: LocalOperation) -> bool:
    """Returns whether an operation is one of those that are handed over."""
    return local.operation.operation in ACTIVATIONS


@dataclass
class OurSearch:
    """Our program of one model on one mesh, with a price on parameters alone, as theirs has a limit of these."""

    work: GroupWork
    on: MeshOnCluster
    decisions: Decisions = field(init=False)
    asked: LayoutProgram = field(init=False)
    build_processor_s: float = field(init=False)
    fold: bool = True

    def __post_init__(self) -> None:
        start, work = time.process_time(), self.work
        graph = folded(work.operations) if self.fold else FoldedGraph(operations=tuple(work.operations))
        self.decisions = decisions_of(graph, self.on.mesh, work.with_gradients(), work.resolved)
        self.asked = program(self.decisions, work, self.on, anywhere(self.on.mesh))
        for _, term in self.asked.terms:
            term.bytes = 0.0
        self.build_processor_s = time.process_time() - start

    def best(self, limit: float | None) -> Answer:
        """Returns the fastest layout found whose ranks hold at most so many elements of weights."""
        start = time.process_time()
        found = self._at(0.0)
        if limit is not None and found.elements > limit:
            low, high = 0.0, found.ns / limit
            found = self._at(high)
            for _ in range(_SOLVES):
                if found.elements > limit:
                    low, high = high, 10 * high
                    found = self._at(high)
                    continue
                middle = (low + high) / 2
                tried = self._at(middle)
                low, high = (low, middle) if tried.elements <= limit else (middle, high)
                found = min((found, tried), key=lambda x: (x.elements > limit, x.ns))
        return Answer(**{**vars(found), "processor_s": time.process_time() - start})

    def _at(self, worth: float) -> Answer:
        choice = self.asked.solve(worth)
        graph = graph_of(self.work, self.decisions, choice)
        return self._answer(graph, resting_in(graph, self.work, self.on, anywhere(self.on.mesh), worth))

    def _answer(self, graph: LocalGraph, resting: Mapping[str, tuple[int, ...]]) -> Answer:
        axes = range(len(self.on.mesh))
        ns, size = priced(graph, self.work, self.on, resting)
        rests = {}
        for name in self.work.trained:
            layout, stored = graph.states[name], resting.get(name, ())
            if len(layout.shape) > 1:
                kinds = [placement(layout, axis) for axis in axes]
                rests[name.removeprefix(STATE)] = ["S" if a in stored else kinds[a] for a in axes]
        operations = {of_path(x.operation): told(x, len(axes)) for x in graph.placed if compared(x)}
        return Answer(ns=ns, elements=size, operations=operations, resting=rests)

    def with_theirs(self, operations: Mapping[str, Any], resting: Mapping[str, Sequence[str]]) -> Answer:
        """Returns our best layout with theirs wherever we have it, and their resting weights.

        Args: both are as `Answer` has them; the search must not fold blocks, each of which may differ.
        """
        assert not self.fold
        start, asked, granted = time.process_time(), 0, 0
        for decision, row in zip(self.decisions.found, self.asked.chosen, strict=True):
            locals_ = [x for x in decision.options[0].values() if compared(x)]
            for name in (x.operation.name for x in locals_):
                want = operations.get(of_path(decision.options[0][name].operation))
                if want is None:
                    continue
                asked += 1
                same = [told(option[name], len(self.on.mesh)) == want for option in decision.options]
                if not any(ok and x.upBound for ok, x in zip(same, row, strict=True)):
                    continue
                granted += 1
                for ok, x in zip(same, row, strict=True):
                    x.upBound = 1.0 if ok and x.upBound else 0.0
        choice = self.asked.solve(0.0)
        for row in self.asked.chosen:
            for x in row:
                x.upBound = 1.0
        graph = graph_of(self.work, self.decisions, choice)
        answer = self._answer(graph, self._stored(graph, resting))
        took = time.process_time() - start
        return Answer(**{**vars(answer), "processor_s": took, "asked": asked, "granted": granted})

    def _stored(self, graph: LocalGraph, resting: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, ...]]:
        """Returns the axes along which weights rest in parts that are whole for use."""
        found = {}
        for name in self.work.trained:
            kinds, layout = resting.get(name.removeprefix(STATE), ()), graph.states[name]
            if len(layout.shape) > 1:
                cut = set(layout.cut_axes)
                found[name] = tuple(a for a, kind in enumerate(kinds) if kind[0] == "S" and a not in cut)
        return found


def priced(
    graph: LocalGraph, work: GroupWork, on: MeshOnCluster, resting: Mapping[str, tuple[int, ...]]
) -> tuple[float, float]:
    """Returns the nanoseconds of a layout whose weights rest as said, and the elements of weights that a rank holds."""
    plain = price(graph, work, on)
    ns, size = plain.compute_ns + plain.convert_ns, 0.0
    for name in sorted(work.trained):
        layout, stored = graph.states[name], tuple(resting.get(name, ()))
        ways = held_prices(layout, work, on, anywhere(on.mesh))
        ns += next(way.ns for way in ways if way.stored == stored)
        if len(layout.shape) > 1:
            size += elements(layout, on.mesh) / prod(on.mesh[axis] for axis in stored)
    return ns, size


def searches(work: GroupWork, mesh: Mesh, machines: Cluster) -> tuple[OurSearch, OurSearch]:
    """Returns the search of a model as we make it, and one in which every block is decided for itself."""
    on = on_cluster(mesh, machines)
    return OurSearch(work, on), OurSearch(work, on, fold=False)
