"""All buckets of one rank: those that its replicas share by element, and all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor

from runtime.layout import TensorParts
from runtime.sharding.flats import Load, Node, SharedFlat
from runtime.sharding.wires import Wires
from runtime.update import AnyFlat, Bucket, Flat
from runtime.world import World


def flats_of(
    buckets: Sequence[Bucket],
    parameters: Mapping[str, Tensor],
    held: Sequence[Node],
    world: World,
    load: Load,
    whole: Callable[[Bucket, Mapping[str, Tensor], Sequence[Node], int], AnyFlat] = Flat,
    parts: TensorParts | None = None,
) -> list[AnyFlat]:
    """Returns what a rank holds of its buckets; all ranks call this, because communicators are made in one order.

    Args: `buckets` are those of all stages; `held` are the (pipe, stage) of the rank; `load` reads parameters; `whole`
        makes a bucket that is not shared by element; `parts` tells of which parameters this rank has a part.
    """
    wires, found = Wires(world.new_group), list[AnyFlat]()
    region = load.region if parts is None else partial(_region, load, parts)
    for bucket in buckets:
        groups = wires.of(bucket, world.rank)
        nodes = [node for node in held if node[1] in bucket.stages]
        if world.rank in bucket.ranks and not bucket.by_element:
            found.append(whole(bucket, parameters, nodes, world.rank))
        elif world.rank in bucket.ranks:
            found.append(SharedFlat(bucket, parameters, nodes, world.rank, wires, groups, region, parts))
    return found


def _region(load: Load, parts: TensorParts, name: str, start: int, stop: int) -> Tensor:
    """Returns elements of a parameter, or of this rank's part of it."""
    if name not in parts.cut:
        return load.region(name, start, stop)
    return parts.own(name, load.parameters([name])[name]).reshape(-1)[start:stop]
