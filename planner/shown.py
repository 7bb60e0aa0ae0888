"""Values show themselves here without knowing who draws them, and no text of a file reaches a terminal raw.

A view is registered for a class by name, and imported when a value of that class is first shown. Without a view a value
shows its class and its fields.

>>> class Pair(Shown):
...     def __init__(self) -> None:
...         self.left, self.right = 1, 2
>>> Pair()
Pair(left=1, right=2)

`VIEWS` names the view of every class that shows itself, and `import shardwright` installs them all. Views are named, not
imported: a view is loaded when a value is first shown, so that planning from files starts at once.
"""

from __future__ import annotations

import html
import re
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

from planner.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

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


def frame_of(value: object) -> DataFrame:
    """Returns the rows of a value as a DataFrame of pandas.

    Args: `value` has `to_rows()`.
    Raises: BadInput where it has none, or pandas is not installed.
    """
    rows = getattr(value, "to_rows", None)
    if rows is None:
        raise BadInput(
            f"{type(value).__name__} has no rows", where="to_pandas", allowed="a value with to_rows()"
        )
    try:
        from pandas import DataFrame
    except ImportError:
        allowed = "`pip install pandas`, or to_rows() for plain data"
        raise BadInput("pandas is not installed", where="to_pandas", allowed=allowed) from None
    return DataFrame(rows())


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

    def to_pandas(self) -> DataFrame:
        """Returns the rows of `to_rows()` as a DataFrame of pandas.

        Raises: BadInput where pandas is not installed, or the value has no rows.
        """
        return frame_of(self)

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


VIEWS: dict[Face, dict[str, str]] = {
    "text": {
        "planner.plan.plan:Plan": "planner.show.plain:of_plan",
        "planner.plan.certificate:Prediction": "planner.show.values:of_prediction",
        "planner.plan.plan:StagePlan": "planner.show.plain:of_stage",
        "planner.plan.certificate:Certificate": "planner.show.values:of_certificate",
        "planner.explore.explanation:Explanation": "planner.show.explanation:explanation_text",
        "planner.explore.frontier:Frontier": "planner.show.sweeps:of_frontier",
        "planner.explore.scaling:Sweep": "planner.show.sweeps:of_sweep",
        "planner.cluster.cluster:Cluster": "planner.show.plain:of_cluster",
        "planner.model.graph:ModelGraph": "planner.show.values:graph_text",
        "planner.capture.capture:Captured": "planner.show.values:captured_text",
        "planner.profile.profile:Profile": "planner.show.plain:of_profile",
        "planner.timeline.timeline:Timeline": "planner.show.values:timeline_text",
        "planner.timeline.comparison:Comparison": "planner.show.values:comparison_text",
        "planner.simulate.simulate:RunRecord": "planner.show.values:run_text",
        "planner.show.explanation:SideBySide": "planner.show.explanation:versus_text",
        "runtime.launch.handle:StepRows": "planner.show.values:lines_text",
        "runtime.launch.status:Runs": "planner.show.values:runs_text",
    },
    "html": {
        "planner.plan.plan:Plan": "planner.show.values:plan_html",
        "planner.plan.certificate:Prediction": "planner.show.values:preformatted",
        "planner.plan.plan:StagePlan": "planner.show.values:preformatted",
        "planner.plan.certificate:Certificate": "planner.show.values:preformatted",
        "planner.explore.frontier:Frontier": "planner.show.sweeps:frontier_html",
        "planner.cluster.cluster:Cluster": "planner.show.values:cluster_html",
        "planner.model.graph:ModelGraph": "planner.show.values:graph_html",
        "planner.capture.capture:Captured": "planner.show.values:captured_html",
        "planner.profile.profile:Profile": "planner.show.values:profile_html",
        "planner.timeline.timeline:Timeline": "planner.show.values:timeline_html",
        "planner.timeline.comparison:Comparison": "planner.show.values:comparison_html",
        "planner.simulate.simulate:RunRecord": "planner.show.values:run_html",
        "planner.show.explanation:SideBySide": "planner.show.explanation:versus_html",
        "runtime.launch.handle:Handle": "planner.show.values:preformatted",
        "runtime.launch.handle:StepRows": "planner.show.values:lines_html",
        "runtime.launch.status:Runs": "planner.show.values:lines_html",
        "runtime.rehearse.report:Rehearsal": "planner.show.values:preformatted",
    },
    "figure": {
        "planner.explore.frontier:Frontier": "planner.show.figures:of_front",
        "planner.model.graph:ModelGraph": "planner.show.figures:of_graph",
        "planner.profile.profile:Profile": "planner.show.figures:of_profile",
        "planner.timeline.timeline:Timeline": "planner.show.figures:of_timeline",
        "planner.simulate.simulate:RunRecord": "planner.show.figures:of_run",
        "planner.show.explanation:SideBySide": "planner.show.explanation:versus_figure",
        "runtime.launch.handle:Handle": "planner.show.figures:of_handle",
    },
    "data": {
        "planner.plan.plan:Plan": "planner.show.plain:plan_data",
        "planner.explore.explanation:Explanation": "planner.show.explanation:explanation_dict",
        "planner.explore.frontier:Frontier": "planner.show.sweeps:frontier_data",
        "planner.explore.scaling:Sweep": "planner.show.sweeps:sweep_data",
    },
}


def install() -> None:
    """Registers every view by name and imports nothing for it.

    Example: `import shardwright` calls install() once.
    """
    for face, views in VIEWS.items():
        for kind, view in views.items():
            register(face, kind, view)


FIRST_BAR_S = 1.0  # what takes less is not spoken of


class CellBar:
    """A bar in the cell of a notebook that says how far a long task is; elsewhere nothing is shown."""

    def __init__(self, title: str) -> None:
        notebook = sys.modules.get("IPython")
        shell = notebook.get_ipython() if notebook is not None else None
        self.shown = getattr(shell, "kernel", None) is not None
        self._title, self._begun = printable(title), time.monotonic()
        self._bar: Any = None  # IPython's handle of what is displayed

    def __enter__(self) -> CellBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._put("", "")

    def tell(self, share: float, words: Sequence[str]) -> None:
        """Shows how far the task is.

        Args: `share` is between 0 and 1; `words` are parts of a line.
        """
        spent_s = time.monotonic() - self._begun
        left = [f"up to {spent_s * (1 - share) / share:.0f} s more"] if share > 0.05 else []
        if spent_s < FIRST_BAR_S:
            return
        line = f"{self._title}: {', '.join([*map(printable, words), f'{spent_s:.0f} s', *left])}"
        self._put(line, f'<progress max="1" value="{share:.3f}"></progress> {html.escape(line)}')

    def _put(self, text: str, drawn: str) -> None:
        if not self.shown:
            return
        display: Any = import_module("IPython.display").display
        data = {"text/plain": text, "text/html": drawn}
        if self._bar is not None:
            self._bar.update(data, raw=True)
        elif text:
            self._bar = display(data, raw=True, display_id=True)
