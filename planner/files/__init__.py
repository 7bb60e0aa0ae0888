"""Reads and writes users' files strictly: one error names the file, the line and what was allowed.

In go paths and texts of YAML or JSON. Out come plain data, pydantic models (`load`, `read`) or frozen dataclasses
(`decode`), or one BadInput. Files are written whole or not at all.
Start reading in `yaml_text.py`. What a file says wrong is told in `validated.py` where it is read into a pydantic model,
and in `records.py` where it is read into a dataclass. `disk.py` reads and writes the files themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.doors import later
from planner.files.disk import (
    HEADER_BYTES,
    LENGTH_BYTES,
    absolute,
    check_tensor_file,
    open_regular,
    read_bytes,
    read_json,
    read_text,
    refuse_folder,
    refuse_overwrite,
    whole_lines,
    write_folder,
    write_whole,
)
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
from planner.files.yaml_text import parse_yaml, render

if TYPE_CHECKING:
    from planner.files.records import WrongKey, decode, find_record, parse_document, read_lines, read_record

__all__ = [
    "HEADER_BYTES",
    "LENGTH_BYTES",
    "Count",
    "Flag",
    "Natural",
    "NotNegative",
    "Part",
    "Positive",
    "Text",
    "WrongKey",
    "absolute",
    "bad_input",
    "check_tensor_file",
    "decode",
    "find_record",
    "load",
    "open_regular",
    "parse_document",
    "parse_yaml",
    "read",
    "read_bytes",
    "read_json",
    "read_lines",
    "read_record",
    "read_text",
    "refuse_folder",
    "refuse_overwrite",
    "render",
    "whole_lines",
    "write_folder",
    "write_whole",
    "wrong",
]

__getattr__ = later(
    __name__,
    {
        "records": (
            "WrongKey",
            "decode",
            "find_record",
            "parse_document",
            "read_lines",
            "read_record",
        ),
    },
)
