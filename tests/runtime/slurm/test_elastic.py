"""What an elastic run is planned anew from is tried before anything is queued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.cluster import cluster as clusters
from planner.errors import BadInput, ShardwrightError
from planner.measure import measure
from planner.milp import Question, solve
from planner.plan import KeptWeights, Plan
from planner.profile import yaml as profile_yaml
from planner.workload import load
from runtime.runfolder import Paths
from runtime.slurm import Elastic
from runtime.slurm.job_folder import plan_for

MACHINES = """\
version: 1
name: two
nodes: [{count: 2, device: cpu, devices_per_node: 1, memory_bytes: 4294967296}]
links: {rack: {latency_s: 1.0e-9, bandwidth_bytes_per_s: 1.0e+13}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("elastic")
    (made / "cluster.yaml").write_text(MACHINES)
    profile = measure.profile(
        load("mlp", {}), device="roofline:P100-16GB", micros=(2, 4), precision="fp32", split=None
    )
    profile_yaml.save(profile, made / "profile.yaml")
    return made


@pytest.fixture(scope="module")
def plan(folder: Path) -> Plan:
    return solve(
        Question(
            profile=profile_yaml.load(folder / "profile.yaml"),
            cluster=clusters.load(folder / "cluster.yaml"),
            batch=8,
        )
    )


@pytest.fixture
def flexible(folder: Path) -> Elastic:
    return Elastic(fewest=1, most=2, profile=folder / "profile.yaml", cluster=folder / "cluster.yaml", fix={})


def test_files_that_give_a_plan_for_the_fewest_nodes_are_well(flexible: Elastic, plan: Plan) -> None:
    before = sorted(flexible.profile.parent.iterdir())
    flexible.check(plan)
    assert sorted(flexible.profile.parent.iterdir()) == before


def test_files_that_give_none_are_refused(flexible: Elastic, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(ShardwrightError, match="no plan for 1 nodes: no plan of 8 samples: data=7"):
        replace(flexible, fix={"data": "7"}).check(plan)
    with pytest.raises(BadInput):
        replace(flexible, cluster=Path("plans/mlp-chimera.yaml")).check(plan)
    with pytest.raises(ShardwrightError, match="no plan for 1 nodes"):
        replace(flexible, profile=tmp_path / "none.yaml").check(plan)


def test_a_profile_of_another_model_is_refused(flexible: Elastic, plan: Plan) -> None:
    other = plan.model.model_copy(update={"fingerprint": "sha256:0"})
    with pytest.raises(BadInput, match="is of another model"):
        flexible.check(plan.model_copy(update={"model": other}))


def test_a_new_plan_keeps_what_makes_the_training_precision_pruning_and_weights(
    flexible: Elastic, plan: Plan, tmp_path: Path
) -> None:
    costs = measure.profile(
        load("mlp", {}), device="roofline:P100-16GB", micros=(2, 4), precision="bf16", split=None
    )
    (tmp_path / "given").mkdir()
    profile_yaml.save(costs, tmp_path / "given" / "profile.yaml")
    paths = Paths(tmp_path)
    flexible = replace(flexible, profile=tmp_path / "given" / "profile.yaml")
    flexible.write(paths)
    update = {"precision": "bf16", "weights": "bf16", "kept": KeptWeights(share=0.5)}
    found = plan_for(paths, plan.model_copy(update=update), 1)
    assert (found.precision, found.weights, found.kept) == ("bf16", "bf16", KeptWeights(share=0.5))
