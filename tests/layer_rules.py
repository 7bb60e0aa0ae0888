"""The rules of `tests/test_layers.py`, as functions of a root folder.

Every rule returns its violations as texts that begin with "path:line"; none is an empty list.
`python -m tests.layer_rules [root]` prints the violations of the rules that need no data of their own.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import networkx as nx

from tests.imports import (
    FACADE,
    WINGS,
    Definition,
    House,
    Import,
    Source,
    defined,
    house,
    imported,
    listed,
    room_of,
    top_level,
    within,
)

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
    """Yields attributes of packages that were imported whole: `clusters.links` after `... as clusters`."""
    modules = _module_aliases(tree, source)
    if not modules:
        return
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute):
            continue
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
    """Returns the rooms whose `__init__.py` has no docstring or an `__all__` that is not complete."""
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
    """Prints what the rules without data find below a root folder; the exit status is 1 if they find any."""
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
