"""SyncBatchNorm over replicas against one process whose micro-batches are as large as all of theirs together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planner.capture.stage_modules import whole
from runtime import checkpoint as checkpoints
from runtime.checkpoint import integrity
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import apart, run
from tests.runtime.reference import batch_of
from tests.runtime.test_equality import HERE, plan_of

WORKLOAD = HERE + "synchronised.py"


def trained(
    folder: Path, arguments: dict[str, str], *, micro: int, micros: int, replicas: int, steps: int
) -> list[dict[str, torch.Tensor]]:
    """Parameters and buffers after each step of a plain loop over the same samples, joined by number."""
    workload, captured = captured_of(WORKLOAD, arguments, micro)
    torch.set_num_threads(1)
    start = checkpoints.Checkpoint.open(integrity.complete(folder / "checkpoints")[0])
    module = whole(captured)
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    module.materialise(start.parameters(names))
    optimizer = workload.optimizer(list(module.named_parameters()))
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        for m in range(micros):
            firsts = [((step * replicas + r) * micros + m) * micro for r in range(replicas)]
            parts = [captured.batch_values(*batch_of(workload, 0, first, micro)) for first in firsts]
            values = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            (module(values)["loss:0"] / micros).backward()
        optimizer.step()
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        found.append({name: tensor.detach().clone() for name, tensor in tensors.items()})
    return found


@pytest.mark.parametrize(
    ("family", "shape"),
    [("1f1b", {"workers": 1}), ("chimera", {}), ("zb-h1", {"recompute": (0, 1)})],
)
@pytest.mark.parametrize("arguments", [{}, {"momentum": "0"}])  # none: averages of all batches
def test_replicas_normalise_over_the_samples_of_all(
    family: str, shape: dict[str, object], arguments: dict[str, str], pool: Pool, tmp_path: Path
) -> None:
    plan = plan_of(WORKLOAD, arguments, **({"family": family, "workers": 2, "micros": 2, "data": 2} | shape))
    have = run(pool, plan, tmp_path, steps=3)
    want = trained(tmp_path, arguments, micro=2, micros=2, replicas=2, steps=3)
    for mine, one in zip(have.after, want, strict=True):
        assert mine.keys() == one.keys()
        assert max(apart(one[name], mine[name]) for name in one) <= 1e-12
    assert int(want[-1]["1.num_batches_tracked"]) == 6


def test_replicas_that_each_normalised_for_themselves_would_be_seen(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(WORKLOAD, {}, workers=1, micros=2, data=2)
    have = run(pool, plan, tmp_path, steps=1, fault="own statistics")
    (want,) = trained(tmp_path, {}, micro=2, micros=2, replicas=2, steps=1)
    assert max(apart(want[name], have.after[0][name]) for name in want) > 1e-3
