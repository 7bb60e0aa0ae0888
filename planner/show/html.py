"""Small pieces of HTML. Everything that a user can name goes through `text`.

Values as HTML for notebooks: tables and pictures without styles or scripts; everything named by users is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from planner.plan import Plan

MOST_LISTED = 12  # longer tables are folded


def percent(share: float) -> str:
    return "under 0.1%" if 0 < share < 0.001 else f"{share:.1%}"


def plural(count: int, word: str, many: str = "") -> str:
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def page_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Iterable[int] = (),
    caption: str = "",
    ours: int | None = None,
) -> str:
    """Cells are HTML already; columns of `numbers` stand right."""
    right = set(numbers)
    head = "".join(
        f'<th scope="col"{" class=n" if i in right else ""}>{text(name)}</th>' for i, name in enumerate(heads)
    )
    body = "".join(
        f"<tr{' class=ours' if at == ours else ''}>"
        + "".join(f"<td class={'n' if i in right else 'w'}>{cell}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for at, row in enumerate(rows)
    )
    label = text(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table aria-label="{label}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def facts(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<dl class="facts">{body}</dl>'


def meter(share: float, *, other: bool = False) -> str:
    width = min(100.0, max(0.0, 100 * share))
    return f'<span class="meter{" other" if other else ""}"><i style="width:{width:.2f}%"></i></span>'


def section(name: str, title: str, *parts: str) -> str:
    return f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{text(title)}</h2>{"".join(parts)}</section>'


def details(summary: str, inside: str) -> str:
    return f"<details><summary>{text(summary)}</summary>{inside}</details>"


def mesh(plan: Plan) -> str:
    axes = plan.axes
    degrees = [f"{name} {getattr(axes, name)}" for name in axes.order if getattr(axes, name) > 1]
    return " × ".join(degrees) or "one process"


def text(value: object) -> str:
    return escape(str(value), quote=True)


def table(heads: Sequence[str], rows: Iterable[Iterable[object]], *, most: int = 40) -> str:
    listed = [list(map(str, row)) for row in rows]
    shown = listed[:most]
    right = [all(_number(row[i]) for row in shown) and bool(shown) for i in range(len(heads))]
    head = "".join(f'<th align="{_side(r)}">{text(name)}</th>' for name, r in zip(heads, right, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f'<td align="{_side(r)}">{text(cell)}</td>' for cell, r in zip(row, right, strict=True))
        + "</tr>"
        for row in shown
    )
    more = f"<p>and {len(listed) - most} more rows: to_rows() has all</p>" if len(listed) > most else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _side(right: bool) -> str:
    return "right" if right else "left"


def _number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "-+"


def block(*parts: str) -> str:
    return f"<div>{''.join(part for part in parts if part)}</div>"


def paragraph(words: object) -> str:
    return f"<p>{text(words)}</p>"


def folded(summary: str, inside: str) -> str:
    return f"<details><summary>{text(summary)}</summary>{inside}</details>"
