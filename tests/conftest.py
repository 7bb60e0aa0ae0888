from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.pool import Pool

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """What two runners side by side (`make test`) must not tear apart: files, which share fixtures, and the tests of
    the one cluster. Pages and notebooks share nothing."""
    for item in items:
        room = item.path.relative_to(HERE).parts[0]
        if room != "docs":
            item.add_marker(pytest.mark.xdist_group(room if room == "slurm" else str(item.path)))


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have told how wide their terminal is."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Processes with torch imported, shared by all tests; started when the first test needs them."""
    made = Pool(["torch", "runtime.train", "tests.runtime.warm"])
    yield made
    made.close()
