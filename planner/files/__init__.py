"""Reads and writes users' files strictly: one error names the file, the line and what was allowed.

In go paths and texts of YAML or JSON. Out come plain data, pydantic models (`load`, `read`) or frozen dataclasses
(`decode`), or one BadInput. Files are written whole or not at all.
Start reading in `yaml_text.py`, then `validated.py` and `records.py`; `atomic.py` writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.doors import later
from planner.files.validated import (
    Count,
    Flag,
    Natural,
    NotNegative,
    Part,
    Positive,
    Text,
    bad_input,
    load,
    read,
    wrong,
)
from planner.files.yaml_text import parse_yaml, read_text, render

if TYPE_CHECKING:
    from planner.files.atomic import refuse_folder, refuse_overwrite, write_folder, write_whole
    from planner.files.records import WrongKey, decode, parse_document

__all__ = [
    "Count",
    "Flag",
    "Natural",
    "NotNegative",
    "Part",
    "Positive",
    "Text",
    "WrongKey",
    "bad_input",
    "decode",
    "load",
    "parse_document",
    "parse_yaml",
    "read",
    "read_text",
    "refuse_folder",
    "refuse_overwrite",
    "render",
    "write_folder",
    "write_whole",
    "wrong",
]

__getattr__ = later(
    __name__,
    {
        "atomic": (
            "refuse_folder",
            "refuse_overwrite",
            "write_folder",
            "write_whole",
        ),
        "records": (
            "WrongKey",
            "decode",
            "parse_document",
        ),
    },
)
