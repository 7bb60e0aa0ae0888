"""From the free solver to two ranks: a plan that `plan` gives and `verify` accepts runs, and trains as one process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from planner import measure
from planner.cluster import Cluster, Link, Links, NodeGroup, with_node_groups
from planner.errors import BadInput, BadPlan
from planner.milp import Question, solve
from planner.profile import Profile
from planner.verify import violations
from planner.workload import load
from runtime.spatial import AloneShard
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.test_equality import HERE, plan_of

STATES = HERE + "states.py"
NODE = NodeGroup(count=1, device="cpu", devices_per_node=2, memory_bytes=4 << 30)
LINK = Link(latency_s=1e-6, bandwidth_bytes_per_s=1e10)
MACHINES = Cluster(name="two", nodes=(NODE,), links=Links(node=LINK))


@cache
def costs(kind: str, inside: bool = False) -> Profile:
    settings = {"kind": kind} | ({"inside": "true"} if inside else {})
    return measure.profile(load(STATES, settings), "roofline:cpu", micros=(2,))


def question(kind: str, **fix: object) -> Question:
    return Question(profile=costs(kind), cluster=MACHINES, batch=8, fix=fix)


def test_an_optimizer_that_looks_at_all_parameters_is_planned_in_one_stage_and_runs(
    pool: Pool, tmp_path: Path
) -> None:
    asked = Question(profile=costs("spectral", True), cluster=MACHINES, batch=8, fix={"data": 2})
    plan = solve(asked)
    assert violations(plan, profile=asked.profile, cluster=MACHINES) == []
    assert (len(plan.stages), plan.shard_optimizer) == (1, False)
    have = run(pool, plan, tmp_path, steps=3)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert (
        max(found.loss, *found.after.values()) <= 1e-12
    )  # the gradients are those before and after clipping
    for fix in ({"pipeline": 2}, {"data": 2, "shard": True}):
        with pytest.raises(BadInput, match=r"clippinginside looks at all parameters together.*one stage"):
            solve(asked.replace(fix={"data": None, **fix}))


def test_an_optimizer_that_looks_at_all_parameters_is_refused_by_name_in_a_pipeline(tmp_path: Path) -> None:
    plan = plan_of(STATES, {"kind": "spectral", "inside": "true"}, workers=2, micros=2)
    model = Model(plan, *captured_of(STATES, plan.model.arguments, 2))
    with pytest.raises(BadPlan, match=r"ClippingInside: looks at all parameters together.*--clip-norm"):
        prepare(model, tmp_path / "run", job_of(plan, 1, {}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "replicated"),
    [
        ("spectral", True),
        ("parametrised", True),
        ("smoothed", True),
        ("blind", True),
        ("synchronised", True),
        ("ema", False),
        ("bank", False),
        ("rows", False),
    ],
)
def test_what_the_free_solver_chooses_runs_on_two_ranks_as_on_one(
    kind: str, replicated: bool, pool: Pool, tmp_path: Path
) -> None:
    fix = {"data": 2} if replicated else {"devices": 2, "pipeline": 2}
    for asked in (question(kind), question(kind, **fix)):
        plan = solve(asked)
        assert violations(plan, profile=asked.profile, cluster=MACHINES) == []
        assert replicated or plan.axes.data == 1
    if kind != "synchronised":  # its statistics are those of all replicas, not of one process
        have = run(pool, plan, tmp_path, steps=2)
        assert len(plan.places) == 2
        assert distance(expected(plan, tmp_path, steps=2), have).worst() <= 1e-12


@pytest.mark.parametrize(
    ("kind", "named"), [("ema", "2.ema"), ("bank", "2.queue"), ("rows", "0.rows.weight")]
)
def test_replicas_that_are_fixed_are_refused_by_plan_with_the_cause(kind: str, named: str) -> None:
    with pytest.raises(BadInput, match=rf"^fix data=2: the forward pass writes .*'{named}'.*data: 1"):
        solve(question(kind, data=2))


@pytest.mark.parametrize("fix", [{"spatial": 2}, {"spatial": 2, "data": 2}])
def test_spectral_norms_of_shards_are_those_of_one_process(
    fix: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    found = measure.profile(
        load("tests/runtime/spatial/workloads/spectral.py"),
        "roofline:cpu",
        micros=(1,),
        spatial=AloneShard(),
        grids=((2,),),
    )
    machines = with_node_groups(MACHINES, (NODE.model_copy(update={"devices_per_node": 4}),))
    plan = solve(Question(profile=found, cluster=machines, batch=4, fix=fix))
    assert plan.axes.spatial == 2 and violations(plan, profile=found, cluster=machines) == []
    have = run(pool, plan, tmp_path, steps=2)
    assert distance(expected(plan, tmp_path, steps=2), have).worst() <= 1e-12
