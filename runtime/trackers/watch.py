"""Serves the page of a run while it trains, to this machine alone, and ends with the run.

Whoever asks must know a token, which stands in the address, and must ask for the loopback by name. So neither a page of
another site nor a person of another account learns anything.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from planner import plan as plans
from planner.errors import BadInput
from runtime.runfolder import MetricLines, Paths, read
from runtime.trackers.watch_page import PAGE, POLICY

LOOK_S = 0.5  # between two looks at the run
GRACE_S = 10.0  # for the page to take the report once the run has ended
MOST_STEPS = 1000  # that a page shows
HOSTS = ("127.0.0.1", "localhost")


@dataclass
class Watched:
    """What the page is told of a run, as it stands now."""

    folder: Path
    state: Callable[[], str]
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)  # loss, seconds
    ended: bool = False
    report: str | None = None
    asked: threading.Event = field(default_factory=threading.Event)  # the report was taken
    changed: threading.Condition = field(default_factory=threading.Condition)
    told: str = ""

    def __post_init__(self) -> None:
        paths = Paths(self.folder)
        if not paths.plan.is_file():
            raise BadInput("is no run folder", where=str(self.folder), allowed="a folder that launch made")
        self._lines, self._paths = MetricLines(paths), paths
        self._predicted = plans.load(paths.plan).prediction

    def look(self, *, ended: bool = False, report: str | None = None) -> None:
        """Reads what the ranks have told of since, and wakes whoever waits for it.

        Args: `report` is the page that follows this one once the run has `ended`.
        """
        for _, number, row in sorted(self._lines.complete(), key=lambda told: told[:2]):
            self.steps[number] = row.loss, row.seconds
        with self.changed:
            self.ended, self.report = ended, report
            self.told = self._text()
            self.changed.notify_all()

    def _text(self) -> str:
        seen, shown = self._predicted, sorted(self.steps.items())[-MOST_STEPS:]
        finite = [[number, loss, s] for number, (loss, s) in shown if math.isfinite(loss)]
        ranks = [[s for _, s in times] for _, times in sorted(self._lines.times.items())]
        return json.dumps(
            {
                "name": self.folder.name,
                "state": self.state(),
                "all": read(self._paths).steps,
                "steps": finite,
                "ranks": ranks,
                "predicted": {
                    "step": seen.step_ns / 1e9,
                    "low": seen.low_ns / 1e9,
                    "high": seen.high_ns / 1e9,
                },
                "ended": self.ended,
                "report": self.report is not None,
            }
        )


class PageServer(ThreadingHTTPServer):
    """Answers for one run on the loopback."""

    daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        self.watched, self.token = watched, secrets.token_urlsafe(16)
        super().__init__((HOSTS[0], port), PageRequest)

    @property
    def address(self) -> str:
        """Returns where a browser finds the page."""
        return f"http://{HOSTS[0]}:{self.server_port}/{self.token}/"


class PageRequest(BaseHTTPRequestHandler):
    """One request of a page: itself, its events, or the report at the end."""

    server: PageServer

    def do_GET(self) -> None:
        """Answers what is asked for under the token, and nothing else."""
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        _, token, what = [*self.path.split("/", 2), "", ""][:3]
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        watched = self.server.watched
        if host not in HOSTS or not known:
            self.send_error(404)
        elif what == "":
            nonce = secrets.token_urlsafe(12)
            self._send(PAGE.format(nonce=nonce), POLICY.format(nonce=nonce))
        elif what == "events":
            self._events(watched)
        elif what == "report" and watched.report is not None:
            self._send(watched.report, "")
            watched.asked.set()
        else:
            self.send_error(404)

    def _send(self, text: str, policy: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(body)

    def _events(self, watched: Watched) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        told, ended = "", False
        while not ended:
            with watched.changed:
                while watched.told == told:
                    watched.changed.wait(LOOK_S)
                told, ended = watched.told, watched.ended
            try:
                self.wfile.write(f"data: {told}\n\n".encode())
                self.wfile.flush()
            except OSError:  # the page was closed
                return

    def log_message(self, format: str, *given: object) -> None:
        """Says nothing: the terminal is for the run."""


def watch(
    folder: Path,
    *,
    state: Callable[[], str],
    going: Callable[[], bool],
    report: Callable[[], str | None],
    tell: Callable[[str], None],
    port: int = 0,
) -> int:
    """Serves the page of a run until it has ended, and the page has taken the report.

    Args: `folder` is a run folder; `state` and `going` say how it stands, `report` makes the last page; `tell` is told the address.
      `port` is on the loopback, any free one by default.
    Returns: the number of steps seen.
    Raises: BadInput where the folder holds no run, or the port is taken.
    """
    watched = Watched(folder, state)
    watched.look()
    try:
        server = PageServer(watched, port)
    except OSError as error:
        raise BadInput(
            f"port {port} cannot be had: {error}", where="--port", allowed="0 for a free one"
        ) from error
    threading.Thread(target=server.serve_forever, name="watch", daemon=True).start()
    tell(server.address)
    try:
        while going():
            watched.look()
            time.sleep(LOOK_S)
        page = report()
        watched.look(ended=True, report=page)
        if page is not None:
            watched.asked.wait(GRACE_S)
    finally:
        server.shutdown()
        server.server_close()
    return len(watched.steps)
