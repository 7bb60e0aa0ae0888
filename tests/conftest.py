from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.shown import install
from runtime.local import NO_GPUS
from tests import budget, draws
from tests.captures import FOLDER, share, spare_garbage
from tests.pool import Pool
from tests.warm_python import OWNER, WarmPython

TESTS = Path(__file__).parent
# Garbage is looked for seldom: a module of tests leaves little, and the trace of a model makes a million objects
SELDOM = (10_000, 20, 50)

install()
os.environ |= NO_GPUS  # tests compute on the host


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from tests.turns import Turns

    config.option.loadscopereorder = False  # by numbers of tests
    return Turns(config, log)  # type: ignore[arg-type]


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all modules are imported: what they make stays
    if FOLDER not in os.environ:  # all processes of this run inherit it
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="captures-")
        os.environ[OWNER] = str(os.getpid())
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(FOLDER)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Where several processes run all tests, each imports its share of them first: the others read what it compiled."""
    given = getattr(session.config, "workerinput", None)
    if given is None or [Path(argument).name for argument in session.config.args] != ["tests"]:
        return
    first, count = int(given["workerid"].removeprefix("gw")), given["workercount"]
    for file in sorted(TESTS.rglob("test_*.py"))[first::count]:
        name = ".".join(file.relative_to(TESTS.parent).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception):  # pytest tells when it comes to the file
            importlib.import_module(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _draw(config, items)
    if hasattr(config, "workerinput"):  # one of several processes
        from tests.turns import place

        items.sort(key=lambda item: place(item.nodeid))


def _draw(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the cases that are not drawn, unless somebody names them."""
    if draws.WHOLE or any("::" in argument for argument in config.args):
        return
    left = budget.left_out((item.nodeid for item in items), budget.known())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
    items[:] = [item for item in items if item.nodeid not in left]


def pytest_collection_finish() -> None:
    """All modules are imported and stay; nobody who looks for garbage need walk through them again."""
    if "torch" in sys.modules:
        from tests.seeding import spare_absent_devices

        spare_absent_devices()
        share()
    spare_garbage()
    gc.set_threshold(*SELDOM)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"matrices drawn by SHARDWRIGHT_TEST_SEED={draws.ASKED}")


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have told how wide their terminal is."""
    monkeypatch.delenv("COLUMNS", raising=False)
    os.unsetenv("COLUMNS")  # readline, which a debugger imports, sets it past os.environ, for all children


@pytest.fixture(autouse=True, scope="module")
def _spare() -> Iterator[None]:
    """What a module leaves behind stays until the end, so nobody who looks for garbage need walk through it."""
    yield
    spare_garbage()


@pytest.fixture(scope="session")
def warm_python() -> WarmPython:
    """Programs that a test starts have torch imported from the first; `bin` holds them."""
    return WarmPython(Path(os.environ[FOLDER]))


@pytest.fixture(scope="session")
def pool(warm_python: WarmPython) -> Iterator[Pool]:
    """Processes with torch imported, shared by all tests; started when the first test needs them."""
    made = Pool(["tests.runtime.warm"], warm_python.python)
    yield made
    made.close()


@pytest.fixture
def warm_starts(warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> WarmPython:
    """For a test that is not about how programs start: what it starts by name or by `sys.executable` is warm."""
    monkeypatch.setenv("PATH", f"{warm_python.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(warm_python.python))
    return warm_python
