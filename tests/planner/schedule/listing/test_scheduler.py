from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from planner.errors import BadInput
from planner.schedule import Action, Costs, Kind, Limits, generate
from planner.schedule.build import dealt, zigzag
from planner.schedule.listing.frozen import span as span_under
from planner.schedule.listing.scheduler import best_listed, bound, listed
from planner.schedule.listing.task import TIES, ListingJob, Policy, nominal
from planner.simulate import StageBytes, peaks
from tests.planner.schedule.jobs import jobs, schedule_of
from tests.planner.schedule.slots import ends, span, thirds


@settings(max_examples=100, deadline=None)
@given(jobs(), jobs())
def test_the_best_listing_is_the_shortest_of_all_and_the_first_of_those_as_short(
    one: ListingJob, two: ListingJob
) -> None:
    for several in ([one, two], [two, one, two]):
        every = [listed(job) for job in several]
        least = min(listing.span for listing in every)
        reached = [listing.span <= bound(job) for listing, job in zip(every, several, strict=True)]
        upto = reached.index(True) + 1 if True in reached else len(every)
        first = next(x for x in every[:upto] if x.span == min(y.span for y in every[:upto]))
        assert best_listed(several) == first
        assert first.span >= least


@settings(max_examples=150, deadline=None)
@given(jobs())
def test_nothing_deadlocks_and_every_micro_batch_passes_every_stage_once_each_way(job: ListingJob) -> None:
    listing = listed(job)
    done = Counter(action for order in listing.orders for action in order)
    kinds = (Kind.F, Kind.I, Kind.W) if job.split else (Kind.F, Kind.B)
    work = {
        Action(kind, stage, micro, pipe)
        for micro, pipe in enumerate(job.pipe_of)
        for stage in range(len(job.place[0]))
        for kind in kinds
    }
    assert done == Counter(work)
    assert all(
        job.place[a.pipe][a.stage] == worker for worker, order in enumerate(listing.orders) for a in order
    )


@settings(max_examples=150, deadline=None)
@given(jobs())
def test_its_span_is_that_of_its_order_and_never_below_the_bound(job: ListingJob) -> None:
    listing = listed(job)
    played = ends(schedule_of(job, listing.orders), lambda a: job.costs.of(a.kind)[a.stage], job.costs.hops)
    assert listing.span == max(played)
    assert listing.span >= bound(job)


@settings(max_examples=150, deadline=None)
@given(jobs())
def test_no_cap_is_exceeded(job: ListingJob) -> None:
    limits, stages = job.limits, len(job.place[0])
    keep = limits.keep or (1,) * stages
    held = (limits.held or keep) if job.split else keep
    last = Kind.W if job.split else Kind.B
    for worker, order in enumerate(listed(job).orders):
        weight, flight, ahead = 0, Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        for kind, stage, _, pipe in order:
            if kind is Kind.F:
                weight += keep[stage]
                flight[pipe, stage] += 1
                ahead[pipe, stage] += 1
            else:
                ahead[pipe, stage] -= kind in (Kind.B, Kind.I)
                flight[pipe, stage] -= kind is last
                weight += {Kind.B: -keep[stage], Kind.I: held[stage] - keep[stage], Kind.W: -held[stage]}[
                    kind
                ]
            assert limits.memory is None or weight <= limits.memory[worker]
            assert limits.flight is None or flight[pipe, stage] <= limits.flight[pipe][stage]
            assert limits.ahead is None or ahead[pipe, stage] <= limits.ahead[pipe][stage]


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_one_unit_less_than_a_micro_batch_needs_alone_is_refused_with_the_grid(job: ListingJob) -> None:
    keep = job.limits.keep or (1,) * len(job.place[0])
    held = (job.limits.held or keep) if job.split else keep
    load = [max(pair) for pair in zip(keep, held, strict=True)]
    pipe = job.pipe_of[0]
    worker = job.place[pipe][0]
    alone = sum(load[s] for s, w in enumerate(job.place[pipe]) if w == worker)
    room = [1000] * (1 + max(map(max, job.place)))
    room[worker] = alone - 1
    with pytest.raises(BadInput, match=r"the caps deadlock") as error:
        listed(replace(job, limits=replace(job.limits, memory=tuple(room))))
    assert f"worker {worker}:" in str(error.value)
    assert "<-- here: no room" in str(error.value)


def test_the_bound_is_the_span_where_every_worker_only_waits_for_the_first_and_last_micro_batch() -> None:
    for workers, micros in [(1, 3), (4, 4), (8, 5)]:
        job = ListingJob(
            place=(tuple(range(workers)),), pipe_of=[0] * micros, costs=nominal(workers), split=False
        )
        assert bound(job) == 3 * (micros + workers - 1)
        hopping = replace(job, costs=nominal(workers, hop=2))
        assert bound(hopping) == 3 * (micros + workers - 1) + 4 * (workers - 1)


def test_a_cap_shared_by_both_directions_does_not_deadlock_with_hops() -> None:
    for workers in (4, 8, 16):
        place = generate("chimera", workers=workers, micros=1).place
        costs = Costs(
            forward=(20,) * workers,
            backward=(40,) * workers,
            input_grad=(20,) * workers,
            weight_grad=(20,) * workers,
            hops={edge: 1 for s in range(workers - 1) for edge in ((s, s + 1), (s + 1, s))},
        )
        pipes = [m % 2 for m in range(4 * workers)]
        for room in (2, workers // 2 + 1, workers):
            job = ListingJob(
                place=place, pipe_of=pipes, costs=costs, split=True, limits=Limits(memory=(room,) * workers)
            )
            assert listed(job).span >= bound(job)


def test_room_given_back_between_input_and_weight_gradient_is_used() -> None:
    job = ListingJob(
        place=(tuple(range(4)),),
        pipe_of=[0] * 12,
        costs=nominal(4),
        split=True,
        limits=Limits(memory=(8,) * 4, keep=(2,) * 4, held=(2,) * 4),
    )
    lighter = replace(job, limits=replace(job.limits, held=(0,) * 4))
    assert listed(lighter).span <= listed(job).span
    assert max(_owed(order) for order in listed(lighter).orders) > max(
        _owed(order) for order in listed(job).orders
    )


def _owed(order: list[Action]) -> int:
    now = most = 0
    for action in order:
        now += (action.kind is Kind.I) - (action.kind is Kind.W)
        most = max(most, now)
    return most


def test_weight_gradients_wait_while_gradients_are_forwarded_up_to_the_limit_in_lots_of_the_grain() -> None:
    job = ListingJob(place=(tuple(range(4)),), pipe_of=[0] * 12, costs=nominal(4), split=True)
    free = listed(replace(job, policy=Policy(order="BFW")))
    assert max(_owed(order) for order in free.orders) > 4
    bounded = listed(replace(job, policy=Policy(order="BFW", pending=2, grain=3)))
    for order in bounded.orders:
        assert _owed(order) == 3  # one past the limit starts a lot
        kinds = "".join(action.kind for action in order)
        assert "WWW" in kinds


def test_weight_gradients_are_never_owed_where_the_limit_is_none() -> None:
    job = ListingJob(
        place=(tuple(range(3)),), pipe_of=[0] * 6, costs=nominal(3), split=True, policy=Policy(pending=0)
    )
    for order in listed(job).orders:
        kinds = "".join(action.kind for action in order)
        assert kinds.count("IW") == 6


def test_a_patient_worker_waits_for_what_is_on_its_way_and_an_impatient_one_does_not() -> None:
    costs = Costs(
        forward=(10, 10),
        backward=(20, 20),
        input_grad=(10, 10),
        weight_grad=(10, 10),
        hops={(0, 1): 3, (1, 0): 3},
    )
    job = ListingJob(place=((0, 1),), pipe_of=[0] * 4, costs=costs, split=True, limits=Limits(memory=(2, 2)))
    orders = {p: listed(replace(job, policy=Policy(patience=p))).orders for p in (0, 200)}
    assert orders[0] != orders[200]


@pytest.mark.parametrize(
    ("layers", "workers", "micros", "hop", "conventional", "forwarded", "modulo"),
    [
        (8, 4, 4, 0, 42, 30, 27),
        (24, 8, 8, 0, 135, 93, 79),
        (24, 8, 8, 5, 142, 100, 94),
        (24, 8, 16, 5, 214, 168.5, 154.5),
        (48, 8, 8, 2, 272.8, 188.8, 163),
    ],
)
def test_out_of_order_backprop_with_modulo_allocation_beats_the_conventional_order(
    layers: int,
    workers: int,
    micros: int,
    hop: int,
    conventional: float,
    forwarded: float,
    modulo: float,
) -> None:
    """F = I = W = 1 a layer, a hop in tenths: gradients forwarded in blocks of layers, then layers dealt round."""
    each = layers // workers
    in_blocks, dealt_round = uniform(workers, 10 * each, hop), uniform(layers, 10, hop)
    assert span_under(generate("gpipe", workers=workers, micros=micros), in_blocks) == round(
        10 * conventional
    )
    assert shortest(workers, 1, micros, in_blocks) == round(10 * forwarded)
    assert shortest(workers, each, micros, dealt_round) == round(10 * modulo)


def uniform(stages: int, each: int, hop: int) -> Costs:
    row, hops = (each,) * stages, nominal(stages, hop).hops
    return Costs(forward=row, backward=(2 * each,) * stages, input_grad=row, weight_grad=row, hops=hops)


def shortest(workers: int, chunks: int, micros: int, costs: Costs) -> int:
    """Of listings for these costs and of the family's own for nominal ones."""
    job = ListingJob(place=dealt(workers, chunks), pipe_of=[0] * micros, costs=costs, split=True)
    own = generate("listed", workers=workers, micros=micros, chunks=chunks)
    return min(best_listed(replace(job, policy=Policy(tie=tie)) for tie in TIES).span, span_under(own, costs))


def test_owed_weight_gradients_take_memory_and_a_limit_on_them_bounds_it() -> None:
    """What is held from I to W is as large as what is saved: without a limit it piles up."""
    held = [StageBytes(saved=10, held=10)] * 4
    most = []
    for pending in (16, 4, 1):
        schedule = generate("listed", workers=4, micros=16, cap=16, pending=pending)
        most.append(max(peak.bytes for peak in peaks(schedule, held)))
    assert most[0] > most[1] > most[2]


def test_a_given_sequence_is_kept_and_weight_gradients_fill_its_gaps() -> None:
    sequence = generate("interleaved", workers=4, micros=8, chunks=2)
    turns = [
        [a._replace(kind=Kind.I) if a.kind is Kind.B else a for a in order if a.kind in (Kind.F, Kind.B)]
        for order in sequence.orders
    ]
    job = ListingJob(
        place=sequence.place, pipe_of=sequence.pipe_of, costs=nominal(8), split=True, sequence=turns
    )
    listing = listed(job)
    assert [[a for a in order if a.kind is not Kind.W] for order in listing.orders] == turns
    assert listing.span < span(sequence, thirds)


def test_a_sequence_that_does_not_fit_its_cap_is_refused() -> None:
    turns = [[Action(Kind.F, 0, 0), Action(Kind.F, 0, 1), Action(Kind.I, 0, 0), Action(Kind.I, 0, 1)]]
    job = ListingJob(
        place=((0,),),
        pipe_of=[0, 0],
        costs=nominal(1),
        split=True,
        limits=Limits(memory=(1,)),
        sequence=turns,
    )
    with pytest.raises(BadInput, match=r"the caps deadlock"):
        listed(job)
    assert listed(replace(job, sequence=None)).span == 6


def test_the_best_of_several_is_taken_and_those_that_get_stuck_are_passed_over() -> None:
    job = ListingJob(
        place=zigzag(4, 2), pipe_of=[0] * 8, costs=nominal(8), split=True, limits=Limits(memory=(8,) * 4)
    )
    stuck = replace(job, limits=Limits(memory=(1,) * 4))
    others = [replace(job, policy=Policy(tie=tie)) for tie in ("shallow", "first", "deep")]
    assert best_listed([stuck, *others]).span == min(listed(other).span for other in others)
    with pytest.raises(BadInput, match=r"the caps deadlock"):
        best_listed([stuck])
    with pytest.raises(BadInput, match=r"no job"):
        best_listed([])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"costs": nominal(3)}, r"costs of 3 stages.*4, as the placement"),
        ({"limits": Limits(memory=(1, 1))}, r"memory: 2 caps.*one a worker, 4"),
        ({"limits": Limits(flight=((1, 1),))}, r"flight: caps of 1 pipes.*1 pipes of 4"),
        ({"limits": Limits(ahead=((1,) * 4,) * 2)}, r"ahead: caps of 2 pipes"),
        ({"limits": Limits(keep=(1, 1))}, r"keep: weights of 2 stages.*4, as the placement"),
        ({"limits": Limits(held=(1,) * 5)}, r"held: weights of 5 stages.*4, as the placement"),
    ],
)
def test_numbers_that_do_not_match_the_placement_are_refused(
    wrong: dict[str, Costs | Limits], message: str
) -> None:
    job = ListingJob(place=(tuple(range(4)),), pipe_of=[0], costs=nominal(4), split=True)
    with pytest.raises(BadInput, match=message):
        listed(replace(job, **wrong))  # type: ignore[arg-type]


def test_costs_are_whole_numbers_of_every_stage_and_never_negative() -> None:
    with pytest.raises(BadInput, match=r"backward: 2 costs.*3, one a stage"):
        Costs(forward=(1,) * 3, backward=(1,) * 2, input_grad=(1,) * 3, weight_grad=(1,) * 3)
    with pytest.raises(BadInput, match=r"weight_grad: a cost of -1"):
        Costs(forward=(1,), backward=(1,), input_grad=(1,), weight_grad=(-1,))
    with pytest.raises(BadInput, match=r"recompute: 1 costs.*2, one a stage"):
        Costs(forward=(1, 1), backward=(1, 1), input_grad=(1, 1), weight_grad=(1, 1), recompute=(1,))
    with pytest.raises(BadInput, match=r"recompute: a cost of -1"):
        Costs(forward=(1,), backward=(1,), input_grad=(1,), weight_grad=(1,), recompute=(-1,))
    with pytest.raises(BadInput, match=r"hops: a cost of -2"):
        Costs(forward=(1,), backward=(1,), input_grad=(1,), weight_grad=(1,), hops={(0, 1): -2})
