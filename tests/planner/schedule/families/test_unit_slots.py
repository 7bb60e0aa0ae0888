from __future__ import annotations

from dataclasses import replace

import pytest

from planner.schedule import Limits
from planner.schedule.build import Place, zigzag
from planner.schedule.families.unit_slots import orders_within_slots
from planner.schedule.listing.scheduler import best_listed, bound
from planner.schedule.listing.task import ListingJob, nominal
from tests.planner.schedule.jobs import schedule_of
from tests.planner.schedule.search import best_order
from tests.planner.schedule.slots import peaks, span, thirds

TWO_ENDED: Place = ((0, 1), (1, 0))


def job_of(place: Place, pipe_of: list[int], cap: int) -> ListingJob:
    workers = 1 + max(map(max, place))
    return ListingJob(
        place=place,
        pipe_of=pipe_of,
        costs=nominal(len(place[0])),
        split=True,
        limits=Limits(memory=(cap,) * workers),
    )


@pytest.mark.parametrize("micros", [3, 5, 7, 9, 11])
def test_it_finds_orders_that_no_policy_lists(micros: int) -> None:
    job = job_of(TWO_ENDED, [m % 2 for m in range(micros)], 2)
    listing = best_listed([job])
    orders = orders_within_slots(job, bound(job), listing.span)
    assert orders is not None
    schedule = schedule_of(job, orders)
    assert span(schedule, thirds) == bound(job) == 3 * micros < listing.span
    assert max(peaks(schedule)) <= 2


@pytest.mark.parametrize(
    ("place", "pipe_of", "cap"),
    [
        (((0, 1, 2),), [0] * 4, 2),
        (((0, 1, 2),), [0] * 4, 3),
        (zigzag(2, 2), [0] * 3, 6),
        (TWO_ENDED, [0, 1, 0], 3),
        (TWO_ENDED, [0, 0, 0], 2),
    ],
)
def test_what_it_finds_is_the_best_order_where_that_is_proved_and_never_shorter(
    place: Place, pipe_of: list[int], cap: int
) -> None:
    job = job_of(place, pipe_of, cap)
    proof = best_order(job)
    assert proof.proved
    assert orders_within_slots(job, bound(job), proof.span) is None
    orders = orders_within_slots(job, bound(job), proof.span + 1)
    assert orders is not None
    schedule = schedule_of(job, orders)
    assert span(schedule, thirds) == proof.span
    assert max(peaks(schedule)) <= cap


def test_nothing_is_sooner_than_the_work_of_a_worker() -> None:
    job = job_of(TWO_ENDED, [0, 1] * 4, 2)
    assert orders_within_slots(job, 1, 24) is None


def test_what_is_too_large_to_look_at_is_left_as_it_is() -> None:
    job = job_of(TWO_ENDED, [0, 1], 2)
    many = replace(job, pipe_of=[0, 1] * 100_000)
    assert orders_within_slots(many, 600_000, 600_001) is None


def test_where_a_tight_cap_asks_a_worker_to_wait_with_work_at_hand_nothing_is_found() -> None:
    job = job_of(TWO_ENDED, [0, 1, 0], 1)
    proof = best_order(job)
    assert proof.proved
    assert orders_within_slots(job, bound(job), proof.span + 1) is None
