"""Groups of ranks that have tensors in parts: which there may be, where they stand, and how a plan writes their cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from planner import limits
from planner.choose import layouts, rows_of, work_of
from planner.cluster import Cluster, Group, Slot, Sum, Summing, total_devices
from planner.configurations.configurations import Configuration
from planner.configurations.pins import Pins
from planner.configurations.placement import PlacementCosts, WorkerGroups
from planner.configurations.spatial_choices import needs_space
from planner.cost import GridChoice
from planner.errors import BadInput
from planner.group import MeshOnCluster, activation_bytes, layer_parts, weight_bytes
from planner.layout import Mesh, Wish, cut_of, named_in, positions, refused_cut
from planner.model import ModelGraph
from planner.plan import CutLine, StagePlan, StageTimes
from planner.profile import CostKey, Profile

_TYPICAL_BYTES = 1 << 20  # of gradients


def check_parts(pinned: Pins) -> Pins:
    """Returns the pins; of a plan whose tensors are in parts, with what does not go with them left out.

    Raises: BadInput where that is pinned as well, or no cut is, or no group of 2 ranks.
    """
    if pinned.cut is None:
        return pinned
    both = {
        "spatial": pinned.spatial not in (None, 1),
        "gather": pinned.gather is not None,
        "regrid": bool(pinned.regrid),
        "sums": bool(pinned.sums),
        "update=rolling": pinned.update == "rolling",
    }
    if named := [key for key, given in both.items() if given]:
        raise BadInput(f"cut and {named[0]} do not go together", where="fix", allowed="one of them")
    if pinned.group is not None and (prod(pinned.group) < 2 or len(pinned.group) > 3):
        shown = "x".join(map(str, pinned.group))
        raise BadInput(
            f"group is {shown}", where="fix", allowed="2 ranks or more, on up to 3 axes such as 2x2"
        )
    if not pinned.cut and pinned.group is None:
        return pinned
    return replace(pinned, out_of_order=False)


def meshes_of(pinned: Pins, cluster: Cluster) -> tuple[Mesh, ...]:
    """Returns the groups that a cut may have: the pinned one, or one axis of any size that divides a node.

    Args: `cluster` has the devices, of which a group has 2 or more.
    """
    if pinned.group is not None:
        return (pinned.group,)
    near, most = (
        min(group.devices_per_node for group in cluster.groups),
        pinned.devices or total_devices(cluster),
    )
    return tuple((ranks,) for ranks in range(2, min(near, most) + 1) if near % ranks == 0)


Known = dict[tuple[CostKey, Mesh], list[GridChoice]]  # layouts that were looked for, by setting and group


def _cuts(
    profile: Profile,
    setting: CostKey,
    micros: Sequence[int],
    pinned: Pins,
    cluster: Cluster,
    known: Known,
) -> list[GridChoice]:
    """Returns the pinned cut on each group, or the layouts that are best on each: those of the largest micro-batch."""
    if pinned.cut:
        return [GridChoice(mesh=mesh, cut=pinned.cut) for mesh in meshes_of(pinned, cluster)]
    several = [micro for micro in micros if setting.micro % micro == 0 and pinned.micro in (None, micro)]
    if not several:
        return []
    key, found = setting._replace(micro=max(several)), list[GridChoice]()
    for mesh in meshes_of(pinned, cluster):
        if (key, mesh) not in known:
            work = work_of(profile, key, setting.micro // key.micro)
            every = layouts(work, cluster, prod(mesh), mesh=mesh, most=limits.LAYOUTS)
            known[key, mesh] = [GridChoice(mesh=mesh, cut=each.lines) for each in every if each.lines]
        found += known[key, mesh]
    return found


def groups_with_cut(
    profile: Profile,
    setting: CostKey,
    micros: Sequence[int],
    pinned: Pins,
    cluster: Cluster,
    known: Known,
) -> Mapping[int, tuple[GridChoice, ...]]:
    """Returns the groups that can have the pinned cut, or a layout that is looked for, for each micro-batch.

    Args: `setting` has precision, execution and the whole batch; `micros` are the micro-batches that there are costs of;
        `known` keeps what was looked for.
    Raises: BadInput where the model, its optimizer, or all micro-batches and groups do not allow it: the first reason.
    """
    graph, optimizer = profile.graph, profile.optimizer
    if setting.execution != "eager" or setting.precision == "fp16":
        said = f"a cut does not go with {setting.execution}, {setting.precision}"
        raise BadInput(said, where="fix cut", allowed="eager, and fp32 or bf16")
    if optimizer.by_element is False or optimizer.joint:
        said = f"{optimizer.name} looks at whole parameters, and ranks with a cut have parts"
        raise BadInput(said, where="fix cut", allowed="an element-wise optimizer such as AdamW")
    if written := next((x.name for x in graph.buffers if x.mutated), ""):
        said = f"a forward writes '{written}', which ranks of a group with a cut do not keep equal"
        raise BadInput(said, where="fix cut", allowed="no cut")
    found, why = dict[int, tuple[GridChoice, ...]](), ""
    every = _cuts(profile, setting, micros, pinned, cluster, known)
    for micro in micros:
        refused = {each: refused_cut(graph, micro, each.mesh, each.cut) for each in every}
        found[micro] = tuple(each for each in every if not refused[each])
        why = why or next(filter(None, refused.values()), "")
    free = not pinned.cut and pinned.group is None
    if not free and not any(found[micro] for micro in found if pinned.micro in (None, micro)):
        raise BadInput(why or "no node has 2 devices for a group", where="fix cut")
    return found


def lines_of(cut: Sequence[Wish], graph: ModelGraph, layers: Sequence[str]) -> tuple[CutLine, ...]:
    """Returns the section `cut` of one stage: the lines that name some of its layers.

    Args: `layers` are those of the stage.
    """
    return tuple(CutLine(**row) for row in rows_of([wish for wish in cut if named_in(wish, graph, layers)]))


def may_be_whole(pinned: Pins) -> bool:
    """Returns whether ranks may work alone, on whole samples and whole tensors."""
    apart = needs_space(pinned) or bool(pinned.cut) or pinned.group is not None
    return pinned.spatial in (None, 1) and not apart


def without_group(
    splits: Callable[[int], Sequence[GridChoice]], pinned: Pins, micro: int
) -> Sequence[GridChoice]:
    """Returns how a plan that needs no planner splits samples: not at all, or as pins leave free.

    Args: `splits` are those of the question; where its tensors are in parts, such a plan has whole ones.
    """
    if any(split.mesh for split in splits(micro)):
        return (GridChoice(),)
    return [split for split in splits(micro) if pinned.spatial is None or not split.grid]


def group_on(machines: PlacementCosts, shape: Configuration) -> Group | MeshOnCluster:
    """Returns what messages take within the groups of a configuration, or where those stand that have tensors in parts."""
    return mesh_group(machines, shape) if shape.mesh else machines.spatial_group(shape)


def mesh_group(machines: PlacementCosts, shape: Configuration) -> MeshOnCluster:
    """Returns where the groups stand that have tensors in parts, for what their conversions take."""
    key = shape.mesh, shape.devices
    if key not in machines.meshes:
        near = shape.spatial
        places = tuple(machines.slots[first : first + near] for first in range(0, shape.devices, near))
        machines.meshes[key] = MeshOnCluster(mesh=shape.mesh, cluster=machines.cluster, places=places)
    return machines.meshes[key]


def converting_ns(
    machines: PlacementCosts, profile: Profile, shape: Configuration, setting: CostKey
) -> float:
    """Returns what the conversions of one micro-batch take; nothing where no tensor lies in parts."""
    return sum(
        forward + backward for forward, backward in conversions_ns(machines, profile, shape, setting).values()
    )


def conversions_ns(
    machines: PlacementCosts, profile: Profile, shape: Configuration, setting: CostKey
) -> dict[str, tuple[float, float]]:
    """Returns what the conversions of each layer take forward and backward; none where no tensor lies in parts."""
    if not shape.mesh:
        return {}
    found = cut_of(profile.graph, shape.micro, shape.mesh, shape.cut)
    sized, weights = activation_bytes(profile, setting), weight_bytes(profile.graph)
    parts = layer_parts(found, sized, mesh_group(machines, shape), weights)
    return {name: (part.forward_ns, part.backward_ns) for name, part in parts.items()}


def with_conversions(
    times: Sequence[StageTimes],
    stages: Sequence[StagePlan],
    machines: PlacementCosts,
    profile: Profile,
    shape: Configuration,
    setting: CostKey,
) -> tuple[StageTimes, ...]:
    """Returns the times of every stage, with what conversions are of them."""
    if not shape.mesh:
        return tuple(times)
    taken = conversions_ns(machines, profile, shape, setting)
    found = []
    for each, stage in zip(times, stages, strict=True):
        ways = [taken.get(layer, (0.0, 0.0)) for layer in stage.layers]
        ahead, back = (int(sum(own)) for own in zip(*ways, strict=True))
        apart = {"forward_conversions_ns": ahead, "backward_conversions_ns": back}
        found.append(each.model_copy(update=apart))
    return tuple(found)


def part_sums(
    machines: PlacementCosts, shape: Configuration, groups: WorkerGroups, axes: tuple[int, ...]
) -> tuple[Sum, ...]:
    """Returns the all-reduces of gradients that lie in parts, over the ranks that have the same part.

    Where replicas share them by element, those ranks have the same elements of a part.

    Args: `groups` of workers, each summed over all replicas; `axes` of the group are those that cut the parts.
    Returns: for each group of workers the slowest of its sums.
    """
    grid, at, found = machines.grid(shape), positions(shape.mesh), []
    near, shared = len(at), shape.ranks or 1
    for group in groups:
        same: dict[tuple[int, ...], list[Slot]] = {}
        for number, row in enumerate(grid):
            part = tuple(at[number % near][axis] for axis in axes)
            elements = number // near % shared
            same.setdefault((*part, elements), []).extend(row[w] for w in group)
        found.append(list(same.values()))
    how: Summing = "direct" if shape.shard or shape.held else "itself"
    every = iter(machines.sums([part for own in found for part in own], how))
    slowest = tuple(max((next(every) for _ in own), key=_typical_ns) for own in found)
    if not shape.held:
        return slowest
    alone = [len(own[0]) == 1 for own in found]
    return tuple(x.of_parts(0 if one else shared) for x, one in zip(slowest, alone, strict=True))


def _typical_ns(found: Sum) -> int:
    return int(found.ns(np.array([_TYPICAL_BYTES]))[0])


def layouts_looked_at(
    splits: Callable[[int], Sequence[GridChoice]], micros: Sequence[int], pinned: Pins
) -> tuple[Mesh, ...]:
    """Returns the group of each layout that was looked for; none where a cut is pinned.

    Args: `splits` are those of the question, by micro-batch.
    """
    found = {(each.mesh, each.cut) for micro in micros for each in splits(micro) if each.mesh}
    return () if pinned.cut else tuple(sorted(mesh for mesh, _ in found))
