"""Losses of a run from the lines of its ranks: whole steps only, and of what was done twice the later."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from runtime.runfolder import MetricLines, Paths, durable, losses_of, mean_loss, metrics, recent, steps_of


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


def machine(step: int, processor_s: float, generation: int = 0) -> str:
    row = json.loads(line(step, {0: 1.0}, micros=1, generation=generation, seconds=step))
    return json.dumps(row | {"machine": [processor_s, 1.0, 3.5, 2]})


def test_a_step_takes_what_the_steps_of_the_last_start_took_without_its_warm_up(paths: Paths) -> None:
    rows = [line(step, {0: 1.0}, micros=1, seconds=50.0) for step in range(1, 9)]
    again = [line(step, {0: 2.0}, micros=1, generation=1, seconds=step) for step in range(7, 12)]
    write(paths, 0, *rows, *again)
    found = recent(paths)
    assert (found.done, found.loss, found.seconds) == (11, 2.0, (9, 10, 11))


def test_a_machine_that_others_work_on_is_named(paths: Paths) -> None:
    write(paths, 0, *(machine(step, 0.4) for step in range(1, 6)))
    assert "each had 40% of a processor (load 3.5 on 2 cores)" in recent(paths).machine
    write(paths, 0, *(machine(step, 0.99) for step in range(1, 6)))
    assert recent(paths).machine == ""
    write(paths, 0, machine(1, 0.1), machine(2, 0.1), *(machine(step, 1.0) for step in (3, 4)))
    assert recent(paths).machine == "", "the warm-up loads code, and says nothing"


def test_of_a_long_run_the_ends_of_the_files_are_read_alone(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        rows = (line(step, {rank: 1.0}, seconds=step) for step in range(1, 100_001))
        paths.rank_metrics(rank).write_text("".join(f"{row}\n" for row in rows))
    read: list[int] = []

    def counted(value: bytes, path: Path) -> object:
        read.append(len(value))
        return parsed(value, path)

    parsed = metrics._row
    monkeypatch.setattr(metrics, "_row", counted)
    found = recent(paths)
    assert (found.done, found.seconds[-1]) == (100_000, 100_000)
    assert sum(read) <= metrics.TAIL_BYTES


def test_a_file_that_grows_too_long_keeps_its_last_steps_and_some_of_the_earlier_ones(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ranks whose lines differ in length, so that they thin their files out at different steps."""
    most = 2**15
    monkeypatch.setattr(durable, "MOST_STEPS_BYTES", most)
    for step in range(1, 4_001):
        for rank in range(2):
            losses = {rank: float(step)} if rank == 0 else {rank: float(step), rank + 1: 0.0}
            durable.append_step(paths.rank_metrics(rank), line(step, losses, micros=3))
            assert paths.rank_metrics(rank).stat().st_size <= most + 200
    found = losses_of(paths)
    assert set(range(4_000 - 100, 4_001)) <= set(found), "the last steps are whole"
    assert len([step for step in found if step < 2_000]) > 5, "and some of the first ones are left"
    assert all(loss == pytest.approx(2 * step / 3) for step, loss in found.items())


def test_who_follows_a_run_sees_each_step_once_though_its_file_is_thinned_out(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "MOST_STEPS_BYTES", 2**13)
    lines, told = MetricLines(paths), list[int]()
    for step in range(1, 501):
        durable.append_step(paths.rank_metrics(0), line(step, {0: 1.0}, micros=1))
        told += [number for _, number, _ in lines.complete()]
    assert told == list(range(1, 501))
    assert paths.rank_metrics(0).stat().st_size <= 2**13 + 200


def test_where_no_second_file_has_room_the_steps_stay(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "MOST_STEPS_BYTES", 1)

    def full(path: Path, most: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "thin_out", full)
    for step in range(1, 4):
        durable.append_step(paths.rank_metrics(0), line(step, {0: 1.0}, micros=1))
    assert list(losses_of(paths)) == [1, 2, 3]
