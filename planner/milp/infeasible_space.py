"""When nothing fits: the smallest spatial degree by which a sample does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.cluster import Cluster, Link, Links, total_devices
from planner.milp.choices import choices
from planner.milp.space import Space
from planner.profile import CostKey

_ANY = Link(latency_s=0.0, bandwidth_bytes_per_s=1e12)  # what fits does not depend on links


def degrees(space: Space, fits: Callable[[Space], str | None]) -> Iterator[str]:
    """One line, for models that can be cut in space at all; `fits` solves a changed question."""
    graph = space.profile.graph
    if not graph.operations or space.execution != "eager" or space.pins.spatial == 1:
        return
    known = _known(space)
    for degree in known:
        plan = fits(_asked(space, degree))
        if plan is not None:
            yield f"a spatial split of {degree}, on {degree} devices for each sample, would fit: {plan}"
            return
    if known:
        yield f"no spatial split that was profiled fits by itself: {', '.join(map(str, known))}; price larger ones"
    else:
        yield "no spatial split was profiled; `profile --spatial 2,4,8` prices some"


def _known(space: Space) -> list[int]:
    """Degrees of every grid that can be had, at some micro-batch."""
    found = set()
    for micro in space.micros():
        setting = CostKey("", micro, (), space.precision, space.execution)
        found |= {choice.ranks for choice in choices(space.profile, setting, space.prices)}
    return sorted(found)


def _asked(space: Space, degree: int) -> Space:
    """Each sample over so many devices, the other axes no wider than pinned."""
    pinned = space.pins
    data, pipeline = pinned.data or 1, pinned.pipeline or 1
    return Space(
        profile=space.profile,
        cluster=_room(space.cluster, degree * data * pipeline),
        batch=space.batch,
        precision=space.precision,
        execution=space.execution,
        pins=replace(
            pinned, spatial=degree, grid=None, gather=None, data=data, pipeline=pipeline, devices=None
        ),
    )


def _room(cluster: Cluster, devices: int) -> Cluster:
    """The cluster where it has so many devices; else one node of them, as its smallest are."""
    if total_devices(cluster) >= devices:
        return cluster
    least = min(cluster.nodes, key=lambda group: group.limit_bytes)
    node = least.model_copy(update={"count": 1, "devices_per_node": devices, "devices_per_card": None})
    links = Links(node=cluster.links.node or _ANY, rack=_ANY, cluster=_ANY)
    return Cluster(name=cluster.name, nodes=(node,), links=links, fitted=cluster.fitted)
