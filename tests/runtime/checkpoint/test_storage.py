"""The interval between checkpoints loses the least, by the formulas and by playing it through."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest

from runtime.checkpoint import steps_between, write_s
from runtime.checkpoint.storage import interval_s


def lost(interval: float, cost: float, mean: float, seed: int) -> float:
    """Share of the time that goes into checkpoints and work done again, over many failures."""
    draw, total, useful = Random(seed), 0.0, 0.0
    for _ in range(20_000):
        until = draw.expovariate(1 / mean)
        done = math.floor(until / (interval + cost))
        total, useful = total + until, useful + done * interval
    return 1 - useful / total


@pytest.mark.parametrize(("cost", "mean"), [(1.0, 1000.0), (10.0, 1000.0), (60.0, 600.0)])
def test_no_other_interval_loses_less(cost: float, mean: float) -> None:
    best = interval_s(cost, mean)
    chosen = lost(best, cost, mean, 1)
    assert all(lost(best * factor, cost, mean, 1) > chosen for factor in (0.4, 0.6, 1.7, 2.5))


def test_a_cheap_checkpoint_comes_to_youngs_formula() -> None:
    assert interval_s(1e-3, 1e6) == pytest.approx(math.sqrt(2 * 1e-3 * 1e6), rel=1e-3)


def test_where_checkpoints_take_longer_than_failures_need_it_is_the_time_between_failures() -> None:
    assert interval_s(100.0, 40.0) == 40.0


def test_steps_are_whole_and_at_least_one() -> None:
    assert steps_between(0.5, 1.0, 5000.0) == round(interval_s(1.0, 5000.0) / 0.5)
    assert steps_between(3600.0, 1.0, 60.0) == 1


def test_writing_is_judged_by_the_disk_and_leaves_nothing(tmp_path: Path) -> None:
    assert write_s(tmp_path, 2**30) > write_s(tmp_path, 2**10) > 0
    assert list(tmp_path.iterdir()) == []
