"""Runs of these tests are about what they compute, not about how their processes start."""

from __future__ import annotations

import pytest

from tests.warm_python import WarmPython


@pytest.fixture(autouse=True)
def _warm(warm_starts: WarmPython) -> None:
    pass
