"""What a search keeps thousands of is stored without what is never there, and says the same."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cuts import KINDS, CutRow, Order
from planner.schedule import generate
from planner.simulate import lifetimes, memory_rows

SCHEDULES: list[tuple[str, int, int, int]] = [("1f1b", 4, 8, 1), ("interleaved", 4, 8, 3), ("zb-v", 4, 8, 2)]


def order_of(family: str, workers: int, micros: int, chunks: int) -> Order:
    return Order(generate(family, workers=workers, micros=micros, chunks=chunks))


@pytest.mark.parametrize("case", SCHEDULES)
def test_moments_say_what_the_simulators_rows_of_all_stages_say(case: tuple[str, int, int, int]) -> None:
    order, rng = order_of(*case), np.random.default_rng(0)
    stages = order.schedule.stages
    for own, rows in zip(order.moments, memory_rows(lifetimes(order.schedule), stages), strict=True):
        sizes = rng.integers(1, 1 << 40, rows.shape[1:])
        assert len(own) == len(rows)
        assert (own.rows == rows).all()
        assert (own.bytes_of(sizes) == (rows * sizes).sum((1, 2))).all()
        assert all((own.stage(s) == rows[:, s]).all() for s in range(stages))


@pytest.mark.parametrize("case", SCHEDULES)
def test_a_worker_has_moments_of_its_own_stages_alone(case: tuple[str, int, int, int]) -> None:
    order = order_of(*case)
    place = np.array(order.schedule.place)
    for worker, own in enumerate(order.moments):
        parts = own.shape[1]
        assert set((own.used // parts).tolist()) <= set(np.flatnonzero((place == worker).any(0)).tolist())
        assert own.counts.shape[1] < own.shape[0] * parts / 2


def test_a_path_stores_the_messages_that_it_takes_and_tells_of_all() -> None:
    nothing = np.zeros((len(KINDS), 3), np.int64)
    row = CutRow(kinds=nothing, cells=np.array([1, 9 + 3]), counts=np.array([5, 7]))
    hops = np.zeros((2, 3, 3), np.int64)
    hops[0, 0, 1], hops[1, 1, 0] = 5, 7
    assert (row.hops == hops).all()
