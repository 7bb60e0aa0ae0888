"""The example reads hyperslabs of files, and trains on them when samples are shared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples import hyperslabs
from planner.workload import load
from runtime.data import Batches, Wanted

REGION = ((0, 16), (8, 32), (0, 32))


@pytest.mark.parametrize(("suffix", "needs"), [(".npy", "numpy"), (".h5", "h5py"), (".zarr", "zarr")])
def test_a_part_of_a_sample_is_that_part_of_the_whole(suffix: str, needs: str, tmp_path: Path) -> None:
    pytest.importorskip(needs)
    path = tmp_path / f"universes{suffix}"
    hyperslabs.write(path)
    parts, wholes = (one_batch(path, region) for region in (REGION, ()))
    assert torch.equal(parts["input"], wholes["input"][:, :, 0:16, 8:32])
    assert torch.equal(parts["target"], wholes["target"])


def one_batch(path: Path, region: tuple[tuple[int, int], ...]) -> dict[str, Tensor]:
    """The same samples under the same draws, whichever part of them is read."""
    wanted = Wanted(
        micros=(0,),
        first=0,
        micro=2,
        step_samples=2,
        values=frozenset({"input", "target"}),
        region=region,
    )
    workload = load("examples/hyperslabs.py", {"file": str(path)})
    found = Batches(workload, wanted, named, seed=3)
    return dict(next(found.steps(0))[0])


def named(inputs: object, targets: object) -> dict[str, Tensor]:
    assert isinstance(inputs, Tensor) and isinstance(targets, Tensor)
    return {"input": inputs, "target": targets}
