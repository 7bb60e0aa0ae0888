"""The code blocks of a page, and how each is tried.

`sh` is run by bash and `python` in one namespace a page, in order, in one folder. A comment before a block says
otherwise: `<!-- file: NAME -->` writes it to a file, `<!-- not run: REASON -->` leaves it out. Everything else, such as
`text`, shows what was printed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<what>file|not run): (?P<how>.+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    text: str
    file: str = ""
    not_run: str = ""


def pages() -> list[Path]:
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        comment = {match["what"]: match["how"]} if match["what"] else {}
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(
            Block(line, match["language"], match["text"], comment.get("file", ""), comment.get("not run", ""))
        )
    return found


def tried(block: Block) -> bool:
    return not block.not_run and (bool(block.file) or block.language in ("sh", "python"))
