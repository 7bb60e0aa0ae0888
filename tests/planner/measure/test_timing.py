from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch

from planner.capture import capture
from planner.measure import timing
from planner.measure.bench import Bench, sample_cost
from planner.measure.passes import CpuClock, ProcessorClock, clock_of
from planner.measure.process.child import read_samples
from planner.measure.process.protocol import Done, MeasureProgress
from planner.measure.rows import measured_rows
from planner.measure.specimens import Way, real_specimen, situations
from planner.measure.timing import (
    VISITS,
    PassTimes,
    Samples,
    agreed,
    pass_times,
    shared_out,
    spread_of,
    time_rounds,
)
from planner.profile import Seconds
from planner.workload import Workload, load

T = TypeVar("T")


class Ticks:
    """A clock for which every action takes a second more than the one before."""

    def __init__(self) -> None:
        self.now = 0

    def time(self, action: Callable[[], T], into: list[float]) -> T:
        self.now += 1
        into.append(float(self.now))
        return action()

    def settle(self) -> None:
        pass


def test_the_median_and_half_the_distance_of_the_quartiles_are_kept() -> None:
    assert spread_of([5, 1, 4, 2, 3]) == Seconds(median=3, spread=1)
    assert spread_of([7]) == Seconds(median=7, spread=0)


def test_one_outlier_does_not_move_the_median() -> None:
    assert spread_of([1, 1, 1, 1, 1000]) == Seconds(median=1, spread=0)


def test_a_visit_that_lies_apart_widens_the_spread() -> None:
    assert spread_of([10, 10, 10], [10, 10], [13, 13]) == Seconds(median=10, spread=3)
    assert spread_of([10, 10, 10], [], [10]) == Seconds(median=10, spread=0)


@pytest.mark.parametrize("disturbed", [(0,), (1,), (0, 3), (2, 4)])
def test_of_visits_that_disagree_the_three_that_lie_closest_together_make_the_median_and_all_make_the_spread(
    disturbed: tuple[int, ...],
) -> None:
    visits = [[9.0, 10.0, 11.0] if i not in disturbed else [40.0 + i] * 9 for i in range(5)]
    assert agreed(visits) == Seconds(median=10, spread=30 + max(disturbed))


def test_visits_that_agree_have_the_spread_of_their_rounds() -> None:
    visits = [[9.0, 10.0, 11.0]] * 3
    assert agreed(visits) == spread_of(*visits)


def test_a_layer_without_a_pass_has_no_time_of_it() -> None:
    assert agreed([[], [], []]) == Seconds(median=0)


def test_a_pass_is_doubtful_where_its_visits_lie_apart_and_it_is_long_enough_to_matter() -> None:
    calm, apart = Seconds(median=0.01, spread=0.001), Seconds(median=0.01, spread=0.005)
    short = Seconds(median=0.0001, spread=0.0001)
    rows = {
        times: PassTimes(forward=calm, backward=times, input_grad=calm, weight_grad=calm)
        for times in (calm, apart, short)
    }
    assert [row.doubtful for row in rows.values()] == [False, True, False]


@pytest.mark.parametrize(("apart", "visits"), [(-1.0, 5), (math.inf, 3)])
def test_rows_whose_visits_disagree_are_visited_twice_more(
    apart: float, visits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "APART", apart)
    monkeypatch.setattr(timing, "APART_S", 0.0)
    workload = load("mlp")
    way = Way(precision="fp32", device="cpu", compiled=False, split=None, spatial=None)
    bench = Bench(
        batch_of=workload.batch, captured=capture(workload), micros=(2,), execution="eager", way=way
    )
    events = list(measured_rows(bench, bench.keys(), seconds_per_row=1e-9))
    done = Counter(event.key for event in events if isinstance(event, Done))
    assert done == dict.fromkeys(bench.keys(), visits)
    assert max(event.share for event in events if isinstance(event, MeasureProgress)) <= 1


def test_halves_that_share_operations_share_out_the_whole() -> None:
    halves = shared_out(Seconds(median=6), Seconds(median=3, spread=1), Seconds(median=9, spread=3))
    assert halves == (Seconds(median=1.5, spread=0.5), Seconds(median=4.5, spread=1.5))


def test_rounds_go_over_all_layers_and_drop_the_warm_up() -> None:
    workload = load("mlp")
    captured = capture(workload)
    batch = captured.batch_values(*workload.batch(2))
    specimens = [real_specimen(captured, x, batch, Way()) for x in situations(captured, batch, Way())]
    samples = [Samples() for _ in specimens]
    visit = VISITS[0]
    shares = list(time_rounds(specimens, samples, Ticks(), 1e-9, visit))
    assert shares[:2] == [0, 0] and shares[-1] == 1
    for specimen, row in zip(specimens, samples, strict=True):
        halves = visit.min_rounds if specimen.has_halves else 0
        lengths = [len(x) for x in (row.forward, row.backward, row.input_half, row.weight_half)]
        assert lengths == [visit.min_rounds, visit.min_rounds, halves, halves]
        times = pass_times(specimen, [row])
        assert times.input_grad.median + times.weight_grad.median == pytest.approx(times.backward.median)
    firsts = [row.forward[0] for row in samples]
    assert firsts == sorted(firsts), "forwards run in order"
    assert [row.backward[0] for row in samples] == sorted((row.backward[0] for row in samples), reverse=True)


def test_one_thread_is_timed_by_the_processor_and_several_by_the_wall() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert isinstance(clock_of("cpu"), ProcessorClock)
        torch.set_num_threads(2)
        assert isinstance(clock_of("cpu"), CpuClock)
    finally:
        torch.set_num_threads(before)


class Counted(list[int]):
    """A dataset that knows how often each sample was read."""

    regions = False

    def __init__(self, length: int) -> None:
        super().__init__([0] * length)

    def __getitem__(self, index: Any) -> Any:
        self[index] = super().__getitem__(index) + 1
        return torch.zeros(3), 1


def reads(data: object) -> Workload:
    workload = load("mlp")
    return replace(workload, functions={**workload.functions, "dataset": lambda: data})


def test_samples_are_timed_when_first_read_and_when_read_again() -> None:
    data = Counted(100)
    cost = sample_cost(reads(data))
    assert cost is not None and cost.sample_bytes == 3 * 4 + 8
    assert sorted(data) == [0] * 68 + [2] * 32
    assert min(cost.cold_s, cost.warm_s, cost.collate_s) > 0


class Uneven(list[int]):
    """A dataset whose every eighth sample takes long, and whose samples are read in two halves."""

    def raw(self, index: int) -> int:
        if index % 8 == 7:
            time.sleep(0.016)
        return index

    def finish(self, raw: int) -> Any:
        time.sleep(0.004)
        return torch.zeros(3), raw

    def __getitem__(self, index: Any) -> Any:
        return self.finish(self.raw(index))


def test_a_sample_takes_the_mean_of_uneven_ones_and_what_finishing_it_takes_is_known_apart() -> None:
    cost = sample_cost(reads(Uneven([0] * 32)))
    assert cost is not None
    assert cost.finish_s >= 0.004 and min(cost.cold_s, cost.warm_s) >= 0.006 and cost.cold_s > cost.finish_s
    whole = sample_cost(reads(Counted(100)))
    assert whole is not None and whole.finish_s == 0


def test_what_is_synthetic_or_read_by_regions_is_not_timed() -> None:
    data = Counted(3)
    data.regions = True
    assert sample_cost(load("mlp")) is None and sample_cost(reads(data)) is None and list(data) == [0, 0, 0]


def test_a_dataset_that_cannot_be_read_here_is_told_and_refuses_no_model() -> None:
    found = read_samples(reads([]))
    assert found.cost is None and found.why == "reading samples was not timed: dataset() has no samples"


def test_joining_a_batch_is_timed_for_the_batch_and_for_each_of_its_samples() -> None:
    def collate(samples: list[Any]) -> Any:
        time.sleep(0.008 + 0.002 * len(samples))
        return torch.utils.data.default_collate(samples)

    workload = reads(Counted(100))
    cost = sample_cost(replace(workload, functions={**workload.functions, "collate": collate}))
    assert cost is not None and cost.sample_bytes == 3 * 4 + 8
    assert 0.001 < cost.collate_s < 0.004 < 0.006 < cost.batch_s
    single = sample_cost(
        replace(reads(Counted(1)), functions={**reads(Counted(1)).functions, "collate": collate})
    )
    assert (
        single is not None and single.batch_s == 0 and single.collate_s > 0.01
    )  # one sample tells nothing apart
