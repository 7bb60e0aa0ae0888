"""Every program that is installed completes its commands and options in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from planner.cli.app import NAME, WORDS

ROOT = Path(__file__).parents[1]
# Asks of bash's own table which function completes a program, and calls it as readline would.
ASK = r"""
source "$HOME/.bashrc"
ask() {
    local found
    found=$(complete -p "$1") || exit 1
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    $(sed -E 's/.* -F ([^ ]+) .*/\1/' <<< "$found") "$1"
    printf '%s ' "${COMPREPLY[@]}"
    echo
}
ask shardwright reh
ask shardwright plan --clu
ask plan --clu
ask plan --cluster x --bat
ask launch plan.yaml --fail
"""


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds the installed programs, in a home of its own."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert sorted(scripts) == sorted((NAME, *WORDS)), "a program nobody completes"
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, entry in scripts.items():
        module, _, function = entry.partition(":")
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport {module}\n{module}.{function}()\n")
        path.chmod(0o755)
    return {
        "HOME": str(tmp_path),
        "PATH": f"{folder}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }


def said(shell: list[str], environment: dict[str, str]) -> list[str]:
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines()]


def test_all_programs_complete_in_bash(programs: dict[str, str]) -> None:
    said(["bash", "--norc", "-c", "shardwright --install-completion bash"], programs)
    found = said(["bash", "--norc", "-c", ASK], programs)
    assert found == ["rehearse", "--cluster", "--cluster", "--batch", "--failure-every"]


def test_all_programs_complete_in_zsh(programs: dict[str, str], tmp_path: Path) -> None:
    said(["bash", "--norc", "-c", "shardwright --install-completion zsh"], programs)
    written = {path.name: path.read_text() for path in (tmp_path / ".zfunc").iterdir()}
    assert sorted(written) == ["_launch", "_plan", "_shardwright"]
    # What zsh evaluates: the function's own words, asked as zsh asks.
    asked = {**programs, "_TYPER_COMPLETE_ARGS": "plan --clu", "_PLAN_COMPLETE": "complete_zsh"}
    assert "_PLAN_COMPLETE=complete_zsh plan" in written["_plan"]
    assert any('"--cluster"' in line for line in said(["plan"], asked))
    if shutil.which("zsh"):
        words = "fpath+=$HOME/.zfunc; autoload -Uz compinit; compinit -u; print $_comps[plan] $_comps[launch]"
        assert said(["zsh", "-f", "-c", words], programs) == ["_plan _launch"]
