"""The batch script is text: golden for ten jobs, and whatever names and paths are given, they mean only themselves."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import BadInput
from planner.plan import Place
from runtime.slurm import Options, container_warnings, text
from runtime.slurm import script as quote
from runtime.slurm import task_layout as layout
from runtime.slurm.options import Container
from tests.runtime.slurm.golden import CASES, FOLDER, request

AWKWARD = [
    "a b",
    "it's",
    'say "x"',
    "#1",
    "$HOME",
    "`id`",
    "$(id)",
    "a;b&c|d",
    "*",
    "~",
    "-rf",
    "\\x",
    "ü",
    "a'\"#\\b",
]


@pytest.mark.parametrize("name", CASES)
def test_a_job_gives_the_script_that_is_committed(name: str) -> None:
    assert text(*CASES[name]) == (FOLDER / f"{name}.sbatch").read_text(), (
        "renew with `python -m tests.runtime.slurm.golden` where the change is meant"
    )


def test_no_script_is_committed_without_its_job() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_bash_can_read_every_script(name: str) -> None:
    subprocess.run(["bash", "-n", str(FOLDER / f"{name}.sbatch")], check=True)


def read_as_sbatch_does(line: str) -> str:
    """The value of one directive: quotes, backslashes that escape anything, and comments."""
    value, quoted, escaped = "", "", False
    for letter in line.partition("=")[2]:
        if escaped:
            value, escaped = value + letter, False
        elif letter == "\\":
            escaped = True
        elif quoted and letter == quoted:
            quoted = ""
        elif not quoted and letter in "\"'":
            quoted = letter
        elif letter == "#" or (not quoted and letter.isspace()):
            break
        else:
            value += letter
    return value


def words_of(script: str) -> list[str]:
    """What bash makes of the script's command, without running it."""
    elsewhere = re.sub(r"^cd ", ": ", script, flags=re.M)
    shown = re.sub(r"^  exec ", "printf '%s\\\\0' ", elsewhere, flags=re.M)
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("name", AWKWARD)
def test_names_and_values_mean_only_themselves(name: str) -> None:
    script = text(request(name=name), Options(env={"X": name}, sbatch={"comment": name}))
    lines = script.splitlines()
    assert read_as_sbatch_does(lines[1]) == name
    assert next(read_as_sbatch_does(line) for line in lines if "--comment" in line) == name
    assert f"export X={shlex.quote(name)}" in lines
    assert len(lines) == len(text(request(), Options(env={"X": "x"}, sbatch={"comment": "x"})).splitlines())


@pytest.mark.parametrize("name", [name for name in AWKWARD if "\\" not in name])
def test_a_run_folder_of_any_name_reaches_the_supervisor(name: str) -> None:
    folder = f"/home/{name}/run"
    script = text(request(folder=folder), Options())
    assert words_of(script)[4] == folder
    assert words_of(script)[-1] == folder
    assert next(read_as_sbatch_does(x) for x in script.splitlines() if "--chdir" in x) == folder


@given(st.text(min_size=1, max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_text_is_quoted_or_refused(value: str) -> None:
    try:
        line, word = quote.directive("comment", value), quote.word(value)
    except BadInput:
        assert not value.isprintable()
        return
    assert line.splitlines() == [line]
    assert read_as_sbatch_does(line) == value
    assert shlex.split(word) == [value]


@pytest.mark.parametrize("folder", ["/runs/a%jb", "/runs/a\\b", "runs/a", "/runs/a\nb"])
def test_a_folder_that_slurm_cannot_log_to_is_refused(folder: str) -> None:
    with pytest.raises(BadInput):
        text(request(folder=folder), Options())


def places(*rows: tuple[int, int]) -> list[Place]:
    return [
        Place(rank=rank, node=node, slot=slot, data=0, pipeline=rank, spatial=0)
        for rank, (node, slot) in enumerate(rows)
    ]


def test_ranks_are_counted_a_node_in_the_order_of_nodes() -> None:
    rows = layout.by_node(places((0, 0), (0, 1), (9, 0), (10, 1)))
    assert [[place.rank for place in row] for row in rows] == [[0, 1], [2], [3]]


def test_places_that_slurm_would_number_otherwise_are_refused() -> None:
    with pytest.raises(BadInput, match=r"rank 2 .* stands before rank 1"):
        layout.by_node(places((0, 0), (1, 0), (0, 1)))


def test_uneven_nodes_are_laid_out_by_a_list_of_hosts() -> None:
    assert "--distribution=arbitrary" in text(request(tasks=(2, 1)), Options())
    assert "--distribution=block" in text(request(tasks=(2, 2)), Options())


def test_a_mount_with_a_comma_is_refused() -> None:
    job, options = CASES["pyxis"]
    with pytest.raises(BadInput, match="comma"):
        text(replace(job, folder=Path("/a,b")), options)


@pytest.mark.parametrize(
    ("mounts", "python", "warned"),
    [
        ((), None, True),
        (("/data",), None, True),
        (("/opt:/data",), None, True),  # the image sees it elsewhere
        (("/opt",), None, False),
        (("/nfs/envs:/opt/venv:ro",), None, False),
        ((), "python3", False),
    ],
)
def test_a_python_that_a_container_may_lack_is_told(
    mounts: tuple[str, ...], python: str | None, warned: bool
) -> None:
    job = replace(request(), python="/opt/venv/bin/python")
    site = Options(container=Container(runtime="pyxis", image="x", mounts=mounts), python=python)
    told = container_warnings(job, site)
    assert bool(told) is warned and all("/opt/venv/bin/python in the container" in line for line in told)
    assert container_warnings(job, Options()) == []


@pytest.mark.parametrize(("time", "before_s"), [(None, 120), ("12:00:00", 120), (2, 30)])
def test_a_short_limit_leaves_time_before_the_signal(time: str | int | None, before_s: int) -> None:
    assert f"--signal=B:USR1@{before_s}\n" in text(request(tasks=(1,)), Options(time=time))


# A shell could not listen to a signal that it was started to ignore.
LISTENING = f"""exec {sys.executable} -c 'import os, pathlib, signal, time
signal.signal(signal.{{}}, lambda number, frame: os._exit({{}}))
pathlib.Path("{{{{folder}}}}/up").touch()
time.sleep(60)'"""


@pytest.mark.parametrize(
    ("supervisor", "number", "status", "queued"),
    [
        ("exit 0", 0, 0, 0),
        ("exit 5", 0, 5, 0),
        ("kill -KILL $$", 0, -9, 1),  # or out of memory
        ("touch {folder}/outcome.json; exit 137", 0, 137, 0),  # of a rank that was killed
        (LISTENING.format("SIGUSR1", 85), signal.SIGUSR1, 85, 0),
        (
            "trap 'exit 137' TERM; touch {folder}/up; while :; do :; done",
            signal.SIGTERM,
            137,
            0,
        ),  # by scancel
    ],
)
def test_the_script_hands_signals_on_and_queues_again_only_where_its_supervisor_was_killed(
    supervisor: str, number: int, status: int, queued: int, tmp_path: Path
) -> None:
    for name, text_of in (
        ("python", supervisor.replace("{folder}", str(tmp_path))),
        ("scontrol", f"echo $* >> {tmp_path}/asked"),
        ("sleep", ":"),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text_of}\n")
        (tmp_path / name).chmod(0o755)
    made = replace(request(folder=str(tmp_path)), python=str(tmp_path / "python"), directory=tmp_path)
    (tmp_path / "launch.sbatch").write_text(text(made, Options()))
    process = subprocess.Popen(
        ["bash", str(tmp_path / "launch.sbatch")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "12"},
    )
    while number and not (tmp_path / "up").exists():
        time.sleep(0.01)
    if number:
        process.send_signal(number)
    try:
        assert process.wait(30) == status
    finally:
        process.kill()
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.exists() else "") == "requeue 12\n" * queued
