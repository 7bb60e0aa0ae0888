"""Networks of others and ours train on shared samples as in one process; all cases in `benchmarks.spatial`."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.draws import WHOLE, covering, part
from tests.pool import Pool
from tests.runtime.spatial.matrix import HYBRIDS, NETWORKS, apart

pytestmark = pytest.mark.usefixtures("captures_once")
LIGHT = [name for name in NETWORKS if name != "VNet"]  # volumes of which take a minute a case
DRAWN = part(LIGHT, 2), part(HYBRIDS, 5)  # of both, the others are those of other seeds
SAMPLED = covering(product(*DRAWN), kinds=lambda case: case)


@pytest.mark.parametrize(("network", "hybrid"), SAMPLED)
def test_five_losses_equal_the_single_processes(
    network: str, hybrid: str, pool: Pool, tmp_path: Path
) -> None:
    pytest.importorskip("monai")
    found = apart(network, hybrid, pool, tmp_path)
    assert found.equal, found


def test_the_sample_has_every_hybrid_and_light_network_that_is_drawn() -> None:
    assert {network for network, _ in SAMPLED} == set(DRAWN[0])
    assert {hybrid for _, hybrid in SAMPLED} == set(DRAWN[1])
    assert not WHOLE or (set(DRAWN[0]), set(DRAWN[1])) == (set(LIGHT), set(HYBRIDS))
