"""The planner chooses space: what it chooses fits, holds, and trains as one process does."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.errors import BadInput, Infeasible
from planner.measure import measure
from planner.milp import Question, solve, solve_or_none
from planner.plan import Plan, dump
from planner.plan.yaml import parse
from planner.profile import Profile, Seconds
from planner.report import Contents
from planner.simulate import period_of_plan
from planner.spatial import price
from planner.verify import violations
from planner.workload import load
from runtime.spatial import AloneShard
from tests.draws import part
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.spatial.cases import CASES, Case

VOLUME = "tests/runtime/spatial/workloads/volume.py"
NEAR = Link(latency_s=1e-6, bandwidth_bytes_per_s=1e11)


def machines(devices: int, memory: int = 16 * 10**9, device: str = "V100-16GB") -> Cluster:
    group = NodeGroup(
        count=1, device=device, devices_per_node=devices, memory_bytes=memory, margin_bytes=10**9
    )
    return Cluster(name="one", nodes=(group,), links=Links(node=NEAR if devices > 1 else None))


@cache
def volumes(attending: str = "False") -> Profile:
    """By roofline, with times at which shards pay: in proportion, and a little less."""
    arguments = {"attending": attending} if attending == "True" else {}
    found = measure.profile(
        load(VOLUME, arguments), "roofline:V100-16GB", micros=(1,), spatial=AloneShard(), grids=((2,), (2, 2))
    )
    costs = {}
    for key, row in found.costs.items():
        share = 0.4 / math.prod(key.split) if key.split else 1.0

        def time(given: Seconds, share: float = share) -> Seconds:
            return Seconds(median=given.median * 100 * share)

        costs[key] = replace(
            row,
            forward=time(row.forward),
            backward=time(row.backward),
            input_grad=time(row.input_grad),
            weight_grad=time(row.weight_grad),
        )
    return replace(found, costs=costs)


CHOICES: dict[str, tuple[int, int, dict[str, object]]] = {  # devices, batch, pins
    "free": (4, 2, {}),
    "two ranks": (2, 2, {"spatial": 2}),
    "a grid": (4, 2, {"spatial": "2x2"}),
    "beside replicas": (4, 4, {"spatial": 2, "data": 2}),
    "beside stages": (4, 4, {"spatial": 2, "pipeline": 2, "schedule": "1f1b"}),
    "in Chimera": (4, 4, {"spatial": 2, "pipeline": 2, "schedule": "chimera"}),
    "split backward": (4, 4, {"spatial": 2, "pipeline": 2, "schedule": "zb-h1"}),
    "gathered within a stage": (2, 2, {"spatial": 2, "gather": "deep.0"}),
    "gathered between stages": (
        4,
        4,
        {"spatial": 2, "pipeline": 2, "gather": "up", "schedule": "1f1b"},
    ),
    "re-split within a stage": (4, 2, {"spatial": 4, "regrid": "down.0:2", "pipeline": 1}),
    "re-split, then gathered, between stages": (
        8,
        4,
        {"spatial": 4, "pipeline": 2, "regrid": "down.0:2", "gather": "up", "schedule": "1f1b"},
    ),
    "sharded state": (2, 2, {"spatial": 2, "shard": True}),
}


@cache
def chosen(name: str) -> Plan:
    devices, batch, fix = CHOICES[name]
    return solve(Question(profile=volumes(), cluster=machines(devices), batch=batch, fix=fix))


@pytest.mark.parametrize("name", CHOICES)
def test_what_the_planner_chooses_is_what_was_asked_for_and_holds(name: str) -> None:
    devices, _, fix = CHOICES[name]
    plan = chosen(name)
    assert plan.axes.spatial > 1
    assert violations(plan, profile=volumes(), cluster=machines(devices)) == []
    assert period_of_plan(plan) == plan.prediction.step_ns
    assert parse(dump(plan)) == plan
    if "regrid" in fix:
        assert resplit_before(plan) == fix["regrid"]
    if "gather" in fix:
        assert gathered_before(plan) == fix["gather"]


@pytest.mark.parametrize("name", part(CHOICES, 4))
def test_what_the_planner_chooses_trains_as_one_process_does(name: str, pool: Pool, tmp_path: Path) -> None:
    plan = chosen(name)
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() < 1e-10, found


@pytest.mark.parametrize("shape", part([{}, {"pipeline": 2, "schedule": "zb-h1"}], 1), ids=str)
def test_a_network_that_looks_at_all_of_space_within_trains_on_shards_as_one_process_does(
    shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    profile, cluster = volumes("True"), machines(2 if not shape else 4)
    plan = solve(
        Question(profile=profile, cluster=cluster, batch=4, fix={"spatial": 2, "gather": "last", **shape})
    )
    assert price(profile.graph, (2,)).around and violations(plan, profile=profile, cluster=cluster) == []
    have = run(pool, plan, tmp_path, steps=3, compare_holders=False)
    found = distance(expected(plan, tmp_path, steps=3), have)
    assert found.worst() < 1e-10, found


@pytest.mark.parametrize(
    "name",
    [
        "a grid",
        "split backward",
        "gathered within a stage",
        "gathered between stages",
        "re-split within a stage",
        "re-split, then gathered, between stages",
    ],
)
def test_a_report_shows_memory_over_time_on_shards_as_the_solver_has_it(name: str) -> None:
    """When nothing is in flight, the first worker holds its state, and losses and statistics of a few bytes."""
    plan = chosen(name)
    found = Contents(plan=plan, profile=volumes()).memory_lines
    assert found is not None
    timeline, limits = found
    said = plan.prediction.memory
    assert timeline.peak_bytes == {w: each.total - each.margin for w, each in enumerate(said)}
    assert limits == [each.limit - each.margin for each in said]
    state = said[0].parameters + said[0].gradients + said[0].optimizer
    assert state <= timeline.memory_bytes[timeline.memory_rank == 0].min() < state + 256


def test_a_report_of_stages_that_no_solver_cuts_so_shows_no_memory_over_time() -> None:
    plan = chosen("beside stages")
    first, second = plan.stages
    late = plan.model_copy(update={"stages": (first.model_copy(update={"spatial": ()}), second)})
    assert Contents(plan=late, profile=volumes()).memory_lines is None


def gathered_before(plan: Plan) -> str:
    """The first layer on whole samples, within a stage or at the start of one."""
    within = [stage.gather_before for stage in plan.stages if stage.gather_before]
    return within[0] if within else next(stage.layers[0] for stage in plan.stages if not stage.spatial)


def resplit_before(plan: Plan) -> str:
    """The first layer on another grid, and that."""
    first = plan.stages[0].spatial
    lying = [(stage.layers[0], stage.spatial) for stage in plan.stages if stage.spatial]
    lying += [(turn.before, turn.spatial) for stage in plan.stages for turn in stage.regrid]
    layer, grid = next(each for each in lying if each[1] != first)
    return f"{layer}:{'x'.join(map(str, grid))}"


def test_what_is_pinned_is_kept_and_one_is_whole_samples() -> None:
    assert {stage.spatial for stage in chosen("a grid").stages} == {(2, 2)}
    whole = solve(Question(profile=volumes(), cluster=machines(4), batch=2, fix={"spatial": 1}))
    assert whole.axes.spatial == 1
    assert {stage.spatial for stage in whole.stages} == {()}


def test_no_trivial_plan_is_faster() -> None:
    plan = chosen("free")
    assert plan.certificate is not None
    named = {rival.kind: rival.step_ns for rival in plan.certificate.rivals}
    assert {"data_parallel", "one_device", "spatial"} <= named.keys()
    assert all(ns is None or plan.prediction.step_ns <= ns for ns in named.values())


@pytest.mark.parametrize(
    ("fix", "what"),
    [
        ({"spatial": 3}, r"spatial is 3, .* \(allowed: 1, 2, 2x2; others once"),
        ({"spatial": "2x2x2"}, "spatial is 2x2x2, but no such split"),
        ({"spatial": "2x"}, r"spatial is '2x' \(allowed: a degree such as 2, or a grid such as 2x2\)"),
        (
            {"spatial": 2, "gather": "nowhere"},
            r"fix: gather: no layer is called 'nowhere' \(allowed: first\.0, ",
        ),
        ({"gather": "nowhere"}, "fix: gather: no layer is called 'nowhere'"),
        ({"spatial": 4, "regrid": "nowhere:2"}, "fix: regrid: no layer is called 'nowhere'"),
        ({"regrid": "loss:2,nowhere:samples"}, "fix: regrid: no layer is called 'nowhere'"),
        (
            {"spatial": 1, "gather": "loss"},
            "gather at 'loss' needs samples that are cut in space, and spatial is 1",
        ),
        ({"regrid": "down.0:4"}, "spatial is any with regrid down.0:4, but no such split"),
        ({"regrid": "2x2"}, r"regrid is '2x2' \(allowed: none, or a layer and a grid such as conv3:2x2, or"),
    ],
)
def test_a_split_that_was_not_profiled_is_refused(fix: dict[str, object], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        solve(Question(profile=volumes(), cluster=machines(4), batch=2, fix=fix))


def test_a_gather_that_is_fixed_takes_a_split_and_none_takes_no_gather() -> None:
    gathered = solve(Question(profile=volumes(), cluster=machines(4), batch=2, fix={"gather": "loss"}))
    assert [stage.gather_before for stage in gathered.stages][-1] == "loss" or not gathered.stages[-1].spatial
    assert gathered.axes.spatial > 1
    never = solve(
        Question(profile=volumes(), cluster=machines(4), batch=2, fix={"spatial": 2, "gather": "none"})
    )
    assert {stage.gather_before for stage in never.stages} == {""} and all(x.spatial for x in never.stages)
    assert (
        solve(Question(profile=volumes(), cluster=machines(4), batch=2, fix={"gather": "none"})).axes.spatial
        >= 1
    )
    plain = replace(volumes(), costs={key: row for key, row in volumes().costs.items() if not key.split})
    with pytest.raises(BadInput, match="no samples were profiled that are cut in space"):
        solve(Question(profile=plain, cluster=machines(4), batch=2, fix={"gather": "loss"}))


def test_a_sample_too_large_for_one_device_names_the_degree_that_fits() -> None:
    """CosmoFlow at 512^3: torch keeps 24.36 GiB for the backward of one sample."""
    costs = measure.profile(
        load("cosmoflow", {"size": "paper512"}),
        "roofline:V100-16GB",
        micros=(1,),
        spatial=AloneShard(),
        grids=((2,), (4,)),
    )
    with pytest.raises(Infeasible) as refused:
        solve(Question(profile=costs, cluster=machines(1), batch=1))
    assert "a spatial split of 4, on 4 devices for each sample, would fit: 1f1b" in str(refused.value)
    two = Question(profile=costs, cluster=machines(2), batch=1, fix={"spatial": 2, "pipeline": 1})
    assert solve_or_none(two.instance()) is None
    plan = solve(
        Question(profile=costs, cluster=machines(4), batch=1, fix={"spatial": 4, "schedule": "1f1b"})
    )
    (memory,) = plan.prediction.memory
    assert 24.36 * 2**30 / 4 < memory.activations < 24.36 * 2**30 / 4 + 2**30
    assert memory.total <= memory.limit


ALONE = [name for name, case in CASES.items() if len(case.channels) == 1 and not case.refused]
RESIZED = [name for name in ALONE if name.startswith("interpolate")]


class Behind(nn.Module):
    """An operation of the table behind a convolution, so that what it reads comes in shards."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        made = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[case.dims]
        self.before: nn.Module = made(case.channels[0], case.channels[0], 3, padding=1)
        self.operation = case.build()

    def forward(self, x: Tensor) -> object:
        return self.operation(self.before(x))


def squares(outputs: Tensor | tuple[Tensor, ...], _: object) -> Tensor:
    parts = [outputs] if isinstance(outputs, Tensor) else outputs
    return torch.stack([(each * each).mean() for each in parts if each.is_floating_point()]).sum()


@pytest.mark.filterwarnings("ignore:The loss of 2 samples at once")  # some operations mix samples, as is said
@pytest.mark.parametrize(
    ("name", "device"),
    [(name, "roofline:A100-80GB") for name in [*part(ALONE, 6), *part(RESIZED, 2)]]
    + [(name, "cpu") for name in part(RESIZED, 2)],
)
def test_what_runs_on_shards_is_profiled_too_or_refused(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the captured model is kept
    case = CASES[name]
    batch = torch.randn(2, case.channels[0], *(12, 10, 8)[: case.dims]), torch.zeros(2)
    how = {"device": device, "micro": 2, "precision": "fp32", "spatial": [(2,)]}
    try:
        found = sw.profile(Behind(case), batch, squares, **how)  # type: ignore[arg-type]
    except BadInput as refused:
        assert re.search("on shards|micro-batch|parts of a sample", str(refused)), refused
        assert name not in RESIZED
    else:
        assert any(key.split == (2,) for key in found.costs)
