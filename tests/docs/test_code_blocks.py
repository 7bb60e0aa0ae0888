"""Every code block of the README and of the documentation does what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of, pages, tried

PAGES = [page for page in pages() if any(tried(block) for block in blocks_of(page))]
LANGUAGES = {"sh", "python", "yaml", "text", "json"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.usefixtures("warm_starts")
def test_every_code_block_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plans").symlink_to(ROOT / "plans")
    if "examples" in page.parts:
        shutil.copytree(page.parent, tmp_path, dirs_exist_ok=True)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if tried(block):
            run(block, f"{page.relative_to(ROOT)}:{block.line}", names)


def run(block: Block, where: str, names: dict[str, object]) -> None:
    if block.file:
        Path(block.file).parent.mkdir(parents=True, exist_ok=True)
        Path(block.file).write_text(block.text)
    elif block.language == "python":
        exec(compile(block.text, where, "exec"), names)
    else:
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text], capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, f"{where}\n{ended.stdout}\n{ended.stderr}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_its_language(page: Path) -> None:
    """What is a command and is not run would rot unseen."""
    strange = [block.line for block in blocks_of(page) if block.language not in LANGUAGES]
    assert not strange, f"{page.relative_to(ROOT)}: lines {strange}; allowed: {sorted(LANGUAGES)}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
