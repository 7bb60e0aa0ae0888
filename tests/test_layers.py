"""The rooms keep to their walls: who may import whom, checked on the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TORCH_ALLOWED = {
    "capture",
    "measure",
    "workload",
    "cut",
}  # modules of planner that may import torch, by stem's first word


def imports(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, dotted name and whether it runs when the module is imported."""
    tree = ast.parse(path.read_text())
    inside = {
        node
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    typing_only = {
        node
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and ast.unparse(test.test) == "TYPE_CHECKING"
        for node in ast.walk(test)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            yield node.lineno, name, node not in inside and node not in typing_only


def violations(room: str, forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, name, _ in imports(path)
        if any(name == word or name.startswith(word + ".") for word in forbidden)
    ]


@pytest.mark.parametrize(
    ("room", "forbidden"),
    [
        ("planner", ("runtime", "models", "shardwright", "torch.distributed")),
        (
            "runtime",
            ("planner.milp", "planner.cost", "planner.report", "pulp", "highspy", "models", "shardwright"),
        ),
        ("models", ("planner", "runtime", "shardwright")),
    ],
)
def test_a_room_imports_only_what_it_may(room: str, forbidden: tuple[str, ...]) -> None:
    assert violations(room, forbidden) == []


def test_only_capture_and_measure_import_torch_in_the_planner() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / "planner").rglob("*.py"))
        if path.stem.split("_")[0] not in TORCH_ALLOWED
        for line, name, _ in imports(path)
        if name.split(".")[0] == "torch"
    ]
    assert found == []


def test_the_check_sees_a_broken_rule(tmp_path: Path) -> None:
    source = tmp_path / "bad.py"
    source.write_text("def f():\n    from planner.milp import solve\n")
    assert [name for _, name, _ in imports(source)] == ["planner.milp.solve"]
