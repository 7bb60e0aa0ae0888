"""Chimera: f pairs of pipelines in opposite directions over the same workers, merged without a conflict.

In slots of one forward or backward, unit k of at most D micro-batches, m the place inside its pipe and unit:

    worker(down, j, s) = (s + jD/f) mod D            F at 2m + s           + 2Dk
    worker(up, j, s)   = (D - 1 - s + jD/f) mod D    B at 2m + 2D - 1 - s  + 2Dk

Pipes 0..f-1 go down, f..2f-1 up; the micro-batches of a unit are numbered pipe by pipe. Where the last of several
units is not full, the order is listed instead if that is shorter.

`concat` says how more than D micro-batches follow each other:
- `direct` shifts whole units as above;
- `doubling` runs two forwards back to back, so that they last as long as one backward (B = 2F). It takes pairs of
  micro-batches in a pipe and closes the gaps between units;
- `halving` is the order of `doubling` where the micro-batches are halves. Two forwards are then one kernel's worth,
  and the backward's batch is half the forward's.

Chimera with split weight gradients: both directions' I before everything, W wherever a worker would wait.

`cap` is what a worker holds at most, in micro-batches of one stage; D times the stages a direction by default. Which
greedy choice is best depends on the numbers, so a few are listed and the shortest is kept. Caps a (pipe, stage) keep
the directions from crowding each other out. A cap a worker leaves them free to lend each other room.
If all of them end later than the bound says, a herd of half-random listings looks for an order that ends in time. A
cap below the default keeps the bound out of reach; the herd is then not asked.

Slots that repeat: where each pipe of a two-ended placement may put two forwards in one slot and two
backwards.

Every turn of `period` slots each pipe takes a pair of micro-batches. Their forwards share the slot `o + s` of
stage s, their backwards take `c1 - s` and `c2 - s`. A worker holds one stage of every pipe, so 3 slots a pipe
are the shortest period. A small search over residues finds whether the slots of all pipes miss each other on
every worker.

`shorter` is for micro-batches that do not fill whole units: the closed form then leaves a gap, a listed order
may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import FamilyRequest, Place, assemble
from planner.schedule.families.unit_slots import orders_within_slots
from planner.schedule.listing.frozen import span_of
from planner.schedule.listing.scheduler import best_listed, bound
from planner.schedule.listing.task import Limits, ListingJob, Policy, nominal

Slots = list[list[tuple[int, Action]]]  # a worker: slot and action


def chimera(request: FamilyRequest) -> Schedule:
    """Generates the Chimera schedule: pairs of pipelines in opposite directions.

    Raises: BadInput for an odd number of workers, pairs that do not divide half of them, or an unknown
        `concat`.
    """
    concat = request.settings.get("concat", "direct")
    if concat not in ("direct", "doubling", "halving"):
        raise BadInput(f"concat is {concat!r}", where="chimera", allowed="direct, doubling, halving")
    place = two_ended(request)
    slots: Slots = [[] for _ in range(request.workers)]
    pipe_of = (_direct if concat == "direct" else _doubled)(request, place, slots)
    orders = [[action for _, action in sorted(worker)] for worker in slots]
    if concat == "direct" and request.micros > request.workers and request.micros % request.workers:
        orders = shorter(place, pipe_of, orders, request.workers)
    return assemble(request, place, pipe_of, orders)


def two_ended(request: FamilyRequest) -> Place:
    """Places the stages of f pairs of pipes; several stages a worker and pipe are dealt round.

    Returns: the f pipes that go down, then the f that go up.
    Raises: BadInput for an odd number of workers, or pairs that do not divide half of them.
    """
    workers, pairs = request.workers, request.pairs
    if workers % 2:
        raise BadInput(
            f"{workers} workers", where=request.family, allowed="an even number, so that pipes can meet"
        )
    if (workers // 2) % pairs:
        allowed = [f for f in range(1, workers // 2 + 1) if workers // 2 % f == 0]
        raise BadInput(
            f"{pairs} pairs on {workers} workers",
            where=request.family,
            allowed=f"divisors of {workers // 2}: {', '.join(map(str, allowed))}",
        )
    shift = workers // pairs
    stages = range(workers * request.chunks)
    down = [tuple((s + j * shift) % workers for s in stages) for j in range(pairs)]
    up = [tuple((workers - 1 - s + j * shift) % workers for s in stages) for j in range(pairs)]
    return (*down, *up)


def shares(count: int, pairs: int) -> list[int]:
    """Shares `count` micro-batches among the pipes; what is left over goes to the two directions in turn.

    Returns: the number of micro-batches of each pipe.
    """
    each, left = divmod(count, 2 * pairs)
    share = [each] * (2 * pairs)
    turns = [pipe for j in range(pairs) for pipe in (j, pairs + j)]
    for pipe in turns[:left]:
        share[pipe] += 1
    return share


def numbered(count: int, pairs: int, first: int) -> Iterator[tuple[int, int, int]]:
    """Yields (pipe, place inside the pipe, micro-batch) for a unit of `count` micro-batches, pipe by pipe.

    Args: `first` is the number of the first micro-batch.
    """
    micro = first
    for pipe, share in enumerate(shares(count, pairs)):
        for m in range(share):
            yield pipe, m, micro
            micro += 1


def _direct(request: FamilyRequest, place: Place, slots: Slots) -> list[int]:
    workers = request.workers
    pipe_of: list[int] = []
    for unit, first in enumerate(range(0, request.micros, workers)):
        start = 2 * workers * unit
        for pipe, m, micro in numbered(min(workers, request.micros - first), request.pairs, first):
            pipe_of.append(pipe)
            forward, backward = start + 2 * m, start + 2 * m + 2 * workers - 1
            for stage, worker in enumerate(place[pipe]):
                slots[worker].append((forward + stage, Action(Kind.F, stage, micro, pipe)))
                slots[worker].append((backward - stage, Action(Kind.B, stage, micro, pipe)))
    return pipe_of


def _doubled(request: FamilyRequest, place: Place, slots: Slots) -> list[int]:
    period, offsets = rhythm(place)
    pipe_of: list[int] = []
    for turn, first in enumerate(range(0, request.micros, 2 * len(place))):
        start = period * turn
        for pipe, m, micro in numbered(min(2 * len(place), request.micros - first), request.pairs, first):
            pipe_of.append(pipe)
            forward, backward = start + offsets[pipe][0], start + offsets[pipe][1 + m]
            for stage, worker in enumerate(place[pipe]):
                slots[worker].append((forward + stage, Action(Kind.F, stage, micro, pipe)))
                slots[worker].append((backward - stage, Action(Kind.B, stage, micro, pipe)))
    return pipe_of


SHARED = (
    Policy(tie="micro"),
    Policy(tie="deep"),
    Policy(tie="deep", order="FBW"),
    Policy(tie="micro", order="FBW"),
    Policy(tie="first"),
    Policy(tie="shallow"),
)
APART = (Policy(tie="deep"), Policy(tie="micro", pending=1))


def chimera_zb(request: FamilyRequest) -> Schedule:
    """Generates Chimera with weight gradients of their own, listed under the cap of the request.

    Raises: BadInput for a cap below 1, or a placement that `two_ended` refuses.
    """
    place = two_ended(request)
    pipe_of: list[int] = []
    for first in range(0, request.micros, request.workers):
        unit = min(request.workers, request.micros - first)
        pipe_of += [pipe for pipe, _, _ in numbered(unit, request.pairs, first)]
    cap = request.whole("cap", request.workers * request.chunks)
    if cap < 1:
        raise BadInput(f"cap is {cap}", where=request.family, allowed="1 or more micro-batches")
    memory = Limits(memory=(cap,) * request.workers)
    job = ListingJob(place=place, pipe_of=pipe_of, costs=nominal(len(place[0])), split=True, limits=memory)
    own = cap // (len(place) * request.chunks)
    apart = replace(memory, flight=((own,) * len(place[0]),) * len(place))

    def jobs() -> Iterator[ListingJob]:
        for policy in SHARED:
            yield replace(job, policy=policy)
        for policy in APART if own else ():
            yield replace(job, policy=policy, limits=apart)

    listing = best_listed(jobs())
    orders = (
        orders_within_slots(job, bound(job), listing.span)
        if cap >= request.workers * request.chunks
        else None
    )
    return assemble(request, place, pipe_of, orders or listing.orders)


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
