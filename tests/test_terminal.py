"""What every command prints, in a narrow and in a wide terminal: no word is broken, and without colours nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
import typer

import shardwright as sw
from planner.cluster import cluster as clusters
from planner.cluster import find
from planner.files import write_whole
from planner.profile import yaml as profile_yaml
from tests.planner import plan_examples as examples
from tests.planner.milp.instances import cluster, with_bf16
from tests.planner.rooflines import from_graph

ROOT = Path(__file__).parents[1]
PLAN = str(ROOT / "plans" / "mlp-chimera.yaml")
RUN = ["launch", str(ROOT / "plans" / "mlp-two-stages.yaml"), "--inline", "--steps=2", "--run=run"]
ASK = [
    "plan",
    "--profile=p.yaml",
    "--cluster=c.yaml",
    "--schedule=1f1b",
    "--force",
    "--batch=4",
    "--effort=quick",
]
ERRORS = (
    ["dance"],
    ["plan"],
    ["plan", "--cluster", "nowhere.yaml", "--batch", "4"],
    [*ASK, "--fix=luck=7"],
    [*ASK, "--schedule=waltz"],
    [*ASK, "--precision=fp3"],
    [*ASK, "--fix=data=4096"],
    ["profile", "mlp", "--set=size=none"],
    ["profile", "no-such-model"],
    ["verify", "nowhere.yaml"],
    ["verify", PLAN, "--profile=p.yaml"],
    ["show", "doc.txt"],
    ["launch", PLAN, "--local", "--inline"],
    ["status", "."],
    ["infer", "gpt2", "--weights=w", "--input=i", "--output=o"],
)
ANSWERS = (
    ["--version"],
    ["show", PLAN, "--proof"],
    ["show", "p.yaml"],
    ["show", "c.yaml"],
    ["verify", PLAN],
    [*ASK, "-o=plan.yaml"],
    [*ASK, "--explain", "--proof", "-o=plan.yaml"],
    [*ASK, "--frontier", "-o=front"],
    [*ASK, "--devices=1,2,4", "-o=devices"],
    ["report", PLAN, "-o=report.html", "--force"],
    ["doctor"],
)
OF_A_RUN = (
    [*RUN, "--grad-norm"],
    ["status", "run"],
    ["show", "run"],
    ["logs", "run"],
    ["calibrate", "run", "--force"],
)
DRAWN = (["simulate", PLAN],)


def commands() -> Iterator[list[str]]:
    app = sw._app()
    yield []
    yield from ([each.name or ""] for each in app.registered_commands)
    for group in app.registered_groups:
        made = group.typer_instance
        assert isinstance(made, typer.Typer) and made is not None
        yield [str(made.info.name)]
        yield from ([str(made.info.name), each.name or ""] for each in made.registered_commands)


HELPS = [[*words, "--help"] for words in commands()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a profile, a cluster and a run, which is the current one."""
    folder = tmp_path_factory.mktemp("place")
    graph = examples.graph()
    costs = with_bf16(from_graph(graph, find("cpu"), workload="m.py", arguments={}, micros=(1, 2)))
    profile_yaml.save(costs, folder / "p.yaml")
    write_whole(folder / "c.yaml", clusters.dump(cluster(4)))
    (folder / "doc.txt").write_text("a: 1\n")
    with chdir(folder):
        yield folder


def told(
    words: list[str],
    width: int | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    **environment: str,
) -> str:
    monkeypatch.setenv("COLUMNS", str(width or 5000))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    sw.run(words)
    said = capsys.readouterr()
    return said.out + said.err


_BESIDE = re.compile(r"[│╭╮╰╯─]")


def words_of(text: str) -> set[str]:
    """The words of a text; the marks of a paragraph that stands for a row are none of them."""
    return {word.rstrip(";,") for word in _BESIDE.sub(" ", text).split()} - {""}


def check(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = words_of(told(words, None, capsys, monkeypatch))
    for width in (80, 200):
        text = told(words, width, capsys, monkeypatch)
        changing = _changing(text) if words in (*ANSWERS, *OF_A_RUN) else set()
        assert words_of(text) <= whole | changing, f"{words} at {width}"
        for line in text.splitlines():
            longest = max(map(len, line.split()), default=0)
            assert len(line) <= width or longest > width - 40, f"{words} at {width}: {line}"


_TAKEN = re.compile(r"^[\d.,%+<-]+$")  # a figure


def _changing(text: str) -> set[str]:
    """Words with figures in them that another run of the same command may print otherwise."""
    return {word.rstrip(";,") for word in text.split() if _TAKEN.search(word)}


@pytest.mark.parametrize("words", [*HELPS, *ERRORS, *ANSWERS], ids=" ".join)
def test_no_word_is_broken(
    words: list[str], place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(words, capsys, monkeypatch)


def test_no_word_is_broken_in_what_is_said_of_a_run(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sw.run(RUN) == 0
    for words in OF_A_RUN[1:]:
        check(words, capsys, monkeypatch)


@pytest.mark.parametrize("words", [*ERRORS, *ANSWERS, *DRAWN], ids=" ".join)
def test_colours_add_nothing_and_lose_nothing(
    words: list[str], place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = told(words, 200, capsys, monkeypatch, NO_COLOR="1", FORCE_COLOR="1")
    assert "\x1b" not in plain
    bright = told(words, 200, capsys, monkeypatch, NO_COLOR="", FORCE_COLOR="1", TERM="xterm-256color")
    bare = re.sub(r"\x1b\[[0-9;]*m", "", bright)
    if words not in DRAWN:
        assert words_of(bare) <= words_of(plain) | _changing(bare)


def test_every_command_is_tried_or_named_here() -> None:
    """A new command belongs in one of the lists above."""
    tried = {words[0] for words in (*ERRORS, *ANSWERS, *OF_A_RUN, *DRAWN)}
    left = {
        "init",
        "cancel",
        "prune",
        "dedup",
        "export",
        "rehearse",
        "probe",
        "demo",
        "scavenge",
    }  # their help is tried
    assert {str(each.name) for each in sw._app().registered_commands} <= tried | left
