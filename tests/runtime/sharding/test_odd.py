"""Models with odd parameters train alike whatever replicas share: to the bit with one micro-batch, but for bf16."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.draws import part
from tests.pool import Pool
from tests.runtime.sharding.test_shared import SHARED, pair
from tests.runtime.test_equality import HERE
from tests.runtime.workloads.odd_parameters import KINDS

ROWS: dict[str, dict[str, object]] = {
    "2": {"family": "1f1b", "workers": 1, "micros": 1, "data": 2},
    "3": {"family": "1f1b", "workers": 1, "micros": 1, "data": 3},
    "2 stages": {"family": "zb-h1", "workers": 2, "micros": 2, "data": 2},
}


@pytest.mark.parametrize(("kind", "sharing", "row"), part(list(product(KINDS, SHARED, ROWS)), 6))
def test_odd_parameters_make_no_difference(
    kind: str, sharing: str, row: str, pool: Pool, tmp_path: Path
) -> None:
    shape, rough = ROWS[row], kind == "mixed" and sharing != "state"  # bf16 rounds by the place in a tensor
    found = pair(pool, tmp_path, HERE + "odd_parameters.py", {"kind": kind}, sharing, **shape)
    assert found <= (1e-2 if rough else 0.0 if shape["micros"] == 1 or sharing == "state" else 1e-6)
