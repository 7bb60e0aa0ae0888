"""Turns plain data, as YAML or JSON give it, into frozen dataclasses: strictly, and naming the key that is wrong.

Nothing is converted but an integer to a float. NaN, infinities and integers beyond 64 bits are refused.
`read_record` and `read_lines` are the one way in for JSON that processes of a run have written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path as FilePath
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from planner.errors import BadInput
from planner.files import disk, yaml_text

RECORD_BYTES = 2**20  # of one record
LINES_BYTES = 16 * 2**20  # of a file with one record a line
MAX_MARKS = 8_000_000  # commas and brackets of a JSON text, of which each may cost 64 bytes of memory
LARGEST = 2**63 - 1

T = TypeVar("T")
Path = tuple[str | int, ...]
Decoder = Callable[[object, Path], object]


class WrongKey(Exception):
    """A wrong key or value: where in the document, what is wrong there, and what was allowed."""

    def __init__(self, path: Path, what: str, allowed: str = "") -> None:
        super().__init__(what)
        self.path, self.what, self.allowed = path, what, allowed

    @property
    def told(self) -> str:
        """Returns the key and what is wrong with it."""
        return f"{key}: {self.what}" if (key := show(self.path)) else self.what

    def in_file(self, file: str, text: str) -> BadInput:
        """Returns the error for users, with the line of the key.

        Args: `text` is the content of the file named `file`.
        """
        line, _ = yaml_text.locate(text, self.path)
        return BadInput(self.told, where=f"{file}:{line}", allowed=self.allowed)


def show(path: Path) -> str:
    """Returns a path of keys as text.

    Example: show(("stages", 1, "layers")) is "stages[1].layers".
    """
    return yaml_text.dotted(path)


def parse_document(text: str, *, name: str) -> Mapping[str, object]:
    """Parses JSON where the text is JSON, which is fast, else YAML; comments may stand before either.

    Args: `name` is the file's, for messages.
    Raises: BadInput where the text is neither, holds no mapping, or holds more than memory should.
    """
    if (marks := sum(map(text.count, ",[{"))) > MAX_MARKS:
        raise BadInput(f"holds {marks:,} commas and brackets", where=name, allowed=f"at most {MAX_MARKS:,}")
    try:
        data = json.loads(_without_comments(text), object_pairs_hook=_unique, parse_constant=_no_number)
    except (
        ValueError,
        RecursionError,
    ):  # YAML that is no JSON; what is neither is refused there, with its line
        return yaml_text.parse_yaml(text, name=name)
    _refuse_halves(text, data, name)
    return data if isinstance(data, dict) else yaml_text.parse_yaml(text, name=name)


def _refuse_halves(text: str, data: object, where: str) -> None:
    """Raises BadInput where a JSON text escapes half a surrogate pair, which no file can be written with."""
    if re.search(r"\\u[dD][89a-fA-F]", text):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadInput(
                "the text holds half a surrogate pair", where=where, allowed="Unicode text"
            ) from None


def read_record(kind: type[T], path: FilePath, *, max_bytes: int = RECORD_BYTES) -> T:
    """Reads a file that holds one JSON object.

    Raises: BadInput where the file cannot be read, or its content is no such record.
    """
    return _record_in(kind, disk.read_bytes(path, max_bytes=max_bytes), str(path))


def find_record(kind: type[T], path: FilePath) -> T | None:
    """Reads a file that holds one JSON object, None where there is no such file.

    Raises: BadInput as `read_record` does.
    """
    try:
        return read_record(kind, path)
    except BadInput:
        if not (path.is_symlink() or path.exists()):
            return None  # it may also have been removed meanwhile
    return read_record(kind, path)  # or written


def read_lines(kind: type[T], path: FilePath, *, max_bytes: int = LINES_BYTES) -> list[T]:
    """Reads a file with one JSON object a line. Lines that a process was ended in the middle of are left out.

    Raises: BadInput where the file cannot be read, or a whole line is no such record.
    """
    found = []
    for number, line in enumerate(disk.whole_lines(path, max_bytes=max_bytes), 1):
        with suppress(_Torn):
            found.append(_record_in(kind, line, f"{path}:{number}", torn=_Torn))
    return found


class _Torn(Exception):
    """A text that is no JSON."""


def _record_in(kind: type[T], text: bytes, where: str, torn: type[_Torn] | None = None) -> T:
    try:
        data = json.loads(text)
    except RecursionError:
        raise BadInput("is nested too deep", where=where, allowed="a plain record") from None
    except ValueError as error:
        if torn is not None:
            raise torn from None
        raise BadInput(f"is no JSON: {error}", where=where, allowed="one object") from None
    _refuse_halves(text.decode(errors="replace"), data, where)
    try:
        return decode(kind, data)
    except WrongKey as error:
        key = show(error.path)
        raise BadInput(
            f"{key}: {error.what}" if key else error.what, where=where, allowed=error.allowed
        ) from None


def _without_comments(text: str) -> str:
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if not line.startswith("#")), 0)
    return "\n".join(lines[first:])


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key stands twice")
    return table


def _no_number(name: str) -> object:
    raise ValueError(name)


def decode(kind: type[T], data: object, path: Path = ()) -> T:
    """Turns plain data into a value of a type: a frozen dataclass, a tuple, a mapping, a Literal or a scalar.

    Args: `path` says where the data stands in its document.
    Raises: WrongKey for the first thing that does not fit.
    """
    rule: Decoder = _decoder(kind)  # type: ignore[arg-type]  # a class is hashable
    value = rule(data, path)
    assert isinstance(value, kind)
    return value


@cache
def _decoder(kind: Any) -> Decoder:  # Any: the types of types have no common name
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _record(kind)
    if origin is Literal:
        return _choice(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin is list:
        return _list(_tuple((*arguments, Ellipsis)))
    if origin is UnionType and arguments[1:] == (type(None),):
        return _optional(_decoder(arguments[0]))
    if origin in (Mapping, dict) or (origin and issubclass(origin, Mapping)):
        return _mapping(_decoder(arguments[1]))
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    return _scalar(kind)


def _list(many: Decoder) -> Decoder:
    def rows(data: object, path: Path) -> object:
        found = many(data, path)
        assert isinstance(found, tuple)
        return list(found)

    return rows


def _optional(value: Decoder) -> Decoder:
    return lambda data, path: None if data is None else value(data, path)


def _named_tuple(kind: Any) -> Decoder:
    hints = get_type_hints(kind)
    parts = _tuple(tuple(hints[name] for name in kind._fields))

    def one(data: object, path: Path) -> object:
        fields_ = parts(data, path)
        assert isinstance(fields_, tuple)
        return kind(*fields_)

    return one


def _scalar(kind: type) -> Decoder:
    words = {
        str: "text",
        int: "an integer",
        float: "a number",
        bool: "true or false",
        object: "a plain value",
    }

    def one(data: object, path: Path) -> object:
        if type(data) is int and not -LARGEST <= data <= LARGEST:
            raise WrongKey(path, f"{yaml_text.shown(data)} is too large", f"at most {LARGEST}")
        if kind is float and type(data) is int:
            data = float(data)
        if kind is object and isinstance(data, str | int | float | bool):
            return data
        if type(data) is not kind:
            raise WrongKey(path, f"{yaml_text.shown(data)} is not {words[kind]}", words[kind])
        if isinstance(data, float) and not math.isfinite(data):
            raise WrongKey(path, f"{data} is no number that can be planned with", "a finite number")
        return data

    return one


def _choice(allowed: tuple[object, ...]) -> Decoder:
    def one(data: object, path: Path) -> object:
        if data not in allowed:
            raise WrongKey(path, f"unknown {path[-1]} {yaml_text.shown(data)}", ", ".join(map(str, allowed)))
        return data

    return one


def _tuple(arguments: tuple[Any, ...]) -> Decoder:
    repeated = len(arguments) == 2 and arguments[1] is Ellipsis
    parts = [_decoder(arguments[0])] if repeated else [_decoder(part) for part in arguments]

    def many(data: object, path: Path) -> object:
        if not isinstance(data, list):
            raise WrongKey(path, f"{yaml_text.shown(data)} is not a list", "a list")
        if not repeated and len(data) != len(parts):
            raise WrongKey(path, f"has {len(data)} entries", f"{len(parts)} entries")
        ways = parts * len(data) if repeated else parts
        return tuple([way(row, (*path, i)) for i, (way, row) in enumerate(zip(ways, data, strict=True))])

    return many


def _mapping(value: Decoder) -> Decoder:
    def many(data: object, path: Path) -> object:
        if not isinstance(data, dict):
            raise WrongKey(path, f"{yaml_text.shown(data)} is not a mapping", "a mapping of names to values")
        for key in data:
            if not isinstance(key, str):
                raise WrongKey(path, f"key {yaml_text.shown(key)} is not text", "names as keys")
        return {key: value(row, (*path, key)) for key, row in data.items()}

    return many


def _record(kind: Any) -> Decoder:
    hints = get_type_hints(kind)
    ways = {field.name: _decoder(hints[field.name]) for field in fields(kind)}
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}

    def one(data: object, path: Path) -> object:
        if not isinstance(data, dict):
            raise WrongKey(path, f"{yaml_text.shown(data)} is not a mapping", f"the keys {', '.join(ways)}")
        if data.keys() - ways.keys():
            unknown = next(key for key in data if key not in ways)
            raise WrongKey((*path, str(unknown)), "unknown key", ", ".join(ways))
        if required - data.keys():
            missing = next(name for name in ways if name in required and name not in data)
            raise WrongKey(path, f"key '{missing}' is missing", ", ".join(ways))
        return kind(**{name: ways[name](row, (*path, name)) for name, row in data.items()})

    return one
