from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
from planner.errors import BadInput
from planner.explore import Frontier, FrontierRow
from planner.milp import Question, solve
from planner.plan import Plan
from planner.plan import yaml as plan_yaml
from planner.profile import yaml as profile_yaml
from planner.report import Contents, render
from planner.report.widgets import sparkline
from planner.schedule import parse_orders
from planner.simulate import RunRecord, simulate_plan
from planner.timeline import Timeline
from tests.planner import plan_examples, report_cases

CASES = report_cases.cases()


class Reader(HTMLParser):
    """Elements with their attributes, and whether every one that was opened was closed in its turn."""

    VOID = ("meta", "link", "br", "img", "rect", "line", "path", "circle", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found
    data: dict[str, object] = json.loads(found[1])
    return data


def measured(plan: Plan, *, slower: float = 1.5, steps: int = 5) -> Timeline:
    """As if it had run: each step later than the last, and everything slower than predicted."""
    one = simulate_plan(plan)
    parts = [
        {
            "step": one.step + step,
            "rank": one.rank,
            "code": one.code,
            "start_ns": (one.start_ns * slower).astype(np.int64) + step * 10**12,
            "end_ns": (one.end_ns * slower).astype(np.int64) + step * 10**12,
            "wait_ns": one.wait_ns,
        }
        for step in range(1, steps + 1)
    ]
    return Timeline(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def record(plan: Plan, slower: float = 1.5) -> RunRecord:
    return RunRecord(
        folder="runs/a", state="done", plan=plan, measured=measured(plan, slower=slower), losses={1: 2.0, 2: 1.5}
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_page_is_sound_and_asks_nothing_of_the_network(name: str) -> None:
    page = render(Contents(plan=CASES[name]))
    reader = read(page)
    for tag, attributes in reader.seen:
        assert not attributes.keys() & {"src", "srcset", "action", "background"}, (tag, attributes)
        assert tag == "a" or attributes.get("href", "data:,") == "data:,"
        assert not any(key.startswith("on") for key in attributes)
    assert [tag for tag, _ in reader.seen if tag == "script"] == ["script", "script"]
    assert re.findall(r"https?:[^\"]*|@import|url\(", page) == ["https://ui.perfetto.dev"], (
        "which a button opens"
    )


@pytest.mark.parametrize("name", CASES)
def test_the_page_carries_every_action_of_the_plan_once(name: str) -> None:
    plan = CASES[name]
    (track,) = data_of(render(Contents(plan=plan)))["tracks"]  # type: ignore[misc]
    raw = zlib.decompress(base64.b64decode(track["columns"]))
    n = track["events"]
    code, micro = np.frombuffer(raw, "<i4", n, 16 * n), np.frombuffer(raw, "<i4", n, 20 * n)
    start, took = np.frombuffer(raw, "<f8", n).cumsum(), np.frombuffer(raw, "<f8", n, 8 * n)
    rows = np.repeat(np.arange(len(track["rows"])), track["rows"])
    carried = Counter(
        (row, *track["names"][c], m, s, s + t)
        for row, c, m, s, t in zip(
            rows.tolist(), code.tolist(), micro.tolist(), start.tolist(), took.tolist(), strict=True
        )
    )
    timeline = simulate_plan(plan)
    expected = Counter(
        (rank, event.name, event.stage, event.pipe, event.micro, float(a), float(b))
        for rank, event, a, b in zip(
            timeline.rank.tolist(), timeline.events(), timeline.start_ns.tolist(), timeline.end_ns.tolist(), strict=True,
        )
    )  # fmt: skip
    assert carried == expected
    actions = sum(map(len, parse_orders(plan.schedule.orders)))
    assert sum(1 for key in carried if key[1] not in ("SEND", "COLLECTIVE")) == actions


def test_what_a_user_names_is_shown_and_never_run() -> None:
    page = render(Contents(plan=report_cases.plan(name=report_cases.HOSTILE)))
    reader = read(page)
    assert not [tag for tag, _ in reader.seen if tag == "img"]
    assert "onerror=alert(1)&gt;" in page and "<img" not in page
    assert page.count("<script") == 2


def test_a_run_lies_beside_its_plan() -> None:
    plan = CASES["chimera"]
    page = render(Contents(plan=plan, run=record(plan)))
    read(page)
    tracks = data_of(page)["tracks"]
    assert [track["name"] for track in tracks] == ["measured", "predicted"]  # type: ignore[attr-defined]
    assert "1.50 times the prediction" in page


def test_a_run_of_another_plan_is_refused() -> None:
    with pytest.raises(BadInput, match="another plan"):
        Contents(plan=CASES["1f1b"], run=record(CASES["chimera"]))


def test_memory_over_time_ends_where_the_plan_says_its_peak_is() -> None:
    plan = plan_examples.plan()
    found = Contents(plan=plan, profile=plan_examples.profile()).memory_lines
    assert found is not None
    timeline, limits = found
    said = plan.prediction.memory
    assert timeline.peak_bytes == {w: each.total - each.margin for w, each in enumerate(said)}
    assert limits == [each.limit - each.margin for each in said]


def test_what_moves_and_what_stays_add_up_to_what_the_solver_has_reckoned() -> None:
    costs = replace(plan_examples.profile(), workload="tiny.py")
    plan = solve(
        Question(
            profile=costs,
            cluster=plan_examples.machines(),
            batch=16,
            fix={"pipeline": 2, "data": 2},
            schedules=("1f1b",),
        )
    )
    found = Contents(plan=plan, profile=costs).memory_lines
    assert found is not None
    least = {w: int(found[0].memory_bytes[found[0].memory_rank == w].min()) for w in (0, 1)}
    for worker, said in enumerate(plan.prediction.memory):
        assert least[worker] >= said.parameters + said.gradients + said.optimizer > 0
        assert found[0].peak_bytes[worker] == said.total - said.margin


def test_a_profile_of_another_model_is_refused() -> None:
    with pytest.raises(BadInput, match="another model"):
        Contents(plan=CASES["1f1b"], profile=plan_examples.profile())


def test_a_profile_without_the_plans_setting_is_refused() -> None:
    with pytest.raises(BadInput, match=r"micro 2, fp32, eager.*micro 1"):
        Contents(plan=plan_examples.plan(), profile=plan_examples.profile(micros=(1,)))


def test_the_frontier_is_drawn_with_a_point_a_plan() -> None:
    rows = tuple(
        FrontierRow(
            plan=report_cases.plan(workers=w), best_in=("memory", "devices") if w > 2 else ("devices",)
        )
        for w in (8, 4, 2)
    )
    page = render(Contents(plan=CASES["1f1b"], frontier=Frontier(rows=rows, whole=("memory", "devices"))))
    points = [attributes["data-points"] for tag, attributes in read(page).seen if "data-points" in attributes]
    assert points == ["2", "3"]


def test_the_command_writes_a_page_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page, costs = tmp_path / "plan.yaml", tmp_path / "page.html", tmp_path / "profile.yaml"
    file.write_text(plan_yaml.dump(plan_examples.plan()))
    profile_yaml.save(plan_examples.profile(), costs)
    arguments = ["report", str(file), "--profile", str(costs), "-o", str(page), "--json"]
    assert sw.run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(page)
    assert 'id="memory-chart"' in page.read_text()
    assert sw.run(arguments) == 2
    assert sw.run([*arguments, "--force"]) == 0
    assert sw.run(["report", str(file), "--frontier", "-o", str(tmp_path / "b.html")]) == 2
    assert sw.run(["report", str(file), str(tmp_path), "-o", str(tmp_path / "c.html")]) == 2
    assert "is no run folder" in capsys.readouterr().err
    assert not (tmp_path / "b.html").exists() and not (tmp_path / "c.html").exists()


def test_losses_by_step_have_their_range_their_ends_and_a_word_for_the_pointer() -> None:
    drawn = sparkline({step: 1 / step for step in range(3, 1003)}, "Loss", "{:.2f}".format)
    assert re.findall(r"<span>(.*?)</span>", drawn) == ["0.33", "0.00", "step 3", "step 1002"]
    titles = re.findall(r"<title>(.*?)</title>", drawn)
    assert titles[:2] == ["step 3: 0.33", "step 6: 0.17"] and len(titles) == 334
