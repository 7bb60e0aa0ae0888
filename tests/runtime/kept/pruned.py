"""A pruned run on pool workers beside masked dense training in one process."""

from __future__ import annotations

from pathlib import Path

import torch

from planner.kept import Masks, Numbers, dump, prune
from planner.plan import KeptWeights, Plan
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import Run, expected, run
from tests.runtime.test_equality import plan_of

UNLIKE_ONE_PROCESS = 1e-6  # of sums over more than two holders, which one process adds up in another order


def masks_for(plan: Plan, file: Path, keep: float = 0.3) -> Masks:
    """Random masks of every weight of two dims or more that is trained, as a file."""
    _, captured = captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro)
    rows = {row.name: row for row in captured.graph.trained if len(row.shape) > 1}
    seeds = {name: torch.Generator().manual_seed(number) for number, name in enumerate(rows)}
    tensors = Numbers(
        {name: tuple(row.shape) for name, row in rows.items()},
        lambda name: torch.randn(rows[name].shape, generator=seeds[name]).double().numpy(),
    )
    masks = prune(tensors, keep).fitted(captured.graph)
    dump(masks, file)
    return masks


def pruned_plan(
    workload: str, arguments: dict[str, str], file: Path, keep: float = 0.3, **shape: object
) -> Plan:
    plan = plan_of(workload, arguments, **shape)
    masks = masks_for(plan, file, keep)
    kept = KeptWeights(share=keep, digest=masks.digest, counts=masks.counts)
    return plan.model_copy(update={"kept": kept})


def apart(
    pool: Pool, folder: Path, workload: str, arguments: dict[str, str], steps: int = 5, **shape: object
) -> float:
    """The largest difference of any number of the model after any step to masked dense training in one process."""
    file = folder / "masks.safetensors"
    plan = pruned_plan(workload, arguments, file, **shape)
    have = run(pool, plan, folder / "run", steps=steps, kept=str(file))
    want = expected(plan, folder / "run", steps=steps)
    check_zeros(plan, folder, have)
    pairs = zip(want.after, have.after, strict=True)
    return max(float((a[n].double() - b[n].double()).abs().max()) for a, b in pairs for n in a)


def check_zeros(plan: Plan, folder: Path, have: Run) -> None:
    """Pruned entries are exactly 0.0 after any step."""
    from planner.kept import load_masks

    masks = load_masks(folder / "run" / "kept.safetensors")
    for after in have.after:
        for name, index in masks.indices.items():
            flat = after[name].reshape(-1).clone()
            flat[torch.from_numpy(index).long()] = 0.0
            assert not flat.any(), name
