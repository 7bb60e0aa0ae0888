"""Doors of rooms that load some of their names only when they are asked for, so that light commands start at once.

Example: `__getattr__ = later(__name__, {"links": ("spread", "sum_s")})` in a room's `__init__.py`. The same names stand
there under TYPE_CHECKING, for whoever reads or checks the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def later(room: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """Returns the `__getattr__` of a room.

    Args: `homes` has the names that each file of the room defines. No name may be that of a file of the room.
    Raises: AttributeError, by the function returned, for a name that is not among them.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module '{room}' has no attribute '{name}'")
        return getattr(import_module(f"{room}.{home_of[name]}"), name)

    return load
