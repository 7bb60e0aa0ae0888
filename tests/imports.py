"""Reads who imports whom from the source, for `tests/test_layers.py`.

A `House` holds every product file below a root folder: `planner/`, `runtime/`, `models/` and `shardwright.py`.
A package directly below `planner/` or `runtime/` is a room, and so is a single file there; folders inside a room
belong to that room. Imports count wherever they stand: in functions, under `TYPE_CHECKING`, or as
`import_module("planner.cluster")`. Every rule returns its violations as texts that begin with "path:line".

`python -m tests.imports [root]` prints all violations of the rules that need no data of their own.
"""

from __future__ import annotations

import ast
import functools
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import networkx as nx

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
    """A parsed file with its imports; `module` is its dotted name, that of the package for an `__init__.py`."""

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
        return source is not None and (name in imported(source) or name in defined(source))

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


# Down only


def upwards(root: Path, order: Sequence[str]) -> list[str]:
    """Returns every import of a room by one that stands above it in `order`, or by one that is not in it."""
    place = {room: index for index, room in enumerate(order)}
    violations = []
    for source, found in _imports_between_rooms(house(root)):
        importer, imported = room_of(source.module), room_of(found.dotted)
        if imported not in place:
            violations.append(f"{source.says(found)}, and {imported} is not in the list")
        elif place.get(importer, -1) < place[imported] and importer in (*place, *WINGS):
            violations.append(f"{source.says(found)}, but {importer} stands above {imported}")
    return violations


def _imports_between_rooms(tree: House) -> Iterator[tuple[Source, Import]]:
    for source in tree.files.values():
        for found in source.imports:
            importer, imported = room_of(source.module), room_of(found.dotted)
            if importer and imported and importer != imported:
                yield source, found


def unlisted(root: Path, order: Sequence[str]) -> list[str]:
    """Returns the rooms that exist and are not in `order`."""
    tree = house(root)
    missing = [room for room in tree.rooms() if room not in order]
    return [f"{room.replace('.', '/')} is not in the list" for room in missing]


# One door


def side_doors(root: Path) -> list[str]:
    """Returns every use of a package from outside that goes past its `__init__.py` or its `__all__`."""
    tree = house(root)
    return [
        violation
        for source in tree.files.values()
        for violation in (*_imported_past_the_door(tree, source), *_read_past_the_door(tree, source))
    ]


def _imported_past_the_door(tree: House, source: Source) -> Iterator[str]:
    for found in source.imports:
        room = room_of(found.dotted)
        if not room or room == room_of(source.module):
            continue
        if found.module != room and within(found.module, room):
            yield f"{source.says(found)}: {found.module} is a file inside of {room}"
        elif found.module == room and found.name and (fault := _fault(tree, room, found.name)):
            yield f"{source.says(found)}: {fault}"


def _fault(tree: House, room: str, name: str) -> str | None:
    """Returns what is wrong with using a name of a room from outside, None where nothing is."""
    door = tree.package(room)
    if door is None:  # a single file, or a folder without a door, which `doors` reports
        return f"{name} is private" if name.startswith("_") else None
    inside = f"{room}.{name}"
    origin = imported(door).get(name)
    if inside in tree.files and name not in defined(door) and (origin is None or origin.dotted in tree.files):
        return f"{inside} is a file inside of {room}"
    return None if name in tree.exports(room) else f"{name} is not in __all__ of {room}"


def _read_past_the_door(tree: House, source: Source) -> Iterator[str]:
    """Yields attributes of packages that are imported as modules: `clusters.links` after `... as clusters`."""
    modules = _module_aliases(tree, source)
    attributes = (
        [node for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)] if modules else []
    )
    for node in attributes:
        first, *rest = _chain(node) or [""]
        room, name = _split(".".join([modules.get(first, ""), *rest]))
        if room not in tree.files or room == room_of(source.module) or not name or "." in name:
            continue
        if fault := _fault(tree, room, name):
            yield f"{source.at(node.lineno)} reads {room}.{name}: {fault}"


def _split(dotted: str) -> tuple[str, str]:
    """Returns the room of a dotted name and what follows."""
    room = room_of(dotted)
    return room, dotted[len(room) + 1 :]


def _module_aliases(tree: House, source: Source) -> dict[str, str]:
    """Returns the names that stand for packages in a file; a name that is bound again there is left out."""
    aliases = {}
    for found in source.imports:
        if not found.name and found.alias and found.module.split(".")[0] in WINGS:
            plain = found.module.startswith(found.alias)  # `import planner.cluster` binds `planner`
            aliases[found.alias] = found.alias if plain else found.module
        elif room_of(found.dotted) == found.dotted and tree.package(found.dotted):
            aliases[found.alias] = found.dotted
    again = _assigned(source.tree) if aliases else set()
    return {alias: module for alias, module in aliases.items() if alias not in again}


def _assigned(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _chain(node: ast.expr) -> list[str]:
    """Returns the parts of a dotted expression; empty where it does not begin with a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else []


def doors(root: Path) -> list[str]:
    """Returns what is wrong with the `__init__.py` of rooms: no docstring, or an `__all__` that is not complete."""
    tree = house(root)
    violations = []
    for room in tree.rooms():
        source = tree.files.get(room)
        if source is None:
            violations.append(f"{room.replace('.', '/')} has no __init__.py")
        elif source.is_init:
            violations += _door_faults(source)
    return violations


def _door_faults(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield f"{source.at(1)} has no docstring"
    bound, names = imported(source), listed(source.tree)
    inner = {name: found for name, found in bound.items() if within(found.module, source.module)}
    if names is None:
        if inner or any(not name.startswith("_") for name in defined(source)):
            yield f"{source.at(1)} exports names and has no __all__"
        return
    for name, found in inner.items():
        if name not in names:
            yield f"{source.says(found)}, which is not in its __all__"
    for name in names:
        if name not in bound and name not in defined(source):
            yield f"{source.at(1)} lists {name} in __all__ and does not import it"


def relative_imports(root: Path) -> list[str]:
    """Returns every import with a leading dot, and every `import *`."""
    violations = []
    for source in house(root).files.values():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and (node.level or node.names[0].name == "*"):
                violations.append(f"{source.at(node.lineno)} has `{ast.unparse(node)}`")
    return violations


def through_own_door(root: Path) -> list[str]:
    """Returns every import of a package's `__init__.py` by a file inside of that package."""
    tree = house(root)
    return [
        f"{source.says(found)} through the __init__.py of {package}, its own package"
        for source in tree.files.values()
        for found in source.imports
        if (package := _entered(tree, found)) and source.module.startswith(package + ".")
    ]


def _entered(tree: House, found: Import) -> str | None:
    """Returns the package whose `__init__.py` an import asks for a name, None where it asks a file."""
    if tree.package(found.module) is None:
        return None
    is_file = found.dotted in tree.files and not tree.binds(found.module, found.name)
    return None if found.name and is_file else found.module


# Walls


def crossings(root: Path, wing: str, forbidden: Sequence[str]) -> list[str]:
    """Returns the imports of a wing that begin with one of the forbidden names."""
    return [
        source.says(found)
        for source in house(root).files.values()
        if within(source.module, wing)
        for found in source.imports
        if any(within(found.dotted, word) for word in forbidden)
    ]


def more_than_types(root: Path, wing: str, room: str) -> list[str]:
    """Returns the imports of a room by a wing that are no types: a type begins with an upper-case letter."""
    return [
        f"{source.says(found)}, which is no type"
        for source in house(root).files.values()
        if within(source.module, wing)
        for found in source.imports
        if within(found.dotted, room) and not found.dotted.split(".")[-1][0].isupper()
    ]


def outside_of(root: Path, library: str, wing: str, rooms: Sequence[str]) -> list[str]:
    """Returns the imports of a library by files of a wing that lie outside of the rooms given."""
    return [
        source.says(found)
        for source in house(root).files.values()
        if within(source.module, wing) and room_of(source.module) not in rooms
        for found in source.imports
        if within(found.dotted, library)
    ]


# Circles


def circles(root: Path) -> list[str]:
    """Returns one circle of each group of files that import each other."""
    tree = house(root)
    edges: dict[tuple[str, str], str] = {}
    for source in tree.files.values():
        for found in source.imports:
            target = tree.target(found)
            if target is not None and target != source.module:
                edges.setdefault((source.module, target), source.says(found))
    return _shown_circles(edges)


def circles_of_rooms(root: Path) -> list[str]:
    """Returns one circle of each group of rooms that import each other."""
    edges: dict[tuple[str, str], str] = {}
    for source, found in _imports_between_rooms(house(root)):
        edges.setdefault((room_of(source.module), room_of(found.dotted)), source.says(found))
    return _shown_circles(edges)


def _shown_circles(edges: Mapping[tuple[str, str], str]) -> list[str]:
    graph: nx.DiGraph[str] = nx.DiGraph(list(edges))
    knots = [sorted(knot) for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
    shown = []
    for knot in sorted(knots):
        circle = nx.find_cycle(graph.subgraph(knot), knot[0])
        arrows = "; ".join(edges[edge[0], edge[1]] for edge in circle)
        shown.append(f"circle among {len(knot)}: {arrows}")
    return shown


# Definitions and files


def definitions_of(root: Path, names: Iterable[str], allowed: Sequence[str]) -> list[str]:
    """Returns where functions of these names are defined outside of the modules allowed."""
    return [
        f"{source.at(node.lineno)} defines {node.name}"
        for source in house(root).files.values()
        if not any(within(source.module, module) for module in allowed)
        for node in ast.walk(source.tree)
        if isinstance(node, Definition) and node.name in names
    ]


def shared_class_names(root: Path) -> list[str]:
    """Returns the public names that more than one class of planner and runtime has."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in house(root).files.values():
        for node in top_level(source.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and room_of(source.module):
                places[node.name].append(source.at(node.lineno))
    return [
        f"{first} defines {name}, as {', '.join(more)} does"
        for name, (first, *more) in places.items()
        if more
    ]


def long_files(root: Path, most: int) -> list[str]:
    """Returns the files of planner, runtime and models with more lines than `most`."""
    files = [source for source in house(root).files.values() if source.path.name != FACADE]
    return [f"{source.at(source.lines)} is over {most} lines" for source in files if source.lines > most]


def files_with_code(root: Path) -> list[str]:
    """Returns the files of planner and runtime with code: all but an `__init__.py` that defines nothing."""
    return [
        source.path.as_posix()
        for source in house(root).files.values()
        if room_of(source.module)
        and (not source.is_init or any(isinstance(node, Definition) for node in source.tree.body))
    ]


def main(arguments: Sequence[str]) -> int:
    """Prints what the rules without data find below a root folder; the exit status says whether they found any."""
    root = Path(arguments[0] if arguments else ".").resolve()
    rules = (
        side_doors,
        doors,
        relative_imports,
        through_own_door,
        circles,
        circles_of_rooms,
        shared_class_names,
    )
    found = list(itertools.chain.from_iterable(rule(root) for rule in rules))
    print("\n".join(found) or "nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
