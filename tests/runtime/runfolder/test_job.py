"""What a launcher may tell its ranks; each field that is wrong is named, before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.plan import yaml as plan_yaml
from runtime.train import job_of

PLAN = Path("plans/mlp-two-stages.yaml")

WRONG: list[dict[str, object]] = [
    {"steps": 0},
    {"steps": -1},
    {"steps": 10**30},
    {"steps": 1.5},
    {"steps": True},
    {"seed": -1},
    {"seed": 2**63},
    {"seed": "7"},
    {"save_every": -1},
    {"keep": 0},
    {"threads": 0},
    {"threads": 10**9},
    {"data_workers": -1},
    {"restarts": -1},
    {"deadline_s": 0.0},
    {"deadline_s": float("nan")},
    {"clip_norm": float("inf")},
    {"clip_norm": -1.0},
    {"device": "tpu"},
    {"content": "lunch"},
    {"rendezvous": "udp"},
    {"stepz": 3},
]


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_a_field_that_is_wrong_is_named(given: dict[str, object]) -> None:
    settings = dict(given)
    steps = settings.pop("steps", 1)
    with pytest.raises(BadInput, match=next(iter(given))):
        job_of(plan_yaml.load(PLAN), steps, settings)  # type: ignore[arg-type]


def test_what_is_right_is_taken() -> None:
    job = job_of(plan_yaml.load(PLAN), 10**12, {"seed": 2**63 - 1, "clip_norm": 1, "rendezvous": "tcp:ib0"})
    assert (job.steps, job.seed, job.clip_norm, job.rendezvous) == (10**12, 2**63 - 1, 1, "tcp:ib0")
