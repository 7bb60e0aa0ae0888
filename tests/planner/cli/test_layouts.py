"""`shardwright layouts`: its list, its files, and the plans that are made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright as sw
from planner import profile
from tests.planner.choose.test_one_price import NODE, words


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    profile.save(words(), tmp_path / "profile.yaml")
    return ["layouts", str(tmp_path / "profile.yaml"), "--cluster", NODE, "--group", "2", "--micro", "2"]


def test_a_file_of_the_list_gives_a_plan_of_the_price_in_the_list(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sw.run([*asked, "-o", str(tmp_path / "cuts"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    times = {f"cut-{i + 1}.yaml": row["ns"] for i, row in enumerate(told["layouts"]) if row["cut"]}
    assert times and sorted(times) == sorted(Path(file).name for file in told["files"])
    file = tmp_path / "cuts" / min(times)
    fixed = [f"--fix=cut={file}", "--fix=data=1", "--fix=pipeline=1", "--fix=schedule=1f1b", "--fix=micro=2"]
    costs = ["--profile", asked[1], "--cluster", NODE, "--batch", "2"]
    assert sw.run(["plan", *costs, *fixed, "-o", str(tmp_path / "plan.yaml"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["prediction"]["step_ns"] == times[file.name]
    assert plan["axes"]["spatial"] == 2
    assert sw.run(["verify", str(tmp_path / "plan.yaml"), "--profile", asked[1], "--cluster", NODE]) == 0


def test_the_list_says_what_each_layout_costs_and_saves(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sw.run(asked) == 0
    text = capsys.readouterr().out
    assert "It is the fastest." in text and "mesh 2: axis 0 of 2 inside a node" in text
    assert "What one transformer layer of width 16 sends for 16 tokens on 2 ranks" in text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--mesh", "2x2"], "2x2 is 4 ranks, the group has 2"),
        (["--mesh", "two"], "'two' is no mesh"),
        (["--micro", "3"], "no row for a micro-batch of 3"),
        (["--group", "9"], "a group of 9 ranks"),
        (["--precision", "bf16"], "'bf16' was not profiled"),
    ],
)
def test_what_has_no_layouts_is_refused_in_one_message(
    more: list[str], said: str, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sw.run([*asked, *more]) == 2
    assert said in capsys.readouterr().err
