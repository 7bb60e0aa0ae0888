"""Changes a cluster: other nodes, other memory, another network.

Each function returns a new cluster and leaves the given one as it is. The new cluster is checked as one from a file
is: BadInput says which link it lacks where its nodes talk over a distance that the file has no link for.

What other processes take of this machine, so that a time that was measured beside them can say so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from planner.cluster.cluster import Cluster, Link, Links, NodeGroup, dump
from planner.errors import BadInput
from planner.files import bad_input
from planner.sums import SumRate


def with_node_groups(cluster: Cluster, groups: tuple[NodeGroup, ...]) -> Cluster:
    """Returns a cluster of other machines with the links of the given one.

    Args: `groups` take the place of all groups of nodes.
    Raises: BadInput where the groups need a link that the cluster does not have.
    """
    return _changed(cluster, nodes=groups)


def with_nodes(cluster: Cluster, count: int) -> Cluster:
    """Returns a cluster with another number of nodes of the only kind that it has.

    Args: `count` is at least 1.
    Raises: BadInput where the cluster has several kinds of node, or no link for so many nodes.
    """
    if len(cluster.nodes) != 1:
        raise BadInput(
            f"the cluster has {len(cluster.nodes)} kinds of node", where="nodes", allowed="a cluster with one"
        )
    if count < 1:
        raise BadInput(f"{count} nodes", where="nodes", allowed="1 or more")
    return _changed(cluster, nodes=(cluster.nodes[0].model_copy(update={"count": count}),))


def with_memory(cluster: Cluster, gib: float) -> Cluster:
    """Returns a cluster whose devices all have `gib` GiB of memory; the margin stays free as before.

    Raises: BadInput where the margin of some group leaves nothing of that memory.
    """
    size = round(gib * 2**30)
    if size <= max(group.margin_bytes for group in cluster.nodes):
        raise BadInput(
            f"{gib:g} GiB leaves no memory beside the margin", where="memory_gib", allowed="more than it"
        )
    return _with_capacity(cluster, lambda _: size)


def with_at_most(cluster: Cluster, limit: int) -> Cluster:
    """Returns a cluster of whose devices a plan may use at most `limit` bytes, beside the margin.

    Args: `limit` is in bytes; a device that has less keeps what it has.
    """
    return _with_capacity(cluster, lambda group: min(group.capacity_bytes, group.margin_bytes + limit))


def with_more(cluster: Cluster, more: int) -> Cluster:
    """Returns a cluster whose devices have more memory.

    Args: `more` is the number of bytes added to each device.
    """
    return _with_capacity(cluster, lambda group: group.capacity_bytes + more)


def with_network(cluster: Cluster, factor: float) -> Cluster:
    """Returns a cluster whose links have `factor` times their bandwidth and the latency that they have.

    Raises: BadInput where `factor` is not above 0.
    """
    if not factor > 0:
        raise BadInput(f"{factor:g} times the bandwidth", where="network", allowed="more than 0")
    links = {
        name: Link(
            latency_s=link.latency_s,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor,
            sums={name: _faster(rate, factor) for name, rate in link.sums.items()},
        )
        for name, link in cluster.links
        if link is not None
    }
    return _changed(cluster, links=Links(**links))


def _faster(rate: SumRate, factor: float) -> SumRate:
    return SumRate(latency_s=rate.latency_s, bandwidth_bytes_per_s=rate.bandwidth_bytes_per_s * factor)


def _with_capacity(cluster: Cluster, size: Callable[[NodeGroup], int]) -> Cluster:
    """Returns a cluster whose devices have the bytes of memory that `size` gives for their group."""
    groups = tuple(group.model_copy(update={"memory_bytes": size(group)}) for group in cluster.nodes)
    return _changed(cluster, nodes=groups)


def _changed(cluster: Cluster, **changes: object) -> Cluster:
    """Returns a cluster with some fields changed, made anew and checked.

    A copy would carry along what was computed from the old fields.
    """
    fields = {name: getattr(cluster, name) for name in Cluster.model_fields}
    try:
        return Cluster.model_validate(fields | changes)
    except ValidationError as error:
        found = bad_input(Cluster, error, text=dump(cluster), name=cluster.name)
        raise BadInput(found.what, where=cluster.name, allowed=found.allowed) from None


NOTABLE_SHARE = 0.1  # less is what a machine does beside any work


class Ticks(NamedTuple):
    """Seconds of processor time since the machine started."""

    busy: float
    all: float


class OtherLoad:
    """The load of others on this machine from when this is made."""

    def __init__(self, ticks: Ticks | None = None) -> None:
        self._before = ticks or machine_ticks()

    def share(self, own_s: float, ticks: Ticks | None = None) -> float:
        """Returns the share of the machine's processor time that others took since then.

        Args: `own_s` is the processor time that this work took meanwhile, with its children.
        Returns: 0 to 1; 0 where the machine does not tell.
        """
        now = ticks or machine_ticks()
        passed = now.all - self._before.all
        others = now.busy - self._before.busy - own_s
        return min(1.0, max(0.0, others / passed)) if passed > 0 else 0.0


def machine_ticks(path: Path = Path("/proc/stat")) -> Ticks:
    """Returns the processor time of all processes; zeros where the machine does not tell.

    Args: `path` is the file that Linux keeps it in.
    """
    try:
        first = path.read_text().partition("\n")[0].split()[1:9]
        user, nice, system, idle, wait, *rest = (int(x) / os.sysconf("SC_CLK_TCK") for x in first)
    except (OSError, ValueError):
        return Ticks(0.0, 0.0)
    busy = user + nice + system + sum(rest)
    return Ticks(busy, busy + idle + wait)
