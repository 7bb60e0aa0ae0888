"""Reads and writes our YAML files: plain data only, every error with its file, line and key.

Values are built from the parser's events, so nothing in a file can name code, share structure or grow on its way in.
Tags, anchors and duplicate keys are refused, and depth is bounded. Scalars follow YAML 1.2 (`no` is a string, `1e-6` a
number). Lines are looked up by parsing once more, and only after an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple, NoReturn

import yaml

from planner.errors import BadInput

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML built without libyaml: the same, slower
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

Data = str | int | float | bool | None | list["Data"] | dict[str, "Data"]
Key = tuple[str | int, ...]

MAX_DEPTH = 64
MAX_VALUES = 200_000  # about a second; larger files of ours are JSON, which is read at once
MAX_DIGITS = 40

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?=[0-9]*[.eE])(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)")

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")


def parse_yaml(text: str, *, name: str) -> dict[str, Data]:
    """Parses the one mapping that a file of ours holds.

    Args: `name` is the file's, for messages.
    Raises: BadInput with the line, for anything that is not plain YAML.
    """
    return _parse(text, name, None)


class _TooMany(BadInput):
    """A text holds more values than are read."""


class Position(NamedTuple):
    """A place in a text: the line, from 1, and the key that was found there."""

    line: int
    key: Key


def locate(text: str, key: Key) -> Position:
    """Finds the line of a key in a text, or of the nearest key that encloses it.

    Args: steps of `key` that are not in the text are passed over, and so is what stands behind MAX_VALUES.
    """
    lines: dict[Key, int] = {}
    with suppress(_TooMany):
        _parse(text, "", lines)
    found: Key = ()
    for step in key:
        if (*found, step) in lines:
            found = (*found, step)
    return Position(lines.get(found, 1), found)


def dotted(key: Iterable[str | int]) -> str:
    """Returns a path of keys as text.

    Example: dotted(("stages", 1, "layers")) is "stages[1].layers".
    """
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in key)
    return text.removeprefix(".")


def _parse(text: str, name: str, lines: dict[Key, int] | None) -> dict[str, Data]:
    try:
        data = _Reader(name, yaml.parse(text, Loader=_Loader), lines).document()
    except yaml.YAMLError as error:
        raise _not_yaml(error, text, name) from None
    except UnicodeEncodeError:
        raise BadInput("the text holds half a surrogate pair", where=name, allowed="Unicode text") from None
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "nothing" if data is None else f"only {shown(data)}"
        raise BadInput(
            f"holds {kind}", where=name, allowed="a mapping of keys to values, such as 'version: 1'"
        )
    return data


def _not_yaml(error: yaml.YAMLError, text: str, name: str) -> BadInput:
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).splitlines()[0]
    if mark is None:  # the reader, before any parsing
        found = _CONTROL.search(text)
        line = text.count("\n", 0, found.start()) + 1 if found else 1
        return BadInput(f"not YAML: {problem}", where=f"{name}:{line}", allowed="printable text")
    rows = text.splitlines()
    row = rows[mark.line] if mark.line < len(rows) else ""
    if "\t" in row[: mark.column + 1]:
        return BadInput("a tab in the indentation", where=f"{name}:{mark.line + 1}", allowed="blanks")
    context = getattr(error, "context", None)
    reason = f"{problem} {context}" if context else problem
    return BadInput(f"not YAML: {reason}", where=f"{name}:{mark.line + 1}", allowed="YAML 1.2")


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


class _Reader:
    """A reader that turns parser events into values; its recursion is at most MAX_DEPTH deep."""

    def __init__(self, name: str, events: Iterator[yaml.Event], lines: dict[Key, int] | None) -> None:
        self.name, self.events, self.lines = name, events, lines
        self.left = MAX_VALUES

    def fail(self, event: yaml.Event, what: str, allowed: str) -> NoReturn:
        raise BadInput(what, where=f"{self.name}:{_line(event)}", allowed=allowed)

    def document(self) -> Data:
        next(self.events)  # the start of the stream
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        data = self.value(next(self.events), ())
        next(self.events)  # the end of the document
        if not isinstance(after := next(self.events), yaml.StreamEndEvent):
            self.fail(after, "a second document begins", "one document a file")
        return data

    def value(self, event: yaml.Event, key: Key) -> Data:
        self.left -= 1
        if not self.left:
            where = f"{self.name}:{_line(event)}"
            raise _TooMany("holds too many values", where=where, allowed=f"at most {MAX_VALUES:,}")
        if self.lines is not None:
            self.lines.setdefault(key, _line(event))
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self.fail(event, "an anchor or alias is not read", "the value itself")
        if tag := getattr(event, "tag", None):
            self.fail(event, f"the tag '{tag}' is not read", "plain values without tags")
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event)
        if len(key) >= MAX_DEPTH:
            self.fail(event, "nested too deep", f"at most {MAX_DEPTH} levels")
        return self.mapping(key) if isinstance(event, yaml.MappingStartEvent) else self.sequence(key)

    def scalar(self, event: yaml.ScalarEvent) -> Data:
        text = event.value
        if not event.implicit[0]:  # quoted
            return text
        if len(text) > MAX_DIGITS and _INT.fullmatch(text):
            self.fail(event, "a number is too long", f"at most {MAX_DIGITS} digits")
        return resolve(text)

    def sequence(self, key: Key) -> list[Data]:
        items: list[Data] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.value(event, (*key, len(items))))
        return items

    def mapping(self, key: Key) -> dict[str, Data]:
        items: dict[str, Data] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self.fail(event, "a list, mapping or alias stands as a key", "a name")
            name = event.value
            if name in items:
                where = dotted((*key, name))
                self.fail(event, f"the key '{where}' stands twice", "each key once")
            if self.lines is not None:
                self.lines[(*key, name)] = _line(event)
            items[name] = self.value(next(self.events), (*key, name))
        return items


def resolve(text: str) -> Data:
    """Returns the value of an unquoted scalar, by the rules of YAML 1.2.

    Args: `text` is the scalar as it stands.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if special := _SPECIAL.fullmatch(text):
        return float(special[1] + special[2])
    return text


def shown(value: object) -> str:
    """Returns a value as text for a message, cut to a readable length.

    Args: `value` is plain data.
    """
    text = repr(value) if isinstance(value, str) else _flow(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def render(
    data: Mapping[str, Data], *, header: str, one_a_line: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Renders plain data as YAML text: mappings in blocks, a list of scalars on one line, other lists with one item a
    line.

    Keys keep their order; the same data gives the same bytes.

    Args: lists at the keys of `one_a_line` also get one item a line, after a comment (or ""); `header` goes first.
    """
    return header + "".join(f"{line}\n" for line in _block(data, "", one_a_line))


def _block(data: Mapping[str, Data], indent: str, one_a_line: Mapping[str, str]) -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{_scalar(key)}:"
            yield from _block(value, indent + "  ", one_a_line)
        elif isinstance(value, list) and (
            any(isinstance(item, (list, dict)) for item in value) or (value and key in one_a_line)
        ):
            comment = f"  # {one_a_line[key]}" if one_a_line.get(key) else ""
            yield f"{indent}{_scalar(key)}:{comment}"
            yield from (f"{indent}  - {_flow(item)}" for item in value)
        else:
            yield f"{indent}{_scalar(key)}: {_flow(value)}"


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./#'+-]*(?: [A-Za-z0-9_./][A-Za-z0-9_./#'+-]*)*")
_ESCAPED = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]')


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")  # YAML 1.1 takes 1e-6 for a string
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value) and not _other_meaning(value):
        return value
    return '"' + _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", value) + '"'


def _other_meaning(text: str) -> bool:
    """Returns whether YAML 1.2 or 1.1 reads a plain scalar as anything but itself."""
    rules = yaml.SafeDumper.yaml_implicit_resolvers.get(text[0], [])
    return not isinstance(resolve(text), str) or any(regexp.match(text) for _, regexp in rules)
