from __future__ import annotations

from collections.abc import Iterator

import pytest

from planner.views import install
from tests.pool import Pool

install()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from tests.turns import Turns

    config.option.loadscopereorder = False  # by numbers of tests
    return Turns(config, log)  # type: ignore[arg-type]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        from tests.turns import place

        items.sort(key=lambda item: place(item.nodeid))


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have told how wide their terminal is."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Processes with torch imported, shared by all tests; started when the first test needs them."""
    made = Pool(["torch", "runtime.train.training", "tests.runtime.warm"])
    yield made
    made.close()
