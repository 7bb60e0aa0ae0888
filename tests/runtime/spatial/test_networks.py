"""Networks of others and ours train on shared samples as in one process; all cases in `benchmarks.spatial`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.pool import Pool
from tests.runtime.spatial.matrix import HYBRIDS, NETWORKS, apart

LIGHT = [name for name in NETWORKS if name != "VNet"]  # volumes of which take a minute a case
RNG = random.Random(6)
FEW = {"VNet of images": 1}
SAMPLED = [
    (network, hybrid) for network in LIGHT for hybrid in RNG.sample(list(HYBRIDS), FEW.get(network, 2))
]


@pytest.mark.parametrize(("network", "hybrid"), SAMPLED)
def test_five_losses_equal_the_single_processes(
    network: str, hybrid: str, pool: Pool, tmp_path: Path
) -> None:
    pytest.importorskip("monai")
    found = apart(network, hybrid, pool, tmp_path)
    assert found.equal, found


def test_the_sample_has_most_hybrids() -> None:
    assert len({hybrid for _, hybrid in SAMPLED}) >= len(HYBRIDS) // 2
