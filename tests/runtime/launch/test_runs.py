from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import shardwright as sw
from planner.errors import BadInput
from runtime.launch import launch_inline

PLAN = "plans/mlp-two-stages.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, the later one of two steps."""
    root = tmp_path_factory.mktemp("runs")
    plan = sw.load_plan(PLAN)
    for name, steps in (("first", 3), ("second", 2)):
        launch_inline(plan, root / name, steps=steps).check()
    (root / "notes").mkdir()
    return root


def test_the_runs_of_a_folder_are_listed_the_newest_first(folder: Path) -> None:
    found = sw.runs(folder)
    assert [path.name for path in found.folders] == ["second", "first"]
    assert [row["step"] for row in found.to_rows()] == [2, 3]
    assert "second" in repr(found).splitlines()[1]
    assert found._repr_html_().count("<tr>") == 3


def test_a_run_on_record_has_its_plan_its_losses_and_what_was_measured(folder: Path) -> None:
    found = sw.record(folder / "first")
    assert sorted(found.losses) == [1, 2, 3] and found.state in ("done", "ended", "not ended")
    assert found.comparison.measured_step_ns > 0
    assert [row["step"] for row in found.to_rows()] == [1, 2, 3]
    assert found.typical_step in found.steps == (3,), "the first two are warm-up"
    assert sw.runs(folder / "first")[0].losses == found.losses


def test_a_run_lies_in_the_report_of_its_plan(folder: Path, tmp_path: Path) -> None:
    ran = sw.record(folder / "first")
    page = sw.report(ran.plan, tmp_path / "page.html", run=folder / "first")
    assert "Measured and predicted" in page.read_text()
    with pytest.raises(BadInput, match="another plan"):
        sw.report(sw.load_plan("plans/mlp-chimera.yaml"), tmp_path / "other.html", run=ran)
    assert not (tmp_path / "other.html").exists()


def test_one_unreadable_folder_is_a_row_and_spoils_no_other(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "runs")
    (tmp_path / "runs" / "first" / "job.json").write_text("[]")
    found = sw.runs(tmp_path / "runs")
    assert [row.get("step") for row in found.to_rows()] in ([None, 2], [2, None])
    assert "unreadable" in repr(found) and "2 of 2" in repr(found)


def test_what_is_no_run_is_said(folder: Path) -> None:
    with pytest.raises(BadInput, match="no run folder"):
        sw.record(folder / "notes")
    with pytest.raises(BadInput, match="no such folder"):
        sw.runs(folder / "nowhere")
    assert repr(sw.runs(folder / "notes")) == "no runs"


def test_a_plan_from_a_file_is_asked_further_with_its_costs_alone(folder: Path) -> None:
    costs = sw.profile("mlp", device="roofline:cpu", micro=(1, 2), layers=3)
    with pytest.raises(BadInput, match="another model"):
        sw.load_plan(PLAN, costs=costs, cluster="plans/clusters/laptop.yaml")
    own = sw.profile("mlp", device="roofline:cpu", micro=(1, 2, 4, 8))
    plan = sw.load_plan(PLAN, costs=own, cluster="plans/clusters/laptop.yaml")
    assert plan.what_if(batch=8, pipeline=2).batch.samples == 8
