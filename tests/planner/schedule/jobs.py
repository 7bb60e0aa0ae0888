"""Random work for the list scheduler: placements, unequal costs, hops and caps that one micro-batch fits into."""

from __future__ import annotations

from hypothesis import strategies as st

from planner.schedule import Action, Costs, Limits, Schedule
from planner.schedule.build import FamilyRequest, Place, dealt, zigzag
from planner.schedule.families.chimera import two_ended
from planner.schedule.listing.task import TIES, ListingJob, Policy


@st.composite
def places(draw: st.DrawFn) -> Place:
    workers, chunks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    shape = draw(st.sampled_from(["dealt", "zigzag", "two-ended"]))
    if shape == "two-ended":
        pairs = draw(st.sampled_from([1, 1, 2]))
        return two_ended(
            FamilyRequest(
                family="chimera",
                workers=2 * pairs * workers,
                micros=1,
                pairs=pairs,
                chunks=chunks,
                settings={},
            )
        )
    return (dealt if shape == "dealt" else zigzag)(workers, chunks)


@st.composite
def costs(draw: st.DrawFn, stages: int) -> Costs:
    row = st.tuples(*[st.integers(0, 30)] * stages)
    inputs, weights = draw(row), draw(row)
    hops = {edge: draw(st.integers(0, 10)) for s in range(stages - 1) for edge in ((s, s + 1), (s + 1, s))}
    return Costs(
        forward=draw(row),
        backward=tuple(i + w for i, w in zip(inputs, weights, strict=True)),
        input_grad=inputs,
        weight_grad=weights,
        hops=hops,
    )


@st.composite
def jobs(draw: st.DrawFn) -> ListingJob:
    place = draw(places())
    stages = len(place[0])
    micros = draw(st.integers(1, 9))
    return ListingJob(
        place=place,
        pipe_of=draw(st.lists(st.integers(0, len(place) - 1), min_size=micros, max_size=micros)),
        costs=draw(costs(stages)),
        split=draw(st.booleans()),
        limits=draw(limits(place)),
        policy=draw(policies()),
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    return Policy(
        order=draw(st.sampled_from(["BFW", "FBW", "BWF", "WBF"])),
        tie=draw(st.sampled_from(TIES)),
        pending=draw(st.none() | st.integers(0, 4)),
        grain=draw(st.integers(1, 3)),
        patience=draw(st.sampled_from([0, 50, 300])),
    )


@st.composite
def limits(draw: st.DrawFn, place: Place) -> Limits:
    stages = len(place[0])
    keep = draw(st.tuples(*[st.integers(1, 9)] * stages))
    held = draw(st.none() | st.tuples(*[st.integers(0, 12)] * stages))
    caps = st.tuples(*[st.tuples(*[st.integers(1, 4)] * stages)] * len(place))
    load = [max(k, h) for k, h in zip(keep, held or keep, strict=True)]
    memory = tuple(need + draw(st.integers(0, 40)) for need in _alone(place, load))
    return Limits(
        flight=draw(st.none() | caps),
        ahead=draw(st.none() | caps),
        memory=draw(st.none() | st.just(memory)),
        keep=keep,
        held=held,
    )


def _alone(place: Place, load: list[int]) -> list[int]:
    """What each worker needs for one micro-batch, whichever pipe it takes."""
    workers = 1 + max(map(max, place))
    return [
        max(sum(load[s] for s, w in enumerate(pipe) if w == worker) for pipe in place)
        for worker in range(workers)
    ]


def schedule_of(job: ListingJob, orders: list[list[Action]]) -> Schedule:
    return Schedule(
        family="listed",
        place=job.place,
        pipe_of=tuple(job.pipe_of),
        orders=tuple(map(tuple, orders)),
    )
