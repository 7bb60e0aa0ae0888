"""`shardwright plan` where it answers with more than one plan, and what it refuses."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

import shardwright as sw
from planner.cluster import cluster as clusters
from planner.cluster import find
from planner.files import write_whole
from planner.milp import SearchState
from planner.milp.search import search as searching
from planner.plan import yaml as plan_yaml
from planner.profile import yaml as profile_yaml
from planner.show import proof
from planner.verify import violations
from tests.planner import plan_examples as examples
from tests.planner.milp.instances import cluster, with_bf16
from tests.planner.rooflines import from_graph

MACHINES = cluster(4)
COSTS = with_bf16(from_graph(examples.graph(), find("cpu"), workload="m.py", arguments={}, micros=(1, 2)))


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    profile_yaml.save(COSTS, tmp_path / "profile.yaml")
    write_whole(tmp_path / "cluster.yaml", clusters.dump(MACHINES))
    return [
        "plan",
        "--profile",
        str(tmp_path / "profile.yaml"),
        "--cluster",
        str(tmp_path / "cluster.yaml"),
        "--schedule",
        "1f1b",
    ]


def test_a_front_is_a_folder_of_plans_and_a_table(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "front"
    assert sw.run([*files, "--batch", "4", "--frontier", "-o", str(folder), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert sorted(Path(row["plan"]) for row in data["rows"]) == sorted(folder.iterdir())
    for row in data["rows"]:
        plan = plan_yaml.load(row["plan"])
        assert violations(plan, profile=COSTS, cluster=MACHINES) == []
        assert plan.prediction.step_ns == row["step_ns"]
    assert sw.run([*files, "--batch", "4", "--frontier", "-o", str(folder)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert sw.run([*files, "--batch", "4", "--frontier", "-o", str(folder), "--force"]) == 0
    table = capsys.readouterr().out
    assert "fullest device" in table
    assert "01.yaml" in table


def test_several_counts_of_devices_are_compared(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "devices"
    assert sw.run([*files, "--batch", "4", "--devices", "1,2,4", "-o", str(folder)]) == 0
    table = capsys.readouterr().out
    assert "Knee:" in table
    assert "More devices:" in table
    assert sorted(path.name for path in folder.iterdir()) == [f"devices-{n}.yaml" for n in (1, 2, 4)]
    assert len(plan_yaml.load(folder / "devices-2.yaml").places) <= 2


def test_one_count_of_devices_is_a_limit(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    assert sw.run([*files, "--batch", "4", "--devices", "2", "-o", str(path)]) == 0
    assert len(plan_yaml.load(path).places) == 2


def test_batches_are_tried_by_themselves(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "batches"
    assert sw.run([*files, "--batch", "auto", "-o", str(folder), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["knee"] in [row["batch"] for row in data["rows"]]
    assert len(list(folder.iterdir())) == len(data["rows"]) > 2


def test_a_plan_is_made_in_the_precision_asked_for(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.yaml"
    assert sw.run([*files, "--batch", "4", "--precision", "bf16", "-o", str(path)]) == 0
    assert plan_yaml.load(path).precision == "bf16"
    assert sw.plan(COSTS, MACHINES, batch=4, precision="bf16", schedule=["1f1b"]).precision == "bf16"
    refused = [*files, "--batch", "4", "--execution", "compiled", "-o", str(tmp_path / "q.yaml")]
    assert sw.run(refused) == 2
    assert "execution 'compiled' was not profiled (allowed: eager)" in capsys.readouterr().err


def test_a_plan_explains_itself(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "p.yaml")
    assert sw.run([*files, "--batch", "4", "--explain", "-o", path]) == 0
    told = capsys.readouterr().out
    assert "this plan" in told and "Searched: " not in told
    assert "Of its step: computing" in told
    assert "More memory: 1 GiB more on each device" in told
    assert sw.run([*files, "--batch", "4", "--explain", "--force", "-o", path, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["explanation"]["chosen"]["step_ns"] == data["prediction"]["step_ns"]


def test_a_plan_is_told_in_three_lines_and_its_proof_on_request(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "p.yaml")
    question = [*files[:-2], "--batch", "4", "--force", "-o", path]
    assert sw.run(question) == 0
    *lines, written = capsys.readouterr().out.splitlines()
    assert lines == proof.plan_lines(plan_yaml.load(path))
    assert written == f"plan written to {path}     --explain: why this plan     --proof: what was searched"
    assert sw.run([*question, "--proof"]) == 0
    told = capsys.readouterr().out
    assert told.endswith(f"\n\n{proof.proof_text(plan_yaml.load(path))}\n") and "--proof:" not in told
    for shown in (["show", path], ["show", path, "--proof"]):
        assert sw.run(shown) == 0
        assert ("Searched: " in capsys.readouterr().out) == ("--proof" in shown)


def test_json_has_the_certificate_with_its_gap_and_its_line(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.yaml"
    assert sw.run([*files, "--batch", "4", "-o", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["certificate"]
    assert told == proof.proof_data(plan_yaml.load(path))
    assert (told["gap"], told["verdict"]) == (0.0, proof.verdict(plan_yaml.load(path)))


def test_little_effort_says_that_nothing_was_proved(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    assert sw.run([*files, "--batch", "4", "--effort", "quick", "-o", str(path)]) == 0
    plan = plan_yaml.load(path)
    assert plan.certificate is not None
    assert plan.certificate.stage == "settled"
    assert "not looked into" in proof.verdict(plan) or plan.certificate.gap == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--batch", "auto", "--frontier"], "exclude each other"),
        (["--batch", "4,8", "--devices", "1,2"], "exclude each other"),
        (["--batch", "many"], "--batch: 'many' is no list of whole numbers"),
        (["--batch", "0"], "--batch: 0 is too small"),
        (["--batch", "4", "--devices", "0"], "--devices: 0 is too small"),
        (["--batch", "4", "--devices", "2", "--fix", "devices=2"], "devices is fixed"),
        (["--batch", "4", "--effort", "most"], "--effort: effort is 'most'"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert sw.run([*files, *options, "-o", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert says in message
    assert "Traceback" not in message
    assert not (tmp_path / "out").exists()


def test_a_front_of_nothing_says_why_nothing_fits(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_whole(tmp_path / "cluster.yaml", clusters.dump(cluster(2, memory=100)))
    for options in (["--frontier"], ["--devices", "1,2"]):
        assert sw.run([*files, "--batch", "4", *options, "-o", str(tmp_path / "out")]) == 3
        assert "bytes short" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_a_family_that_is_asked_for_keeps_its_orders_and_says_what_frees_them(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [
        "--batch",
        "4",
        "--fix",
        "pipeline=2",
        "--fix",
        "data=1",
        "-o",
        str(tmp_path / "plan.yaml"),
        "--force",
    ]
    assert sw.run([*files, *more]) == 0
    assert "`--schedule 1f1b,listed` also reschedules orders" in capsys.readouterr().out
    assert sw.run([*files[:-1], "1f1b,listed", *more]) == 0
    assert "`--schedule" not in capsys.readouterr().out
    assert sw.run([*files[:-2], *more]) == 0
    assert "`--schedule" not in capsys.readouterr().out


def test_a_plan_that_is_there_already_comes_with_what_to_type(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.yaml").touch()
    assert sw.run([*files, "--batch", "4", "-o", str(tmp_path / "plan.yaml")]) == 2
    said = f"{tmp_path / 'plan.yaml'}: exists already (allowed: --force to overwrite it, or -o with another name)"
    assert said in capsys.readouterr().err


def test_a_plan_that_cannot_be_written_is_refused_before_anything_is_measured(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.measure.profile", lambda *_, **__: pytest.fail("it was measured"))
    monkeypatch.chdir(tmp_path)
    there = "exists already", "is a file, and several plans need a folder"
    for name, more, said in (
        ("mlp-plan.yaml", "--batch=4", there[0]),
        ("mlp-batch", "--batch=auto", there[1]),
    ):
        (tmp_path / name).touch()
        assert sw.run(["plan", "mlp", *files[3:], more]) == 2
        assert f"{name}: {said}" in capsys.readouterr().err


def pressing(monkeypatch: pytest.MonkeyPatch, place: object, name: str, number: int = signal.SIGINT) -> None:
    """Presses Ctrl-C, or sends another signal, whenever a part of the search begins."""
    before = getattr(place, name)

    def press(*given: object) -> object:
        signal.raise_signal(number)
        return before(*given)

    monkeypatch.setattr(place, name, press)


@pytest.mark.parametrize(
    "more", [[], ["--explain"], ["--json"], ["--frontier"], ["--devices=1,2"]], ids=" ".join
)
def test_ctrl_c_gives_the_best_so_far_and_says_so(
    more: list[str],
    files: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pressing(monkeypatch, searching, "prove")
    before = signal.getsignal(signal.SIGINT)
    assert sw.run([*files, "--batch", "4", "-o", str(tmp_path / "p"), *more]) == 0
    assert signal.getsignal(signal.SIGINT) is before
    said = capsys.readouterr()
    assert said.err.startswith("stopped: the answer is the best so far")
    assert more != ["--json"] or json.loads(said.out)["stopped"] is True
    assert more != ["--explain"] or "More memory: not looked into, since the search was stopped." in said.out
    written = [tmp_path / "p"] if (tmp_path / "p").is_file() else list((tmp_path / "p").iterdir())
    assert written
    for path in written:
        assert violations(plan_yaml.load(path), profile=COSTS, cluster=MACHINES) == []


def test_ctrl_c_at_five_random_moments_gives_a_valid_plan_with_an_honest_gap_or_says_that_there_is_none(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Moments of a search of all families, drawn anew each time; a press that comes late changes nothing."""
    asked = [*files[:-2], "--batch=16", "--force", "-o", str(tmp_path / "whole.yaml")]
    begun = time.monotonic()
    assert sw.run(asked) == 0
    took_s = time.monotonic() - begun
    best_ns = plan_yaml.load(tmp_path / "whole.yaml").prediction.step_ns
    for at in range(5):
        path, sent = tmp_path / f"{at}.yaml", threading.Event()

        def press(sent: threading.Event = sent) -> None:
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(random.uniform(0, took_s), press)
        late = signal.signal(signal.SIGINT, lambda *_: None)  # after the end, or before anything is searched
        try:
            timer.start()
            status = sw.run([*asked[:-1], str(path)])
        finally:
            timer.cancel()
            timer.join()
            signal.signal(signal.SIGINT, late)
        said = capsys.readouterr().err
        if status == 130:
            assert sent.is_set() and "nothing found yet" in said and not path.exists()
            continue
        found = plan_yaml.load(path)
        assert status == 0 and violations(found, profile=COSTS, cluster=MACHINES) == []
        assert found.certificate is not None and found.certificate.bound_ns <= best_ns
        assert found.prediction.step_ns >= best_ns
        if found.prediction.step_ns > best_ns:
            assert said.startswith("stopped:") and found.certificate.gap > 0


def test_a_told_end_keeps_the_best_plan_as_ctrl_c_does(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pressing(monkeypatch, searching, "prove", signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    assert sw.run([*files, "--batch", "4", "-o", str(tmp_path / "p.yaml")]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err.startswith("stopped: the answer is the best so far")
    assert violations(plan_yaml.load(tmp_path / "p.yaml"), profile=COSTS, cluster=MACHINES) == []


def test_a_second_ctrl_c_before_any_plan_says_that_there_is_none(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pressing(monkeypatch, SearchState, "look")
    assert sw.run([*files, "--batch", "4", "-o", str(tmp_path / "p.yaml")]) == 130
    assert capsys.readouterr().err == "error: stopped: nothing found yet\n"
    assert not (tmp_path / "p.yaml").exists()


def test_how_far_a_plan_is_is_said_on_a_terminal_or_where_it_is_asked_for(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.terminal.console.FIRST_LINE_S", 0.01)
    asked = [*files, "--batch", "4", "-o", str(tmp_path / "p.yaml"), "--force"]
    assert sw.run(asked) == 0
    assert capsys.readouterr().err == ""
    assert sw.run([*asked, "--progress"]) == 0
    assert capsys.readouterr().err.startswith("planning profile: ")
