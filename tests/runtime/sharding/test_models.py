"""Models of every kind train alike with gradients or parameters shared by replicas."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.draws import covering
from tests.pool import Pool
from tests.runtime.sharding.test_shared import pair
from tests.runtime.test_equality import HERE

MODELS = {
    "gpt2": (HERE + "gpt2.py", {"size": "tiny"}),
    "bert": (HERE + "bert.py", {"size": "tiny"}),
    "resnet50": (HERE + "resnet50.py", {"side": "32"}),
    "unet3d": (HERE + "unet3d.py", {"size": "tiny"}),
    "lstm": (HERE + "lstm.py", {"size": "tiny"}),
    "llama": (HERE + "hf_llama.py", {}),
    "t5": (HERE + "hf_t5.py", {}),
}


CASES = covering(product(MODELS, ["gradients", "parameters"]), kinds=lambda case: case)


@pytest.mark.parametrize(("name", "sharing"), CASES)
def test_a_model_trains_alike(name: str, sharing: str, pool: Pool, tmp_path: Path) -> None:
    workload, arguments = MODELS[name]
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 1, "data": 2}
    assert pair(pool, tmp_path, workload, arguments, sharing, **shape) == 0.0


@pytest.mark.parametrize("name", ["llama", "t5"])
@pytest.mark.parametrize(("data", "ranks"), [(3, 3), (4, 4), (4, 2)])
def test_more_replicas_and_copies_train_alike(
    name: str, data: int, ranks: int, pool: Pool, tmp_path: Path
) -> None:
    """Sizes are no multiples of the ranks; of two copies the parts are summed in another order."""
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 1, "data": data}
    workload, arguments = MODELS[name]
    apart = pair(pool, tmp_path, workload, arguments, "parameters", ranks, **shape)
    assert apart <= (0.0 if data == ranks else 1e-6)
