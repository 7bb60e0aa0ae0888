"""Scripts of benchmarks, which no test runs, name what is there: a room that moves a function breaks none unseen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))
OURS = ("planner", "runtime", "shardwright")


def imported(text: str) -> Iterator[tuple[str, str]]:
    """Yields the module and the name of everything of ours that a script imports by name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            yield from ((node.module, alias.name) for alias in node.names)


def missing(text: str) -> list[str]:
    return [f"{module}.{name}" for module, name in imported(text) if not there(module, name)]


def there(module: str, name: str) -> bool:
    """Returns whether a module has a name, or is a package with a file of that name."""
    found = import_module(module)
    return hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_benchmark_imports_of_ours_is_there(path: Path) -> None:
    assert not missing(path.read_text())


def test_what_is_not_there_is_found() -> None:
    assert missing("from planner.errors import BadInput, Nothing") == ["planner.errors.Nothing"]
    assert missing("from planner.model import ModelGraph, Nothing, graph") == ["planner.model.Nothing"]
