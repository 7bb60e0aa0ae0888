"""The ranks of a group that have tensors in parts, within a plan: who holds what, and what each of them counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from planner.capture import StageModule, name_of
from planner.errors import BadPlan
from planner.layout import STATE_PREFIX, GroupLayout, LocalGraph, Mesh, everywhere, path, positions
from planner.model import ModelGraph
from planner.plan import Plan, graph_on_group
from runtime.data import Region, Rows
from runtime.layout.convert import Convert
from runtime.layout.moves import ConversionWatch, CutGroup, region
from runtime.layout.rewrite import localise
from runtime.layout.stage import nodes_of
from runtime.spatial import GroupWire, Sharing, sharing
from runtime.world import RankMesh, World

Places = tuple[tuple[int, ...], ...]  # sets of ranks of a group that hold the same part


@dataclass(frozen=True)
class TensorParts:
    """One rank's part in a group that has tensors in parts; `place` is its position there."""

    graph: LocalGraph
    group: dist.ProcessGroup
    place: int
    lines: Mapping[int, dist.ProcessGroup] = field(default_factory=dict)  # by axis, where there are several

    @cached_property
    def cut_group(self) -> CutGroup:
        """Returns what carries the messages of conversions."""
        lines = {axis: GroupWire(group) for axis, group in self.lines.items()}
        return CutGroup(self.graph.mesh, GroupWire(self.group), lines)

    @cached_property
    def cut(self) -> Mapping[str, GroupLayout]:
        """Returns how each parameter lies of which this rank holds a part, by name."""
        return cut_parameters(self.graph)

    def converting_ns(self) -> int:
        """Returns how long this rank has been busy with conversions so far, in nanoseconds."""
        return self.cut_group.watch.ns

    def shrunk(self, module: StageModule) -> TensorParts:
        """Leaves room in a stage for this rank's parts alone.

        Args: `module` has not been loaded yet.
        Returns: this object, which tells what is to be loaded.
        """
        for slot in module._states:
            layout = self.cut.get(name_of(slot))
            if layout is not None:
                held = getattr(module, slot)
                shape = layout.local_shape(self.cut_group.position, self.graph.mesh)
                setattr(module, slot, nn.Parameter(held.new_empty(shape), held.requires_grad))
        return self

    def own(self, name: str, tensor: Tensor) -> Tensor:
        """Returns this rank's part of a parameter, or of a tensor of its shape that an optimizer keeps beside it.

        Args: `tensor` is whole; one of another shape, such as a count of steps, is returned as it is.
        """
        layout = self.cut.get(name)
        if layout is None or tuple(tensor.shape) != layout.shape:
            return tensor
        return region(tensor, layout, self.cut_group).contiguous()

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """Returns a parameter from all its parts, or a tensor of its shape that an optimizer keeps beside it.

        All ranks of the group call this at the same time.
        Args: `tensor` is this rank's part; one of another shape is returned as it is.
        """
        layout = self.cut.get(name)
        if layout is None or tuple(tensor.shape) != layout.local_shape(
            self.cut_group.position, self.graph.mesh
        ):
            return tensor
        steps = path(layout, everywhere(layout.shape), self.graph.mesh, trained=False)
        unwatched = replace(self.cut_group, watch=ConversionWatch())  # of no action
        with torch.no_grad():
            return Convert(steps, unwatched)(tensor.detach())

    def join(
        self,
        names: Sequence[str],
        held: Mapping[str, Tensor],
        tensors: MutableMapping[str, Tensor],
        *states: MutableMapping[str, Any],
    ) -> None:
        """Puts whole parameters and their state in the place of parts, on the rank that writes them.

        All ranks of the group call this at the same time.
        Args: `names` are of parameters, in one order on all ranks; `held` has this rank's parts; `tensors` has what it
            writes, and `states` what is kept beside each parameter, by name.
        """
        for name in (name for name in names if name in self.cut):
            whole = self.whole(name, held[name])
            state = {key: self.whole(name, x) for key, x in states[0].get(name, {}).items()}
            if name in tensors:
                tensors[name], states[0][name] = whole, state
            else:
                for row in states:
                    row.pop(name, None)

    def shard(self, modules: Mapping[int, StageModule], owing: Collection[int] = ()) -> None:
        """Rewrites a rank's stages for its parts, in place.

        Random operations must have been keyed, and weight gradients must not have been put off yet.
        Args: `modules` by number of stage; `owing` does not matter here.
        """
        for _, module in sorted(modules.items()):
            nodes = nodes_of(module)
            for done in self.graph.placed:
                known = done.operation.layer not in module.layers or done.operation.name in nodes
                assert known, f"'{done.operation.name}' of layer '{done.operation.layer}' is not in its stage"
            localise(module._run, nodes, self.graph, self.cut_group)

    def of_others(
        self, plan: Plan, every: Sequence[StageModule], micro: int, graph: ModelGraph
    ) -> TensorParts:
        """Returns the same group for other operations of the plan's stages, as of an evaluation.

        Args: `graph` is the model with these operations; `micro` is its micro-batch.
        Raises: BadPlan where they need parameters in other parts, NoRule for what cannot be done on parts.
        """
        return replace(self, graph=graph_of_others(plan, self.graph, micro, graph))

    def parts(self, stages: Sequence[int]) -> dict[str, Rows]:
        """Returns nothing: every rank of the group reads the whole micro-batch."""
        return {}

    def region(self, stages: Sequence[int], samples: Collection[str]) -> Region:
        """Returns nothing: every rank of the group reads whole samples."""
        return ()

    def uncounted(self, stages: Sequence[int]) -> frozenset[str]:
        """Returns the parameters whose gradients this rank must not add to the sum over its group.

        Every rank has the same gradient of what lies alike along an axis; the first one adds it.
        """
        position = self.cut_group.position
        return frozenset(
            name.removeprefix(STATE_PREFIX)
            for name, layout in self.graph.states.items()
            if any(position[axis] and layout.kind(axis) == "I" for axis in range(len(position)))
        )


def graph_of_others(plan: Plan, trained: LocalGraph, micro: int, graph: ModelGraph) -> LocalGraph:
    """Returns a model on a group whose parameters lie as a training of it holds them.

    Args: `trained` is the training's; `graph` is the model with other operations, as of an evaluation of `micro`
        samples.
    Raises: BadPlan where it needs parameters in other parts, NoRule for what cannot be done on parts.
    """
    found = graph_on_group(plan, graph, micro)
    own, others = cut_parameters(trained), cut_parameters(found)
    for name in own.keys() | others.keys():
        if own.get(name) != others.get(name):
            raise BadPlan(f"in evaluation mode '{name}' is needed in other parts: evaluate without a cut")
    return found


def cut_parameters(graph: LocalGraph) -> dict[str, GroupLayout]:
    """Returns how each parameter lies of which ranks hold parts, by its name in the model."""
    return {
        name.removeprefix(STATE_PREFIX): GroupLayout(layout.shape, layout.cuts)
        for name, layout in graph.states.items()
        if any(layout.cuts)
    }


def largest_parts(graph: LocalGraph) -> dict[str, int]:
    """Returns the most elements that a rank holds of each parameter that is cut, by its name in the model."""
    everywhere_at = positions(graph.mesh)
    return {
        name: max(prod(layout.local_shape(at, graph.mesh)) for at in everywhere_at)
        for name, layout in cut_parameters(graph).items()
    }


def places_of_parts(graph: LocalGraph) -> dict[str, Places]:
    """Returns which ranks of a group hold the same part of each parameter that is cut, by its name in the model."""
    found = {}
    for name, layout in cut_parameters(graph).items():
        axes = [axis for axis in range(len(graph.mesh)) if layout.kind(axis) == "S"]
        same: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, at in enumerate(positions(graph.mesh)):
            same[tuple(at[axis] for axis in axes)].append(place)
        found[name] = tuple(map(tuple, same.values()))
    return found


def ranks_together(
    plan: Plan, every: Sequence[StageModule], graph: LocalGraph | None, mesh: RankMesh, world: World
) -> Sharing | TensorParts | None:
    """Makes the groups of ranks that work on one micro-batch together.

    All ranks must call it, since every group is made by everybody in one order.
    Args: `every` are all stages of the plan; `graph` is its model on a group that has tensors in parts, None where it
        has none; `mesh` tells who is where.
    Returns: this rank's part; None where each rank works alone.
    """
    if graph is None:
        return sharing(plan, every, mesh, world)
    here, mine = mesh.by_rank[world.rank], None
    lines: dict[int, dist.ProcessGroup] = {}
    for data, pipeline in sorted({(p.data, p.pipeline) for p in plan.places}):
        members = [p for p in plan.places if (p.data, p.pipeline) == (data, pipeline)]
        ranks = [p.rank for p in sorted(members, key=lambda p: p.spatial)]
        group = world.new_group(ranks)
        mine = group if group is not None else mine
        for axis, places in _lines(graph.mesh):
            line = world.new_group([ranks[place] for place in places])
            lines |= {} if line is None else {axis: line}
    assert mine is not None
    assert dist.get_rank(mine) == here.spatial, "a group keeps the order in which its ranks are named"
    return TensorParts(graph, mine, here.spatial, lines)


def _lines(mesh: Mesh) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields each axis with the places of ranks that differ along it alone, where these are not the whole group."""
    every = positions(mesh)
    for axis, size in enumerate(mesh):
        if size == len(every):
            continue
        rows: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, at in enumerate(every):
            rows[(*at[:axis], *at[axis + 1 :])].append(place)
        yield from ((axis, tuple(row)) for row in rows.values())
