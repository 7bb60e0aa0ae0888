"""A run is a value to hold: asked while it runs, waited for, ended, and sent to where it was said to run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import shardwright as sw
from planner.errors import BadInput
from planner.plan import Plan
from planner.plan import yaml as plan_yaml
from runtime.launch import Handle, handle, status
from runtime.runfolder import unused
from tests.runtime.readable import reads

pytestmark = pytest.mark.usefixtures("warm_starts")

PLAN = Path("plans/mlp-chimera.yaml")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_yaml.load(PLAN)


def test_a_local_run_is_asked_while_it_runs_and_cancelled(plan: Plan, tmp_path: Path) -> None:
    run = handle.launch(plan, tmp_path / "run", steps=10**6, on="local")
    assert run.state == "running"  # from the first moment
    with pytest.raises(BadInput, match="is running"):
        handle.launch(plan, tmp_path / "run", steps=1, on="local")
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.01 s"):
        run.wait(0.01)
    end = time.monotonic() + 180
    while len(run.metrics()) < 3:
        assert time.monotonic() < end, run.logs()
        time.sleep(0.05)
    rows, losses = run.metrics(), run.losses
    assert losses and all(losses[row["step"]] == row["loss"] for row in rows)
    assert [row["step"] for row in rows[:3]] == [1, 2, 3]
    assert {"step", "loss", "seconds", "samples_per_second", "learning_rate"} <= set(rows[0]) and rows[0][
        "loss"
    ] > 0
    assert ">loss</th>" in rows._repr_html_() and "loss" in repr(rows).splitlines()[0]
    found = status.of(tmp_path / "run")  # as another process sees it
    assert (found.state, found.backend, found.job, found.steps) == ("running", "local", None, 10**6)
    assert found.loss and found.loss > 0 and found.left_s and found.left_s > 0
    assert f"step {found.step} of 1000000, loss" in status.status_text(found)
    assert "running" in repr(run) and "<pre>" in run._repr_html_()
    assert isinstance(run.logs(rank=0), str)
    run.cancel()
    run.cancel()  # again changes nothing
    assert (run.state, run.wait().state) == ("cancelled", "cancelled")


@pytest.mark.parametrize("detach", [False, True])
def test_a_local_run_is_read_whether_somebody_waits_for_it_or_not(
    detach: bool, plan: Plan, tmp_path: Path
) -> None:
    run = handle.launch_local(plan, tmp_path / "run", steps=5, detach=detach)
    run.outcome(180)
    reads(tmp_path / "run", 5, tmp_path / "page.html")
    assert run.record().comparison.measured_step_ns > 0


def test_a_run_in_this_process_is_read(plan: Plan, tmp_path: Path) -> None:
    handle.launch_inline(plan, tmp_path / "run", steps=5).check()
    ran = sw.record(tmp_path / "run")
    assert sorted(ran.losses) == [1, 2, 3, 4, 5] and ran.comparison.measured_step_ns > 0
    reads(tmp_path / "run", 5, tmp_path / "page.html")


def test_a_run_that_a_notebook_has_launched_is_read(plan: Plan, tmp_path: Path) -> None:
    run = sw.launch(plan, tmp_path / "run", steps=5, on="local")
    run.wait(180).check()
    assert "<" in str(run.record()._repr_html_())
    reads(tmp_path / "run", 5, tmp_path / "page.html")


def test_a_run_in_this_process_is_done_when_launch_returns(plan: Plan, tmp_path: Path) -> None:
    run = sw.launch(plan, tmp_path / "run", steps=3, on="inline")
    assert run.state == "done" and sorted(run.wait().check().losses) == [1, 2, 3]
    with pytest.raises(BadInput, match="'inline', 'local', or 'slurm'"):
        handle.launch(plan, tmp_path / "other", on="elsewhere")  # type: ignore[arg-type]


def test_a_run_that_was_ended_is_read_up_to_its_last_checkpoint(plan: Plan, tmp_path: Path) -> None:
    """Nobody has gathered what its ranks have left."""
    run = handle.launch(plan, tmp_path / "run", steps=10**6, on="local", save_every=2)
    end = time.monotonic() + 180
    while not all(run.paths.rank_trace(rank).exists() for rank in range(run.ranks)):
        assert time.monotonic() < end, run.logs()
        time.sleep(0.05)
    run.record()  # while it goes on
    run.cancel()
    assert not run.paths.trace.exists()
    found = run.record()
    assert found.steps and found.state == "cancelled"


@pytest.mark.parametrize("way", ["removed", "replaced by a link"])
def test_a_run_whose_folder_is_gone_says_so_and_touches_nothing_else(
    way: str, plan: Plan, tmp_path: Path
) -> None:
    run = handle.launch_local(plan, tmp_path / "run", steps=10**6, save_every=2, restarts=2)
    end = time.monotonic() + 180
    while len(run.metrics()) < 3:
        assert time.monotonic() < end, run.logs()
        time.sleep(0.05)
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "foreign").mkdir()
    if way != "removed":
        (tmp_path / "run").symlink_to(tmp_path / "foreign")
    found = run.wait(180)
    assert found.state == "failed" and f"somebody has {way.split()[0]}" in found.cause
    assert list((tmp_path / "foreign").iterdir()) == []


def test_it_goes_where_it_is_said_and_to_slurm_where_there_is_one(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []

    def queued(plan: Plan, folder: Path, **settings: object) -> Handle:
        said.append((folder, settings["steps"], settings["options"].partition))  # type: ignore[attr-defined]
        return Handle(None, 1, None)  # type: ignore[arg-type]

    monkeypatch.setattr(handle, "launch_slurm", queued)
    monkeypatch.setattr(handle.slurm, "answers", lambda: True)
    monkeypatch.setenv("SHARDWRIGHT_SLURM", str(tmp_path / "site.yaml"))
    (tmp_path / "site.yaml").write_text("version: 1\npartition: site\n")
    monkeypatch.chdir(tmp_path)
    handle.launch(plan, tmp_path / "a", steps=3)
    handle.launch(plan, tmp_path / "b", steps=3, options={"partition": "gpu"})
    handle.launch(plan, steps=3)
    assert said[:2] == [(tmp_path / "a", 3, "site"), (tmp_path / "b", 3, "gpu")]
    assert str(said[2][0]).startswith("runs/mlp-")  # type: ignore[index]


@pytest.mark.parametrize("words", [{"on": "moon"}, {"on": "local", "options": {"partition": "gpu"}}])
def test_a_place_that_there_is_not_is_refused(words: dict[str, object], plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'local', or 'slurm'"):
        handle.launch(plan, tmp_path / "a", **words)  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()


def test_two_runs_within_a_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    folders = []
    for _ in range(3):
        folders.append(unused("a"))
        folders[-1].mkdir(parents=True)
    assert [folder.name for folder in folders] == ["a-now", "a-now-2", "a-now-3"]
