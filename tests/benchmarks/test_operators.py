"""The benchmark of torch's operators goes on where it was stopped, and says how each operator ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks import operators
from benchmarks.operators import AROUND, CRASHED, NONE, REFUSED, SHARDS, WRONG, Ended, Journal, judged
from tests.runtime.spatial import operators as samples
from tests.runtime.spatial.operators import Judged

ENDS = {
    "abs": Ended(SHARDS, 3),
    "add": Ended(AROUND, 6),
    "chunk": Ended(REFUSED, 3, f"{operators.ROOT}/a file: 1 | 2"),
    "ones": Ended(NONE),
}


def test_an_operator_is_judged_once_and_none_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    asked: list[str] = []

    def judge(name: str) -> Ended:
        asked.append(name)
        return ENDS[name]

    file = tmp_path / "operators.jsonl"
    first = Journal(file).judge(["abs", "add"], judge)
    assert {name: x.how for name, x in first.items()} == {"abs": SHARDS, "add": AROUND}
    assert all(x.seconds > 0 for x in first.values())
    assert Journal(file, time.monotonic() - 1).judge(list(ENDS), judge) == first
    assert list(Journal(file).judge(list(ENDS), judge)) == list(ENDS)
    assert asked == list(ENDS)


@pytest.mark.parametrize(
    ("found", "how"),
    [
        (["on shards", "on shards"], SHARDS),
        (["on shards", "gathered around"], AROUND),
        (["on shards", "no rule"], REFUSED),
        ([], NONE),
        (AssertionError("apart"), WRONG),
        (KeyError("x"), CRASHED),
    ],
)
def test_an_operator_ends_as_the_worst_of_its_samples(
    found: list[str] | Exception, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def each(name: str) -> list[Judged]:
        if isinstance(found, Exception):
            raise found
        return [Judged(name, 0, (2,), x) for x in found]

    monkeypatch.setattr(samples, "judged", each)
    assert judged("abs").how == how


def test_what_a_part_of_the_operators_gave_is_no_result_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "database", lambda: ENDS)
    file = tmp_path / "operators.jsonl"
    known = Journal(file)
    known.judge(["abs", "add", "chunk"], ENDS.__getitem__)
    assert operators.result_of(False, Journal(file, time.monotonic() - 1)).part
    known.judge(list(ENDS), ENDS.__getitem__)
    whole = operators.result_of(False, known)
    assert not whole.part and whole.seconds > 0
    assert whole.missed == ("2 of 3 operators are exact; the aim is 88%.",)
    assert whole.tables[1].rows == [("chunk", "a file: 1 / 2")]
