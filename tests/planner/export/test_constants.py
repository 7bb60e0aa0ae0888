"""What a plan calls itself is text in an exported Python file, and never code."""

from __future__ import annotations

import ast

import pytest

from planner.export.constants import constants_of, module_text


@pytest.mark.parametrize(
    "name",
    ['m""";import os;os.abort();"""', "m\\", 'm"', "m\n\nX = 1", "m\u202e\x1b[31m", "a" * 500 + '""" + 1'],
)
def test_a_name_stays_within_the_docstring(name: str) -> None:
    text = module_text(f"The plan of {name}", f"A note on {name}", {"DATA": 2})
    body = ast.parse(text).body
    assert len(body) == 2 and isinstance(body[0], ast.Expr) and isinstance(body[1], ast.Assign)
    assert constants_of(text, "x.py") == {"DATA": 2}
    assert "\u202e" not in text and "\x1b" not in text
