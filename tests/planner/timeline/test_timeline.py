from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.errors import BadInput
from planner.schedule import Action, Kind
from planner.timeline import (
    COLLECTIVE,
    CONVERSION_COLUMNS,
    SEND,
    Event,
    Timeline,
    compare,
    compared_rows,
    concatenate,
    converting_ns,
    decode,
    encode,
    from_events,
    in_words,
)


@pytest.mark.parametrize(
    "event",
    [
        Event("F", 0),
        Event("B", 65535, 16_777_215, 1023),
        Event(COLLECTIVE, 3),
        Event(SEND, 2, 7, 1),
        Event("STEP", 9),
    ],
)
def test_an_event_is_one_integer_and_comes_back(event: Event) -> None:
    assert decode(encode(event)) == event


def test_an_action_and_the_event_of_its_name_have_one_code_and_one_text() -> None:
    action = Action(Kind.I, 3, 5, 1)
    assert encode(action) == encode(Event("I", 3, 5, 1))
    assert str(decode(encode(action))) == str(action) == "3I5'"


def trace(step_ns: int, steps: int = 2) -> Timeline:
    rows = []
    for step in range(steps):
        at = 1000 * step
        rows.append((step, 0, encode(Event("F", 0)), at, at + step_ns, 0))
        rows.append((step, 1, encode(Event("F", 1)), at + step_ns, at + 2 * step_ns, step_ns))
    return from_events(rows)


def test_predicted_and_measured_are_laid_side_by_side() -> None:
    found = compare(trace(10, steps=1), trace(12))
    assert [(d.stage, d.predicted_ns, d.measured_ns, d.times) for d in found.events] == [
        (0, 10, 12, 2),
        (1, 10, 12, 2),
    ]
    assert [(d.a_step, d.longer_ns) for d in found.events] == [(1, 2), (1, 2)]
    assert (found.predicted_step_ns, found.measured_step_ns, found.ratio) == (20, 24, 1.2)
    assert (found.measured_idle_ns, found.predicted_idle_ns) == (24 - 12, 20 - 10)  # each rank works one half
    assert "a rank waited or summed gradients for 12 ns of it, 10 ns predicted" in in_words(found)
    assert (found.missing, found.extra) == ((), ())


def test_what_made_a_step_longer_by_most_stands_first_however_small_its_ratio() -> None:
    def two(forward_ns: int, update_ns: int) -> Timeline:
        rows = [
            (0, 0, encode(Event("F", 0, micro)), 100 * micro, 100 * micro + forward_ns, 0)
            for micro in range(4)
        ]
        return from_events([*rows, (0, 0, encode(Event("STEP", 0)), 900, 900 + update_ns, 0)])

    rows = compared_rows(compare(two(20, 1), two(30, 10)))
    assert [(row[0], row[1], row[-1]) for row in rows] == [("0F", "4", "40 ns"), ("0STEP", "1", "9 ns")]


def test_what_only_one_side_has_is_named() -> None:
    extra = concatenate([trace(10), from_events([(0, 0, encode(Event("R", 1)), 0, 5, 0)])])
    assert compare(trace(10), extra).extra == ("1R",)
    assert compare(extra, trace(10)).missing == ("1R",)


def test_warm_up_steps_are_left_out() -> None:
    slow = from_events(
        [(0, 0, encode(Event("F", 0)), 0, 900, 0), (1, 0, encode(Event("F", 0)), 1000, 1010, 0)]
    )
    assert compare(trace(10), slow, skip_steps=1).measured_step_ns == 10


def test_rows_are_for_reading() -> None:
    assert trace(10).to_rows()[1] == {
        "step": 0, "rank": 1, "event": "1F0", "start_ns": 10, "end_ns": 20, "wait_ns": 10,
    }  # fmt: skip


def test_the_selection_of_a_rank_and_step_takes_its_memory_along() -> None:
    samples = {
        "memory_step": np.array([0, 1]), "memory_rank": np.array([0, 0]),
        "memory_ns": np.array([5, 6]), "memory_bytes": np.array([70, 80]),
    }  # fmt: skip
    both = concatenate([trace(10), Timeline(**samples)])
    assert both.peak_bytes == {0: 80}
    assert both.of_rank(0, step=0).peak_bytes == {0: 70}
    assert both.of_step(1).end_ns.tolist() == [1010, 1020]


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(BadInput, match="differ in length"):
        Timeline(step=np.array([1]))


def test_a_file_that_is_no_timeline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    (tmp_path / "bad.jsonl").write_text('{"step": 0, "colour": 3}\n')
    (tmp_path / "list.jsonl").write_text("[1, 2]\n")
    trace(10).save(tmp_path / "whole.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-40])
    np.savez(tmp_path / "code.npz", **{**trace(10).to_dict(), "code": [0, 0, 0, -1]})
    np.savez(tmp_path / "objects.npz", step=np.array([{}], dtype=object))
    for name, says in [
        ("bad.npz", "cannot read"),
        ("bad.jsonl", "colour"),
        ("list.jsonl", "cannot read"),
        ("cut.npz", "cannot read"),
        ("code.npz", "the code of no event"),
        ("objects.npz", "cannot read"),
        ("absent.npz", "cannot read"),
    ]:
        with pytest.raises(BadInput, match=says):
            Timeline.load(tmp_path / name)
    with pytest.raises(BadInput, match=r"\.npz or \.jsonl"):
        trace(1).save(tmp_path / "trace.csv")


@pytest.mark.parametrize("ending", ["npz", "jsonl"])
def test_what_conversions_took_is_kept_with_a_timeline(tmp_path: Path, ending: str) -> None:
    code = encode(Event("F", 1))
    rows = np.array([(0, 0, code, 5), (0, 1, code, 7), (1, 0, code, 100)])
    columns = {name: rows[:, i] for i, name in enumerate(CONVERSION_COLUMNS)}
    path = tmp_path / f"trace.{ending}"
    replace(trace(10), **columns).save(path)
    assert converting_ns(Timeline.load(path), [0]) == {("F", 1): 6}
    assert converting_ns(trace(10), [0]) == {}
