"""Rewrites the graph of a stage once, before anything runs, so that it computes one rank's shard.

The rules of `planner.spatial` say what is fetched; kernels of the same keys compute.

    analysed = analyse(module, grid)                              # pure; NoRule names what cannot be done
    shard(module, analysed, SampleGroup(grid, GroupWire(group)))  # after materialise and key_random_operations,
                                                                  # before store_weights
    analysed.outputs      # Layout of each Value that the stage makes
    analysed.partial      # parameters whose gradients are summed over the group; others are whole on each rank
    analysed.uncounted    # the names of those others: to be counted on one rank of the group only

From then on the module takes and makes this rank's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from planner.capture import StageModule, named_arguments
from planner.spatial import Fetch, Placed, Resplit, Step, call_of
from runtime.draws import draw_of
from runtime.same_bits import Plain
from runtime.spatial.analyse import Analysed
from runtime.spatial.exchange import fetched, memory_format
from runtime.spatial.group import SampleGroup, enter
from runtime.spatial.kernels import convolution, overlapped_convolution, pooling
from runtime.spatial.kernels.reshapes import plain
from runtime.spatial.kernels.table import KERNELS, kernel_of
from runtime.spatial.operation import Moved, Site, Use

ATEN = torch.ops.aten


def shard(module: StageModule, analysed: Analysed, mesh: SampleGroup, *, overlap: bool = True) -> None:
    """Rewrites a stage for one rank of a grid, in place.

    Args: `analysed` is what `analyse` found for the stage. With `overlap` convolutions and pools compute
        while halos travel; without, convolutions stay nodes that can put off their weight gradients.
    """
    writer = _Writer(module, analysed, mesh, overlap)
    writer.write()


class _Writer:
    """The rewriting of one stage; `nodes` has the graph's node for each captured one."""

    def __init__(self, module: StageModule, analysed: Analysed, mesh: SampleGroup, overlap: bool) -> None:
        self.overlapping = overlap
        self.module, self.run, self.mesh, self.analysed = module, module._run, mesh, analysed
        self.nodes = matched(module)
        self.gathered: dict[fx.Node, fx.Node] = {}
        self.moved: dict[tuple[fx.Node, Resplit], fx.Node] = {}
        self.count = 0

    def write(self) -> None:
        self._take_inputs()
        for done in self.analysed.segment.placed:
            node = self.nodes[done.operation.name]
            self.mesh = SampleGroup(done.grid, self.mesh.wire)
            sources = {name: self._move(node, name, move) for name, move in done.resplits.items()}
            if done.gathers:
                self._gather(node, done, sources)
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

    def _move(self, node: fx.Node, name: str, move: Resplit) -> fx.Node:
        source = self.nodes[name]
        if (source, move) not in self.moved:
            with self.run.graph.inserting_before(node):
                self.moved[source, move] = self._call(Moved(move, self.mesh.wire), source)
        node.replace_input_with(source, self.moved[source, move])
        return self.moved[source, move]

    def _gather(self, node: fx.Node, done: Placed, moved: Mapping[str, fx.Node]) -> None:
        for name, fetches in done.gathers.items():
            source = moved.get(name, self.nodes[name])
            if source not in self.gathered:
                with self.run.graph.inserting_before(node):
                    self.gathered[source] = self._call(Gather(fetches, self.mesh), source)
            node.replace_input_with(source, self.gathered[source])

    def _place(self, node: fx.Node, done: Placed, step: Step) -> None:
        draw = draw_of(self.run, node)
        target, given = (node.target, node.args) if draw is None else (draw.target, node.args[1:])
        name = done.operation.operation
        kernel = kernel_of(name, step) if done.shared else KERNELS[name]
        uses = self.analysed.uses.get(done.operation.name, {})
        if kernel is plain and not step.fetches and all(self._idle(use) for use in uses.values()):
            return
        if kernel is convolution.convolution and self._convolve(node, done, step, uses):
            return
        if kernel is pooling.avg_pool and self._pooled(node, done, step):
            return
        site = Site(target, kernel, call_of(done.operation, done.inputs), step, self.mesh, uses, draw)  # type: ignore[arg-type]
        self._replace(node, done, site, *given, **node.kwargs)

    def _convolve(self, node: fx.Node, done: Placed, step: Step, uses: Mapping[str, Use]) -> bool:
        """Keeps a convolution torch's own where it can, so that its weight gradient can be put off.

        Only its input is fetched then. Returns whether it could.
        """
        call = call_of(done.operation, done.inputs)
        plain = convolution.plain_arguments(call, step)
        assert isinstance(node.target, OpOverload)
        named = named_arguments(node.target, node.args, node.kwargs)
        by_batch = isinstance(named["groups"], fx.Node)  # a group a sample
        if plain is None or by_batch or not all(self._idle(use) for use in uses.values()):
            return False
        if self._overlapped(node, done, step, plain, named):
            return True
        with self.run.graph.inserting_before(node):
            fetched_input = self._call(Gather(step.fetches["input"], self.mesh), named["input"])
        node.target = convolution.PLAIN[len(plain.stride)]
        node.args = (fetched_input, named["weight"], named["bias"], *plain)  # type: ignore[assignment]
        node.kwargs = {}
        return True

    def _overlapped(
        self, node: fx.Node, done: Placed, step: Step, plain: Plain, named: Mapping[str, object]
    ) -> bool:
        kernel = call_of(done.operation, done.inputs).tensor("weight").shape[2:]
        found = self._split(step, step.fetches["input"], plain, kernel)
        if found is None:
            return False
        site = overlapped_convolution.Overlapped(*found, self.mesh)
        self._replace(node, done, site, named["input"], named["weight"], named["bias"])
        return True

    def _pooled(self, node: fx.Node, done: Placed, step: Step) -> bool:
        call = call_of(done.operation, done.inputs)
        plain = pooling.plain_arguments(call, step.output.cut_dims)
        if plain is None:
            return False
        kernel = call.integers("kernel_size", len(plain.stride))
        found = self._split(step, step.fetches["self"], plain, kernel)
        if found is None:
            return False
        self._replace(node, done, pooling.Pooled(found[0], kernel, found[1], self.mesh), node.args[0])
        return True

    def _split(
        self, step: Step, fetches: Sequence[Fetch], plain: Plain, kernel: Sequence[int]
    ) -> tuple[tuple[Fetch, ...], overlapped_convolution.OverlapPlan] | None:
        """Returns fetches to do first, and the overlap along the last dimension that rows are sent for.

        Returns None where overlap cannot be had or does not pay; every rank comes to the same decision.
        """
        needed = [fetch for fetch in fetches if not fetch.trivial]
        batched = len(step.output.shape) == len(kernel) + 2
        if not self.overlapping or not batched or not needed or not any(needed[-1].messages()):
            return None
        *others, last = needed
        cut, position = step.output.cuts[last.dim], last.dim - 2
        assert cut is not None
        found = [
            overlapped_convolution.plan(last, cut, plain, position, kernel[position], i)
            for i in range(len(last.runs))
        ]
        plans = [each for each in found if each is not None and each.worthwhile]
        if len(plans) < len(found):
            return None
        return tuple(others), plans[self.mesh.coordinates[last.axis]]

    def _replace(self, node: fx.Node, done: Placed, what: object, *args: object, **kwargs: object) -> None:
        with self.run.graph.inserting_before(node):
            new = self._call(what, *args, **kwargs)
        node.replace_all_uses_with(new)
        self.run.graph.erase_node(node)
        self.nodes[done.operation.name] = new

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


def called(what: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Calls what a node of a rewritten graph holds.

    Args: `what` is a `Site`, a fetch or another call held by the graph's module; the others are passed on.
    """
    return what(*args, **kwargs)


@dataclass(frozen=True)
class Take:
    """This rank's part of a tensor that comes whole, or of what was read of the batch as the part it is."""

    fetches: tuple[Fetch, ...]
    mesh: SampleGroup

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x = enter(x, self.mesh, frozenset(fetch.axis for fetch in self.fetches))
        for fetch in self.fetches:
            (run,) = fetch.runs[self.mesh.coordinates[fetch.axis]]
            if x.shape[fetch.dim] != run.length:
                x = x.narrow(fetch.dim, run.start, run.length)
        return x.contiguous(memory_format=memory_format(x))


@dataclass(frozen=True)
class Gather:
    """A fetch of rows along some dimensions, as a call in a stage's graph."""

    fetches: tuple[Fetch, ...]
    mesh: SampleGroup

    def __call__(self, x: Tensor) -> Tensor:
        for fetch in self.fetches:
            x = fetched(x, fetch, self.mesh)
        return x


def matched(module: StageModule) -> dict[str, fx.Node]:
    """Finds the nodes of the stage's graph that were written from captured nodes.

    Args: `module` must not have been rewritten.
    Returns: nodes by the names of the captured ones; nodes that compute sizes are left out.
    """
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
            node for node in running if node.op == source.op and _target(module, node) == source.target
        )
    return found


def _target(module: StageModule, node: fx.Node) -> object:
    draw = draw_of(module._run, node)
    return node.target if draw is None else draw.target
