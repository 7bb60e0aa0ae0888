"""How large a report is, how long it takes to write, to open in a browser, and to draw again at another zoom."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from benchmarks.harness import Cell, Result, Table, above, main
from planner.errors import BadInput
from planner.plan import Plan
from planner.report import Contents, render
from tests.planner import report_cases
from tests.planner.report.test_page import record

SIZES = ((4, 8, False), (16, 64, True), (64, 512, False), (64, 512, True))
READY = "#timeline canvas[data-ready]"
DRAW = """async () => {
  const start = performance.now();
  for (let i = 0; i < 8; i++) {
    document.querySelector(i % 2 ? '[data-act=out]' : '[data-act=in]').click();
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  }
  return (performance.now() - start) / 8;
}"""


LARGEST, AIM_S, AIM_MB = (64, 512), 3, 5


def missed(rows: Sequence[tuple[Cell, ...]]) -> tuple[str, ...]:
    """Returns what was missed of the two aims, from the rows of the largest pipeline."""
    large = [(f"{'with' if row[2] else 'without'} a run", row) for row in rows if row[:2] == LARGEST]
    return (
        *above("The time to open a report", ((name, row[6]) for name, row in large), AIM_S, " s"),
        *above("The size of a report", ((name, row[5]) for name, row in large), AIM_MB, " MB"),
    )


def run(quick: bool) -> Result:
    rows = list(_rows(SIZES[:2] if quick else SIZES))
    table = Table(
        title="Reports of 1F1B, by stages and micro-batches",
        columns=("stages", "micro-batches", "with a run", "events", "written in s", "MB", "opened in s", "drawn again in ms"),
        rows=rows,
        notes=(
            "Opened: from the request to the first whole drawing, in Debian's Chromium without a window and without a "
            "GPU, the fastest of three. Drawn again: mean over eight zooms, two frames each.",
        ),
    )  # fmt: skip
    claim = "Aim: 64 stages x 512 micro-batches open in 3 s from a file under 5 MB."
    return Result(name="report_page", claim=claim, missed=missed(rows), tables=[table])


def _rows(sizes: tuple[tuple[int, int, bool], ...]) -> Iterator[tuple[Cell, ...]]:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise BadInput("there is no chromium here", allowed="apt-get install chromium")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for stages, micros, ran in sizes:
            plan = report_cases.plan(workers=stages, micros=micros)
            yield (stages, micros, ran, *_measured(browser, Path(folder) / "report.html", plan, ran))
        browser.close()


def _measured(browser: Browser, file: Path, plan: Plan, ran: bool) -> tuple[Cell, ...]:
    start = time.perf_counter()
    contents = Contents(plan=plan, run=record(plan) if ran else None)
    file.write_text(render(contents), encoding="utf-8")
    written_s = time.perf_counter() - start
    events = len(contents.predicted) + (len(contents.measured) if contents.measured is not None else 0)
    opened = []
    for _ in range(3):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        start = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_selector(READY)
        opened.append(time.perf_counter() - start)
        drawn_ms: float = page.evaluate(DRAW)
        page.close()
    size = file.stat().st_size / 1e6
    return events, round(written_s, 2), round(size, 3), round(min(opened), 2), round(drawn_ms, 1)


if __name__ == "__main__":
    main(run)
