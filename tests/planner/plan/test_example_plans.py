"""Every plan in plans/ is read, judged against its captured model and its cluster, and simulated by its judge."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from planner.capture import capture
from planner.cluster import Cluster
from planner.files import yaml_text as yaml_files
from planner.plan import yaml as plan_yaml
from planner.verify import violations
from planner.workload import load

PLANS = Path(__file__).parents[3] / "plans"
FILES = sorted(PLANS.glob("*.yaml"))
RENEW = """plans/{stem}.yaml is out of step. Renew the examples with
  shardwright profile mlp --device roofline:cpu --micro 1,2,4,8 -o mlp.yaml
  shardwright plan mlp --profile mlp.yaml --cluster plans/clusters/laptop.yaml --batch 16 --fix data=1 \\
    --fix pipeline=2 --fix schedule=1f1b --fix micro=2 -o plans/mlp-two-stages.yaml --force
  shardwright plan mlp --profile mlp.yaml --cluster plans/clusters/laptop.yaml --batch 16 --fix data=1 \\
    --fix pipeline=2 --fix schedule=chimera --fix micro=4 -o plans/mlp-chimera.yaml --force"""


def test_there_are_examples() -> None:
    assert {path.stem for path in FILES} >= {"mlp-two-stages", "mlp-chimera"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_right_and_written_by_us(path: Path) -> None:
    plan = plan_yaml.load(path)
    arguments = {name: str(value) for name, value in plan.model.arguments.items()}
    graph = capture(load(plan.model.workload, arguments)).graph
    cluster = Cluster.load(PLANS / "clusters" / f"{plan.provenance.cluster}.yaml")
    found = violations(plan, graph=graph, cluster=cluster)
    assert not found, "\n".join([*map(str, found), RENEW.format(stem=path.stem)])
    text = path.read_text()
    assert plan_yaml.dump(plan) == text, RENEW.format(stem=path.stem)
    schema = json.loads((PLANS / "plan.schema.json").read_text())
    jsonschema.validate(yaml_files.parse_yaml(text, name=path.name), schema)
