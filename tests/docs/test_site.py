"""The documentation is a site in which every page is reached and every link leads somewhere, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

pytest.importorskip("mkdocs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, (
        ended.stdout + ended.stderr
    )  # a dead link, or a page that the order of pages lacks
    return folder


def test_every_page_of_the_documentation_is_there(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    made = [Path("index.html") if page.name == "README.md" else page.with_suffix(".html") for page in pages]
    assert [str(page) for page in made if not (site / page).is_file()] == []
    assert all((site / page).is_file() for page in ("overview.html", "results.html", "changelog.html"))


def test_the_site_asks_no_other_host_for_anything(site: Path) -> None:
    text = "".join(page.read_text() for page in site.rglob("*.html"))
    assert not any(
        f'{kind}="http' in text for kind in ("<script src", "<img src", '<link rel="stylesheet" href')
    )
