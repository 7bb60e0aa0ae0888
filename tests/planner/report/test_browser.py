"""The report as a browser shows it: Debian's Chromium, without a window, at the widths of a phone and of a desk."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

from planner.plan import Plan
from planner.report import Contents, render
from planner.simulate import simulate_plan
from planner.timeline import Timeline
from tests.planner import plan_examples, report_cases
from tests.planner.report.test_page import record

CASES = report_cases.cases()
WIDTHS = (375, 1440)
CHART = "#timeline canvas"
PATIENCE_MS = 120_000  # of a machine that does much else; idle, everything is there within a second


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs Debian's browser, which .ci/run installs: apt-get install chromium")
    with sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()


class Opened:
    """A report in a tab, with everything that the browser had to say and to ask for."""

    def __init__(
        self, browser: Browser, file: Path, contents: Contents, width: int, scheme: str = "light"
    ) -> None:
        file.write_text(render(contents), encoding="utf-8")
        self.page: Page = browser.new_page(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("crash", lambda page: self.said.append("the page crashed"))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.goto(file.as_uri())
        try:
            self.page.wait_for_selector(f"{CHART}[data-ready]")
        except TimeoutError as error:
            raise AssertionError(f"nothing was drawn; the browser said {self.said}") from error
        assert self.said == [] and self.asked == [file.as_uri()]

    def chart(self) -> dict[str, str]:
        found: dict[str, str] = self.page.evaluate(
            "async (name) => { await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));"
            " return { ...document.querySelector(name).dataset }; }",
            CHART,
        )
        return found

    def close(self) -> None:
        assert self.said == [] and len(self.asked) == 1
        self.page.close()


def counts(timeline: Timeline) -> dict[str, int]:
    return dict(Counter(event.name for event in timeline.events()))


def overlapping(timeline: Timeline, low: float, high: float) -> int:
    return int(((timeline.end_ns >= low) & (timeline.start_ns <= high)).sum())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CASES)
def test_a_report_draws_what_the_plan_does(name: str, width: int, browser: Browser, tmp_path: Path) -> None:
    plan = CASES[name]
    timeline = simulate_plan(plan)
    opened = Opened(browser, tmp_path / "report.html", Contents(plan=plan), width)
    chart = opened.chart()
    assert json.loads(chart["counts"]) == [counts(timeline)]
    assert chart["events"] == chart["drawn"] == str(len(timeline))
    assert chart["rows"] == str(plan.axes.pipeline)
    assert opened.page.locator("#model svg rect title").count() == sum(len(s.layers) for s in plan.stages)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    _zoom(opened, timeline)
    _hover(opened, plan, timeline)
    _keys(opened, plan)
    opened.close()


def _zoom(opened: Opened, timeline: Timeline) -> None:
    page = opened.page
    for act, narrower in (("in", 2.0), ("in", 4.0), ("left", 4.0), ("out", 2.0)):
        page.click(f"[data-act={act}]")
        chart = opened.chart()
        low, high = float(chart["from"]), float(chart["to"])
        assert high - low == pytest.approx(timeline.makespan_ns / narrower)
        assert int(chart["drawn"]) == overlapping(timeline, low, high) < len(timeline)
    page.hover(CHART, position={"x": 150, "y": 40})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    chart = opened.chart()
    assert float(chart["to"]) - float(chart["from"]) < timeline.makespan_ns / 3
    page.click("[data-act=all]")
    assert opened.chart()["drawn"] == str(len(timeline))


def _hover(opened: Opened, plan: Plan, timeline: Timeline) -> None:
    """Over the middle of the longest action of the first worker."""
    own = timeline.of_rank(0)
    compute = [i for i, event in enumerate(own.events()) if event.name in "FBIW"]
    longest = max(compute, key=lambda i: int(own.end_ns[i] - own.start_ns[i]))
    event = own.events()[longest]
    box = opened.page.locator(CHART).bounding_box()
    assert box is not None
    middle = (own.start_ns[longest] + own.end_ns[longest]) / 2 / timeline.makespan_ns
    opened.page.hover(CHART, position={"x": 34 + middle * (box["width"] - 38), "y": 22 + 8})
    tip = opened.page.locator("#timeline .tip")
    assert tip.is_visible()
    text = tip.inner_text()
    assert f"stage {event.stage}" in text and f"micro-batch {event.micro}" in text
    assert ("pipe" in text) == (len(plan.schedule.place) > 1)
    edges = tip.bounding_box()
    assert edges is not None and edges["x"] >= box["x"] - 1
    assert edges["x"] + edges["width"] <= box["x"] + box["width"] + 1


def _keys(opened: Opened, plan: Plan) -> None:
    page = opened.page
    page.focus(CHART)
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    assert f"stage {plan.schedule.orders[0].split('F')[0]}" in opened.chart()["chosen"]
    first = opened.chart()["chosen"]
    page.keyboard.press("ArrowRight")
    assert opened.chart()["chosen"] != first
    page.keyboard.press("ArrowDown")
    assert "worker 1" in opened.chart()["chosen"]
    assert (
        opened.page.locator("#timeline [role=status]").inner_text().startswith(("Forward", "Recomputation"))
    )
    page.keyboard.press("+")
    half = opened.chart()
    page.keyboard.press("0")
    whole = opened.chart()
    assert float(half["to"]) - float(half["from"]) == pytest.approx(float(whole["to"]) / 2)


def test_a_run_is_drawn_below_its_plan_and_both_are_in_the_trace(browser: Browser, tmp_path: Path) -> None:
    plan = CASES["chimera"]
    opened = Opened(browser, tmp_path / "report.html", Contents(plan=plan, run=record(plan)), 1440)
    expected = counts(simulate_plan(plan))
    assert json.loads(opened.chart()["counts"]) == [expected, expected]
    opened.page.focus(CHART)
    opened.page.keyboard.press("ArrowRight")
    assert "predicted: " in opened.chart()["chosen"]
    with opened.page.expect_download() as waiting:
        opened.page.click("[data-act=trace]")
    events = json.loads(waiting.value.path().read_text())["traceEvents"]
    assert waiting.value.suggested_filename == "synthetic-trace.json"
    assert sum(event["ph"] == "X" for event in events) == 2 * sum(expected.values())
    opened.page.close()


def test_memory_over_time_follows_the_chart_above(browser: Browser, tmp_path: Path) -> None:
    plan = plan_examples.plan()
    contents = Contents(plan=plan, profile=plan_examples.profile())
    opened = Opened(browser, tmp_path / "report.html", contents, 375)
    said = plan.prediction.memory
    for worker in (0, 1):
        opened.page.select_option("#memory-chart select", str(worker))
        opened.chart()
        shown = opened.page.eval_on_selector("#memory-chart canvas", "(canvas) => ({ ...canvas.dataset })")
        assert int(shown["peak"]) == said[worker].total - said[worker].margin
        assert int(shown["limit"]) == said[worker].limit - said[worker].margin
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_serious(scheme: str, width: int, browser: Browser, tmp_path: Path) -> None:
    plan = plan_examples.plan(recompute=True)
    contents = Contents(plan=plan, run=record(plan), profile=plan_examples.profile())
    opened = Opened(browser, tmp_path / "report.html", contents, width, scheme)
    opened.page.eval_on_selector_all("details", "(all) => all.forEach((one) => { one.open = true; })")
    found = Axe().run(opened.page).response
    assert len(found["passes"]) > 20, "it looked"
    grave = [rule for rule in found["violations"] if rule["impact"] in ("serious", "critical")]
    assert [(rule["id"], [node["html"][:120] for node in rule["nodes"][:3]]) for rule in grave] == []
    opened.page.close()


def test_64_stages_and_512_micro_batches_open_from_a_small_file(browser: Browser, tmp_path: Path) -> None:
    contents = Contents(plan=report_cases.plan(workers=64, micros=512))
    opened = Opened(browser, tmp_path / "report.html", contents, 1440)
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    chart = opened.chart()
    assert json.loads(chart["counts"]) == [counts(contents.timeline)]
    assert chart["drawn"] == str(len(contents.timeline))
    opened.close()
