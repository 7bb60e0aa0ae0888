"""Small pieces of HTML. Everything that a user can name goes through `text`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from planner.plan import Plan

MOST_LISTED = 12  # longer tables are folded


def text(value: object) -> str:
    return escape(str(value), quote=True)


def percent(share: float) -> str:
    return "under 0.1%" if 0 < share < 0.001 else f"{share:.1%}"


def plural(count: int, word: str, many: str = "") -> str:
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def table(
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
