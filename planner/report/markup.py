"""Small pieces of the page: sections, facts, meters. Everything that a user can name goes through `show.escaped`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.plan import Plan
from planner.show import Markup, escaped, table

MOST_LISTED = 12  # longer tables are folded


def page_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, ours: int | None = None
) -> str:
    """Returns a table with every row of the page; cells are HTML already, and the row numbered `ours` is marked."""
    return table(heads, [map(Markup, row) for row in rows], most=None, caption=caption, ours=ours)


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Returns a list of names with what each is; the second of a row is HTML already."""
    body = "".join(f"<dt>{escaped(name)}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<dl class="facts">{body}</dl>'


def meter(share: float, *, other: bool = False) -> str:
    """Returns a bar of a share from 0 to 1, in another colour for `other`."""
    width = min(100.0, max(0.0, 100 * share))
    return f'<span class="meter{" other" if other else ""}"><i style="width:{width:.2f}%"></i></span>'


def section(name: str, title: str, *parts: str) -> str:
    """Returns a section of the page with its heading; `parts` are HTML already."""
    head = f'<h2 id="h-{name}">{escaped(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="h-{name}">{head}{"".join(parts)}</section>'


def mesh(plan: Plan) -> str:
    """Returns the degrees of a plan's mesh, the outermost first."""
    axes = plan.axes
    degrees = [f"{name} {getattr(axes, name)}" for name in axes.order if getattr(axes, name) > 1]
    return " × ".join(degrees) or "one process"
