"""Out-of-order backprop trains as the plain order does: twenty steps to the bit, or a refusal with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from planner.errors import BadInput, BadPlan
from planner.schedule import FAMILIES, Overlap
from planner.verify import violations
from runtime import checkpoint as checkpoints
from runtime.checkpoint import integrity
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime import reference
from tests.runtime.compare import apart
from tests.runtime.overlaps import STEPS, Combination, difference, drawn, train
from tests.runtime.test_equality import HERE, plan_of
from tests.runtime.workloads.optimised import KINDS

SAMPLES = [
    (optimizer, family, number % 2 == 0)
    for number, (optimizer, family) in enumerate(
        zip(sorted(KINDS), Random(3).sample(sorted(FAMILIES), len(KINDS)), strict=True)
    )
]
AT_USE = Overlap(parts=3, late=2, updates="at_use")


@pytest.mark.parametrize(("optimizer", "family", "many"), SAMPLES)
def test_twenty_steps_are_those_of_the_plain_order(
    optimizer: str, family: str, many: bool, pool: Pool, tmp_path: Path
) -> None:
    """Of all combinations a sample in parts, in turn with two or fewer holders of a gradient and with more."""
    drawn_ones = (drawn(seed, optimizer, family) for seed in range(50))
    combination = next(each for each in drawn_ones if each.overlap.parts > 1 and (each.holders > 2) is many)
    assert difference(pool, combination, tmp_path) == 0.0, combination


@pytest.mark.parametrize("data", [2, 4])
def test_data_parallel_replicas_in_parts_train_to_the_bit(data: int, pool: Pool, tmp_path: Path) -> None:
    overlap = Overlap(parts=8, late=3, sums=(7, 5, 2, 0, 1, 3, 4, 6), updates="at_use")
    combination = Combination(
        optimizer="adamw",
        family="1f1b",
        precision="fp32",
        workers=1,
        data=data,
        micros=2,
        overlap=overlap,
        recompute=False,
        shard=False,
        clip="",
    )
    assert difference(pool, combination, tmp_path) == 0.0


@pytest.mark.parametrize(("workers", "data"), [(1, 1), (2, 1), (2, 2)])
def test_a_tied_weight_is_updated_where_its_first_stage_is_used(
    workers: int, data: int, pool: Pool, tmp_path: Path
) -> None:
    """Its other stage on the same worker comes later in the step, its gradient from both."""
    shape = {"workers": workers, "data": data, "micros": 2, "update": "rolling"}
    arguments = {"double": "True"}
    plain = plan_of(HERE + "branches.py", arguments, overlap=replace(AT_USE, updates="at_end"), **shape)
    losses, after = train(pool, plain, tmp_path / "plain")
    others, weights = train(
        pool, plan_of(HERE + "branches.py", arguments, overlap=AT_USE, **shape), tmp_path / "at use"
    )
    assert losses == others
    assert all(torch.equal(tensor, weights[name]) for name, tensor in after.items())


@pytest.mark.parametrize("data", [1, 3])
def test_clipping_by_the_norm_of_the_step_before_needs_no_wait(data: int, pool: Pool, tmp_path: Path) -> None:
    shape = {"workers": 1, "micros": 2, "data": data, "update": "rolling"}
    arguments, limit = {"double": "True"}, 0.1
    clipped = {"clip_norm": limit, "clip_by": "previous"}
    plain, at_use = (
        plan_of(HERE + "branches.py", arguments, overlap=replace(AT_USE, updates=updates), **shape)
        for updates in ("at_end", "at_use")
    )
    losses, after = train(pool, plain, tmp_path / "plain", **clipped)
    others, weights = train(pool, at_use, tmp_path / "at use", **clipped)
    assert losses == others and all(torch.equal(after[name], weights[name]) for name in after)
    workload, captured = captured_of(HERE + "branches.py", arguments, 2)
    start = checkpoints.Checkpoint.open(integrity.complete(tmp_path / "plain" / "checkpoints")[0])
    names = [row.name for row in (*captured.graph.parameters, *captured.graph.buffers)]
    many = {"micro": 2, "micros": 2 * data, "steps": STEPS}
    want = reference.train(
        workload, captured, start.parameters(names), clip_norm=limit, clip_by="previous", **many
    )
    assert max(apart(tensor, weights[name]) for name, tensor in want.after[-1].items()) < 1e-9
    own = reference.train(workload, captured, start.parameters(names), clip_norm=limit, **many)
    assert max(apart(tensor, weights[name]) for name, tensor in own.after[-1].items()) > 1e-6


def test_a_resumed_run_remembers_the_norm_of_the_step_before(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(
        HERE + "branches.py", {"double": "True"}, workers=2, micros=2, update="rolling", overlap=AT_USE
    )
    found = []
    for name, ends in (("whole", (4,)), ("parts", (2, 4))):
        for steps in ends:
            model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, 2))
            settings: dict[str, object] = {"clip_norm": 0.1, "clip_by": "previous"}
            paths, _ = prepare(model, tmp_path / name, job_of(plan, steps, settings))
            pool.run("tests.runtime.jobs:whole_run", len(plan.places), folder=str(paths.root))
        latest = checkpoints.latest(tmp_path / name / "checkpoints")
        assert latest is not None
        found.append(latest.whole())
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


@pytest.mark.parametrize(
    ("shape", "arguments", "settings", "reason"),
    [
        ({"update": "barrier"}, {}, {}, "update: barrier"),
        ({}, {}, {"clip_norm": 1.0}, "clipping: the global norm"),
        ({"precision": "fp16"}, {}, {}, "fp16: its scaler"),
        ({}, {"counted": "true"}, {}, "a loss of \\(sum, count\\)"),
        ({"shard": True, "data": 2}, {}, {}, "what replicas share"),
        ({"sharing": "parameters", "data": 2}, {}, {}, "what replicas share"),
    ],
)
def test_what_needs_every_gradient_is_refused_with_the_reason(
    shape: Mapping[str, object],
    arguments: dict[str, str],
    settings: dict[str, object],
    reason: str,
    tmp_path: Path,
) -> None:
    plan = plan_of(
        HERE + "branches.py",
        {"double": "False", **arguments},
        **{"update": "rolling", "overlap": AT_USE, "workers": 1, **shape},
    )
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    said = f"updates at use cannot be had with {reason}"
    with pytest.raises(BadPlan, match=said):
        prepare(model, tmp_path, job_of(plan, 2, settings))
    found = [str(each) for each in violations(plan, graph=model.captured.graph) if each.rule == "update"]
    assert bool(settings) or re.search(said, *found)  # of clipping no plan tells


def test_a_second_stream_on_one_device_is_refused_not_pretended(tmp_path: Path) -> None:
    plan = plan_of(HERE + "branches.py", {"double": "False"}, workers=1)
    choice = plan.schedule.model_copy(update={"settings": {"streams": 2}})
    model = Model(
        plan.model_copy(update={"schedule": choice}),
        *captured_of(plan.model.workload, plan.model.arguments, 2),
    )
    with pytest.raises(BadInput, match=r"streams is 2.*not built"):
        prepare(model, tmp_path, job_of(plan, 2, {}))
