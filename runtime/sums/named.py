"""Makes the sums that a plan names: each name a function over communicators, with one for every part.

A part's communicator is over one network card of the node, where the plan lists cards, and numbers its ranks as its
ring goes. So `rings K` is K rings of gloo at once, and an element is added up in an order that follows from its place
in the buffer, from the stride of its ring and from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from planner.sums import ColourTree, SumName, strides
from runtime.sums.colours import add_up_tree
from runtime.sums.ordered import add_up
from runtime.sums.queues import NamedSum
from runtime.world import Rail

MakeRail = Callable[[Sequence[int], int], Rail]  # of ranks as numbered there, for a part


def named_sum(name: SumName, places: int, group: Rail, rail: MakeRail) -> NamedSum:
    """Makes a sum over a group of hosts; all of its ranks call this at the same time.

    Args: `places` is the number of ranks, for which the name is offered; `group` has them in order; `rail` makes the
        communicator of one part, given the order of its ranks and the number of the part.
    """
    if name.kind == "ring":
        return NamedSum([partial(_ring, group)])
    if name.kind == "direct":
        return NamedSum([partial(_add_up, group)])
    return NamedSum([_part(name, places, part, rail) for part in range(name.parts)])


def _part(name: SumName, places: int, part: int, rail: MakeRail) -> Callable[[Tensor], None]:
    if name.kind == "colours":
        made = rail(range(places), part)
        return partial(add_up_tree, rail=made, tree=ColourTree(places, name.parts, part))
    known = strides(places)
    stride = known[part % len(known)]
    return partial(_ring, rail([step * stride % places for step in range(places)], part))


def _ring(group: Rail, part: Tensor) -> None:
    if part.numel():
        group.allreduce([part]).wait()


def _add_up(group: Rail, buffer: Tensor) -> None:
    add_up(buffer, group)
