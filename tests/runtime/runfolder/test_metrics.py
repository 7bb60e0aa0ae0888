"""Losses of a run from the lines of its ranks: whole steps only, and of what was done twice the later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.runfolder import Paths, losses_of, mean_loss, steps_of


def line(
    step: int, losses: dict[int, float], *, micros: int = 2, generation: int = 0, seconds: float = 1.0
) -> str:
    rows = {str(micro): {"loss:0": loss} for micro, loss in losses.items()}
    return json.dumps(
        {"step": step, "generation": generation, "micros": micros, "seconds": seconds, "losses": rows}
    )


def write(paths: Paths, rank: int, *lines: str) -> None:
    paths.rank_metrics(rank).write_text("".join(f"{row}\n" for row in lines))


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path).make()


def test_a_step_counts_when_all_who_have_a_share_have_finished_it(paths: Paths) -> None:
    write(paths, 0, line(1, {0: 1.0}), line(2, {0: 5.0}))
    write(paths, 1, line(1, {1: 2.0}, seconds=3.0))
    write(paths, 2, line(1, {}, seconds=9.0), line(2, {}))
    assert losses_of(paths) == {1: 1.5}
    assert steps_of(paths)[1].seconds == 3.0


def test_of_a_step_done_twice_the_later_counts_whatever_its_micro_batches(paths: Paths) -> None:
    write(paths, 0, line(1, {0: 1.0}), line(2, {0: 7.0}), line(2, {0: 4.0}, micros=1, generation=1))
    write(paths, 1, line(1, {1: 3.0}), line(2, {1: 9.0}))
    assert losses_of(paths) == {1: 2.0, 2: 4.0}


def test_a_step_that_its_second_try_did_not_finish_keeps_the_first(paths: Paths) -> None:
    write(paths, 0, line(1, {0: 1.0}), line(2, {0: 2.0}), line(2, {0: 8.0}, generation=1))
    write(paths, 1, line(1, {1: 1.0}), line(2, {1: 2.0}))
    assert losses_of(paths) == {1: 1.0, 2: 2.0}


def test_half_a_line_is_none(paths: Paths) -> None:
    paths.rank_metrics(0).write_text(line(1, {0: 1.0}, micros=1) + "\n" + line(2, {0: 1.0}, micros=1)[:-9])
    assert losses_of(paths) == {1: 1.0}


def test_losses_with_counts_are_a_mean_over_what_is_counted() -> None:
    assert mean_loss({0: {"loss:0": 6.0, "loss:1": 2.0}, 1: {"loss:0": 1.0, "loss:1": 5.0}}) == 1.0
