"""The report as a browser shows it: Debian's Chromium, without a window, at the widths of a phone and of a desk."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

from planner.plan import Plan
from planner.report import Contents, render
from planner.simulate import simulate_plan
from planner.timeline import Timeline
from tests.planner import plan_examples, report_cases
from tests.planner.report.test_page import record
from tests.planner.trace.test_slices import everywhere, imported

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


@cache
def crowded() -> Contents:
    """Returns a report of so many events that a pixel has several."""
    contents = Contents(plan=report_cases.plan(workers=64, micros=256))
    assert len(contents.timeline)
    return contents


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
    trace = waiting.value.path().read_text()
    assert waiting.value.suggested_filename == "synthetic-trace.json"
    assert trace == Contents(plan=plan, run=record(plan)).trace
    assert imported(trace).refused == []
    opened.close()


PERFETTO = """<script>addEventListener("message", async (event) => {
  if (event.data === "PING") { event.source.postMessage("PONG", event.origin === "null" ? "*" : event.origin); return; }
  document.title = event.data.perfetto.fileName;
  document.body.textContent = new TextDecoder().decode(event.data.perfetto.buffer);
});</script>"""


def test_a_trace_is_handed_to_perfetto_in_a_tab_of_its_own(browser: Browser, tmp_path: Path) -> None:
    """Perfetto's page is played by one that answers as it does: PING, PONG, and a buffer."""
    plan = CASES["1f1b"]
    opened = Opened(browser, tmp_path / "report.html", Contents(plan=plan), 1440)
    played = {"content_type": "text/html", "body": f"<!doctype html><body>{PERFETTO}"}
    opened.page.context.route("https://ui.perfetto.dev/**", lambda route: route.fulfill(**played))
    with opened.page.expect_popup() as other:
        opened.page.click("[data-act=perfetto]")
    tab = other.value
    tab.wait_for_function("document.title.endsWith('-trace.json')", timeout=PATIENCE_MS)
    assert json.loads(tab.inner_text("body")) == json.loads(Contents(plan=plan).trace)
    tab.close()
    opened.close()


def test_a_large_trace_is_written_by_a_command(browser: Browser, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path / "report.html", crowded(), 1440)
    assert opened.page.locator("[data-act=trace], [data-act=perfetto]").count() == 0
    assert "shardwright report plan.yaml --trace=trace.json" in opened.page.inner_text("#time")
    opened.close()


def test_ranks_by_steps_show_who_is_late(browser: Browser, tmp_path: Path) -> None:
    plan = plan_examples.plan()
    run = replace(record(plan, slower=1.0), measured=late(everywhere(plan, 6), rank=2, step=4))
    opened = Opened(browser, tmp_path / "report.html", Contents(plan=plan, run=run), 1440)
    heat = opened.page.locator("#late canvas")
    opened.page.wait_for_selector("#late canvas[data-ready]")
    found = heat.evaluate("(canvas) => ({ ...canvas.dataset })")
    assert (found["rows"], found["columns"], found["hot"]) == ("4", "6", "1")
    heat.focus()
    for key in (*["ArrowDown"] * 3, *["ArrowRight"] * 3):  # the first one enters
        opened.page.keyboard.press(key)
    assert opened.page.inner_text("#late .said") == "Rank 2, step 4: 3.00 of its prediction"
    box = heat.bounding_box()
    assert box is not None
    heat.hover(position={"x": 34 + (box["width"] - 38) * 3.5 / 6, "y": 2.5 * 16})
    assert opened.page.inner_text("#late .tip") == "Rank 2, step 4: 3.00 of its prediction"
    opened.close()


def late(run: Timeline, *, rank: int, step: int, times: int = 3) -> Timeline:
    """As if one rank had taken longer for everything in one step."""
    own = (run.rank == rank) & (run.step == step)
    took = (run.end_ns - run.start_ns) * np.where(own, times, 1)
    return replace(run, end_ns=run.start_ns + took)


WALK = """(canvas, times) => Array.from({ length: times }, () => {
  const said = canvas.dataset.chosen;
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true, cancelable: true }));
  return said;
})"""


def test_memory_of_all_workers_is_a_chart_of_its_own(browser: Browser, tmp_path: Path) -> None:
    plan = plan_examples.plan()
    contents = Contents(plan=plan, profile=plan_examples.profile())
    opened = Opened(browser, tmp_path / "report.html", contents, 375)
    assert contents.memory_lines is not None
    timeline, limits = contents.memory_lines
    opened.page.wait_for_selector("#filled canvas[data-ready]")
    opened.page.focus("#filled canvas")
    opened.page.keyboard.press("ArrowLeft")
    told = opened.page.eval_on_selector("#filled canvas", WALK, 240)
    shares = [float(said.split(": ")[1].split(" %")[0].removeprefix("under ")) for said in told]
    assert len(set(told)) > 30
    assert max(shares) == pytest.approx(100 * timeline.peak_bytes[0] / limits[0], abs=0.11)
    opened.close()


def test_two_plans_lie_side_by_side_on_one_scale(browser: Browser, tmp_path: Path) -> None:
    plan, other = CASES["1f1b"], CASES["zb-h1"]
    contents = Contents(plan=plan, run=record(plan), beside=Contents(plan=other, run=record(other, slower=2)))
    opened = Opened(browser, tmp_path / "report.html", contents, 1440)
    opened.page.wait_for_selector("#other canvas[data-ready]")
    both = [opened.page.eval_on_selector(f"#{name} canvas", DATASET) for name in ("timeline", "other")]
    assert json.loads(both[1]["counts"]) == [counts(simulate_plan(other))] * 2
    opened.page.click("[data-act=in]")
    opened.chart()
    both = [opened.page.eval_on_selector(f"#{name} canvas", DATASET) for name in ("timeline", "other")]
    assert both[0]["from"] == both[1]["from"] and both[0]["to"] == both[1]["to"] != "0"
    text = opened.page.inner_text("#beside")
    assert "measured step" in text and "zb-h1" in text and "2.00" in text
    opened.close()


DATASET = "(canvas) => ({ ...canvas.dataset })"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_paper_64_workers_take_four_pages_and_keep_their_colours(
    scheme: str, browser: Browser, tmp_path: Path
) -> None:
    plan = report_cases.plan(workers=64, micros=64)
    opened = Opened(browser, tmp_path / "report.html", Contents(plan=plan, run=record(plan)), 1280, scheme)
    paper = opened.page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) <= 4
    opened.page.emulate_media(media="print")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    shades = opened.page.eval_on_selector_all(
        "#time .key i",
        "(all) => all.map((one) => [getComputedStyle(one).backgroundColor, getComputedStyle(one).printColorAdjust])",
    )
    assert all(kept == "exact" for _, kept in shades)
    assert len({shade for shade, _ in shades}) == len(shades) > 4
    assert "rgb(15, 95, 168)" in {shade for shade, _ in shades}, "as on white"
    page = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page == "rgb(255, 255, 255)"
    drawn = opened.page.eval_on_selector(
        CHART, "(c) => [...c.getContext('2d').getImageData(c.width / 2, 40, 1, 1).data]"
    )
    assert drawn[3] in (0, 255)
    opened.close()


def test_everything_can_be_reached_and_used_by_keys_alone(browser: Browser, tmp_path: Path) -> None:
    plan = plan_examples.plan(recompute=True)
    contents = Contents(
        plan=plan, run=record(plan), profile=plan_examples.profile(), beside=Contents(plan=CASES["1f1b"])
    )
    opened = Opened(browser, tmp_path / "report.html", contents, 1440)
    page = opened.page
    page.wait_for_selector("html[data-ready]")
    page.evaluate(
        "document.querySelectorAll('button,select,summary,canvas,.scroll,a').forEach((one, at) => one.dataset.at = at)"
    )
    there = "one => one.dataset.at !== undefined && one.checkVisibility() && (one.tabIndex >= 0)"
    wanted = set(
        page.evaluate(
            f"[...document.querySelectorAll('[data-at]')].filter({there}).map(one => one.dataset.at)"
        )
    )
    reached = set()
    for _ in range(4 * len(wanted)):
        page.keyboard.press("Tab")
        at = page.evaluate("document.activeElement.dataset.at ?? null")
        if at is None:
            break
        reached.add(at)
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", (
            f"{page.evaluate('document.activeElement.outerHTML.slice(0, 90)')} shows no focus"
        )
    role = "[...document.querySelectorAll('canvas')].every(one => one.tabIndex >= 0 || one.getAttribute('role') === 'img')"
    assert reached == wanted and len(wanted) > 12 and page.evaluate(role)
    page.focus("[data-act=in]")
    before = opened.chart()
    page.keyboard.press("Enter")
    assert float(opened.chart()["to"]) < float(before["to"]) or opened.chart()["from"] != before["from"]
    page.focus("summary")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open") is True
    page.focus("#memory-chart select")
    page.keyboard.press("ArrowDown")
    opened.chart()
    assert page.get_attribute("#memory-chart canvas", "data-worker") == "1"
    opened.close()


def test_bars_narrower_than_a_pixel_are_drawn_as_their_mixture(browser: Browser, tmp_path: Path) -> None:
    """So that 64 workers by 256 micro-batches show no pattern that is none."""
    contents = crowded()
    opened = Opened(browser, tmp_path / "report.html", contents, 500)
    own = contents.timeline.of_rank(32)
    width = opened.page.eval_on_selector(CHART, "(c) => c.width")
    row = 22 + 32 * (12 + 3 + 2) + 6
    pixels = opened.page.eval_on_selector(
        CHART, f"(c) => [...c.getContext('2d').getImageData(0, {row}, c.width, 1).data]"
    )
    red = np.array(pixels, float).reshape(-1, 4)[:, 0]
    shades = {"F": 0x9C, "B": 0x0F, "STEP": 0x5D, "SYNC": 0x5D}
    edges = np.arange(width - 34 - 4 + 1) * contents.predicted.span_ns / (width - 34 - 4)
    mixed = np.full(len(edges) - 1, 0xEC, float)
    for event, start, end in zip(own.events(), own.start_ns.tolist(), own.end_ns.tolist(), strict=True):
        if event.name in shades:
            part = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0, None) / edges[1]
            mixed += part * (shades[event.name] - 0xEC)
    drawn = red[34 : 34 + len(mixed)]
    inner = slice(2, -2)
    assert np.abs(drawn[inner] - mixed[inner]).max() < 12
    opened.close()


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
    other = Contents(plan=CASES["zb-h1"])
    contents = Contents(plan=plan, run=record(plan), profile=plan_examples.profile(), beside=other)
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
