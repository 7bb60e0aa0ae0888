"""`shardwright export`, and `shardwright plan --baseline`, which is its way back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import shardwright as sw
from planner import files, profile
from planner.cluster import cluster as clusters
from planner.plan import dump
from tests.planner.export.examples import EXAMPLES, PLANS, costs, planned

TWO = str(PLANS / "mlp-two-stages.yaml")


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    """A question whose plan has two stages that are cut by hand."""
    example = EXAMPLES["two stages"]
    profile.save(costs(), tmp_path / "profile.yaml")
    files.write_whole(tmp_path / "cluster.yaml", clusters.dump(example.machines))
    fixed = [f"--fix={key}={value}" for key, value in example.fix.items()]
    where = [f"--profile={tmp_path / 'profile.yaml'}", f"--cluster={tmp_path / 'cluster.yaml'}"]
    pins = [
        "--fix=data=1",
        "--fix=micro=2",
        "--fix=schedule=1f1b",
        "--fix=recompute=false",
        "--fix=shard=none",
    ]
    return ["plan", *where, *pins, *fixed, "--batch=16", f"--output={tmp_path / 'plan.yaml'}", "--force"]


def test_a_plan_is_printed_or_written_for_another_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sw.run(["export", TWO, "--to", "deepspeed"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["pipeline"]["stages"] == 2
    file = tmp_path / "settings.json"
    assert sw.run(["export", TWO, "--to", "deepspeed", "-o", str(file)]) == 0
    assert f"written to {file}" in capsys.readouterr().out
    assert file.read_text() == printed
    assert sw.run(["export", TWO, "--to", "deepspeed", "-o", str(file)]) == 2
    assert "--force" in capsys.readouterr().err
    assert sw.run(["export", TWO, "--to", "deepspeed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == printed
    assert sw.export(TWO, "deepspeed") == sw.export(sw.load_plan(TWO), "deepspeed") == printed


def test_what_a_trainer_cannot_state_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings"
    assert sw.run(["export", str(PLANS / "mlp-chimera.yaml"), "--to", "torchtitan", "-o", str(file)]) == 2
    assert "torchtitan cannot state what this plan has: schedule chimera" in capsys.readouterr().err
    assert sw.run(["export", TWO, "--to", "alpa"]) == 2
    assert "no trainer is called 'alpa'" in capsys.readouterr().err
    assert not file.exists()


def test_a_plan_is_compared_with_present_settings(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = tmp_path / "now.sh"
    now.write_text(
        "torchrun --nproc-per-node 1 train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 8"
    )
    assert sw.run([*asked, f"--baseline={now}"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Your present"))
    assert "on 2 devices in the place of 1" in line
    one, two = planned("one device").prediction.step_ns, planned("two stages").prediction.step_ns
    assert f"{100 * abs(1 - two / one):.3g} % {'less' if two < one else 'more'}" in line
    assert sw.run([*asked, f"--baseline={now}", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["baseline"]
    assert told["step_ns"] == one
    given = dict(argument.removeprefix("--").split("=", 1) for argument in asked[1:3])
    fix = dict(argument.split("=", 2)[1:] for argument in asked if argument.startswith("--fix="))
    plan = sw.plan(given["profile"], given["cluster"], batch=16, fix=fix, baseline=now)
    assert plan.baseline == told
    assert str(plan).startswith(line) and plan._repr_html_().startswith(f"<p>{line}")
    assert sw.load_plan(tmp_path / "plan.yaml") == plan


def test_a_plan_compared_with_its_own_export_takes_the_same(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan_settings.py"
    file.write_text(sw.export(planned("two stages"), "torchtitan"))
    assert sw.run([*asked, f"--baseline={file}"]) == 0
    assert ", the same." in capsys.readouterr().out
    assert (tmp_path / "plan.yaml").read_text() == dump(planned("two stages"))


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("--micro-batch-size 3 --global-batch-size 16", (), "do not make 16"),
        (
            "torchrun --nproc-per-node 2 x.py --micro-batch-size 8 --global-batch-size 16",
            (),
            "cannot be priced.*1, 2, 4",
        ),
        (
            "--micro-batch-size 2 --global-batch-size 16 --fp16",
            (),
            "cannot be priced: trains in fp16, which was not profiled.*profile --precision fp16",
        ),
        ("--micro-batch-size 2", ("--batch=16,32",), "compared with one plan"),
        ("nothing", (), "is no configuration that is known"),
    ],
)
def test_settings_that_cannot_be_compared_are_refused(
    asked: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    more: tuple[str, ...],
    said: str,
) -> None:
    now = tmp_path / "now.sh"
    now.write_text(text)
    assert sw.run([*asked, f"--baseline={now}", *more]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_settings_that_do_not_fit_say_by_how_much(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = EXAMPLES["two stages"].machines
    nodes = tuple(group.model_copy(update={"memory_bytes": 10_000}) for group in small.nodes)
    (tmp_path / "cluster.yaml").write_text(clusters.dump(small.model_copy(update={"nodes": nodes})))
    now = tmp_path / "now.sh"
    now.write_text(
        "torchrun --nproc-per-node 1 train.py --per_device_train_batch_size 4 --gradient_accumulation_steps 4"
    )
    status = sw.run([*asked, f"--baseline={now}"])
    said = capsys.readouterr()
    assert status == 0, said.err
    assert "Your present settings do not fit in memory" in said.out
