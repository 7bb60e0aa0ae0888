"""Small pieces of HTML for notebooks and the report: tables, paragraphs, folds. Everything users name is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape


class Markup(str):
    """Text that is HTML already; a table leaves it as it is."""


def escaped(value: object) -> str:
    """Returns a value as text that HTML shows as it is.

    Args: `Markup` is HTML already and comes back unchanged.
    """
    return value if isinstance(value, Markup) else escape(str(value), quote=True)


def table(
    heads: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    most: int | None = 40,
    caption: str = "",
    ours: int | None = None,
) -> str:
    """Returns a table for a notebook or a page. Columns of numbers, with or without a unit, stand right.

    Args: cells that are not `Markup` are escaped; rows beyond `most` are counted; a `caption` names a table of the
    page, which scrolls by itself; the row numbered `ours` is marked.
    """
    listed = [[cell if isinstance(cell, Markup) else str(cell) for cell in row] for row in rows]
    shown = listed[:most]
    right = [
        all(not row[i] or _NUMBER.fullmatch(row[i]) for row in shown) and bool(shown)
        for i in range(len(heads))
    ]
    head = "".join(
        f'<th scope="col"{_side(r, bool(caption))}>{escaped(name)}</th>'
        for name, r in zip(heads, right, strict=True)
    )
    body = "".join(
        f"<tr{' class=ours' if at == ours else ''}>"
        + "".join(
            f"<td{_side(r, bool(caption))}>{escaped(cell)}</td>" for cell, r in zip(row, right, strict=True)
        )
        + "</tr>"
        for at, row in enumerate(shown)
    )
    label = f' aria-label="{escaped(caption)}"' if caption else ""
    whole = f"<table{label}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    if caption:
        whole = f'<div class="scroll" tabindex="0" role="region"{label}>{whole}</div>'
    more = (
        f"<p>and {len(listed) - len(shown)} more rows: to_rows() has all</p>"
        if len(listed) > len(shown)
        else ""
    )
    return whole + more


def _side(right: bool, page: bool) -> str:
    """Returns the class that the page's style knows, or the alignment for a notebook, which has no styles."""
    if page:
        return ' class="n"' if right else ' class="w"'
    return ' align="right"' if right else ' align="left"'


_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?: ?[^\W\d]{1,4}| ?%|×)?")  # with a unit, or without


def block(*parts: str) -> str:
    """Returns pieces of HTML as one.

    Args: empty pieces are left out.
    """
    return f"<div>{''.join(part for part in parts if part)}</div>"


def paragraph(words: object) -> str:
    """Returns a paragraph of plain words.

    Args: any value; its text is escaped.
    """
    return f"<p>{escaped(words)}</p>"


def folded(summary: str, inside: str) -> str:
    """Returns HTML that opens when its summary is clicked.

    Args: `summary` is plain words, `inside` is HTML already.
    """
    return f"<details><summary>{escaped(summary)}</summary>{inside}</details>"
