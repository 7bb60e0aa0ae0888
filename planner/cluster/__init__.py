"""Describes the machines as data, and says how long bytes take between them.

In: a cluster file (`load`), which `shardwright probe` writes; its devices are of the catalogue or of the file.
Out: a `Cluster` with devices, memory and distances; seconds for transfers (`transfer_s`) and all-reduces (`sum_s`),
corrected by runs where `shardwright calibrate` has fitted `Corrections`.
Start with `cluster.py` and `places.py`, then `links.py`; `variants.py` has what-if clusters: `with_nodes`, `with_memory` and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.cluster.catalogue import (
    CATALOGUE,
    HOST_FRAGMENTS,
    HOST_PROCESS_BYTES,
    Device,
    cluster_file,
    cluster_names,
    device_margin,
    find,
    host_margin,
    name_of,
)
from planner.cluster.cluster import Card, Cluster, Link, Links, NodeGroup, Rates, dump, load
from planner.cluster.corrections import (
    LONGEST_START_S,
    MOST_TIMES,
    PARTS,
    Correction,
    Corrections,
    MemoryCorrection,
    dump_corrections,
    load_corrections,
)
from planner.cluster.places import (
    Slot,
    card,
    distance,
    exists,
    limit_bytes,
    link_over,
    slots,
    total_devices,
)
from planner.cluster.variants import (
    NOTABLE_SHARE,
    OtherLoad,
    with_at_most,
    with_memory,
    with_more,
    with_network,
    with_node_groups,
    with_nodes,
)
from planner.doors import later

if TYPE_CHECKING:
    from planner.cluster.links import (
        NOISE,
        Group,
        Spread,
        Sum,
        Summing,
        all_reduce,
        card_sharers,
        exchange_s,
        gather_s,
        measured_sums,
        spread,
        sum_s,
        transfer_s,
    )

__all__ = [
    "CATALOGUE",
    "HOST_FRAGMENTS",
    "HOST_PROCESS_BYTES",
    "LONGEST_START_S",
    "MOST_TIMES",
    "NOISE",
    "NOTABLE_SHARE",
    "PARTS",
    "Card",
    "Cluster",
    "Correction",
    "Corrections",
    "Device",
    "Group",
    "Link",
    "Links",
    "MemoryCorrection",
    "NodeGroup",
    "OtherLoad",
    "Rates",
    "Slot",
    "Spread",
    "Sum",
    "Summing",
    "all_reduce",
    "card",
    "card_sharers",
    "cluster_file",
    "cluster_names",
    "device_margin",
    "distance",
    "dump",
    "dump_corrections",
    "exchange_s",
    "exists",
    "find",
    "gather_s",
    "host_margin",
    "limit_bytes",
    "link_over",
    "load",
    "load_corrections",
    "measured_sums",
    "name_of",
    "slots",
    "spread",
    "sum_s",
    "total_devices",
    "transfer_s",
    "with_at_most",
    "with_memory",
    "with_more",
    "with_network",
    "with_node_groups",
    "with_nodes",
]

__getattr__ = later(
    __name__,
    {
        "links": (
            "Group",
            "NOISE",
            "Spread",
            "Sum",
            "Summing",
            "all_reduce",
            "card_sharers",
            "exchange_s",
            "gather_s",
            "measured_sums",
            "name_of",
            "spread",
            "sum_s",
            "transfer_s",
        ),
    },
)
