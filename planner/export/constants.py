"""Python files of constants: written for people to import, and read back without running a line of them."""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Mapping

from planner.errors import BadInput

WIDTH = 100


def module_text(about: str, note: str, values: Mapping[str, object]) -> str:
    """Writes a module of constants, a dictionary one entry a line.

    Args: `about` is its docstring, `note` a comment under it.
    """
    head = "\n".join(textwrap.wrap(about, WIDTH))
    told = "".join(f"# {line}\n" for line in textwrap.wrap(note, WIDTH))
    return (
        f'"""{head}"""\n\n{told}'
        + "\n".join(f"{name} = {_shown(value)}" for name, value in values.items())
        + "\n"
    )


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        rows = "".join(f"    {json.dumps(name)}: {_shown(each)},\n" for name, each in value.items())
        return f"{{\n{rows}}}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def is_python(text: str) -> bool:
    """Returns whether a text is a Python file that assigns a constant."""
    try:
        return any(isinstance(each, ast.Assign) for each in ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def constants_of(text: str, where: str) -> dict[str, object]:
    """Returns the constants that a Python file assigns at its top, by name; nothing of it is run.

    Raises: BadInput for a file that is no Python.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInput(f"is no Python: {error}", where=where) from None
    found: dict[str, object] = {}
    for each in body:
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            try:
                found[each.targets[0].id] = ast.literal_eval(each.value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                continue  # what is computed is no setting
    return found
