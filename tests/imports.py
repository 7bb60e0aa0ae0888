"""Reads who imports whom from the source, for `tests/test_layers.py`.

A `House` holds the product files below a root folder: `planner/`, `runtime/`, `models/` and `shardwright.py`.
A package directly below `planner/` or `runtime/` is a room, and so is a single file there. Folders inside a
room belong to that room. Imports count wherever they stand: in functions, under `TYPE_CHECKING`, or as
`import_module("planner.cluster")`. The rules on top of it are in `tests/layer_rules.py`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

WINGS = ("planner", "runtime")  # the folders that are made of rooms
PRODUCT = (*WINGS, "models")
FACADE = "shardwright.py"
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One name of an import statement: `name` is empty for `import module`."""

    line: int
    module: str
    name: str
    alias: str

    @property
    def dotted(self) -> str:
        """Returns the whole dotted name that is imported."""
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True, eq=False)
class Source:
    """A parsed file with its imports.

    `module` is the dotted name of the file; an `__init__.py` has the name of its package.
    """

    path: Path  # below the root
    module: str
    tree: ast.Module
    lines: int
    imports: tuple[Import, ...]

    @property
    def is_init(self) -> bool:
        """Returns whether the file is the `__init__.py` of a package."""
        return self.path.name == "__init__.py"

    def at(self, line: int) -> str:
        """Returns "path:line", as editors and terminals open it."""
        return f"{self.path.as_posix()}:{line}"

    def says(self, found: Import) -> str:
        """Returns the beginning of a violation: which line imports what."""
        return f"{self.at(found.line)} imports {found.dotted}"


@dataclass(frozen=True, eq=False)
class House:
    """All product files of a tree by their dotted names."""

    root: Path
    files: Mapping[str, Source]

    def rooms(self) -> list[str]:
        """Returns every room that exists, in alphabetical order."""
        return sorted({room for module in self.files if (room := room_of(module)) and "." in room})

    def package(self, name: str) -> Source | None:
        """Returns the `__init__.py` of a package, None where the name is no package of this house."""
        source = self.files.get(name)
        return source if source is not None and source.is_init else None

    def exports(self, package: str) -> frozenset[str]:
        """Returns what the `__all__` of a package lists."""
        source = self.package(package)
        return frozenset(listed(source.tree) or ()) if source else frozenset()

    def binds(self, package: str, name: str) -> bool:
        """Returns whether the `__init__.py` of a package imports or defines a name itself."""
        source = self.package(package)
        if source is None:
            return False
        origin = imported(source).get(name)
        return name in defined(source) or (origin is not None and origin.dotted != f"{package}.{name}")

    def target(self, found: Import) -> str | None:
        """Returns the file that an import reaches, None outside of the house.

        A name that a package exports is followed through its `__init__.py` to the file that defines the name.
        """
        return self._defining(found.module, found.name, frozenset())

    def _defining(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> str | None:
        inner = f"{module}.{name}"
        if module not in self.files:
            return inner if inner in self.files else None
        if not self.package(module) or not name or name in defined(self.files[module]):
            return module
        onward = imported(self.files[module]).get(name)
        if onward is None or onward.dotted == inner or (module, name) in seen:
            return inner if inner in self.files else module
        return self._defining(onward.module, onward.name, seen | {(module, name)}) or module


# Reading


@functools.cache
def house(root: Path) -> House:
    """Reads the product files below a root folder; every file is parsed once a process."""
    paths = [path for wing in PRODUCT for path in sorted((root / wing).rglob("*.py"))]
    if (root / FACADE).is_file():
        paths.append(root / FACADE)
    sources = [_source(root, path) for path in paths]
    return House(root, {source.module: source for source in sources})


def _source(root: Path, path: Path) -> Source:
    text = path.read_text()
    tree = ast.parse(text, filename=str(path))
    relative = path.relative_to(root)
    parts = relative.with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    package = parts[:-1]
    return Source(relative, module, tree, len(text.splitlines()), tuple(_imports(tree, package)))


def _imports(tree: ast.AST, package: Sequence[str]) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, "", alias.asname or alias.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(node.lineno, module, alias.name, alias.asname or alias.name)
        elif isinstance(node, ast.Call) and (dynamic := _imported_by_call(node)):
            yield Import(node.lineno, dynamic, "", "")


def _imported_by_call(call: ast.Call) -> str | None:
    function = ast.unparse(call.func).split(".")[-1]
    if function not in ("import_module", "__import__") or not call.args:
        return None
    first = call.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def room_of(dotted: str) -> str:
    """Returns the room that a dotted name lies in, such as "planner.cluster"; empty outside of the wings.

    `planner` and `runtime` themselves are what their own `__init__.py` holds.
    """
    parts = dotted.split(".")
    return ".".join(parts[:2]) if parts[0] in WINGS else ""


def within(dotted: str, package: str) -> bool:
    """Returns whether a dotted name is a package or lies inside of it."""
    return dotted == package or dotted.startswith(package + ".")


def listed(tree: ast.Module) -> list[str] | None:
    """Returns the names in `__all__`, None where a file has none."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if value is not None and any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            return [str(name) for name in ast.literal_eval(value)]
    return None


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yields the statements that run at import, and those under `if` and `try`."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.If | ast.Try):
            handlers = [statement for handler in getattr(node, "handlers", []) for statement in handler.body]
            waiting += [*node.body, *node.orelse, *handlers, *getattr(node, "finalbody", [])]


def imported(source: Source) -> dict[str, Import]:
    """Returns what a file imports at its top level, by the name that it gets there."""
    lines = {node.lineno for node in top_level(source.tree) if isinstance(node, ast.Import | ast.ImportFrom)}
    return {found.alias: found for found in source.imports if found.line in lines and found.alias}


def defined(source: Source) -> set[str]:
    """Returns the names that a file defines or assigns at its top level."""
    return {name for node in top_level(source.tree) for name in _defined_by(node)}


def _defined_by(node: ast.stmt) -> list[str]:
    if isinstance(node, Definition):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []
