"""Values show themselves here without knowing who draws them.

A view is registered for a class by name, and imported when a value of that class is first shown. Without a view a value
shows its class and its fields.

>>> class Pair(Shown):
...     def __init__(self) -> None:
...         self.left, self.right = 1, 2
>>> Pair()
Pair(left=1, right=2)
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

from planner.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Face = Literal["text", "html", "figure", "data"]
View = Callable[..., Any]

_VIEWS: dict[tuple[Face, str], str] = {}


def register(face: Face, kind: str, view: str) -> None:
    """Registers the function that draws one face of every value of a class.

    Args: `kind` names the class and `view` the function, both as "package.module:name".
    Example: register("html", "planner.cluster.cluster:Cluster", "planner.show.values:cluster_html")
    """
    _VIEWS[face, kind] = view


def view_of(face: Face, kind: type) -> View | None:
    """Finds the view of a class or of its nearest base that has one.

    Args: `face` is the kind of view; its module is imported now.
    Returns: the function that draws a value, or None.
    """
    for each in kind.__mro__:
        if view := _VIEWS.get((face, f"{each.__module__}:{each.__qualname__}")):
            module, _, name = view.partition(":")
            return cast(View, getattr(import_module(module), name))
    return None


class Shown:
    """Gives a value its `repr`, its HTML for notebooks and its `plot()`, by the views that are registered."""

    def __repr__(self) -> str:
        view = view_of("text", type(self))
        if view:
            return str(view(self))
        fields = (f"{name}={field!r}" for name, field in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(fields)})"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str | None:
        """Returns None without a view; a notebook then shows the text."""
        view = view_of("html", type(self))
        return str(view(self)) if view else None

    def plot(self, *values: object, **options: object) -> Figure:
        """Returns a matplotlib figure of the value.

        Args: a model takes a plan, whose cuts are drawn; other values take nothing.

        Raises: BadInput where no view is registered.
        """
        view = view_of("figure", type(self))
        if view is None:
            raise BadInput(
                f"no picture of {type(self).__name__} is known",
                where="plot",
                allowed="after `import shardwright`",
            )
        return cast("Figure", view(self, *values, **options))
