"""What takes longer than a second says so: a line where nobody looks at a terminal, a bar where somebody does."""

from __future__ import annotations

import io
import threading

import pytest

from planner.shown import CellBar
from planner.terminal import LiveLine, Report, console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_tells_the_time_left() -> None:
    assert Report("profile").line(0.25, spent_s=10) == "profile: 25%, about 30 s left"
    assert Report("profile").line(0.01, spent_s=10) == "profile: 1%", (
        "the first steps take longer than others"
    )
    assert Report("profile").line(0.0, spent_s=10) == "profile: 0%"


def test_a_step_is_spoken_of_once_it_has_lasted_a_second_and_then_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    said = io.StringIO()

    def at(now_s: float, doing: str) -> None:
        clock[0] = now_s
        report.at(0.5, doing)

    with Report("probe", said) as report:
        for now_s, doing in (
            (100.0, "a"),
            (100.9, "a"),
            (101.1, "a"),
            (102.0, "b"),
            (103.1, "b"),
            (112.0, "b"),
        ):
            at(now_s, doing)
        assert said.getvalue().splitlines() == [
            "probe: a: 50%, about 1 s left",
            "probe: b: 50%, about 3 s left",
        ]
        at(113.2, "b")
    assert said.getvalue().count("probe: b") == 2


def test_a_step_that_nobody_can_ask_is_spoken_of_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "FIRST_LINE_S", 0.001)
    with Report("rehearse") as report, report.step(0.5, "rank 1, 2 of 4"):
        threading.Event().wait(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines and set(lines) == {"rehearse: rank 1, 2 of 4: 0 s so far"}


def test_a_terminal_has_a_bar_with_the_step_in_it() -> None:
    screen = Terminal()
    with Report("rehearse", screen) as report:
        with report.step(0.5, "rank 1"):
            pass
        report.at(1.0, "rank 2")
    assert "rehearse: rank 1" in screen.getvalue() and "rehearse: rank 2" in screen.getvalue()


def test_before_the_first_word_there_is_no_thread_so_that_a_process_may_fork() -> None:
    before = threading.active_count()
    with Report("probe", Terminal()):
        assert threading.active_count() == before


def test_a_line_leaves_out_what_there_is_no_room_for() -> None:
    line = LiveLine("planning gpt2")
    line.tell(["3 of 20 configurations", "best 28.61 ms"])
    assert line.text(12) == "planning gpt2: 3 of 20 configurations, best 28.61 ms, 12 s"
    assert line.text(12, room=54) == "planning gpt2: 3 of 20 configurations, best 28.61 ms"
    assert line.text(12, room=40) == "planning gpt2: 3 of 20 configurations"
    assert line.text(12, room=20) == ""


def test_a_line_is_written_in_place_on_a_terminal_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console, "FIRST_LINE_S", 0.001)
    screen, file = Terminal(), io.StringIO()
    for stream in (screen, file):
        with LiveLine("planning", stream=stream) as line:
            line.tell(["3 of 20"])
            threading.Event().wait(0.1)
    assert screen.getvalue().startswith("\r\x1b[2Kplanning: ") and screen.getvalue().endswith("\r\x1b[2K")
    assert "\n" not in screen.getvalue() and file.getvalue() == ""


def test_a_line_says_how_much_longer_it_may_take_once_that_can_be_judged() -> None:
    line = LiveLine("planning gpt2")
    line.tell(["3 of 9 configurations"], 0.01)
    assert line.text(2.0) == "planning gpt2: 3 of 9 configurations, 2 s"
    line.tell(["4 of 9 configurations"], 0.25)
    assert line.text(10.0) == "planning gpt2: 4 of 9 configurations, 10 s, up to 30 s more"


class Shell:
    """A notebook's shell, as IPython gives it."""

    kernel = object()


def test_a_cell_says_how_far_a_long_task_is_and_a_terminal_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    import IPython.display

    told: list[str] = []

    class Kept:
        def update(self, data: dict[str, str], **_: object) -> None:
            told.append(data["text/plain"])

    def display(data: dict[str, str], **_: object) -> Kept:
        told.append(data["text/plain"])
        return Kept()

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr("planner.shown.FIRST_BAR_S", 0.0)
    with CellBar("planning") as bar:
        bar.tell(0.5, ["step 1 of 2"])
    assert not bar.shown and told == []
    monkeypatch.setattr(IPython, "get_ipython", Shell)
    with CellBar("planning") as bar:
        bar.tell(0.5, ["step 1 of 2"])
        bar.tell(1.0, ["step 2 of 2"])
    assert [line.split(",")[0] for line in told] == ["planning: step 1 of 2", "planning: step 2 of 2", ""]
