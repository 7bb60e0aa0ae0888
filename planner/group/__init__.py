"""What one rank of a group that has tensors in parts computes, sends and holds.

In: a profile, and the model on a group (`planner.layout.LocalGraph`). Out: the profile of the rank with most to do, whose
layers are priced like those of any other (`on_group`). Start with `own_profile.py`. `machine.py` says what collectives
take along each axis of a group where it stands, `amounts.py` what share of an operation a rank does, and `curves.py`
how long that takes. All prices of
tensors in parts come from here: those of the search for layouts, of `plan`, and of `verify`.
"""

from planner.group.amounts import ATTENTION, LayerPart, amount, kept_of, layer_parts, ring_sent, share_done
from planner.group.curves import TIMES, Curve, curves_of, part_of
from planner.group.machine import MeshOnCluster, Passages, meshes, on_cluster, placed_text
from planner.group.own_profile import activation_bytes, on_group, weight_bytes

__all__ = [
    "ATTENTION",
    "TIMES",
    "Curve",
    "LayerPart",
    "MeshOnCluster",
    "Passages",
    "activation_bytes",
    "amount",
    "curves_of",
    "kept_of",
    "layer_parts",
    "meshes",
    "on_cluster",
    "on_group",
    "part_of",
    "placed_text",
    "ring_sent",
    "share_done",
    "weight_bytes",
]
