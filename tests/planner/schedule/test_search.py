from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from planner.schedule import Action, Costs, Kind, Limits, Schedule, generate
from planner.schedule.build import Place, zigzag
from planner.schedule.listing.scheduler import bound
from planner.schedule.listing.task import ListingJob, Policy, nominal
from tests.planner.schedule.jobs import schedule_of
from tests.planner.schedule.search import best_for, best_order
from tests.planner.schedule.slots import ends, peaks, span, thirds

LINE, LONGER, TWO_ENDED, VEE = ((0, 1),), ((0, 1, 2),), ((0, 1), (1, 0)), ((0, 1, 1, 0),)
TINY: list[tuple[Place, tuple[int, ...], bool]] = [
    (LINE, (0, 0), True),
    (LINE, (0, 0, 0), False),
    (LONGER, (0, 0), True),
    (TWO_ENDED, (0, 1), True),
    (TWO_ENDED, (0, 1), False),
    (VEE, (0,), True),
]


def merges(chains: list[tuple[Action, ...]]) -> Iterator[tuple[Action, ...]]:
    chains = [chain for chain in chains if chain]
    if not chains:
        yield ()
    for i, chain in enumerate(chains):
        for rest in merges([*chains[:i], chain[1:], *chains[i + 1 :]]):
            yield (chain[0], *rest)


def shortest_of_all(job: ListingJob) -> int:
    """Every order of every worker, micro-batches in any turn."""
    kinds = (Kind.F, Kind.I, Kind.W) if job.split else (Kind.F, Kind.B)
    rows = []
    for worker in range(1 + max(map(max, job.place))):
        held = [
            (m, s, p) for m, p in enumerate(job.pipe_of) for s, w in enumerate(job.place[p]) if w == worker
        ]
        rows.append(list(merges([tuple(Action(kind, s, m, p) for kind in kinds) for m, s, p in held])))
    best = 1 << 60
    for orders in product(*rows):
        schedule = schedule_of(job, [list(order) for order in orders])
        if job.limits.memory is not None and max(peaks(schedule)) > job.limits.memory[0]:
            continue
        try:
            best = min(best, max(ends(schedule, lambda a: job.costs.of(a.kind)[a.stage], job.costs.hops)))
        except AssertionError:
            continue  # these orders wait for each other
    return best


@pytest.mark.parametrize("seed", range(18))
def test_it_finds_the_shortest_of_all_orders(seed: int) -> None:
    draw = random.Random(seed)
    place, pipe_of, split = TINY[seed % len(TINY)]
    stages = len(place[0])

    def row() -> tuple[int, ...]:
        return tuple(draw.randint(0, 6) for _ in range(stages))

    inputs, weights = row(), row()
    costs = Costs(
        forward=row(),
        backward=tuple(i + w for i, w in zip(inputs, weights, strict=True)),
        input_grad=inputs,
        weight_grad=weights,
        hops={e: draw.randint(0, 3) for s in range(stages - 1) for e in ((s, s + 1), (s + 1, s))},
    )
    room = draw.choice([2, 3, 9])
    limits = Limits(memory=(room,) * (1 + max(map(max, place))))
    job = ListingJob(place=place, pipe_of=pipe_of, costs=costs, split=split, limits=limits)
    proof = best_order(job)
    assert proof.proved
    assert bound(job) <= proof.span == shortest_of_all(job)
    best = schedule_of(job, proof.orders)
    assert max(ends(best, lambda a: costs.of(a.kind)[a.stage], costs.hops)) == proof.span
    assert max(peaks(best)) <= room


@pytest.mark.parametrize(
    ("family", "workers", "micros"),
    [
        ("1f1b", 4, 4),
        ("zb-h1", 3, 4),
        ("zb-h1", 4, 6),
        ("chimera-zb", 4, 4),
        ("chimera-zb", 4, 5),
        ("chimera-zb", 4, 3),
        ("zb-v", 3, 4),
    ],
)
def test_these_families_are_the_best_that_their_placement_and_memory_allow(
    family: str, workers: int, micros: int
) -> None:
    schedule = generate(family, workers=workers, micros=micros)
    proof = best_for(schedule, nominal(schedule.stages))
    assert proof.proved
    assert proof.span == span(schedule, thirds)


def test_chimeras_one_unit_is_the_best_with_whole_backwards_and_two_units_are_not() -> None:
    spans = []
    for micros in (4, 8):
        schedule = generate("chimera", workers=4, micros=micros)
        proof = best_for(schedule, nominal(4))
        assert proof.proved
        spans.append((span(schedule, thirds), proof.span))
    assert spans == [(16, 16), (30, 28)]


def test_a_small_cap_on_a_v_leaves_the_rhythm_behind_the_best_order() -> None:
    schedule = generate("v-half", workers=4, micros=4)
    proof = best_for(schedule, nominal(8), Limits(memory=(6,) * 4))
    assert proof.proved
    assert (span(schedule, thirds) - 24, proof.span - 24) == (7, 5)


def test_it_starts_from_any_policy_and_ends_at_the_same_time() -> None:
    job = ListingJob(
        place=zigzag(3, 2), pipe_of=[0] * 3, costs=nominal(6), split=True, limits=Limits(memory=(4,) * 3)
    )
    spans = {best_order(replace(job, policy=Policy(tie=tie))).span for tie in ("first", "deep", "shallow")}
    assert spans == {23}


def test_cut_off_early_it_says_between_what_the_best_order_lies() -> None:
    job = ListingJob(
        place=zigzag(4, 2), pipe_of=[0] * 6, costs=nominal(8), split=True, limits=Limits(memory=(4,) * 4)
    )
    cut = best_order(job, most_states=50)
    whole = best_order(job)
    assert not cut.proved
    assert whole.proved
    assert cut.bound <= whole.span <= cut.span


def test_an_order_that_is_shorter_than_what_it_would_start_from_is_not_forgotten() -> None:
    schedule = generate("v-min", workers=4, micros=8)
    assert best_for(schedule, nominal(8), most_states=10).span <= span(schedule, thirds)


def test_the_orders_of_a_proof_are_a_schedule_of_the_same_work() -> None:
    schedule = generate("chimera", workers=4, micros=8)
    proof = best_for(schedule, nominal(4))
    best = Schedule(
        family="searched",
        place=schedule.place,
        pipe_of=schedule.pipe_of,
        orders=tuple(map(tuple, proof.orders)),
    )
    assert {a for order in best.orders for a in order} == {
        a for order in schedule.orders for a in order if a.kind in (Kind.F, Kind.B)
    }
    assert span(best, thirds) == proof.span
