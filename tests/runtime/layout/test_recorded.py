"""A run of a plan with tensors in parts records what conversions took of its actions, and what a correction needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.calibrate import fit
from planner.milp import Question, solve
from runtime.launch import launch_local as launch
from runtime.launch import observation
from tests.runtime.test_memory_model import machines, profile

CUT = "blocks.*.attention:heads,blocks.*.feedforward:hidden"


@pytest.mark.usefixtures("warm_starts")
def test_a_run_tells_what_conversions_took_apart_from_computing(tmp_path: Path) -> None:
    costs = profile("gpt2", (("dropout", "0"), ("size", "tiny")), 4)
    fix = {"micro": 4, "group": 2, "cut": CUT, "data": 1, "pipeline": 1, "schedule": "1f1b"}
    plan = solve(Question(profile=costs, cluster=machines(2), batch=8, fix=fix))
    (times,) = plan.times
    assert 0 < times.forward_conversions_ns < times.forward_ns
    assert 0 < times.backward_conversions_ns < times.backward_ns
    launch(plan, tmp_path / "run", steps=5, save_every=2).wait(300).check()
    run = observation(tmp_path / "run")
    assert {name for name, _ in run.converting} == {"F", "B"}
    for (name, stage), conversions in run.converting.items():
        took = [
            row.end_ns - row.start_ns for rows in run.rows.values() for row in rows if row.event.name == name
        ]
        assert stage == 0 and 0 < conversions.measured < sum(took) / len(took)
    assert fit([run]).conversion is not None
