"""Slots that repeat: where each pipe of a two-ended placement may put two forwards in one slot and two
backwards.

Every turn of `period` slots each pipe takes a pair of micro-batches. Their forwards share the slot `o + s` of
stage s, their backwards take `c1 - s` and `c2 - s`. A worker holds one stage of every pipe, so 3 slots a pipe
are the shortest period. A small search over residues finds whether the slots of all pipes miss each other on
every worker.

`shorter` is for micro-batches that do not fill whole units: the closed form then leaves a gap, a listed order
may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations

from planner.schedule.actions import Action
from planner.schedule.build import Place
from planner.schedule.listing.frozen import span_of
from planner.schedule.listing.scheduler import best_listed
from planner.schedule.listing.task import Limits, ListingJob, Policy, nominal

Offsets = tuple[int, int, int]  # o, c1, c2


TRIES = 3000  # partial choices looked at for one period


@lru_cache(maxsize=256)
def rhythm(place: Place) -> tuple[int, tuple[Offsets, ...]]:
    """Searches offsets for the shortest period that has any.

    Returns: the period in slots, and of the offsets those that end earliest, one triple a pipe.
    """
    period = 3 * len(place)
    while not (offsets := _Search(place, period).best):
        period += 1
    return period, offsets


class _Search:
    """A depth-first search over the pipes, in which offsets that end first are tried first.

    A branch is cut off where a pipe ends no earlier than all pipes of the best answer do.
    """

    def __init__(self, place: Place, period: int) -> None:
        self.place, self.period = place, period
        self.taken = [0] * len(place[0])  # a worker: bit mask of residues
        self.best: tuple[Offsets, ...] = ()
        self.end = 1 << 62
        self.tries = TRIES
        self._extend(())

    def _extend(self, chosen: tuple[Offsets, ...]) -> None:
        if len(chosen) == len(self.place):
            self.best, self.end = chosen, max(c2 for _, _, c2 in chosen)
            return
        pipe = self.place[len(chosen)]
        for option in _options(pipe, self.period, self.taken):
            if option[2] >= self.end or self.tries == 0:
                return
            self.tries -= 1
            before = self.taken
            added = _bits(pipe, self.period, option)
            self.taken = [old | new for old, new in zip(before, added, strict=True)]
            self._extend((*chosen, option))
            self.taken = before


def _options(stages: tuple[int, ...], period: int, taken: list[int]) -> list[Offsets]:
    """Returns the offsets of one pipe that hit nothing taken, sorted by their end."""
    depth = len(stages)
    meets = {2 * s % period for s in range(depth)}  # c - o of a backward that falls on its own pipe's forward
    backward = [c for c in range(period) if _free(stages, period, taken, c, -1)]
    options = []
    for o in range(period):
        if not _free(stages, period, taken, o, 1):
            continue
        least = o + 2 * depth - 1  # the last stage's backward follows its forward
        later = sorted(least + (c - least) % period for c in backward if (c - o) % period not in meets)
        options += [(o, c1, c2) for c1, c2 in combinations(later, 2)]
    return sorted(options, key=lambda option: (option[2], option[1], option[0]))


def _free(stages: tuple[int, ...], period: int, taken: list[int], offset: int, sign: int) -> bool:
    return all(not taken[worker] >> (offset + sign * s) % period & 1 for s, worker in enumerate(stages))


def _bits(stages: tuple[int, ...], period: int, option: Offsets) -> list[int]:
    o, c1, c2 = option
    masks = [0] * len(stages)
    for s, worker in enumerate(stages):
        masks[worker] = 1 << (o + s) % period | 1 << (c1 - s) % period | 1 << (c2 - s) % period
    return masks


POLICIES = (Policy(tie="deep"), Policy(tie="micro"), Policy(tie="first"), Policy(tie="deep", order="FBW"))


def shorter(place: Place, pipe_of: Sequence[int], orders: list[list[Action]], cap: int) -> list[list[Action]]:
    """Lists an order with at most `cap` micro-batches in flight on a worker.

    Args: `orders` hold F and B alone.
    Returns: the listed orders where they are shorter at B = 2F, else the given ones.
    """
    costs = nominal(len(place[0]))
    limits = Limits(memory=(cap,) * len(orders))
    job = ListingJob(place=place, pipe_of=pipe_of, costs=costs, split=False, limits=limits)
    listing = best_listed(replace(job, policy=policy) for policy in POLICIES)
    return listing.orders if listing.span < span_of(place, orders, costs) else orders
