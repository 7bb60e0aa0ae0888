"""A plan run on pool workers beside the reference, and how far the two are apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from planner.kept import load_masks
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime.checkpoint import integrity
from runtime.runfolder import mean_loss
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime import reference
from tests.runtime.reference import Reference


@dataclass(frozen=True)
class Distance:
    """Largest difference over each tensor, relative to its largest element."""

    loss: float
    grads: dict[str, float]
    after: dict[str, float]  # over all steps

    def worst(self) -> float:
        return max(self.loss, *self.grads.values(), *self.after.values())


@dataclass(frozen=True)
class Run:
    losses: list[float]
    grads: dict[str, Tensor]
    after: list[dict[str, Tensor]]


def run(
    pool: Pool,
    plan: Plan,
    folder: Path,
    *,
    steps: int = 5,
    fault: str = "",
    compare_holders: bool = True,
    **settings: object,
) -> Run:
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    paths, _ = prepare(model, folder, job_of(plan, steps, settings))
    ranks = len(plan.places)
    parts = pool.run("tests.runtime.jobs:train", ranks, folder=str(paths.root), steps=steps, fault=fault)
    losses: dict[int, dict[int, dict[str, float]]] = {}
    for part in parts:
        assert isinstance(part, dict)
        for step, rows in part.items():
            losses.setdefault(step, {}).update(rows)
    return Run(
        [mean_loss(losses[step]) for step in sorted(losses)],
        together(
            [load_file(paths.root / f"grads-{rank}.safetensors") for rank in range(ranks)], compare_holders
        ),
        [
            together(
                [load_file(paths.root / f"after-{step}-{rank}.safetensors") for rank in range(ranks)],
                compare_holders,
            )
            for step in range(1, steps + 1)
        ],
    )


def together(parts: list[dict[str, Tensor]], compare: bool = True) -> dict[str, Tensor]:
    """All tensors by name; those that several ranks hold must be the same to the bit."""
    found: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.items():
            assert not compare or name not in found or torch.equal(found[name], tensor), (
                f"holders of '{name}' differ"
            )
            found[name] = tensor
    return found


def expected(
    plan: Plan,
    folder: Path,
    *,
    steps: int = 5,
    clip_norm: float | None = None,
    micro: int | None = None,
) -> Reference:
    """From the checkpoint 0 of a run's folder; perhaps in micro-batches of another size."""
    loaded, captured = captured_of(plan.model.workload, plan.model.arguments, micro or plan.batch.micro)
    start = checkpoints.Checkpoint.open(integrity.complete(folder / "checkpoints")[0])
    names = [row.name for row in (*captured.graph.parameters, *captured.graph.buffers)]
    torch.set_num_threads(1)
    return reference.train(
        loaded,
        captured,
        start.parameters(names),
        micro=micro or plan.batch.micro,
        micros=plan.batch.samples // (micro or plan.batch.micro),
        steps=steps,
        clip_norm=clip_norm,
        masks=load_masks(kept) if (kept := folder / "kept.safetensors").exists() else None,
    )


def distance(want: Reference, have: Run) -> Distance:
    assert want.grads.keys() == have.grads.keys()
    loss = max(abs(a - b) / abs(a) for a, b in zip(want.losses, have.losses, strict=True))
    after: dict[str, float] = {}
    for a, b in zip(want.after, have.after, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            after[name] = max(after.get(name, 0.0), apart(a[name], b[name]))
    return Distance(loss, {n: apart(g, have.grads[n]) for n, g in want.grads.items()}, after)


def apart(a: Tensor, b: Tensor) -> float:
    if torch.equal(a, b):
        return 0.0
    a, b = a.double(), b.double()
    return float((a - b).abs().max() / max(float(a.abs().max()), 1e-30))
