"""What the busiest holder of a stage updates, where whole parameters are dealt out, for every cut at once."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from planner.cost import Owned
from planner.cuts.stage_bytes import MOST_HOLDERS, most_updated
from planner.plan import owners


def _rows(rng: Random, layers: int, ties: int) -> tuple[Owned, ...]:
    """Parameters in the order of their first layers, of two types; some are used by several layers."""
    rows = []
    for layer in range(layers):
        for _ in range(rng.choice((0, 1, 1, 2))):
            later = rng.sample(range(layer, layers), 1) if ties and rng.random() < ties / 10 else []
            users = tuple(sorted({layer, *later}))
            rows.append(Owned(users, rng.choice((0, 1, 7, 64, 1000)), rng.choice(("float32", "float64"))))
    return tuple(rows)


def _by_hand(rows: tuple[Owned, ...], first: int, end: int, holders: int) -> int:
    used = [row for row in rows if any(first <= user < end for user in row.users)]
    alone = [row for row in used if first <= row.users[0] and row.users[-1] < end]
    found = sum(row.elements for row in used if row.users[0] < first and row.users[-1] < end)
    for dtype in ("float32", "float64"):
        own = {str(k): row.elements for k, row in enumerate(alone) if row.dtype == dtype}
        owner = owners(range(holders), own)
        found += max(sum(own[name] for name in own if owner[name] == each) for each in range(holders))
    return found


@pytest.mark.parametrize("ties", [0, 3])
@pytest.mark.parametrize("seed", range(6))
def test_every_cut_has_the_elements_of_its_busiest_holder(seed: int, ties: int) -> None:
    rng, layers = Random(seed), 9
    rows = _rows(rng, layers, ties)
    for holders in (1, 2, 3, 8):
        found = most_updated(rows, layers, holders)
        for first, end in combinations(range(layers + 1), 2):
            assert found[first, end] == _by_hand(rows, first, end, holders), (first, end, holders)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_not_looked_at_one_by_one_is_no_less(seed: int) -> None:
    rng, layers, holders = Random(seed), 7, MOST_HOLDERS + 1
    rows = _rows(rng, layers, 3)
    found = most_updated(rows, layers, holders)
    for first, end in combinations(range(layers + 1), 2):
        assert found[first, end] >= _by_hand(rows, first, end, holders)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_group_cuts_is_dealt_out_among_those_who_have_the_same_part(seed: int) -> None:
    rng, layers, holders = Random(seed), 6, 4
    rows = _rows(rng, layers, 3)
    cut = tuple(row._replace(axes=rng.choice(((), (0,), (0, 1)))) for row in rows)
    found = most_updated(cut, layers, holders, (2, 2))
    for first, end in combinations(range(layers + 1), 2):
        apart = ((tuple(x for x in cut if x.axes == axes), len(axes)) for axes in ((), (0,), (0, 1)))
        assert found[first, end] == sum(_by_hand(own, first, end, holders >> n) for own, n in apart)
