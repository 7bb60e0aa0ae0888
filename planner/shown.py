"""Values show themselves here without knowing who draws them, and no text of a file reaches a terminal raw.

A view is registered for a class by name, and imported when a value of that class is first shown. Without a view a value
shows its class and its fields.

>>> class Pair(Shown):
...     def __init__(self) -> None:
...         self.left, self.right = 1, 2
>>> Pair()
Pair(left=1, right=2)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

from planner.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Face = Literal["text", "html", "figure", "data"]
View = Callable[..., Any]

_VIEWS: dict[tuple[Face, str], str] = {}

# Characters that move the cursor, change colours, or change or hide the order in which text is read: control
# characters but line breaks and tabs, format characters (bidirectional and invisible ones), and halves of pairs.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


class DrawnText(str):
    """Text that this program has drawn: it may hold colours, and holds no text of a file."""

    __slots__ = ()


def printable(text: str) -> str:
    """Returns text that is safe to print: control and bidirectional characters become `\\x1b` or `\\u202e`.

    Args: `text` may come from anywhere; line breaks stay, and `DrawnText` text is returned as it is.
    Example: the escape character that begins a colour becomes the four characters `\\x1b`.
    """
    if isinstance(text, DrawnText) or _UNPRINTABLE.search(text) is None:
        return text
    return text.translate(_Escapes())


def one_line(text: str) -> str:
    """Returns printable text with its line breaks and tabs escaped too, for cells of a table and names in messages."""
    return printable(text.replace("\n", "\\n").replace("\t", "\\t"))


class _Escapes(dict[int, str]):
    """The escape of each character that is not printable, made when it is first met."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if _UNPRINTABLE.match(char):
            char = (
                f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
            )
        return self.setdefault(code, char)


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
            return printable(view(self))
        fields = (f"{name}={field!r}" for name, field in vars(self).items() if not name.startswith("_"))
        return printable(f"{type(self).__name__}({', '.join(fields)})")

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
