"""Brings what lies outside of docs/ into the site: the README, the results and the changelog. mkdocs calls it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TAKEN = {"README.md": "overview.md", "benchmarks/RESULTS.md": "results.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pages that lie outside of docs/."""
    from mkdocs.structure.files import File

    for source, page in TAKEN.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Returns a page with links that lead to where their targets lie in the site; files that are no pages are named."""
    where = next((source for source, name in TAKEN.items() if name == page.file.src_uri), None)
    lies = ROOT / (where or f"docs/{page.file.src_uri}")
    depth = "../" * page.file.src_uri.count("/")

    def moved(match: re.Match[str]) -> str:
        path = (lies.parent / match[2]).resolve().relative_to(ROOT)
        text, anchor = match[1], match[3] or ""
        if str(path) in TAKEN:
            return f"[{text}]({depth}{TAKEN[str(path)]}{anchor})"
        if path.parts[0] == "docs" and path.suffix in (".md", ".svg", ".png"):
            return f"[{text}]({depth}{Path(*path.parts[1:])}{anchor})"
        if path == Path("docs"):
            return f"[{text}]({depth}README.md)"
        return text if str(path) in text else f"{text} (`{path}`)"

    return _LINK.sub(moved, markdown)
