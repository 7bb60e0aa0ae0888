"""Numbers that the README and the pages in docs quote as measured, held against RESULTS.md.

A paragraph, or a fenced block right below, is marked with the sections of RESULTS.md that it quotes:

    Step times came out within 4.2 % (median). <!-- from: fidelity -->

Every number of it that has a decimal point or a unit must stand in one of those sections. A paragraph that speaks of
measuring and holds such a number must be marked. What the demo prints is quoted whole, below `<!-- printed: demo -->`:
`python -m benchmarks demo` renews it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
MARK = re.compile(r"<!-- from: ([a-z0-9_, ]+) -->")
SPEAKS = re.compile(r"\b(measured|median|at worst|took|as printed)\b", re.IGNORECASE)
_UNIT = r"(?:%|ms|µs|ns|s|seconds|minutes|samples/s|[KMGT]i?B)(?![\w/])"
_NUMBER = re.compile(rf"(?<![\w.,/-])(\d+(?:,\d{{3}})*\.\d+|\d+(?:,\d{{3}})*(?= ?{_UNIT}))")
_UNQUOTED = re.compile(r"`[^`\n]+`|\]\([^)]*\)|\d{4}-\d\d-\d\d|<!--.*?-->")  # code, links, dates, comments


class Quote(NamedTuple):
    page: str
    line: int
    sections: tuple[str, ...]  # none where nothing is named
    numbers: tuple[str, ...]


def pages() -> list[Path]:
    """What is made from the code is left out: it quotes nothing."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Line and text; a fenced block is one, together with what stands right above it."""
    part: list[str] = []
    first, fenced = 1, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        closing = fenced and line.startswith("```")
        fenced ^= line.startswith("```")
        if line.strip() or fenced:
            first = first if part else number
            part.append(line)
        if part and (closing or not (line.strip() or fenced)):
            yield first, "\n".join(part)
            part = []


def numbers(text: str) -> tuple[str, ...]:
    return tuple(_NUMBER.findall(_UNQUOTED.sub(" ", text)))


def quotes(page: Path, text: str) -> Iterator[Quote]:
    for line, part in paragraphs(text):
        named = tuple(name.strip() for mark in MARK.findall(part) for name in mark.split(","))
        found = numbers(part)
        if named or (SPEAKS.search(part) and found and "```" not in part):
            yield Quote(page.name, line, named, found)


def sections(results: str) -> dict[str, str]:
    parts = re.split(r"^## (\S+)$", results, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def faults(quote: Quote, known: dict[str, str]) -> Iterator[str]:
    where = f"{quote.page}:{quote.line}"
    if not quote.sections:
        yield f"{where} quotes {', '.join(quote.numbers)} as measured, and names no section: <!-- from: ... -->"
    for name in quote.sections:
        if name not in known:
            yield f"{where} quotes '{name}', which RESULTS.md does not have"
    text = " ".join(known.get(name, "") for name in quote.sections)
    for number in quote.numbers if quote.sections else ():
        if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d|\.\d)", text):
            yield f"{where} quotes {number}, which is not in {', '.join(quote.sections)} of RESULTS.md"


_PRINTED = re.compile(r"(<!-- printed: demo -->\n```text\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^\| `(.*)` \|$", re.MULTILINE)


def printed(section: str) -> str:
    """The demo's first model, as the section has it."""
    lines = [line for line in _LINE.findall(section) if not line.endswith("cost here?")]
    end = next(number for number, line in enumerate(lines) if line.startswith("unet3d"))
    return "".join(f"{line.rstrip()}\n" for line in lines[:end])


def renew(page: Path, section: str) -> None:
    """The README's copy of what the demo prints."""
    page.write_text(_PRINTED.sub(lambda found: found[1] + printed(section) + found[3], page.read_text()))


def copies(page: Path) -> list[str]:
    return [found[1] for found in _PRINTED.findall(page.read_text())]


def main() -> int:
    known, found = sections(RESULTS.read_text()), []
    for page in pages():
        for quote in quotes(page, page.read_text()):
            found += list(faults(quote, known))
    print("\n".join(found) or "every quoted number is in RESULTS.md")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
