"""Code that a plan names runs where it lies beside the plan or in the current folder, else after somebody was asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer

import shardwright as sw
from planner.files import parse_yaml, render
from planner.workload import outside

PLAN = Path("plans/mlp-two-stages.yaml").resolve()


def plan_of(workload: str, folder: Path) -> Path:
    data = parse_yaml(PLAN.read_text(), name="plan")
    data["model"]["workload"] = workload  # type: ignore[index,call-overload]
    folder.mkdir(exist_ok=True)
    (folder / "plan.yaml").write_text(render(data, header=""))
    return folder / "plan.yaml"


def marked(path: Path) -> Path:
    """A workload that leaves a mark when it is imported, and is none."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"import pathlib\npathlib.Path({str(path) + '.ran'!r}).touch()\n")
    return path


def ran(path: Path) -> bool:
    return Path(f"{path}.ran").exists()


LAUNCHES = (["launch", "--inline"], ["launch", "--local"], ["launch", "--slurm"], ["rehearse"])


@pytest.mark.parametrize("words", LAUNCHES, ids=" ".join)
def test_code_that_lies_elsewhere_does_not_run_without_trust(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = marked(tmp_path / "elsewhere" / "evil.py")
    plan = plan_of(str(workload), tmp_path / "plans")
    assert sw.run([*words, str(plan)]) == 2
    assert (
        f"workload {workload} lies outside of this folder and the plan's (allowed: --trust"
        in capsys.readouterr().err
    )
    assert not ran(workload)
    assert sw.run([*words, str(plan), "--trust"]) != 0  # it is no workload, and has run
    assert ran(workload)


def test_code_beside_the_plan_or_in_this_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = marked(tmp_path / "plans" / "mine.py")
    sw.run(["launch", "--inline", str(plan_of(str(beside), tmp_path / "plans"))])
    assert ran(beside)
    monkeypatch.chdir(tmp_path)
    here = marked(tmp_path / "here.py")
    sw.run(["launch", "--inline", str(plan_of("here.py", tmp_path / "plans"))])
    assert ran(here)


def test_a_link_and_two_dots_lead_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = marked(tmp_path / "elsewhere" / "evil.py")
    work = tmp_path / "work"
    work.mkdir()
    (work / "link.py").symlink_to(evil)
    monkeypatch.chdir(work)
    for name in ("link.py", "../elsewhere/evil.py", str(evil)):
        assert outside(name, (Path.cwd(), work)) == evil
    for name in ("gpt2", "package.module", "own.py"):
        assert outside(name, (Path.cwd(), work)) is None


@pytest.mark.parametrize("answer", [True, False])
def test_on_a_terminal_somebody_is_asked(
    answer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def confirm(text: str, *, err: bool) -> bool:
        asked.append(text)
        return answer

    workload = marked(tmp_path / "elsewhere" / "evil.py")
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", confirm)
    sw.run(["launch", "--inline", str(plan_of(str(workload), tmp_path / "plans"))])
    assert len(asked) == 1 and str(workload) in asked[0]
    assert ran(workload) == answer


def test_a_batch_script_is_printed_without_running_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = marked(tmp_path / "elsewhere" / "evil.py")
    plan = plan_of(str(workload), tmp_path / "plans")
    assert sw.run(["launch", "--slurm", "--dry-run", "--json", str(plan), f"--run={tmp_path / 'run'}"]) == 0
    assert "script" in json.loads(capsys.readouterr().out)
    assert not ran(workload)
