"""Values as HTML for notebooks: tables and pictures without styles or scripts; everything named by users is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


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
