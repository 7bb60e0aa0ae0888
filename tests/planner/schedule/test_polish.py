from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from planner.errors import BadInput
from planner.schedule import Action, Kind, Limits, generate
from planner.schedule.listing.frozen import critical, order_fits, play, span_of
from planner.schedule.listing.scheduler import listed
from planner.schedule.listing.task import ListingJob, nominal
from planner.schedule.relist import polished
from tests.planner.schedule.jobs import jobs, schedule_of
from tests.planner.schedule.slots import ends


@settings(max_examples=80, deadline=None)
@given(jobs())
def test_repairs_keep_the_work_and_the_limits_and_never_lengthen(job: ListingJob) -> None:
    listing = listed(job)
    better = polished(job.place, listing.orders, job.costs, job.limits, 40)
    assert [sorted(order) for order in better] == [sorted(order) for order in listing.orders]
    assert span_of(job.place, better, job.costs) <= listing.span
    if job.split or job.limits.held is None:
        assert all(
            order_fits(order, worker, job.limits, len(job.place[0])) for worker, order in enumerate(better)
        )


def test_a_late_forward_that_holds_everybody_up_is_brought_forward() -> None:
    schedule = generate("1f1b", workers=3, micros=4)
    good = [[a for a in order if a.kind in (Kind.F, Kind.B)] for order in schedule.orders]
    bad = [list(order) for order in good]
    at = bad[0].index(Action(Kind.F, 0, 2))
    bad[0][at], bad[0][at + 1] = bad[0][at + 1], bad[0][at]
    costs = nominal(3)
    assert span_of(schedule.place, bad, costs) > span_of(schedule.place, good, costs)
    repaired = polished(schedule.place, bad, costs, Limits(), 100)
    assert span_of(schedule.place, repaired, costs) == span_of(schedule.place, good, costs)
    kept = polished(schedule.place, bad, costs, Limits(memory=(2, 2, 1)), 100)
    assert kept == bad


def test_no_tries_change_nothing() -> None:
    job = ListingJob(place=((0, 1),), pipe_of=[0] * 3, costs=nominal(2), split=True)
    orders = listed(job).orders
    assert polished(job.place, orders, job.costs, job.limits, 0) == orders


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_the_critical_chain_is_as_long_as_the_whole(job: ListingJob) -> None:
    job = replace(job, costs=replace(job.costs, hops={}))
    orders = listed(job).orders
    played = play(job.place, orders, job.costs)
    assert played is not None
    chain = [orders[worker][position] for worker, position in critical(played, orders)]
    assert sum(job.costs.of(a.kind)[a.stage] for a in chain) == played.span
    assert played.free == ends(schedule_of(job, orders), lambda a: job.costs.of(a.kind)[a.stage])


def test_orders_that_wait_for_each_other_are_left_alone_and_have_no_span() -> None:
    orders = [[Action(Kind.B, 0), Action(Kind.F, 0)], [Action(Kind.F, 1), Action(Kind.B, 1)]]
    assert polished(((0, 1),), orders, nominal(2), Limits(), 10) == orders
    with pytest.raises(BadInput, match=r"wait for each other"):
        span_of(((0, 1),), orders, nominal(2))
