"""Plain data, as YAML or JSON give it, into frozen dataclasses: strictly, and naming the key that is wrong.

Reading turns a text into plain data and refuses what the two formats let through: keys written twice, NaN and
infinities. Decoding follows the types of the dataclass: nothing is converted but an integer to a float.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml

from planner.errors import BadInput

T = TypeVar("T")
Path = tuple[str | int, ...]
Decoder = Callable[[object, Path], object]


class WrongKey(Exception):
    """Where in the document, what is wrong there, and what was allowed; `in_file` makes a BadInput of it."""

    def __init__(self, path: Path, what: str, allowed: str = "") -> None:
        super().__init__(what)
        self.path, self.what, self.allowed = path, what, allowed

    def in_file(self, file: str, text: str) -> BadInput:
        line = _line_of(text, self.path)
        place = f"{file}:{line}" if line else file
        return BadInput(f"{show(self.path)}: {self.what}", where=place, allowed=self.allowed)


def show(path: Path) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "document"


def read(text: str, file: str) -> object:
    """JSON where it is JSON, since that is fast, else YAML; leading lines of comment are allowed in both."""
    try:
        return json.loads(
            _without_comments(text), object_pairs_hook=_unique_pairs, parse_constant=_no_constant
        )
    except json.JSONDecodeError:
        return _read_yaml(text, file)
    except ValueError as error:
        raise BadInput(str(error), where=file) from None


def _without_comments(text: str) -> str:
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if not line.startswith("#")), 0)
    return "\n" * first + "\n".join(lines[first:])


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key '{twice}' is there twice")
    return table


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number that can be planned with")


class _Loader(yaml.CSafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key.value}' is there twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _read_yaml(text: str, file: str) -> object:
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{file}:{mark.line + 1}" if mark else file
        raise BadInput(f"is not YAML: {error.problem}", where=place) from None
    except yaml.YAMLError as error:
        raise BadInput(f"is not YAML: {error}", where=file) from None
    finally:
        if loader is not None:
            loader.dispose()


def _line_of(text: str, path: Path) -> int:
    """Line of the innermost part of a path that the text has; 0 if the text has no lines to speak of."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        line = 0
        for part in path:
            found = _child(node, part)
            if found is None:
                break
            node, line = found
        return line
    except yaml.YAMLError:
        return 0
    finally:
        loader.dispose()


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == part:
                return value, key.start_mark.line + 1
    return None


def decode(kind: type[T], data: object, path: Path = ()) -> T:
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
    if origin in (Mapping, dict) or (origin and issubclass(origin, Mapping)):
        return _mapping(_decoder(arguments[1]))
    if origin is types.UnionType:
        raise TypeError(f"{kind}: no rule to decode a union")
    return _scalar(kind)


def _scalar(kind: type) -> Decoder:
    words = {
        str: "text",
        int: "an integer",
        float: "a number",
        bool: "true or false",
        object: "a plain value",
    }

    def one(data: object, path: Path) -> object:
        if kind is float and type(data) is int:
            data = float(data)
        if kind is object and isinstance(data, str | int | float | bool):
            return data
        if type(data) is not kind:
            raise WrongKey(path, f"{data!r:.60} is not {words[kind]}", words[kind])
        if isinstance(data, float) and not math.isfinite(data):
            raise WrongKey(path, f"{data} is no number that can be planned with", "a finite number")
        return data

    return one


def _choice(allowed: tuple[object, ...]) -> Decoder:
    def one(data: object, path: Path) -> object:
        if data not in allowed:
            raise WrongKey(path, f"unknown {path[-1]} {data!r:.60}", ", ".join(map(str, allowed)))
        return data

    return one


def _tuple(arguments: tuple[Any, ...]) -> Decoder:
    repeated = len(arguments) == 2 and arguments[1] is Ellipsis
    parts = [_decoder(arguments[0])] if repeated else [_decoder(part) for part in arguments]

    def many(data: object, path: Path) -> object:
        if not isinstance(data, list):
            raise WrongKey(path, f"{data!r:.60} is not a list", "a list")
        if not repeated and len(data) != len(parts):
            raise WrongKey(path, f"has {len(data)} entries", f"{len(parts)} entries")
        ways = parts * len(data) if repeated else parts
        return tuple([way(row, (*path, i)) for i, (way, row) in enumerate(zip(ways, data, strict=True))])

    return many


def _mapping(value: Decoder) -> Decoder:
    def many(data: object, path: Path) -> object:
        if not isinstance(data, dict):
            raise WrongKey(path, f"{data!r:.60} is not a mapping", "a mapping of names to values")
        for key in data:
            if not isinstance(key, str):
                raise WrongKey(path, f"key {key!r:.60} is not text", "names as keys")
        return {key: value(row, (*path, key)) for key, row in data.items()}

    return many


def _record(kind: Any) -> Decoder:
    hints = get_type_hints(kind)
    ways = {field.name: _decoder(hints[field.name]) for field in fields(kind)}
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}

    def one(data: object, path: Path) -> object:
        if not isinstance(data, dict):
            raise WrongKey(path, f"{data!r:.60} is not a mapping", f"the keys {', '.join(ways)}")
        if data.keys() - ways.keys():
            unknown = next(key for key in data if key not in ways)
            raise WrongKey((*path, str(unknown)), "unknown key", ", ".join(ways))
        if required - data.keys():
            missing = next(name for name in ways if name in required and name not in data)
            raise WrongKey(path, f"key '{missing}' is missing", ", ".join(ways))
        return kind(**{name: ways[name](row, (*path, name)) for name, row in data.items()})

    return one
