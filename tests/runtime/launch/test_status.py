"""A local run looked at from its folder when nothing is left of it; one that runs, in test_handle."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from planner.errors import BadInput
from runtime.launch import logs, status
from runtime.runfolder import Attempt, Job, Paths, note_attempt

PLAN = Path("plans/mlp-chimera.yaml")
ENDED = "stopped without writing a result: the supervisor was killed, or the machine went down"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path).make()
    Job(steps=4).write(made)
    made.plan.write_text(PLAN.read_text())
    return made


def test_a_run_whose_supervisor_left_no_word_has_ended(paths: Paths) -> None:
    found = status.of(paths.root)
    assert (found.state, found.reason) == ("ended", ENDED)
    words = {"host": socket.gethostname(), "pid": os.getpid(), "started": "another process, with that number"}
    paths.holder.write_text(json.dumps(words))
    assert status.of(paths.root).state == "ended"
    with pytest.raises(BadInput, match="does not run"):
        status.cancel(paths.root)


def test_a_run_of_another_host_is_not_said_to_have_ended(paths: Paths) -> None:
    paths.holder.write_text(json.dumps({"host": "elsewhere", "pid": os.getpid(), "started": ""}))
    found = status.of(paths.root)
    assert (found.state, found.reason) == ("unknown", "it was started on elsewhere: ask there")
    with pytest.raises(BadInput, match="was started on elsewhere"):
        status.cancel(paths.root)


def test_a_failed_run_tells_its_cause(paths: Paths) -> None:
    paths.outcome.write_text(
        json.dumps({"state": "failed", "rank": 1, "cause": "rank 1: odd", "exits": [0, 1]})
    )
    found = status.of(paths.root)
    assert (found.state, found.reason, found.step, found.loss) == ("failed", "rank 1: odd", 0, None)


def test_logs_are_told_with_their_file_and_by_rank(paths: Paths) -> None:
    paths.log(0).write_text("one\ntwo")
    paths.log(1).write_text("three\n")
    assert list(logs.lines_of(paths.root, None, follow=False)) == [
        ("rank-00000", "one"),
        ("rank-00000", "two"),
        ("rank-00001", "three"),
    ]
    assert list(logs.lines_of(paths.root, 1, follow=True, poll_s=0)) == [("rank-00001", "three")]
    with pytest.raises(BadInput, match="no log of rank 7"):
        list(logs.lines_of(paths.root, 7, follow=False))


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"\x1b[1;31mred\x1b[0m\x1b]0;title\x07!\x1b]8;;http://x\x1b\\here\x1bc\n", ["red!here"]),
        (b"10%\r20%\r\n30%\n", ["10%", "20%", "30%"]),
        ("\u202egnp.exe\x9b2Jx\x07\x00\n".encode(), ["\\u202egnp.exex\\x07\\x00"]),
        (b"\x1b]never ends\n\x1b[31\n", ["", "31"]),
        (b"y" * 5000 + b"\n", ["y" * 4000 + " ... (1000 more characters)"]),
    ],
)
def test_lines_of_a_log_are_clean_and_short(raw: bytes, lines: list[str], paths: Paths) -> None:
    paths.log(0).write_bytes(raw)
    assert [line for _, line in logs.lines_of(paths.root, 0, follow=False)] == lines


def test_of_a_log_of_millions_of_lines_the_last_are_told(paths: Paths) -> None:
    paths.log(0).write_bytes(b"".join(b"%d\x07\n" % number for number in range(500_000)))
    first, *rest = [line for _, line in logs.lines_of(paths.root, 0, follow=False)]
    assert first.endswith("earlier lines are left out)") and len(rest) == logs.MOST_LINES
    assert rest[-1] == "499999\\x07"


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no run folder"):
        status.of(tmp_path)


def test_how_a_run_ended_is_told_once(paths: Paths) -> None:
    for generation, cause in enumerate(("rank 1: odd", "rank 0: even")):
        note_attempt(
            paths,
            Attempt(generation=generation, nodes=["a"], begin_s=0, end_s=1, state="failed", cause=cause),
        )
    assert len(status.of(paths.root).history) == 2
    paths.outcome.write_text(
        json.dumps({"state": "failed", "rank": 0, "cause": "rank 0: even", "exits": [1]})
    )
    text = status.status_text(status.of(paths.root))
    assert text.count("rank 0: even") == 1 and text.count("failed: rank 1: odd") == 1


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # to import it is now an error
import shardwright
sys.exit(shardwright.run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("command", "said"),
    [("status", ": failed (rank 1: odd)"), ("logs", "rank-00000: one"), ("cancel", "does not run")],
)
def test_a_run_is_looked_at_and_cancelled_without_torch(paths: Paths, command: str, said: str) -> None:
    paths.outcome.write_text(
        json.dumps({"state": "failed", "rank": 1, "cause": "rank 1: odd", "exits": [0, 1]})
    )
    paths.log(0).write_text("one\n")
    program = [sys.executable, "-c", WITHOUT_TORCH, command, str(paths.root)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr
