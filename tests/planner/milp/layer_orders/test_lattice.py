"""The best stages of a graph are those that exhaustion over pairs of downward-closed sets finds."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from itertools import combinations

import pytest

from planner.milp.layer_orders.elements import ElementWork, Sent
from planner.milp.layer_orders.lattice import StageSplit, TooManyIdeals, best_stages, ideals_of


def work(seed: int, costly: float = 1.0) -> ElementWork:
    """Forward values, gradients that go the other way, and what is read anywhere; so many of them cost anything."""
    rng = random.Random(seed)
    count = rng.randint(1, 7)
    before = tuple(tuple(j for j in range(k) if rng.random() < 0.3) for k in range(count))
    ways = [
        lambda k: tuple(j for j in range(count) if k in before[j]),
        lambda k: before[k],
        lambda k: tuple(rng.sample(range(count), rng.randint(0, count))),
    ]
    sent = [Sent(source=k, readers=rng.choice(ways)(k), cost=float(rng.randint(0, 5))) for k in range(count)]
    sent = [replace(s, cost=s.cost * (rng.random() < costly)) for s in sent]
    return ElementWork(
        cost=tuple(float(rng.randint(0, 9)) * (rng.random() < costly) for _ in range(count)),
        size=tuple(float(rng.randint(0, 5)) for _ in range(count)),
        before=before,
        sent=tuple(sent),
    )


def load(given: ElementWork, stage: Collection[int]) -> float:
    """By the definition: a source is paid for where it leaves the stage or comes into it."""
    total = sum(given.cost[k] for k in stage)
    for sent in given.sent:
        readers = set(sent.readers) - {sent.source}
        crosses = readers - set(stage) if sent.source in stage else readers & set(stage)
        total += sent.cost if crosses else 0.0
    return total


def exhausted(given: ElementWork, most: int, room: float) -> float | None:
    every = range(given.count)
    sets = [set(some) for size in range(given.count + 1) for some in combinations(every, size)]
    closed = [s for s in sets if all(set(given.before[k]) <= s for k in s)]
    best = {frozenset(): 0.0}
    for _ in range(most):
        for begin, so_far in list(best.items()):
            for end in (s for s in closed if s > begin):
                stage = end - begin
                if sum(given.size[k] for k in stage) <= room:
                    worst = max(so_far, load(given, stage))
                    best[frozenset(end)] = min(best.get(frozenset(end), worst), worst)
    return best.get(frozenset(every))


def holds(given: ElementWork, found: StageSplit, room: float) -> None:
    done: set[int] = set()
    for stage in found.elements:
        done |= set(stage)
        assert all(set(given.before[k]) <= done for k in stage)
        assert sum(given.size[k] for k in stage) <= room
    assert done == set(range(given.count))
    assert found.load == max(load(given, stage) for stage in found.elements)


@pytest.mark.parametrize("costly", (1.0, 0.4))
@pytest.mark.parametrize("seed", range(60))
def test_no_chain_of_closed_sets_has_a_smaller_largest_load(seed: int, costly: float) -> None:
    given, rng = work(seed, costly), random.Random(seed)
    most, room = rng.choice([given.count, given.count, 4]), rng.choice([float("inf"), 10.0, 5.0])
    found = best_stages(given, most, room=room)
    assert (None if found is None else found.load) == exhausted(given, most, room)
    if found is not None:
        assert len(found.elements) <= most
        holds(given, found, room)


def test_branches_may_go_to_different_stages() -> None:
    """Two branches of two elements: no order of all elements, cut once, is better than a branch a stage."""
    given = ElementWork(cost=(3.0, 3.0, 2.0, 4.0), size=(0.0,) * 4, before=((), (0,), (), (2,)))
    found = best_stages(given, 2)
    assert found is not None
    assert found.load == 6.0


def test_chains_are_one_order_and_free_elements_every_set() -> None:
    assert len(ideals_of([(k - 1,) if k else () for k in range(50)])) == 51
    assert len(ideals_of([()] * 10)) == 1024


def test_free_elements_that_cost_nothing_do_not_make_a_lattice_large() -> None:
    """A chain of 20 elements, each with an input of its own and an output that nobody reads."""
    chain = tuple((3 * (k - 1), 3 * k + 1) if k else (1,) for k in range(20))
    before = tuple(row for k, needs in enumerate(chain) for row in (needs, (), (3 * k,)))
    given = ElementWork(cost=(1.0, 0.0, 0.0) * 20, size=(0.0, 0.0, 1.0) * 20, before=before)
    found = best_stages(given, 4, room=5.0, ideals=100)
    assert found is not None
    holds(given, found, 5.0)
    assert found.load == 5.0
    with pytest.raises(TooManyIdeals):
        best_stages(given, 4, room=4.0, ideals=100)


def test_a_lattice_too_large_is_refused_and_not_searched_in_part() -> None:
    with pytest.raises(TooManyIdeals, match="1000"):
        best_stages(ElementWork(cost=(1.0,) * 40, size=(0.0,) * 40, before=((),) * 40), 4, ideals=1000)
