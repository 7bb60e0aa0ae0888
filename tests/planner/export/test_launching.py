"""Texts for other launchers: they say the plan's nodes and ranks, and a JobSet is one that Kubernetes takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import shardwright as sw
from planner.errors import BadInput
from planner.export import FORMS, LaunchText
from planner.plan import Plan
from runtime.cli.launch_options import LaunchOptions
from tests.planner.export.examples import PLANS, planned

NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}


def closed(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


POD = closed(
    {
        "restartPolicy": {"enum": ["Never", "OnFailure"]},
        "containers": {
            "type": "array",
            "minItems": 1,
            "items": closed(
                {
                    "name": NAME,
                    "image": {"type": "string", "minLength": 1},
                    "workingDir": {"type": "string", "pattern": "^/"},
                    "command": {"type": "array", "items": {"type": "string"}},
                    "ports": {
                        "type": "array",
                        "items": closed(
                            {"containerPort": {"type": "integer", "minimum": 1, "maximum": 65535}}
                        ),
                    },
                    "resources": closed(
                        {"limits": {"type": "object", "additionalProperties": {"type": "integer"}}}
                    ),
                    "volumeMounts": {
                        "type": "array",
                        "items": closed({"name": NAME, "mountPath": {"type": "string", "pattern": "^/"}}),
                    },
                }
            ),
        },
        "volumes": {
            "type": "array",
            "items": closed(
                {
                    "name": NAME,
                    "persistentVolumeClaim": closed({"claimName": NAME}),
                    "emptyDir": closed({"medium": {"enum": ["", "Memory"]}}),
                },
                "persistentVolumeClaim",
                "emptyDir",
            ),
        },
    }
)
JOB = closed(
    {
        "parallelism": {"type": "integer", "minimum": 1},
        "completions": {"type": "integer", "minimum": 1},
        "completionMode": {"enum": ["Indexed", "NonIndexed"]},
        "backoffLimit": {"type": "integer", "minimum": 0},
        "template": closed({"spec": POD}),
    }
)
JOBSET = closed(
    {
        "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
        "kind": {"const": "JobSet"},
        "metadata": closed({"name": NAME}),
        "spec": closed(
            {
                "failurePolicy": closed({"maxRestarts": {"type": "integer", "minimum": 0}}),
                "network": closed({"enableDNSHostnames": {"type": "boolean"}}),
                "replicatedJobs": {
                    "type": "array",
                    "minItems": 1,
                    "items": closed(
                        {
                            "name": NAME,
                            "replicas": {"type": "integer", "minimum": 1},
                            "template": closed({"spec": JOB}),
                        }
                    ),
                },
            }
        ),
    }
)  # the part of its definition that we write, and nothing else


def told(**given: Any) -> LaunchText:
    words = ("shardwright", "launch", "my plan.yaml", "--prepare")
    return LaunchText(
        **({"name": "My_plan.v2", "launch": words, "run": "runs/a b", "image": "me/img:1"} | given)
    )


def jobset(plan: Plan, **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FORMS["k8s"](plan, told(**given)))
    jsonschema.validate(found, JOBSET)
    return found


def test_a_jobset_has_a_pod_a_node_with_its_devices() -> None:
    found = jobset(planned("replicas of stages over nodes"), cuda=True)
    job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = job["template"]["spec"]["containers"][0]
    assert (job["parallelism"], job["completions"]) == (2, 2)
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert found["metadata"]["name"] == "my-plan-v2"
    script = container["command"][2]
    assert "--nnodes=2 --nproc-per-node=2" in script
    assert "--master-addr=my-plan-v2-ranks-0-0.my-plan-v2 " in script


def test_the_first_node_prepares_and_every_node_starts_its_ranks() -> None:
    plan = planned("replicas of stages over nodes")
    for name, number in (
        ("torchrun", "NODE_RANK"),
        ("k8s", "JOB_COMPLETION_INDEX"),
        ("skypilot", "SKYPILOT_NODE_RANK"),
    ):
        text = FORMS[name](plan, told())
        assert f"if [ \"${number}\" = 0 ]; then shardwright launch 'my plan.yaml' --prepare; fi" in text
        assert f'--node-rank="${number}"' in text
        assert "-m runtime.slurm.task 'runs/a b'" in text


def test_a_task_of_skypilot_asks_for_the_plans_devices() -> None:
    plan = planned("replicas of stages over nodes")
    found = yaml.safe_load(FORMS["skypilot"](plan, told(cuda=True)))
    assert found["num_nodes"] == 2
    assert found["resources"] == {"accelerators": "cpu:2", "image_id": "docker:me/img:1"}
    assert set(found) == {"name", "num_nodes", "resources", "workdir", "run"}


def test_what_cannot_be_printed_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a pod needs an image"):
        FORMS["k8s"](planned("replicas"), told(image=""))
    plan = planned("replicas")
    uneven = (plan.places[0].model_copy(update={"node": 1}), *plan.places[1:])
    with pytest.raises(BadInput, match="nodes with 1, 3 ranks"):
        FORMS["torchrun"](plan.model_copy(update={"places": uneven}), told())
    assert sw.run(["launch", str(PLANS / "mlp-two-stages.yaml"), "--print", "ray"]) == 2
    assert "nothing is known of 'ray'" in capsys.readouterr().err


def test_the_words_of_a_launch_are_those_that_were_typed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    typed = [
        "--steps=7",
        "--seed=3",
        "--no-pin-memory",
        "--grad-norm",
        "--checkpoints=s3://mine",
        "--failure-every=2.5",
    ]
    run = tmp_path / "run"
    assert (
        sw.run(["launch", str(PLANS / "mlp-two-stages.yaml"), "--print", "torchrun", f"--run={run}", *typed])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    words = shlex.split(lines[1])
    assert set(words[3:]) == {"--local", "--prepare", "--trust", f"--run={run}", *typed}
    assert not run.exists()


def test_every_option_of_a_run_can_be_said_again() -> None:
    text = Path("docs/reference/cli.md")
    known = set(re.findall(r"`(--[a-z-]+)", (PLANS.parent / text).read_text()))
    given = LaunchOptions(
        plan=Path("p.yaml"),
        steps=1,
        seed=1,
        weights=Path("w"),
        keep_best=True,
        drop_last=True,
        eval_every=2,
        job=None,  # type: ignore[arg-type]
    )
    for word in given.preparing[3:]:
        assert word.partition("=")[0] in known, word
