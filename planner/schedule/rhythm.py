"""Slots that repeat: where each pipe of a two-ended placement may put two forwards in one slot and two backwards.

Every turn of `period` slots each pipe takes a pair of micro-batches: their forwards share the slot `o + s` of stage
s, their backwards take `c1 - s` and `c2 - s`. A worker holds one stage of every pipe, so 3 slots a pipe are the
shortest period; whether the slots of all pipes miss each other on every worker is a small search over residues.
"""

from __future__ import annotations

from planner.schedule.assemble import Place

Offsets = tuple[int, int, int]  # o, c1, c2


def rhythm(place: Place) -> tuple[int, list[Offsets]]:
    """The shortest period for which the search finds offsets, and those offsets, one triple a pipe."""
    period = 3 * len(place)
    while (offsets := _fit(place, period)) is None:
        period += 1
    return period, offsets


def _fit(place: Place, period: int) -> list[Offsets] | None:
    taken = [0] * len(place[0])  # a worker: bit mask of residues
    chosen: list[Offsets] = []
    budget = [2000]

    def extend(pipe: int) -> bool:
        if pipe == len(place):
            return True
        for option in _options(place[pipe], period, taken):
            if budget[0] == 0:
                return False
            budget[0] -= 1
            added = _bits(place[pipe], period, option)
            for worker, bits in enumerate(added):
                taken[worker] |= bits
            chosen.append(option)
            if extend(pipe + 1):
                return True
            chosen.pop()
            for worker, bits in enumerate(added):
                taken[worker] &= ~bits
        return False

    return chosen if extend(0) else None


def _options(stages: tuple[int, ...], period: int, taken: list[int]) -> list[Offsets]:
    """Offsets of one pipe that hit nothing taken, those that end first first."""
    depth = len(stages)
    forward = [o for o in range(period) if _free(stages, period, taken, o, 1)]
    backward = [c for c in range(period) if _free(stages, period, taken, c, -1)]
    options = []
    for o in forward:
        least = o + 2 * depth - 1  # the last stage's backward follows its forward
        later = sorted(least + (c - least) % period for c in backward)
        for i, c1 in enumerate(later):
            for c2 in later[i + 1 :]:
                if _apart(stages, period, (o, c1, c2)):
                    options.append((o, c1, c2))
    return sorted(options, key=lambda option: (option[2], option[1], option[0]))


def _free(stages: tuple[int, ...], period: int, taken: list[int], offset: int, sign: int) -> bool:
    return all(not taken[worker] >> (offset + sign * s) % period & 1 for s, worker in enumerate(stages))


def _apart(stages: tuple[int, ...], period: int, option: Offsets) -> bool:
    return all(bits.bit_count() == 3 for bits in _bits(stages, period, option))


def _bits(stages: tuple[int, ...], period: int, option: Offsets) -> list[int]:
    o, c1, c2 = option
    masks = [0] * len(stages)
    for s, worker in enumerate(stages):
        masks[worker] = 1 << (o + s) % period | 1 << (c1 - s) % period | 1 << (c2 - s) % period
    return masks
