"""What was missed stands first: below a section's claim, and gathered above all sections."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as every
from benchmarks import full_effort, profiling, quoted, skips, solver
from benchmarks.harness import MISSED, Cell, Result, Table, above, as_json, below, markdown

TABLE = Table(title="Times", columns=("s",), rows=[(7.0,)])


def result(name: str, date: str, *missed: str) -> Result:
    return Result(name=name, claim="Aim: 5 s.", tables=[TABLE], missed=missed, machine={"date": date})


def test_what_was_missed_stands_right_below_the_claim() -> None:
    text = markdown(result("probe", "2026-11-20", "It took 7 s.", "It took 2 GiB."))
    head = "## probe\n\nAim: 5 s.\n\n**Missed:** It took 7 s.\n\n**Missed:** It took 2 GiB.\n\n### Times\n"
    assert text.startswith(head)
    assert MISSED not in markdown(result("probe", "2026-11-20"))


def test_one_figure_over_its_limit_is_told_with_both_and_one_at_it_is_not() -> None:
    assert above("The solve", [("", 7.0)], 5, " s") == ("The solve came to 7 s, and the aim is 5 s.",)
    assert above("The solve", [("", 5)], 5, " s") == ()
    assert below("The gain", [("", 1.9)], 1.9) == ()


def test_of_several_figures_the_worst_is_named_and_those_that_miss_are_counted() -> None:
    figures: list[tuple[str, Cell]] = [("a", 6.0), ("b", 9.5), ("c", 4.0), ("not measured", None)]
    assert above("The step", figures, 5, " ms") == (
        "The step came to 9.5 ms at worst (b); the aim of 5 ms was missed in 2 of 3 cases.",
    )
    assert below("The gain", figures, 5, " ms") == (
        "The gain came to 4 ms at worst (c); the aim of 5 ms was missed in 1 of 3 cases.",
    )


def test_the_list_gathers_every_section_and_says_the_oldest_date() -> None:
    found = [
        result("late", "2026-11-22", "It took 7 s."),
        result("early", "2026-11-20"),
        result("two", "2026-11-21", "It took 8 s.", "It took 2 GiB."),
    ]
    assert every.missed({each.name: markdown(each) for each in found}) == (
        "What was missed (sections measured since 2026-11-20):\n\n"
        "- late: It took 7 s.\n- two: It took 8 s.\n- two: It took 2 GiB.\n"
    )


def test_where_nothing_was_missed_the_list_says_so() -> None:
    met = {"probe": markdown(result("probe", "2026-11-20"))}
    assert every.missed(met) == "What was missed (sections measured since 2026-11-20):\n\nNothing.\n"
    assert every.missed({}) == "What was missed:\n\nNothing.\n"


def test_a_run_of_one_script_renews_its_line_and_keeps_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, results = tmp_path / "benchmarks", tmp_path / "RESULTS.md"
    package.mkdir()
    for name in ("__init__", "early", "late", "broken"):
        (package / f"{name}.py").touch()
    monkeypatch.setattr(every, "HERE", package)
    monkeypatch.setattr(every, "RESULTS", results)
    first = [result("early", "2026-11-20", "It took 7 s."), result("late", "2026-11-22", "It took 8 s.")]
    every._write({each.name: markdown(each) for each in first})
    better = as_json(result("late", "2026-11-23", "It took 6 s."))
    (package / "late.py").write_text(f"print({better!r})\n")
    (package / "broken.py").write_text("raise OSError('full')\n")
    monkeypatch.setattr("sys.argv", ["benchmarks", "late", "broken"])
    assert every.main() == 1
    text = results.read_text()
    head = text.partition("## ")[0]
    assert head.count("\n- ") == 3 and "8 s" not in text
    assert "- early: It took 7 s.\n- late: It took 6 s.\n- broken: broken failed: OSError: full\n" in head
    assert list(quoted.sections(text)) == ["early", "late", "broken"]


def test_a_run_of_a_part_is_told_and_keeps_the_section_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package, results = tmp_path / "benchmarks", tmp_path / "RESULTS.md"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "probe.py").write_text(
        f"print({as_json(replace(result('probe', '2026-11-23', 'It took 9 s.'), part=True))!r})\n"
    )
    monkeypatch.setattr(every, "HERE", package)
    monkeypatch.setattr(every, "RESULTS", results)
    every._write({"probe": markdown(result("probe", "2026-11-20", "It took 7 s."))})
    before = results.read_text()
    monkeypatch.setattr("sys.argv", ["benchmarks", "probe", "--only", "one"])
    assert every.main() == 0
    assert results.read_text() == before
    assert "It took 9 s." in capsys.readouterr().out


def test_what_was_missed_comes_back_from_a_script_as_it_was_said() -> None:
    facts = json.loads(as_json(result("probe", "2026-11-20", "It took 7 s.")))
    assert facts["missed"] == ["It took 7 s."]


def test_the_list_of_the_results_is_that_of_their_sections() -> None:
    text = quoted.RESULTS.read_text()
    parts = {name: f"## {name}{body}" for name, body in quoted.sections(text).items()}
    assert every.missed(parts) in text.partition("\n## ")[0] + "\n"


def test_a_solve_that_keeps_its_seconds_and_gap_is_no_miss() -> None:
    asked = [each for each in solver.INSTANCES if each.aim_s][:1]
    assert asked[0].by_shape

    def row(gap: float, wall_s: float) -> tuple[Cell, ...]:
        return (asked[0].name, 48, 6, 4, 0, "plan", 1.0, gap, 0.0, None, None, wall_s, wall_s)

    assert solver.missed(asked, [row(0.0, 1.9)], ()) == ()
    slow, open_ = solver.missed(asked, [row(2.5, 8.0)], ())
    assert "8 s for the 2 shapes" in slow and "2.5 %" in open_
    assert solver.missed(asked, [row(0.0, 1.0)], [("gpipe", 1.0, 0.0, 3.5, 0.1)]) == (
        "The mean gap to any order came to 3.5 %, and the aim is 3 %.",
    )


def test_a_family_that_saves_too_few_bytes_is_named() -> None:
    rows: list[tuple[Cell, ...]] = [
        (2, "1f1b", 1.0, None, 4.0, None, None),
        (2, "zb-v", 1.0, 2.0, 8.0, 75.0, None),
        (2, "wave", 1.0, 0.0, 8.0, 100.0, 100.0),
    ]
    assert skips.missed(rows) == (
        "The saving over relaying by its own stages came to 75 % at worst (zb-v on 2 devices); the aim of 80 % was "
        "missed in 1 of 2 cases.",
    )


def test_a_profile_that_changed_by_more_than_it_states_is_named() -> None:
    held: tuple[Cell, ...] = ("mlp", 16, 0, 0.0, 3.0, 50.0, "0.9")
    changed: tuple[Cell, ...] = ("unet3d", 100, 2, 25.0, 14.0, 12.0, "0.9")
    assert profiling.missed((), (), (), [held]) == ()
    rows, total = profiling.missed((), (), (), [held, changed])
    assert rows == "2 of 116 rows changed by more than their spread within 10 minutes."
    assert total.startswith("The distance of two profiles of unet3d") and "14 %, and the aim is 12 %" in total


def test_full_effort_misses_what_is_left_of_either_gap() -> None:
    def told(gap: float, own: float) -> tuple[str, ...]:
        return full_effort.missed([("2,048 devices", 226.5, gap, own, 3, 9.0, 9.0)])

    assert told(1.0, 0.7) == ()
    assert told(3.7, 0.7) == (
        "The gap, other cuts of rescheduled orders included, came to 3.7 %, and the aim is 1 %.",
    )
    assert told(3.7, 1.2)[0] == "The gap to own orders came to 1.2 %, and the aim is 1 %."
