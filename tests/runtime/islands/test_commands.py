"""The words of islands on the command line: launched, looked at, cancelled, advised, and refused where they mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright
from planner.plan import Plan
from planner.plan import yaml as plan_yaml
from tests.captures import captured_of
from tests.runtime.plans import plan_for

pytestmark = pytest.mark.usefixtures("warm_starts")

NET = str(Path("tests/runtime/workloads/dropped.py").resolve())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan: Plan = plan_for(captured_of(NET, {}, 2)[1].graph, NET, workers=1, micros=1)
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    path.write_text(plan_yaml.dump(plan))
    return path


def launched(file: Path, run: Path, *words: str) -> int:
    return shardwright.run(["launch", str(file), "--local", "--trust", "--run", str(run), *words])


def test_islands_are_launched_looked_at_and_go_on_for_more_rounds(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, words = tmp_path / "run", ("--islands", "1", "--wait", "--json")
    assert launched(file, run, *words, "--rounds", "1", "--inner-steps", "2", "--shards", "2") == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["state"], first["version"], first["shards"], len(first["losses"])) == ("done", 1, 2, 1)
    assert launched(file, run, *words, "--rounds", "2") == 0
    assert json.loads(capsys.readouterr().out)["version"] == 2
    assert shardwright.run(["status", str(run)]) == 0
    said = capsys.readouterr().out
    assert f"{run}: done, version 2 of 2, 2 steps of 2 shards a round" in said and "checksum" in said
    assert shardwright.run(["logs", str(run)]) == 0
    assert "version 2: 2 shards added up" in capsys.readouterr().out
    assert shardwright.run(["cancel", str(run)]) == 0
    assert launched(file, run, *words, "--rounds", "2", "--inner-steps", "3") == 2
    assert "another inner_steps" in capsys.readouterr().err


def test_a_dry_run_advises_how_many_steps_a_round_should_have(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launched(file, tmp_path / "run", "--islands", "2", "--dry-run", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inner_steps"] > 1 and found["reducers"] == 1 and found["bytes_per_s"] > 0
    assert launched(file, tmp_path / "run", "--islands", "2", "--dry-run") == 0
    assert "is the least for 10% of overhead" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rounds", "2"), "--rounds is an option of --islands"),
        (("--islands", "0", "--rounds", "1", "--inner-steps", "1"), "0 islands"),
        (("--islands", "2", "--rounds", "1"), "--inner-steps"),
        (("--islands", "2", "--rounds", "0", "--inner-steps", "1"), "--rounds"),
        (("--islands", "2", "--rounds", "1", "--inner-steps", "1", "--steps", "3"), "no --steps"),
        (("--islands", "2", "--rounds", "1", "--inner-steps", "1", "--outer", "adam"), "sgd:RATE"),
        (("--islands", "2", "--rounds", "1", "--inner-steps", "1", "--prepare"), "no --prepare"),
        (("--islands", "2", "--rounds", "1", "--inner-steps", "1", "--ema", "0.9"), "averages of parameters"),
        (("--islands", "2", "--rounds", "1", "--inner-steps", "1", "--device", "cuda"), "share the GPUs"),
    ],
)
def test_words_that_mean_nothing_are_refused(
    words: tuple[str, ...], said: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launched(file, tmp_path / "run", *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
