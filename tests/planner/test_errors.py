"""An error that nobody foresaw is one message and a file; what caused an error is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from planner.cli.app import answer, app
from planner.errors import BadInput, Violation, causes, during, without_alike


def failing() -> typer.Typer:
    made = app("fails")

    @made.command("fail")
    def fail() -> None:
        with during("capturing the model"):
            [].pop()

    return made


def test_an_unforeseen_error_names_the_step_and_leaves_its_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(failing, ["fail"]) == 1
    said = capsys.readouterr().err
    assert "unexpected IndexError, while capturing the model: pop from empty list" in said
    assert "Traceback" not in said
    (file,) = tmp_path.glob("shardwright-error-*.txt")
    assert file.name in said and "[].pop()" in file.read_text()


def test_debug_prints_the_traceback_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(failing, ["fail", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_causes_are_told_unless_the_message_says_them() -> None:
    told, untold = BadInput("it failed: no such thing"), BadInput("it failed")
    for error in (told, untold):
        error.__cause__ = ValueError("no such thing")
    assert causes(told) == [] and causes(untold) == ["ValueError: no such thing"]


def test_violations_that_differ_in_numbers_only_are_told_three_times_and_counted() -> None:
    alike = [Violation(rule="memory", where=f"stage {i}", message=f"holds {7 * i} B") for i in range(64)]
    other = Violation(rule="batch", where="", message="is 3")
    told = [f"{each}{more}" for each, more in without_alike([alike[0], other, *alike[1:]])]
    assert told == [
        "memory: stage 0: holds 0 B",
        "memory: stage 1: holds 7 B",
        "memory: stage 2: holds 14 B (and 61 more like it, up to stage 63)",
        "batch: is 3",
    ]
    assert all(not more for _, more in without_alike(alike[:4]))
