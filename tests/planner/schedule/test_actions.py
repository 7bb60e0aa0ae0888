from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import BadInput
from planner.schedule import Action, Kind, generate, parse_orders
from planner.schedule.actions import from_text, parse_action

actions = st.builds(
    Action,
    kind=st.sampled_from([Kind.F, Kind.B, Kind.I, Kind.W, Kind.R]),
    stage=st.integers(0, 99),
    micro=st.integers(0, 999),
    pipe=st.integers(0, 7),
)


@given(actions)
def test_an_action_parses_back_from_what_it_prints(action: Action) -> None:
    assert parse_action(str(action)) == action


def test_a_pipe_prints_as_dashes() -> None:
    assert str(Action(Kind.F, 2, 3, 2)) == "2F3''"
    assert str(Action(Kind.SYNC, 2, 0, 1)) == "2SYNC'"


@pytest.mark.parametrize(
    "text", ["", "F3", "2F", "2X3", "2SYNC3", "2F3 ", "-1F0", "2f3", "2F3\n", "٢F٣", "2F" + "9" * 5000]
)
def test_what_is_no_action_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"no action.*such as 2F3"):
        parse_action(text)


@pytest.mark.parametrize("family", ["1f1b", "zb-v", "chimera", "chimera-zb"])
def test_a_schedule_parses_back_from_its_text(family: str) -> None:
    schedule = generate(family, workers=4, micros=5)
    back = from_text(
        schedule.to_text(),
        place=schedule.place,
        pipe_of=schedule.pipe_of,
        family=family,
        settings=schedule.settings,
    )
    assert back == schedule


def test_text_with_a_line_too_few_is_refused() -> None:
    schedule = generate("1f1b", workers=3, micros=2)
    with pytest.raises(BadInput, match=r"2 lines of actions.*one a worker, 3"):
        from_text(
            "\n".join(schedule.to_text().split("\n")[:2]), place=schedule.place, pipe_of=schedule.pipe_of
        )
    with pytest.raises(BadInput, match="1 lines of actions"):
        from_text("0F0 0B0", place=((0, 1),), pipe_of=(0,))


def test_a_placement_without_stages_is_refused() -> None:
    for place in ((), ((),)):
        with pytest.raises(BadInput, match=r"a placement without stages"):
            from_text("0F0", place=place, pipe_of=(0,))


def test_equal_schedules_differ_in_nothing() -> None:
    assert generate("1f1b", workers=4, micros=4).diff(generate("1f1b", workers=4, micros=4)) == ""


def test_a_diff_names_the_worker_the_place_and_both_sides() -> None:
    schedule = generate("gpipe", workers=2, micros=2)
    swapped = replace(
        schedule, orders=parse_orders(schedule.to_text().replace("1F1 1B0", "1B0 1F1").split("\n"))
    )
    lines = schedule.diff(swapped).split("\n")
    assert all(line.startswith("worker 1 at ") for line in lines)
    assert any("1B0" in line.split("+")[1] for line in lines)


def test_a_diff_shows_other_placements_and_missing_workers() -> None:
    small, large = generate("gpipe", workers=2, micros=2), generate("gpipe", workers=3, micros=3)
    diff = small.diff(large)
    assert "place: " in diff and "pipe_of: " in diff and "worker 2 at 0 after start" in diff
