"""The profile of one rank of a group that has tensors in parts: the rank with most to do.

Layers take as long as the whole ones do on so many fewer samples (`curves.py`), and what their conversions take. A layer
in parts was not profiled itself; its spread says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, prod
from typing import Final

from planner.arrays import NS_PER_S
from planner.group.amounts import LayerPart, layer_parts
from planner.group.curves import TIMES, Curve, curves_of, mixed
from planner.group.footprints import LayerBytes, footprints, in_proportion, whole
from planner.group.machine import MeshOnCluster
from planner.layout import LocalGraph, local_model, share_of
from planner.model import ModelGraph
from planner.profile import CostKey, LayerCost, Profile, Seconds
from planner.spatial import element_bytes

SCALED_SPREAD: Final = 0.25  # of the time of a layer in parts, where only the whole one was profiled


def activation_bytes(profile: Profile, setting: CostKey) -> int:
    """Returns the bytes of an element of what a model makes, in the precision of a setting."""
    sizes = {x.name: x.bytes(setting.micro) for x in profile.graph.values if x.producer and x.needs_grad}
    narrower = (profile.value_bytes(name, setting) / size for name, size in sizes.items() if size)
    return max(1, round(element_bytes(profile.graph) * next(narrower, 1.0)))


def weight_bytes(graph: ModelGraph) -> int:
    """Returns the bytes of an element of a trained parameter, of the widest one."""
    return max((row.bytes // prod(row.shape) for row in graph.trained if prod(row.shape)), default=4)


def on_group(profile: Profile, setting: CostKey, found: LocalGraph, machine: MeshOnCluster | None) -> Profile:
    """Returns the profile of the rank of a group with most to do.

    Args: `found` is the model on the group; `machine` says where the group stands, None where conversions do not count.
    """
    sized, rows = activation_bytes(profile, setting), dict[CostKey, LayerCost]()
    weights = weight_bytes(profile.graph)
    graph, parts = (
        local_model(profile.graph, found, setting.micro),
        layer_parts(found, sized, machine, weights),
    )
    own, of_whole = footprints(found, sized, weights), footprints(whole(found), sized, weights)
    layers, known = [], dict[tuple[str, LayerCost], str]()
    for layer in profile.graph.layers:
        row, part = profile.cost(layer.name, setting), parts.get(layer.name, LayerPart())
        curves = curves_of(profile, layer.name, setting)
        both = own.get(layer.name, LayerBytes()), of_whole.get(layer.name, LayerBytes())
        priced = _in_bytes(_in_time(row, curves, part), *both)
        kept = tuple(i for i in row.kept_inputs if layer.inputs[i] not in part.converted)
        made = zip(
            row.output_bytes, (share_of(found.layouts[name][0]) for name in layer.outputs), strict=False
        )
        sizes = tuple(ceil(size * share) for size, share in made)
        priced = replace(priced, kept_inputs=kept, output_bytes=sizes)
        signature = known.setdefault((layer.signature, priced), f"{layer.signature}/{len(known)}")
        layers.append(replace(layer, signature=signature))
        rows[setting._replace(signature=signature)] = priced
    return replace(profile, graph=replace(graph, layers=tuple(layers)), costs=rows, failures={})


def _in_time(row: LayerCost, curves: Mapping[str, Curve], part: LayerPart) -> LayerCost:
    """Returns a layer's row with the times of one rank of a group.

    Args: `curves` are of the layer.
    """
    added = {"forward": part.forward_ns, "backward": part.backward_ns, "input_grad": part.backward_ns}
    forward, backward, first, second = (
        _part_of(getattr(row, name), curves[name], part, added.get(name, 0.0)) for name in TIMES
    )
    return replace(row, forward=forward, backward=backward, input_grad=first, weight_grad=second)


def _in_bytes(row: LayerCost, own: LayerBytes, of_whole: LayerBytes) -> LayerCost:
    """Returns a layer's row with the bytes of one rank of a group.

    Args: `own` are those of the rank, and `of_whole` of one process, as footprints have them.
    """
    held = in_proportion(row.held_bytes, own.held, of_whole.held) if row.held_bytes else 0
    return replace(
        row,
        walked_bytes=in_proportion(row.walked_bytes, own.held, of_whole.held) if row.walked_bytes else 0,
        own_saved_bytes=in_proportion(row.own_saved_bytes, own.kept, of_whole.kept),
        held_bytes=held,
        workspace_bytes=in_proportion(row.workspace_bytes, own.working, of_whole.working),
        forward_workspace_bytes=None,  # what a forward gathers is in no proportion to it
    )


def _part_of(time: Seconds, curve: Curve, part: LayerPart, added_ns: float) -> Seconds:
    whole = all(share == 1.0 for _, share in part.work)
    if whole and not added_ns:
        return time
    median = time.median if whole else mixed(curve, part.work)
    spread = (
        time.spread if whole else max(time.spread * median / (time.median or 1.0), SCALED_SPREAD * median)
    )
    return Seconds(median=median + added_ns / NS_PER_S, spread=spread)
