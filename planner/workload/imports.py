"""Imports of a user's file as Python would do them for a script: what lies beside it is found first.

A folder of the user's own called `models`, `runtime` or `planner` means theirs to their file and ours to us. So while
the file is imported its folder comes first and our modules of such a name are put away; afterwards they are back, and
the folder stays behind everything else, for imports that the user's functions make later.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

OURS = ("models", "planner", "runtime", "shardwright")


@contextmanager
def importing_beside(folder: Path) -> Iterator[None]:
    place = str(folder.resolve())
    theirs = [name for name in OURS if _own(folder, name)]
    away = _taken(theirs)
    finder = _Theirs(theirs, place)
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
        sys.meta_path.remove(finder)
        if place not in sys.path:
            sys.path.append(place)
        _taken(theirs)
        sys.modules.update(away)


class _Theirs(MetaPathFinder):
    """Finds these names in one folder: a folder without `__init__.py` would come after any package with one."""

    def __init__(self, names: Sequence[str], folder: str) -> None:
        self._names, self._folder = names, folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self._folder], target) if name in self._names else None


def _own(folder: Path, name: str) -> bool:
    """There, and not this project's."""
    found = [path for path in (folder / name, folder / f"{name}.py") if path.exists()]
    ours = Path(__file__).resolve().parents[2]
    return any(path.resolve().parent != ours for path in found)


def _taken(names: list[str]) -> dict[str, ModuleType]:
    """Modules of these names and within them, taken out of what Python knows."""
    found = {key: module for key, module in sys.modules.items() if key.partition(".")[0] in names}
    for key in found:
        del sys.modules[key]
    return found
