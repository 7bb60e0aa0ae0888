"""Values become text, HTML, figures and data for people and programs; the values themselves do not know this room.

`text`, `html`, `figure` and `data` take any value whose view `planner.shown` names. A view is imported when a value is
first shown, so that this door stays cheap. Start reading in `proof.py`: it makes what `plan` prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from planner.show.explanation import SideBySide, against, compare
from planner.show.markup import Markup, block, escaped, folded, paragraph, table
from planner.show.plain import other_device, words
from planner.show.proof import error_bar, plan_lines, proof_data, proof_list, proof_text, verdict
from planner.show.rivals import RIVAL_HEADS, RivalRow, configuration_text, rival_rows
from planner.show.timelines import svg, terminal
from planner.show.values import corrections_text
from planner.shown import Face, view_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "RIVAL_HEADS",
    "Markup",
    "RivalRow",
    "SideBySide",
    "against",
    "block",
    "compare",
    "configuration_text",
    "corrections_text",
    "data",
    "error_bar",
    "escaped",
    "figure",
    "folded",
    "html",
    "other_device",
    "paragraph",
    "plan_lines",
    "proof_data",
    "proof_list",
    "proof_text",
    "rival_rows",
    "svg",
    "table",
    "terminal",
    "text",
    "verdict",
    "words",
]


def text(value: object, **options: object) -> str:
    """Returns a value as text for a terminal.

    Raises: LookupError where no view is registered; `options` are the view's own.
    """
    return str(_drawn("text", value, options))


def html(value: object, **options: object) -> str:
    """Returns a value as HTML for a notebook.

    Raises: LookupError where no view is registered; `options` are the view's own.
    """
    return str(_drawn("html", value, options))


def figure(value: object, **options: object) -> Figure:
    """Returns a matplotlib figure of a value.

    Raises: LookupError where no view is registered; `options` are the view's own.
    """
    return cast("Figure", _drawn("figure", value, options))


def data(value: object, **options: object) -> dict[str, object]:
    """Returns a value as `--json` prints it.

    Raises: LookupError where no view is registered; `options` are the view's own.
    """
    return cast("dict[str, object]", _drawn("data", value, options))


def _drawn(face: Face, value: object, options: dict[str, object]) -> Any:
    view = view_of(face, type(value))
    if view is None:
        raise LookupError(
            f"no {face} of {type(value).__name__} is registered; planner.shown.install() does it"
        )
    return view(value, **options)
