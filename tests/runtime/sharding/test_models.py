"""Models of every kind train alike whatever replicas share, for five steps."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.draws import covering
from tests.pool import Pool
from tests.runtime.sharding.test_shared import SHARED, pair
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


ROWS = {"2": (2, 0), "3": (3, 0), "4": (4, 0), "2 x 2": (4, 2)}  # replicas, and ranks of a copy
GROWING = {"resnet50"}  # batch norms of two samples, where one rounding grows a hundredfold a step
EVERY = [
    case
    for case in product(MODELS, SHARED, ROWS)
    if case[1:] != ("state", "2 x 2")  # whole parameters have one owner among all replicas
]


@pytest.mark.parametrize(("name", "sharing", "row"), covering(EVERY, kinds=lambda case: (case[0], case[1:])))
def test_a_model_trains_alike(name: str, sharing: str, row: str, pool: Pool, tmp_path: Path) -> None:
    """Each element is added up in the order of ranks, so it is the same to the bit; of copies in another order."""
    (workload, arguments), (data, ranks) = MODELS[name], ROWS[row]
    shape: dict[str, object] = {"family": "1f1b", "workers": 1, "micros": 1, "data": data}
    steps = 1 if ranks and name in GROWING else 5
    found = pair(pool, tmp_path, workload, arguments, sharing, ranks, steps=steps, **shape)
    assert found <= (1e-6 if ranks else 0.0)
