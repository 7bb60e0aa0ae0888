from __future__ import annotations

from xml.etree import ElementTree

import pytest

from planner.schedule import generate
from planner.show import timelines as views
from planner.simulate import StageBytes, compile, duration_vector, simulate
from planner.simulate.longest_path import neighbour_hops
from planner.timeline import Timeline
from tests.planner.cases import stage_times


def timeline(family: str = "chimera", workers: int = 4, micros: int = 4, **times: int) -> Timeline:
    hops = neighbour_hops(workers)
    compiled = compile(generate(family, workers=workers, micros=micros), hops)
    vector = duration_vector(stage_times(workers, **times), hops)
    return simulate(compiled, vector, [StageBytes(saved=2**20)] * workers)


def test_chimera_is_drawn_as_in_its_paper() -> None:
    text = views.terminal(timeline(), width=60, colour=False)
    assert text.splitlines() == [
        "r0 0--1--   2'-2'====3'-3'====   0=====      1=====   75%",
        "r1    0--2'-1--3'-   2'====0=====3'====1=====         75%",
        "r2    2'-0--3'-1--   0=====2'====1=====3'====         75%",
        "r3 2'-3'-   0--0=====1--1=====   2'====      3'====   75%",
        "16 ns  25.0% idle  peak 4 MiB r1  - forward  = backward",
    ]


def test_pipes_have_two_colours_where_colour_is_wanted() -> None:
    coloured = views.terminal(timeline(), width=60, colour=True)
    assert "\x1b[" in coloured
    first, second = (tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in ("#2f6fbd", "#d9730d"))
    for rgb in (first, second):
        assert ";".join(map(str, rgb)) in coloured
    assert "\x1b[" not in views.terminal(timeline(), width=60, colour=False)


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in views.terminal(timeline(), width=60)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in views.terminal(timeline(), width=60)


@pytest.mark.parametrize("width", [20, 33, 50, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for family, micros in (("chimera", 16), ("1f1b", 40)):
        text = views.terminal(timeline(family, micros=micros, f=17, b=31), width=width, colour=False)
        assert max(map(len, text.splitlines())) <= width


def test_many_ranks_leave_out_the_middle_ones() -> None:
    text = views.terminal(timeline("1f1b", workers=64, micros=64), width=100, colour=False)
    assert "r0 " in text
    assert "r63 " in text
    assert "..." in text
    assert len(text.splitlines()) < 55


def test_nothing_is_drawn_as_nothing() -> None:
    assert views.terminal(Timeline()) == "nothing happens\n"
    ElementTree.fromstring(views.svg(Timeline()))


def test_the_picture_is_sound_xml_and_names_every_action() -> None:
    root = ElementTree.fromstring(views.svg(timeline(sync_ns=3, step_ns=1)))
    titles = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(": 1 ns" in title and "F" in title for title in titles) == 16
    assert any(title.startswith("3B2'") for title in titles)
    assert any("COLLECTIVE" in title for title in titles)


def test_without_colour_even_the_narrowest_box_shows_its_kind() -> None:
    text = views.terminal(timeline("1f1b", workers=4, micros=6), width=32, colour=False)
    rows = [line.split(" ", 1)[1] for line in text.splitlines() if line.startswith("r")]
    assert all(row.count("-") == row.count("=") == 6 for row in rows)


def test_the_halves_of_a_backward_differ_in_shade() -> None:
    root = ElementTree.fromstring(views.svg(timeline("zb-h1")))
    fills: dict[str, set[str]] = {}
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        for title in box:
            fills.setdefault((title.text or "")[1], set()).add(box.get("fill", ""))
    assert len(fills["F"] | fills["I"] | fills["W"]) == 3
