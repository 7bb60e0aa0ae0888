"""What `import shardwright as sw` offers: its names with their signatures, which take values and their files alike."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

import pytest

import shardwright as sw
from planner.cli.plan_options import PlanOptions
from planner.cli.profile import ProfileOptions
from planner.errors import BadInput

GOLDEN = Path(__file__).with_name("api.txt")  # renew it with `python -m tests.test_api`
PLAN = Path(__file__).parents[1] / "plans" / "mlp-two-stages.yaml"


def api() -> str:
    lines = []
    for name in dir(sw):
        value = getattr(sw, name)
        lines.append(f"class {name}" if inspect.isclass(value) else f"{name}{inspect.signature(value)}")
    return "\n".join(lines) + "\n"


def test_the_api_is_its_names_and_nothing_else() -> None:
    assert dir(sw) == sorted(sw.__all__)
    assert api() == GOLDEN.read_text(), "renew it with `python -m tests.test_api`"


def test_an_option_of_a_command_has_the_same_name_in_python() -> None:
    files = {
        "workload",
        "profile",
        "set_",
        "config",
        "output",
        "force",
        "as_json",
    }  # in Python values and arguments
    more = {
        "devices",
        "replan_from",
        "frontier",
        "explain",
        "proof",
        "progress",
    }  # answers of other functions
    given = {each.name for each in dataclasses.fields(PlanOptions)} - files - more
    assert given == set(inspect.signature(sw.plan).parameters) - {"costs"}
    given = {each.name for each in dataclasses.fields(ProfileOptions)} - files - {"on_slurm", "sbatch"}
    assert given == set(inspect.signature(sw.profile).parameters) - {"workload", "batch", "loss", "arguments"}


def test_what_takes_a_plan_takes_its_file() -> None:
    plan = sw.load_plan(PLAN)
    assert sw.simulate(PLAN).makespan_ns == sw.simulate(plan).makespan_ns
    assert sw.verify(PLAN) == sw.verify(plan) == []
    assert sw.verify(PLAN, cluster="laptop") == []
    assert sw.compare(PLAN, str(PLAN)).to_rows() == sw.compare(plan, plan).to_rows()


def test_a_plan_is_made_from_files_and_names(tmp_path: Path) -> None:
    costs = sw.profile("mlp", device="roofline:H100-80GB", micro=(1,), layers=2)
    sw.save(costs, tmp_path / "p.yaml")
    asked = {"batch": 4, "nodes": 2, "effort": "quick", "schedule": ["1f1b"]}
    found = sw.plan(tmp_path / "p.yaml", "h100x8", **asked)  # type: ignore[arg-type]
    assert found == sw.plan(costs, sw.Cluster.load("h100x8"), **asked)  # type: ignore[arg-type]
    assert found.precision == "bf16" and " in bf16: " in repr(found)


def test_a_plan_of_many_nodes_is_verified_with_as_many() -> None:
    costs = sw.profile("mlp", device="roofline:H100-80GB", micro=(1,), layers=2)
    found = sw.plan(costs, "h100x8", nodes=2, batch=16, fix={"data": 16}, schedule=["1f1b"], effort="quick")
    assert sw.verify(found, costs=costs, cluster="h100x8", nodes=2) == []
    assert sw.verify(found, cluster="h100x8")
    with pytest.raises(sw.BadInput, match="nodes without a cluster"):
        sw.verify(found, nodes=2)


def test_the_parts_of_a_plan_show_themselves() -> None:
    plan = sw.load_plan(PLAN)
    assert repr(plan.prediction).splitlines()[0].endswith(" a step") and "activations" in repr(
        plan.prediction
    )
    assert "layers" not in repr(plan.stages[0]) and plan.stages[0].layers[0] in repr(plan.stages[0])
    assert plan.certificate is None or "lower bound" in repr(plan.certificate)


def test_without_pandas_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match="pandas is not installed"):
        sw.load_plan(PLAN).to_pandas()


def test_values_are_frames_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    plan = sw.load_plan(PLAN)
    for value in (plan, sw.simulate(plan), sw.Cluster.load("laptop"), sw.compare(plan, plan)):
        assert isinstance(value.to_pandas(), pandas.DataFrame) and len(value.to_pandas()) == len(
            value.to_rows()
        )


if __name__ == "__main__":
    GOLDEN.write_text(api())
