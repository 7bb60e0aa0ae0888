"""Lists the groups of ranks that may have tensors in parts, where a cut is pinned, and writes the cut into stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from planner.cluster import Cluster, total_devices
from planner.cost import GridChoice
from planner.errors import BadInput
from planner.layout import Mesh, Wish, named_in, refused_cut
from planner.milp.pins import Pins
from planner.model import ModelGraph
from planner.plan import CutLine
from planner.profile import CostKey, Profile


def check_parts(pinned: Pins) -> Pins:
    """Returns the pins; of a plan whose tensors are in parts, with what does not go with them left out.

    Raises: BadInput where that is pinned as well, or no cut is, or no group of 2 ranks.
    """
    if pinned.cut is None and pinned.group is None:
        return pinned
    both = {
        "spatial": pinned.spatial not in (None, 1),
        "gather": pinned.gather is not None,
        "regrid": bool(pinned.regrid),
        "shard": bool(pinned.shard or pinned.held),
        "sums": bool(pinned.sums),
        "update=rolling": pinned.update == "rolling",
    }
    if named := [key for key, given in both.items() if given]:
        raise BadInput(f"cut and {named[0]} do not go together", where="fix", allowed="one of them")
    if pinned.cut is None:
        allowed = 'cut, such as "cut=blocks.*.attention:heads"; spatial for samples cut in space'
        raise BadInput("group is fixed and no cut", where="fix", allowed=allowed)
    if pinned.group is not None and (prod(pinned.group) < 2 or len(pinned.group) > 3):
        shown = "x".join(map(str, pinned.group))
        raise BadInput(
            f"group is {shown}", where="fix", allowed="2 ranks or more, on up to 3 axes such as 2x2"
        )
    return replace(pinned, shard=False, held="", out_of_order=False)


def meshes_of(pinned: Pins, cluster: Cluster) -> tuple[Mesh, ...]:
    """Returns the groups that a pinned cut may have: the pinned one, or one axis of any size that divides a node.

    Args: `cluster` has the devices, of which a group has 2 or more.
    """
    if pinned.group is not None:
        return (pinned.group,)
    near = min(group.devices_per_node for group in cluster.groups)
    return tuple((ranks,) for ranks in range(2, min(near, total_devices(cluster)) + 1) if near % ranks == 0)


def groups_with_cut(
    profile: Profile, setting: CostKey, micros: Sequence[int], pinned: Pins, cluster: Cluster
) -> Mapping[int, tuple[GridChoice, ...]]:
    """Returns the groups that can have the pinned cut, for each micro-batch.

    Args: `setting` has precision and execution; `micros` are the micro-batches that there are costs of.
    Raises: BadInput where the model, its optimizer, or all micro-batches and groups do not allow it: the first reason.
    """
    assert pinned.cut is not None
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
    for micro in micros:
        refused = {mesh: refused_cut(graph, micro, mesh, pinned.cut) for mesh in meshes_of(pinned, cluster)}
        found[micro] = tuple(GridChoice(mesh=mesh, cut=pinned.cut) for mesh in refused if not refused[mesh])
        why = why or next(filter(None, refused.values()), "")
    if not any(found[micro] for micro in found if pinned.micro in (None, micro)):
        raise BadInput(why or "no node has 2 devices for a group", where="fix cut")
    return found


def lines_of(cut: Sequence[Wish], graph: ModelGraph, layers: Sequence[str]) -> tuple[CutLine, ...]:
    """Returns the section `cut` of one stage: the lines that name some of its layers.

    Args: `layers` are those of the stage.
    """
    rows: dict[str, dict[str, str]] = {}
    for wish in cut:
        if named_in(wish, graph, layers):
            rows.setdefault(wish.pattern, {})["xyz"[wish.axis]] = wish.factor
    return tuple(CutLine(layers=pattern, **factors) for pattern, factors in rows.items())


def without_group(
    splits: Callable[[int], Sequence[GridChoice]], pinned: Pins, micro: int
) -> Sequence[GridChoice]:
    """Returns how a plan that needs no planner splits samples: not at all, or as pins leave free.

    Args: `splits` are those of the question; where its tensors are in parts, such a plan has whole ones.
    """
    if any(split.mesh for split in splits(micro)):
        return (GridChoice(),)
    return [split for split in splits(micro) if pinned.spatial is None or not split.grid]
