"""What every command prints, in a narrow and in a wide terminal: no word is broken, and without colours nothing is lost."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from safetensors.numpy import save_file

import shardwright as sw
from planner import named
from planner.cluster import CATALOGUE, cluster_names, find, total_devices, with_nodes
from planner.cluster import cluster as clusters
from planner.configurations.pins import PINS, pins
from planner.files import write_whole
from planner.profile import yaml as profile_yaml
from planner.schedule import FAMILIES
from runtime.trackers import watch
from tests.planner import plan_examples as examples
from tests.planner.choose.test_one_price import NODE
from tests.planner.choose.test_one_price import words as priced_words
from tests.planner.milp.instances import cluster, with_bf16
from tests.planner.rooflines import from_graph

ROOT = Path(__file__).parents[1]
PLAN = str(ROOT / "plans" / "mlp-chimera.yaml")
OTHER = PLAN_OF_RUN = str(ROOT / "plans" / "mlp-two-stages.yaml")
RUN = ["launch", PLAN_OF_RUN, "--inline", "--steps=2", "--run=run"]
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
    [*ASK[:2], "--cluster=h1000", "--batch=4"],
    ["list", "waltzes"],
    ["profile", "mlp", "--set=size=none"],
    ["profile", "no-such-model"],
    ["verify", "nowhere.yaml"],
    ["verify", PLAN, "--profile=p.yaml"],
    ["show", "doc.txt"],
    ["launch", PLAN, "--local", "--inline"],
    ["status", "."],
    ["infer", "gpt2", "--weights=w", "--input=i", "--output=o"],
    ["init", "gpt2"],
    ["prune", "nowhere", "--keep=0.1"],
    ["dedup", "nowhere"],
    ["export", PLAN, "--to=lasagne"],
    ["export", PLAN, "--to=deepspeed"],
    ["launch", PLAN, "--print=nomad"],
    ["layouts", "p.yaml", "--cluster=c.yaml", "--group=3"],
    ["rehearse", "nowhere.yaml"],
    ["probe", "--local", "--slurm"],
    ["scavenge", "replay", "log.csv", "--jobs=nowhere"],
    ["scavenge", "run", "--jobs=nowhere", "--state=idle", "--steps=1"],
    ["scavenge", "run", "--jobs=nowhere", "--state=idle", "--steps=1", "--partition=spot"],
    ["report", PLAN, "--profiler=rank0.json", "--force"],
    ["report", PLAN, "nowhere", "--force"],
    *([name, "nowhere"] for name in ("status", "logs", "watch", "cancel", "calibrate")),
    ["track", "nowhere", "--to=wandb"],
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
    ["report", PLAN, f"--against={OTHER}", "--trace=t.json", "-o=report.html", "--force"],
    ["init", "hf:gpt2", "-o=made.py", "--force"],
    ["export", OTHER, "--to=torchtitan", "-o=settings.py", "--force"],
    ["layouts", "words.yaml", f"--cluster={ROOT / NODE}", "--group=2", "--micro=2"],
    ["dedup", "pictures", "-o=kept.npy", "--force"],
    ["prune", "weights.safetensors", "--keep=0.5", "-o=kept.safetensors", "--force"],
    ["scavenge", "replay", "log.csv", "--jobs=jobs", "--at-once=1", "--look-ahead=60"],
    ["doctor"],
    *(["list", kind] for kind in named.KINDS),
    ["show", "h100x8"],
)
# Text for other programs: the same at every width.
FILES = (
    *(
        ["launch", OTHER, f"--print={how}", "--image=me/mine", "--run=made"]
        for how in ("torchrun", "k8s", "skypilot", "slurm")
    ),
    ["export", OTHER, "--to=torchtitan"],
    ["show", PLAN, "--json"],
)
OF_A_RUN = (
    [*RUN, "--grad-norm"],
    ["status", "run"],
    ["show", "run"],
    ["logs", "run"],
    ["calibrate", "run", "--force"],
    ["report", PLAN_OF_RUN, "run", "-o=ran.html", "--force"],
    ["prune", "run", "--keep=0.5", "-o=kept.safetensors", "--force"],
    ["watch", "run"],
    ["cancel", "run"],
    ["track", "run", "--to=wandb"],
    ["infer", "run", "--input=nowhere.npy", "--output=o.npy"],
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
    profile_yaml.save(priced_words(), folder / "words.yaml")
    write_whole(folder / "c.yaml", clusters.dump(cluster(4)))
    (folder / "doc.txt").write_text("a: 1\n")
    (folder / "log.csv").write_text("0,a,1\n0,b,1\n100,c,1\n200,a,0\n300,b,0\n400,c,0\n")
    (folder / "jobs").mkdir()
    (folder / "jobs" / "curve.csv").write_text("nodes,samples_per_s\n1,10\n2,18\n3,24\n")
    weights = {"layer.weight": np.arange(64, dtype=np.float32).reshape(8, 8)}
    save_file(weights, folder / "weights.safetensors")
    for label in ("cat", "dog"):
        (folder / "pictures" / label).mkdir(parents=True)
        for name in ("a", "b"):
            Image.new("RGB", (16, 16)).save(folder / "pictures" / label / f"{name}.png")
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
    code = sw.run(words)
    said = capsys.readouterr()
    assert code == 0 or words not in ANSWERS, said.err
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


_TAKEN = re.compile(
    r"^[\d.,%+<-]+$|^http://127[.]|/offline-run-"
)  # a figure, the address of a page, a run of W&B


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
    monkeypatch.setattr(sys.modules[watch.__module__], "GRACE_S", 0.0)
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
    tried = {words[0] for words in (*ERRORS, *ANSWERS, *OF_A_RUN, *DRAWN, *FILES)}
    left = {"demo"}  # takes a minute, and says what `plan`, `launch` and `report` say
    assert {words[0] for words in commands() if words} <= tried | left


@pytest.mark.parametrize("words", FILES, ids=" ".join)
def test_what_is_for_other_programs_is_the_same_in_any_terminal(
    words: list[str], place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read standard output alone; what is said beside it is for people."""
    texts = set()
    monkeypatch.setenv("FORCE_COLOR", "1")
    for width in (5000, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        sw.run(words)
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1 and "\x1b" not in texts.pop()


def values(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    return {word.strip("[]|.") for word in words_of(told(words, 200, capsys, monkeypatch).replace("|", " "))}


def test_the_help_names_every_value_that_is_allowed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = values(["plan", "--help"], capsys, monkeypatch)
    assert {*FAMILIES, *PINS, "fp32", "bf16", "fp16", "eager", "compiled", "quick", "normal", "full"} <= plan
    profile = values(["profile", "--help"], capsys, monkeypatch)
    assert {*CATALOGUE, "cpu", "cuda", "fp32", "bf16", "fp16"} <= profile


def test_every_command_stands_in_a_panel_of_the_help() -> None:
    assert {str(each.rich_help_panel) for each in sw._app().registered_commands} == set(sw._PANELS)


@pytest.mark.parametrize("kind", named.KINDS)
def test_what_is_listed_is_data_too(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sw.run(["list", kind, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)[kind]
    assert rows and all(all(isinstance(value, str | int) for value in row.values()) for row in rows)


def test_all_that_can_be_pinned_is_listed_with_an_example() -> None:
    assert set(named.PINS) == set(PINS)
    for key, (example, _) in named.PINS.items():
        name, value = example.split("=", 1)
        assert name == key
        pins({key: value.split("|")[0].strip("'")} if key != "stages" else {key: [["a", "b"], ["c"]]}, None)


@pytest.mark.parametrize("name", cluster_names())
def test_a_cluster_is_found_by_its_name_from_anywhere(name: str, place: Path) -> None:
    found = clusters.load(name)
    assert found.name == name
    if len(found.nodes) == 1 and found.links.rack:
        assert total_devices(with_nodes(found, 16)) == 16 * found.nodes[0].devices_per_node


def test_a_file_of_ones_own_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_whole(tmp_path / "h100x8", clusters.dump(cluster(3)))
    assert clusters.load("h100x8") == cluster(3)


def test_a_plan_for_nodes_of_a_cluster_by_name(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", "--profile=p.yaml", "--cluster=h100x8", "--batch=4", "--effort=quick", "--json"]
    assert sw.run([*asked, "--nodes=2", "--schedule=1f1b", "-o", str(tmp_path / "p.yaml")]) == 0
    assert sw.load_plan(tmp_path / "p.yaml").provenance.cluster == "h100x8"
    capsys.readouterr()
    assert sw.run([*asked, "--nodes=0", "-o", str(tmp_path / "q.yaml")]) == 2
    assert "0 nodes" in capsys.readouterr().err


def test_a_gpu_that_has_bf16_is_planned_for_in_bf16(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", "mlp", "--set=layers=2", "--batch=4", "--effort=quick", "--schedule=1f1b"]
    for machines, more, said in (
        ("h100x8", [], "mlp (layers=2) in bf16: "),
        ("h100x8", ["--precision=fp32"], "mlp (layers=2): "),
        ("v100x8", [], "mlp (layers=2): "),
    ):
        assert sw.run([*asked, "--cluster", machines, *more, "-o", str(tmp_path / "x.yaml"), "--force"]) == 0
        assert capsys.readouterr().out.startswith(said)
