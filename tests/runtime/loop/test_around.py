"""All around the steps of a training is what a loop by hand in plain torch does, under any plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from planner.plan import Plan
from runtime.checkpoint import checkpoint as checkpoints
from runtime.runfolder import Evaluated, Paths, evaluations_of, steps_of
from runtime.train import Model, job_of, prepare
from tests.pool import Pool
from tests.runtime.jobs import captured_of
from tests.runtime.spatial.test_plans import spatially
from tests.runtime.test_equality import HERE, plan_of
from tests.runtime.workloads import looped

WORKLOAD = HERE + "looped.py"
STEPS, EVERY, CLIP, DECAY, SEED = 200, 25, 0.05, 0.9, 3
SETTINGS: dict[str, object] = {
    "eval_every": EVERY,
    "keep_best": True,
    "clip_norm": CLIP,
    "ema": DECAY,
    "seed": SEED,
    "best_by": "near:max",
    "keep": 1,
}


@dataclass
class Hand:
    """A training as one writes it by hand."""

    batch: int
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)
    best: tuple[int, dict[str, Tensor]] = (0, {})
    weights: dict[str, Tensor] = field(default_factory=dict)
    averages: dict[str, Tensor] = field(default_factory=dict)

    def samples(self) -> Iterator[int]:
        epoch = 0
        while True:
            yield from looped.sampler(looped.dataset(), SEED, epoch)
            epoch += 1

    def train(self, steps: int) -> Hand:
        torch.manual_seed(SEED)
        model = looped.build()
        average = looped.build()
        average.load_state_dict(model.state_dict())
        optimizer = looped.optimizer(model.named_parameters())
        schedule = looped.lr_schedule(optimizer)
        data, order = looped.dataset(), self.samples()
        for step in range(1, steps + 1):
            chosen = list(islice(order, self.batch))
            inputs, targets = (torch.stack(parts) for parts in zip(*(data[i] for i in chosen), strict=True))
            optimizer.zero_grad()
            loss = looped.loss(model(inputs), targets)
            loss.backward()
            self.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
            self.rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                for mean, new in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(new, 1 - DECAY)
            self.losses.append(float(loss.detach()))
            if step % EVERY == 0:
                self.evaluate(step, average)
        self.weights, self.averages = dict(model.state_dict()), dict(average.state_dict())
        return self

    def evaluate(self, step: int, model: nn.Module) -> None:
        data = looped.valid_dataset()
        with torch.no_grad():
            outputs = model(data.inputs)
            found = {
                name: float(a) / float(b) for name, (a, b) in looped.metrics(outputs, data.targets).items()
            }
            self.evaluations[step] = {"loss": float(looped.loss(outputs, data.targets)), **found}
        if all(found["near"] > before["near"] for s, before in self.evaluations.items() if s < step):
            self.best = step, {name: x.clone() for name, x in model.state_dict().items()}


def trained(pool: Pool, plan: Plan, folder: Path, steps: int, **settings: object) -> Paths:
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    paths, _ = prepare(model, folder, job_of(plan, steps, settings))
    pool.run("tests.runtime.jobs:whole_run", len(plan.places), folder=str(paths.root))
    return paths


SHAPES: dict[str, dict[str, object]] = {
    "one process": {"workers": 1, "micros": 4},
    "data": {"workers": 1, "micros": 2, "data": 2},
    "gradients": {"workers": 1, "micros": 2, "data": 2, "sharing": "gradients"},
    "parameters": {"workers": 2, "micros": 2, "data": 2, "sharing": "parameters"},
    "pipeline": {"workers": 2, "micros": 4},
    "chimera": {"family": "chimera", "workers": 2, "micros": 4},
    "space": {"workers": 1, "micros": 4},
}


def planned(name: str) -> Plan:
    plan = plan_of(WORKLOAD, {}, **SHAPES[name])
    return spatially(plan, {0: (2,)}, 2) if name == "space" else plan


def test_200_steps_with_all_around_them_and_another_plan_are_those_of_a_loop_by_hand(
    pool: Pool, tmp_path: Path
) -> None:
    want = Hand(planned("pipeline").batch.samples).train(STEPS)
    for name, until in (("pipeline", 60), ("parameters", 110), ("gradients", 160)):
        trained(pool, planned(name), tmp_path / "run", until, **SETTINGS)
    paths = trained(pool, planned("data"), tmp_path / "run", STEPS, **SETTINGS)
    rows = list(steps_of(paths).values())
    assert [row.loss for row in rows] == pytest.approx(want.losses, rel=1e-6)
    assert [row.learning_rate for row in rows] == pytest.approx(want.rates, rel=1e-12)
    assert [row.gradient_norm for row in rows] == pytest.approx(want.norms, rel=1e-5)
    found = evaluations_of(paths)
    assert {each.step: dict(each.values) for each in found} == {
        step: pytest.approx(values, rel=1e-6) for step, values in want.evaluations.items()
    }
    assert {each.samples for each in found} == {looped.VALID}
    last, best = (checkpoints.Checkpoint.open(path) for path in (latest(paths), best_of(paths, found)))
    assert best.facts.step == want.best[0]
    for have, expected in (
        (last.whole(), want.weights),
        (last.whole(averaged=True), want.averages),
        (best.whole(averaged=True), want.best[1]),
    ):
        assert have.keys() == expected.keys()
        assert all(torch.allclose(have[name], x, rtol=1e-5, atol=1e-8) for name, x in expected.items())


def latest(paths: Paths) -> Path:
    return checkpoints.complete(paths.checkpoints)[-1]


def best_of(paths: Paths, found: list[Evaluated]) -> Path:
    step = [each.step for each in found if each.best][-1]
    return next(
        path for path in checkpoints.complete(paths.checkpoints) if path.name.endswith(f"-{step:08d}")
    )


@pytest.mark.parametrize("name", SHAPES)
def test_metrics_validation_and_the_best_are_the_same_under_every_plan(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    plan = planned(name)
    want = Hand(plan.batch.samples).train(2 * EVERY)
    paths = trained(pool, plan, tmp_path / "run", 2 * EVERY, **SETTINGS)
    found = evaluations_of(paths)
    for each in found:
        values = want.evaluations[each.step]
        assert each.values["near"] == values["near"]  # counts
        assert each.values == pytest.approx(values, rel=1e-6)
    assert [each.step for each in found if each.best][-1] == want.best[0]
    assert best_of(paths, found).is_dir()
