"""Python files of constants: written for people to import, and read back without running a line of them."""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Collection, Mapping

from planner.errors import BadInput
from planner.shown import printable

WIDTH = 100


def module_text(about: str, note: str, values: Mapping[str, object]) -> str:
    """Writes a module of constants, a dictionary one entry a line.

    Args: `about` is its docstring, `note` a comment under it.
    """
    head = "\n".join(textwrap.wrap(printable(about), WIDTH)).replace("\\", "\\\\").replace('"', '\\"')
    told = "".join(f"# {line}\n" for line in textwrap.wrap(printable(note), WIDTH))
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


def constants_of(text: str, where: str, needed: Collection[str] = ()) -> dict[str, object]:
    """Returns the constants that a Python file assigns at its top, by name; nothing of it is run.

    Args: what is computed is no constant and is left out, except for the names that are `needed`.
    Raises: BadInput for a file that is no Python, or computes what is needed.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInput(f"is no Python: {error}", where=where) from None
    found: dict[str, object] = {}
    for each in body:
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            name = each.targets[0].id
            try:
                found[name] = ast.literal_eval(each.value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                if name in needed:
                    said, line = (
                        f"{name} is computed, and nothing of the file is run",
                        f"{where}:{each.lineno}",
                    )
                    raise BadInput(said, where=line, allowed="a constant") from None
    return found
