from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.schedule import Action, Kind, Schedule, generate, with_recompute
from planner.schedule.actions import from_text
from planner.simulate import PART_NAMES, StageBytes, lifetimes, memory_rows, node_ends, part_rows, peaks
from planner.simulate.peaks import bytes_in_use, weights
from tests.planner.cases import Case, cases

few = settings(max_examples=200, deadline=None, derandomize=True)


def random_sizes(stages: int, draw: Random) -> list[StageBytes]:
    sizes = []
    for _ in range(stages):
        saved = draw.randint(1, 50)
        held, kept = draw.randint(0, saved), draw.randint(0, saved)
        work, more = draw.randint(0, 9), draw.randint(0, 9)
        sizes.append(StageBytes(saved=saved, held=held, kept=kept, workspace=work, reversing=more))
    return sizes


def with_messages(sizes: list[StageBytes], draw: Random) -> list[StageBytes]:
    names = set(PART_NAMES) - {"saved", "held", "kept", "workspace", "reversing"}
    return [replace(size, **{name: draw.randint(0, 20) for name in sorted(names)}) for size in sizes]


def replayed(case: Case, sizes: list[StageBytes]) -> list[int]:
    """Peaks from when things start and end in time, interval by interval, without looking at the orders."""
    compiled = case.compiled()
    ends = node_ends(compiled, case.vector)
    cost = np.append(case.vector, 0)[compiled.graph.cost]
    end = {action: int(ends[node]) for action, node in compiled.graph.node_of.items()}
    start = {action: int(ends[node] - cost[node]) for action, node in compiled.graph.node_of.items()}
    found = []
    for order in case.schedule.orders:
        spans: list[tuple[int, int, int]] = []  # from, to, bytes
        for action in order:
            if action.kind is Kind.F:
                spans += _life(action, start, end, sizes[action.stage])
            if action.kind not in (Kind.SYNC, Kind.STEP):
                own = sizes[action.stage]
                work = own.workspace + own.reversing * (action.kind in (Kind.B, Kind.I, Kind.W))
                spans.append((start[action], end[action], work))
        moments = [start[action] for action in order]
        found.append(max(sum(b for low, high, b in spans if low <= now < high) for now in moments))
    return found


def _life(
    forward: Action, start: dict[Action, int], end: dict[Action, int], size: StageBytes
) -> list[tuple[int, int, int]]:
    whole, half, weight, again = (forward._replace(kind=k) for k in (Kind.B, Kind.I, Kind.W, Kind.R))
    back = end[whole] if whole in end else end[half]
    born = start[again] if again in start else start[forward]
    spans = [(born, back, size.saved)]
    if again in start:
        spans.append((start[forward], start[again], size.kept))
    if half in end:
        spans.append((back, end[weight], size.held))
    return spans


@few
@given(case=cases(lowest=1), seed=st.integers(0, 999), recompute=st.booleans())
def test_the_peak_is_what_a_replay_in_time_finds(case: Case, seed: int, recompute: bool) -> None:
    draw = Random(seed)
    if recompute:
        stages = {s for s in range(case.schedule.stages) if draw.random() < 0.5}
        case = Case(schedule=with_recompute(case.schedule, stages), hops=case.hops, times=case.times)
    sizes = random_sizes(case.schedule.stages, draw)
    assert [peak.bytes for peak in peaks(case.schedule, sizes)] == replayed(case, sizes)


@few
@given(case=cases(), seed=st.integers(0, 999))
def test_the_rows_of_a_schedule_give_its_peak_for_any_sizes(case: Case, seed: int) -> None:
    sizes = random_sizes(case.schedule.stages, Random(seed))
    sizes = with_messages(sizes, Random(seed))
    rows = memory_rows(lifetimes(case.schedule), case.schedule.stages)
    highest = [int((own * weights(sizes)).sum(axis=(1, 2)).max()) for own in rows]
    assert highest == [peak.bytes for peak in peaks(case.schedule, sizes)]


@few
@given(case=cases(), seed=st.integers(0, 999))
def test_rows_of_stages_together_give_the_peak_where_all_stages_take_as_much(case: Case, seed: int) -> None:
    spans, stages = lifetimes(case.schedule), case.schedule.stages
    most = weights(with_messages(random_sizes(1, Random(seed)), Random(seed)))[0]
    every = [int((own.sum(1) @ most).max()) for own in memory_rows(spans, stages)]
    assert [int((own @ most).max()) for own in part_rows(spans)] == every


@pytest.mark.parametrize(("workers", "pairs"), [(4, 1), (8, 1), (8, 2), (16, 1), (16, 4), (32, 2)])
def test_chimera_holds_what_its_paper_says(workers: int, pairs: int) -> None:
    schedule = generate("chimera", workers=workers, micros=2 * workers, pairs=pairs)
    found = [peak.bytes for peak in peaks(schedule, [StageBytes(saved=1)] * workers)]
    assert (min(found), max(found)) == (workers - workers // (2 * pairs) + 1, workers)


def test_1f1b_and_gpipe_hold_what_is_published() -> None:
    one = [StageBytes(saved=1)] * 8
    assert [p.bytes for p in peaks(generate("1f1b", workers=8, micros=32), one)] == [*range(8, 0, -1)]
    assert {p.bytes for p in peaks(generate("gpipe", workers=8, micros=32), one)} == {32}


def test_no_row_is_covered_by_another() -> None:
    schedule = generate("chimera", workers=8, micros=16)
    for rows in memory_rows(lifetimes(schedule), schedule.stages):
        for i, row in enumerate(rows):
            assert not any((other >= row).all() for j, other in enumerate(rows) if j != i)


def test_a_peak_names_the_action_that_reaches_it() -> None:
    schedule = from_text("0F0 0F1 0B0 0B1", place=((0,),), pipe_of=(0, 0))
    (peak,) = peaks(schedule, [StageBytes(saved=7, workspace=2)])
    assert (peak.bytes, str(peak.at(schedule.orders[0]))) == (16, "0F1")


def test_a_recomputed_stage_keeps_its_inputs_until_it_is_run_again() -> None:
    schedule = from_text("0F0 0F1 0R0 0B0 0R1 0B1", place=((0,),), pipe_of=(0, 0))
    (peak,) = peaks(schedule, [StageBytes(saved=10, kept=3)])
    assert (peak.bytes, str(peak.at(schedule.orders[0]))) == (13, "0R0")


def test_what_the_weight_half_needs_is_held_between_the_halves() -> None:
    schedule = from_text("0F0 0I0 0F1 0I1 0W0 0W1", place=((0,),), pipe_of=(0, 0))
    (peak,) = peaks(schedule, [StageBytes(saved=10, held=4)])
    assert (peak.bytes, str(peak.at(schedule.orders[0]))) == (14, "0F1")


def test_messages_are_there_ahead_of_their_use_and_until_their_arrival_is_known() -> None:
    schedule = from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1", place=((0, 1),), pipe_of=(0, 0))
    one, nothing = StageBytes(saved=0, arriving=1), StageBytes(saved=0)
    table = weights([nothing, one])
    during = [row[0] for row in bytes_in_use(lifetimes(schedule)[1], table).tolist()]
    # the receive of the second, twice; then the gradient of the first: no forward of stage 0 comes after 0B0 and
    # tells that it arrived, so it stays until the next step has begun, as that of the second does: at first there
    # are both of the step before, and the receive
    assert during == [3, 1, 1, 1]
    sent = [
        row[0]
        for row in bytes_in_use(lifetimes(schedule)[0], weights([replace(nothing, sent=1), nothing])).tolist()
    ]
    assert sent == [1, 2, 1, 0]
    back = [
        row[0]
        for row in bytes_in_use(
            lifetimes(schedule)[0], weights([replace(nothing, returning=1), nothing])
        ).tolist()
    ]
    assert back == [2, 2, 2, 1]


NOTHING = StageBytes(saved=0)


def during(schedule: Schedule, sizes: list[StageBytes], worker: int = 0) -> list[int]:
    return [row[0] for row in bytes_in_use(lifetimes(schedule)[worker], weights(sizes)).tolist()]


def test_a_stage_of_the_same_worker_is_handed_what_it_reads_and_hands_back_its_gradient() -> None:
    """From the forward that makes it to the one that takes it, and from the backward to the end of the other."""
    schedule = from_text("0F0 0SYNC 1F0 1B0 0SYNC 0B0", place=((0, 0),), pipe_of=(0,))
    maker, reader = replace(NOTHING, handed=1, back=100), replace(NOTHING, near=10, arriving=1000)
    assert during(schedule, [maker, reader]) == [1, 1, 0, 0, 0, 0]
    assert during(schedule, [NOTHING, replace(NOTHING, crossing=1)]) == [0, 0, 0, 0, 1, 1]


def test_what_two_stages_of_a_worker_keep_is_held_once_unless_the_first_makes_it_anew() -> None:
    text, keeps = "0F0 1F0 1B0 0B0", [replace(NOTHING, saved=10), replace(NOTHING, shared=3)]
    one = from_text(text, place=((0, 0),), pipe_of=(0,))
    assert during(one, keeps) == [10, 10, 10, 10]
    anew = from_text(text.replace("0B0", "0R0 0B0"), place=((0, 0),), pipe_of=(0,))
    assert during(anew, keeps) == [0, 3, 3, 10, 10]
    apart = from_text("0F0 0B0\n1F0 1B0", place=((0, 1),), pipe_of=(0,))
    assert during(apart, keeps, worker=1) == [3, 3]


def test_what_comes_from_another_worker_past_a_neighbour_has_its_buffer() -> None:
    """The turn of a wave: the last stage has one neighbour beside it, and the first stage elsewhere."""
    schedule = from_text("0F0 0B0\n1F0 2F0 2B0 1B0", place=((0, 1, 1),), pipe_of=(0,))
    assert during(schedule, [NOTHING, NOTHING, replace(NOTHING, near=1)], worker=1) == [0, 0, 0, 1]
    far = replace(NOTHING, arriving=1)
    assert during(schedule, [NOTHING, NOTHING, far], worker=1) == [2, 0, 0, 1]
    assert during(schedule, [NOTHING, replace(NOTHING, returning=1, back=10), NOTHING], worker=1) == [0] * 4
