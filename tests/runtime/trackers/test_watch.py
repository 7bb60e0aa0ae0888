"""The page of a watched run: it follows the steps, tells nobody without the token, and ends with the run."""

from __future__ import annotations

import http.client
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from planner.errors import BadInput
from runtime.runfolder import Job, Paths
from runtime.trackers import watch
from tests.runtime.runfolder.test_metrics import line

PLAN = Path(__file__).parents[3] / "plans" / "mlp-two-stages.yaml"
REPORT = "<!doctype html><html lang='en'><title>a report</title><h1>the report</h1></html>"


class Served:
    """A watched run whose steps a test tells, and whose end it decides."""

    def __init__(self, root: Path, report: str | None = REPORT) -> None:
        self.paths = Paths(root / "run").make()
        shutil.copy(PLAN, self.paths.plan)
        Job(steps=4).write(self.paths)
        self.address, self.seen, self.going = "", 0, True
        self._told, self._report = threading.Event(), report
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        assert self._told.wait(60)

    def _watch(self) -> None:
        self.seen = watch(
            self.paths.root,
            state=lambda: "running" if self.going else "done",
            going=lambda: self.going,
            report=lambda: self._report,
            tell=self._tell,
        )

    def _tell(self, address: str) -> None:
        self.address = address
        self._told.set()

    def step(self, number: int, seconds: float = 1e-4) -> None:
        for rank in (0, 1):
            with self.paths.rank_metrics(rank).open("a") as file:
                print(line(number, {rank: 1 / number}, seconds=seconds), file=file)

    def end(self) -> None:
        self.going = False

    def get(self, what: str, host: str | None = None) -> tuple[int, bytes]:
        where = urlsplit(self.address)
        connection = http.client.HTTPConnection(where.hostname or "", where.port or 0, timeout=60)
        connection.request("GET", what, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read(200)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(sys.modules["runtime.trackers.watch"], "LOOK_S", 0.05)
    found = Served(tmp_path)
    yield found
    found.end()
    found.thread.join(60)
    assert not found.thread.is_alive()


def test_only_who_knows_the_token_and_asks_the_loopback_is_answered(served: Served) -> None:
    where = urlsplit(served.address)
    assert where.hostname == "127.0.0.1"
    assert served.get(where.path)[0] == 200
    assert served.get("/")[0] == served.get("/guessed/")[0] == served.get("/guessed/events")[0] == 404
    assert served.get(where.path, host=f"evil.example:{where.port}")[0] == 404
    assert served.get(f"{where.path}report")[0] == 404, "there is none yet"
    assert served.get(f"{where.path}../plan.yaml")[0] == 404
    served.end()
    while served.get(f"{where.path}report")[0] != 200:
        time.sleep(0.05)


def test_a_page_follows_the_run_takes_its_report_and_the_server_ends(served: Served) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs Debian's browser: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 375, "height": 800})
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.set_default_timeout(120_000)
        page.goto(served.address)
        for number, seconds in ((1, 1e-4), (2, 1e-4), (3, 60.0)):
            served.step(number, seconds)
            page.wait_for_selector(f"body[data-step='{number}']")
            assert page.inner_text("#step") == f"{number} of 4"
        assert page.inner_text("#said") == "the last step was later than predicted"
        assert page.get_attribute("#ranks", "data-late") == "2", "both ranks, one step"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.inner_text("#losses-most") == "1.050" and page.inner_text("#times-most").endswith(" s")
        for chart, told in (("losses", "step 3: 0.3333"), ("ranks", "rank 1, step 3: 60.0 s")):
            page.locator(f"#{chart}").scroll_into_view_if_needed()
            box = page.locator(f"#{chart}").bounding_box()
            assert box is not None
            page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2)
            assert page.inner_text(f"#{chart}-tip") == told
        for scheme, width in (("light", 375), ("dark", 375), ("dark", 1440)):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.set_viewport_size({"width": width, "height": 800})
            found = Axe().run(page).response["violations"]
            assert found == [], json.dumps(found)[:2000]
        assert said == []
        served.end()
        page.wait_for_selector("h1:text('the report')")
        browser.close()
    served.thread.join(60)
    assert served.seen == 3


def test_a_run_without_a_report_ends_the_page_as_well(tmp_path: Path) -> None:
    found = Served(tmp_path, report=None)
    found.step(1)
    found.end()
    found.thread.join(60)
    assert found.seen == 1


def test_a_folder_that_holds_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no run folder"):
        watch(tmp_path, state=str, going=bool, report=lambda: None, tell=print)
