"""Text for a batch script, quoted so that it can only ever mean itself."""

from __future__ import annotations

import shlex

from planner.errors import BadInput


def directive(key: str, value: str) -> str:
    """A line for sbatch. Its reader knows double quotes, takes a backslash for an escape everywhere, and an unescaped
    `#` for the beginning of a comment even inside quotes."""
    return f'#SBATCH --{key}="{_escaped(_one_line(value))}"' if value else f"#SBATCH --{key}"


def word(text: str) -> str:
    """One word of a shell command."""
    return shlex.quote(_one_line(text))


def comment(text: str) -> str:
    return f"# {_one_line(text)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("#", "\\#")


def _one_line(text: str) -> str:
    """The last wall: options are checked when they are read, paths and names of plans are not."""
    if not text.isprintable():
        raise BadInput(f"{text!r} cannot stand in a batch script", allowed="one line of printable characters")
    return text
