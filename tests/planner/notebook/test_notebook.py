from __future__ import annotations

import json
import re
import signal
import sys
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from typing import Protocol
from xml.etree import ElementTree

import IPython
import IPython.display
import matplotlib.pyplot
import numpy as np
import pytest
from matplotlib.figure import Figure

from planner.cluster import with_memory, with_network, with_nodes
from planner.errors import BadInput, Infeasible
from planner.milp import Question, solve
from planner.milp.search import search as searching
from planner.notebook.solved_plan import Dials, SolvedFrontier, SolvedPlan, searched
from planner.plan import Plan
from planner.plan import yaml as plan_yaml
from planner.profile import Profile
from planner.show import pictures
from planner.show.explanation import compare
from planner.simulate import simulate_plan
from planner.timeline import SEND, Timeline
from planner.verify import violations
from tests.planner import plan_examples, report_cases
from tests.planner.report.test_page import record
from tests.planner.report_cases import HOSTILE


class Shown(Protocol):
    def _repr_html_(self) -> str: ...
    def to_dict(self) -> dict[str, object]: ...


def costs() -> Profile:
    return replace(plan_examples.profile(), workload="tiny.py")


@pytest.fixture(scope="module")
def asked() -> Question:
    return Question(
        profile=costs(), cluster=plan_examples.machines(), batch=8, fix={"data": 1, "pipeline": 2}
    )


@pytest.fixture(scope="module")
def solved(asked: Question) -> SolvedPlan:
    return SolvedPlan.of(solve(asked), asked)


@pytest.fixture(scope="module")
def front(solved: SolvedPlan) -> SolvedFrontier:
    return solved.what_if(data=None, pipeline=None, batch=2, schedule="1f1b").frontier()


@pytest.fixture(scope="module")
def values(asked: Question, solved: SolvedPlan, front: SolvedFrontier) -> dict[str, Shown]:
    hostile = report_cases.plan(name=HOSTILE)
    return {
        "plan": solved,
        "another plan": solved.what_if(schedule="gpipe"),
        "hostile plan": SolvedPlan.of(hostile),
        "plans": compare(solved, solved.what_if(batch=4), hostile),
        "front": front,
        "profile": asked.profile,
        "cluster": asked.cluster,
        "graph": asked.profile.graph,
        "timeline": solved.timeline(),
        "run": record(hostile),
        "comparison": record(solved).comparison,
    }


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.sources += [value or "" for name, value in attrs if name == "src"]


DRAWN = {"svg", "rect", "text", "title", "line", "path", "circle"}
ALLOWED = {"div", "p", "b", "details", "summary", "table", "thead", "tbody", "tr", "th", "td", "img"}


def svg_of(image: str) -> str:
    """The pictures inside image elements, where they are base64."""
    found = re.findall(r'base64,([A-Za-z0-9+/=]+)"', image)
    return "".join(b64decode(data).decode() for data in found)


def test_every_value_shows_itself_without_styles_and_scripts(values: dict[str, Shown]) -> None:
    for name, value in values.items():
        reader = Reader()
        reader.feed(value._repr_html_())
        assert reader.tags <= ALLOWED, (name, reader.tags - ALLOWED)
        assert not {a for a in reader.attributes if a in ("class", "style", "href") or a.startswith("on")}
        assert all(source.startswith("data:image/svg+xml;base64,") for source in reader.sources)
        for source in reader.sources:
            picture = ElementTree.fromstring(b64decode(source.partition(",")[2]))
            assert {node.tag.rpartition("}")[2] for node in picture.iter()} <= DRAWN
        ElementTree.fromstring(f"<div>{value._repr_html_()}</div>")  # whole, in the stricter sense of XML


def test_every_value_has_text_and_plain_data(values: dict[str, Shown]) -> None:
    for name, value in values.items():
        assert "object at 0x" not in repr(value) and len(repr(value)) > 40, name
        assert json.loads(json.dumps(value.to_dict(), default=str)), name
        rows = value.to_rows()  # type: ignore[attr-defined]
        assert rows and all(row.keys() == rows[0].keys() for row in rows), name


def test_figures_are_returned_and_show_themselves_but_not_twice(values: dict[str, Shown]) -> None:
    for name in ("plan", "plans", "front", "profile", "graph", "timeline", "run"):
        figure = values[name].plot()  # type: ignore[attr-defined]
        assert isinstance(figure, Figure)
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert matplotlib.pyplot.get_fignums() == []


def test_a_solved_plan_is_the_plan_to_every_other_part(solved: SolvedPlan) -> None:
    plain = Plan.model_validate(solved.model_dump())
    assert type(plain) is Plan
    assert solved == plain and plain == solved
    assert plan_yaml.dump(solved) == plan_yaml.dump(plain)
    assert solved.violations() == []


def test_what_if_is_what_the_solver_says_to_the_changed_question(asked: Question, solved: SolvedPlan) -> None:
    other = solved.what_if(schedule="chimera", pairs=1, batch=16)
    changed = replace(asked, batch=16, schedules=("chimera",), fix={**asked.fix, "pairs": 1})
    assert other == solve(changed)
    assert other.schedule.family == "chimera" and other.batch.samples == 16
    assert "chimera" in repr(other).splitlines()[0] and "instead of" in repr(other).splitlines()[0]
    assert other.what_if(batch=8).schedule.family == "chimera", "changes add up"
    assert solved.what_if(pipeline=None).certificate is not None, "what was fixed is free again"


class Shell:
    """In the place of a notebook's."""

    kernel = True


def test_each_question_has_a_bar_of_its_own_that_ends_empty(
    solved: SolvedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[list[str]] = []

    class Bar:
        def __init__(self, data: dict[str, str], **_: object) -> None:
            self.told = [data["text/plain"]]
            bars.append(self.told)

        def update(self, data: dict[str, str], **_: object) -> None:
            self.told.append(data["text/plain"])

    monkeypatch.setattr(IPython.display, "display", Bar)
    monkeypatch.setattr(IPython, "get_ipython", Shell)
    monkeypatch.setattr("planner.shown.FIRST_BAR_S", 0.0)
    other = solved.what_if(schedule="gpipe")
    assert other.what_if(batch=4).batch.samples == 4
    assert len(bars) == 2 and all(told[0].startswith("planning ") and told[-1] == "" for told in bars)


def test_ctrl_c_in_a_session_gives_the_best_so_far_and_says_so(
    asked: Question, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = searching.prove

    def pressed(*given: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return whole(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(searching, "prove", pressed)
    found = searched(asked)
    assert capsys.readouterr().err.startswith("stopped: the answer is the best so far")
    assert violations(found, profile=asked.profile, cluster=asked.cluster) == []


def test_less_memory_costs_time_or_is_refused_with_what_is_missing(solved: SolvedPlan) -> None:
    machines = solved.question.cluster
    less = with_memory(machines, 0.5)
    assert {group.capacity_bytes for group in less.nodes} == {2**29}
    assert {group.margin_bytes for group in less.nodes} == {10**6}
    with pytest.raises(Infeasible, match="bytes"):
        solved.what_if(memory_gib=(10**6 + 300) / 2**30)
    with pytest.raises(BadInput, match="margin"):
        solved.what_if(memory_gib=0.0001)


def test_a_changed_cluster_keeps_what_was_not_asked_for() -> None:
    machines = plan_examples.machines()
    twice = with_network(machines, 2.0)
    for (_, before), (_, after) in zip(machines.links, twice.links, strict=True):
        assert before is not None and after is not None
        assert after.bandwidth_bytes_per_s == 2 * before.bandwidth_bytes_per_s
        assert after.latency_s == before.latency_s
    assert with_nodes(machines, 3).nodes[0].count == 3
    assert with_nodes(machines, 3).links == machines.links
    with pytest.raises(BadInput, match="kinds of node"):
        with_nodes(machines.model_copy(update={"nodes": machines.nodes * 2}), 3)


def test_what_cannot_be_asked_is_said(solved: SolvedPlan) -> None:
    with pytest.raises(BadInput, match="luck"):
        solved.what_if(luck=7)
    with pytest.raises(BadInput, match="load_plan"):
        SolvedPlan.of(report_cases.plan()).what_if(batch=2)
    with pytest.raises(BadInput, match="2 or more"):
        compare(solved)


def test_the_plans_of_a_front_can_be_asked_further(front: SolvedFrontier) -> None:
    assert len(front) == len(front.plans) == len(front.to_rows()) > 1
    steps = [plan.prediction.step_ns for plan in front]
    assert steps == sorted(steps)
    assert front[0].what_if(batch=4).batch.samples == 4
    drawn = sum(
        len(front.found.front(trade)) for trade in ("memory", "devices") if len(front.found.front(trade)) > 1
    )
    assert svg_of(front._repr_html_()).count("<circle") == drawn


@pytest.mark.parametrize("family", ["1f1b", "chimera", "zb-h1", "interleaved"])
def test_a_picture_has_a_box_for_every_event_that_takes_time(family: str) -> None:
    timeline = simulate_plan(report_cases.plan(family))
    picture = ElementTree.fromstring(svg_of(pictures.timeline(timeline)))
    titles = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}title")]
    lasting = timeline.end_ns > timeline.start_ns
    assert sorted(str(title).split(":")[0] for title in titles) == sorted(
        str(event) for event, lasts in zip(timeline.events(), lasting.tolist(), strict=True) if lasts
    )
    assert any(SEND in str(title) for title in titles)


def test_a_picture_of_very_many_events_is_condensed_and_says_so() -> None:
    timeline = simulate_plan(report_cases.plan(workers=8, micros=256))
    assert len(timeline) > pictures.MOST_BOXES
    picture = svg_of(pictures.timeline(timeline))
    assert len(picture) < 100_000
    assert f"{len(timeline):,} events in columns" in picture
    drawn = [int(n) for n in re.findall(r"h(\d+)", picture)]
    busy = np.unique(timeline.rank).size * (pictures.WIDTH - 72)
    assert 0.7 * busy < sum(drawn) <= busy, "most of it is not idle"


def test_an_empty_timeline_is_a_picture_too() -> None:
    ElementTree.fromstring(svg_of(pictures.timeline(Timeline())))


def test_a_page_is_written_from_a_plan(solved: SolvedPlan, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = solved.report(tmp_path_factory.mktemp("report") / "page.html", run=record(solved))
    assert 'id="memory-chart"' in path.read_text(), "the costs that it was solved from are at hand"


def test_dials_ask_what_if(solved: SolvedPlan) -> None:
    widgets = pytest.importorskip("ipywidgets")
    start = solved.what_if(batch=2, schedule="1f1b")
    box = start.explore()
    micro, nodes, network, memory, answer, button, front = box.children
    assert [value for _, value in micro.options] == [None, 1, 2]
    assert answer.value == start._repr_html_() and isinstance(button, widgets.Button)
    micro.value = 2
    assert answer.value == start.what_if(micro=2)._repr_html_()
    network.value = 0.25
    assert answer.value == start.what_if(micro=2, network=0.25)._repr_html_()
    memory.value = memory.max
    gib = memory.max
    assert answer.value == start.what_if(micro=2, network=0.25, memory_gib=gib)._repr_html_()
    assert nodes.max == sum(group.count for group in start.question.cluster.nodes)
    button.click()
    assert "<table" in front.value and front.value.startswith("<p>The plan above")


def test_dials_say_why_nothing_fits(solved: SolvedPlan) -> None:
    dials = Dials(solved)
    assert "margin" in dials.ask(None, None, 1, 0.0001)
    assert "micro" in dials.ask(64, None, 1, None)
    assert dials.answer is solved, "what was answered before stays"


def test_dials_need_widgets(solved: SolvedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(BadInput, match="notebook"):
        solved.explore()
    with pytest.raises(BadInput, match="load_plan"):
        SolvedPlan.of(report_cases.plan()).explore()
