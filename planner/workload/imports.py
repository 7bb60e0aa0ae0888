"""Imports a user's file as Python would import a script: what lies beside the file is found first.

A folder of the user's own called `models`, `runtime` or `planner` means theirs to their file and ours to us. So while
the file is imported its folder comes first and our modules of such a name are put away. Afterwards our modules are
back, and the folder stays behind everything else, for imports that the user's functions make later.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

OURS = ("models", "planner", "runtime", "shardwright")


@contextmanager
def importing_beside(folder: Path) -> Iterator[None]:
    """Lets imports find what lies in a folder first, while it is entered.

    Args: `folder` is that of the user's file.
    """
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


def outside(name: str, folders: Iterable[Path]) -> Path | None:
    """Returns the file of a workload that lies in none of some folders, None where it does or is no file.

    A module is found in the current folder, or was installed by the user.
    Args: `name` is as a plan names its workload.
    """
    if not name.endswith(".py"):
        return None
    path = Path(name).resolve()
    return None if any(path.is_relative_to(folder.resolve()) for folder in folders) else path


class _Theirs(MetaPathFinder):
    """A finder of some names in one folder, since a folder without `__init__.py` would come after any package with
    one.
    """

    def __init__(self, names: Sequence[str], folder: str) -> None:
        self._names, self._folder = names, folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a module of the user's by name.

        Returns: its spec; None for other names, which Python's own finders look up.
        """
        return PathFinder.find_spec(name, [self._folder], target) if name in self._names else None


def _own(folder: Path, name: str) -> bool:
    """Returns whether a folder holds a module of this name that is not this project's."""
    found = [path for path in (folder / name, folder / f"{name}.py") if path.exists()]
    ours = Path(__file__).resolve().parents[2]
    return any(path.resolve().parent != ours for path in found)


def _taken(names: list[str]) -> dict[str, ModuleType]:
    """Takes the modules of these names, and those within them, out of `sys.modules`, and returns them."""
    found = {key: module for key, module in sys.modules.items() if key.partition(".")[0] in names}
    for key in found:
        del sys.modules[key]
    return found
