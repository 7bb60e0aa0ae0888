"""Torch's own operators between convolutions are exact, on shards or through a gather, or refused before they run.

A part of them by seed. `python -m benchmarks.operators` takes all, and counts them.
"""

from __future__ import annotations

import pytest

from tests.draws import part
from tests.runtime.spatial import operators

PARTS = 120
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of its samples


@pytest.mark.parametrize("number", part(range(PARTS), 1))
def test_an_operator_of_torch_is_exact_or_refused(number: int) -> None:
    found = [x for name in sorted(operators.database())[number::PARTS] for x in operators.judged(name)]
    assert any(not x.refused for x in found), found
