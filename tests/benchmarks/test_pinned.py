"""Pins of a question are asked once, however often the benchmark is stopped."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks import pinned
from benchmarks.solver import P100, Instance, chain, flat

SMALL = Instance(name="small", profile=chain(3, P100, (1,)), cluster=flat(2, P100), batch=2)


def test_what_the_journal_has_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pinned.jsonl"
    found, left = pinned.row(SMALL, pinned.Journal(path))
    assert left == 0
    assert found[1] == sum(ns is not None for ns in pinned.Journal(path).known().values()) > 0
    monkeypatch.setattr(pinned, "solved_ns", lambda question: pytest.fail("a pin was asked twice"))
    assert pinned.row(SMALL, pinned.Journal(path)) == (found, 0)


def test_pins_that_time_does_not_suffice_for_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned, "INSTANCES", (SMALL, SMALL))
    monkeypatch.setattr(pinned, "MORE", ())
    result = pinned.result_of(False, pinned.Journal(tmp_path / "pinned.jsonl", time.monotonic() - 1))
    assert result.missed == ("1 of 1 questions were not asked with all pins; `--journal` goes on.",)
