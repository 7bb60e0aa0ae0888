"""GPipe, 1F1B, ZB-H1 and ZB-H2 against their published bubbles and memory."""

from __future__ import annotations

import pytest

from planner.schedule import generate
from planner.schedule.families.straight import warmup_of
from tests.planner.schedule.slots import peaks, period, span, thirds

SHAPES = [
    (workers, micros) for workers in (1, 2, 3, 4, 7, 8, 16, 24) for micros in range(1, 4 * workers + 1, 3)
]


@pytest.mark.parametrize("family", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b_idle_for_one_forward_and_backward_of_every_other_worker(family: str) -> None:
    for workers, micros in SHAPES:
        schedule = generate(family, workers=workers, micros=micros)
        assert span(schedule) == 2 * (micros + workers - 1)
        assert span(schedule, thirds) == 3 * (micros + workers - 1)


def test_gpipe_holds_every_micro_batch_and_1f1b_one_for_each_worker_from_here_on() -> None:
    for workers, micros in SHAPES:
        assert peaks(generate("gpipe", workers=workers, micros=micros)) == [micros] * workers
        held = [min(micros, workers - worker) for worker in range(workers)]
        assert peaks(generate("1f1b", workers=workers, micros=micros)) == held


def test_a_longer_warm_up_holds_more_and_hides_hops() -> None:
    hops = {edge: 1 for s in range(7) for edge in ((s, s + 1), (s + 1, s))}
    plain, eager = (generate("1f1b", workers=8, micros=32, warmup=w) for w in (8, 15))
    assert peaks(eager) == [15, 13, 11, 9, 7, 5, 3, 1]
    assert span(eager, thirds, hops) < span(plain, thirds, hops)
    assert span(eager, thirds, hops) == 3 * (32 + 7) + 2 * 7


@pytest.mark.parametrize("first", [1, 2, 5, 8, 11, 40])
def test_any_warm_up_runs_and_none_is_shorter_than_the_next_workers(first: int) -> None:
    warmups = [warmup_of(worker, 8, first) for worker in range(8)]
    assert warmups == sorted(warmups, reverse=True)
    assert (warmups[0], warmups[-1]) == (first, 1)
    assert [warmup_of(worker, 8, 11) for worker in range(8)] == [11, 10, 9, 7, 6, 4, 3, 1]
    for micros in (1, 5, 8, 20):
        span(generate("1f1b", workers=8, micros=micros, warmup=first))


def test_zb_h1_has_a_third_of_1f1bs_bubble_in_its_memory() -> None:
    for workers, micros in SHAPES:
        schedule = generate("zb-h1", workers=workers, micros=micros)
        assert max(peaks(schedule)) == min(micros, workers)
        if micros >= workers:
            assert span(schedule, thirds) == 3 * micros + workers - 1


def test_zb_h2_never_stops_between_fill_and_drain_in_twice_the_memory() -> None:
    for workers, micros in SHAPES:
        schedule = generate("zb-h2", workers=workers, micros=micros)
        assert max(peaks(schedule)) == min(micros, 2 * workers - 1)
        if micros >= workers:
            assert span(schedule, thirds) == 3 * micros + workers - 1


def test_only_zb_h2_gets_shorter_where_the_next_step_starts_as_workers_come_free() -> None:
    periods = {
        f: period(generate(f, workers=8, micros=16), thirds) for f in ("1f1b", "gpipe", "zb-h1", "zb-h2")
    }
    assert periods == {"1f1b": 69, "gpipe": 69, "zb-h1": 55, "zb-h2": 48}
    assert span(generate("zb-h2", workers=8, micros=16), thirds) == 55
