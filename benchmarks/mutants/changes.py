"""Changes of plain data, texts and files of tensors: right ones become hostile ones, by chance."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

EVIL = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202egnp.exe\u2066 \u200b \r over"
Data = Any  # plain data of any depth

HUGE = 10**30
VALUES: tuple[Data, ...] = (
    *(None, True, "", "0", "a b", EVIL, "\udc80", "x" * 5000, "../../etc/passwd", "1F0 1B0", "nan"),
    *(-1, 0, 1, 2, 7, 1000, 10**6, 2**31, 2**63 - 1, 2**63, HUGE, -HUGE),
    *(0.0, -0.5, 0.5, 1e-308, 1e308, float("inf"), float("nan")),
    *([], {}, [[]], [0], ["x"], {"a": 1}, {EVIL: EVIL}),
)


def _spots(data: Data, path: tuple[Data, ...] = ()) -> Iterator[tuple[Data, ...]]:
    rows = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in rows:
        yield (*path, key)
        yield from _spots(value, (*path, key))


def changed(data: Data, chance: random.Random) -> Data:
    """Returns plain data with one to three changes; the data itself stays.

    Args: `chance` decides which.
    """
    made = deepcopy(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        spots = list(_spots(made))
        if not spots:
            return made
        *path, last = chance.choice(spots)
        holder = made
        for step in path:
            holder = holder[step]
        chance.choice(_CHANGES)(holder, last, chance)
    return made


def _replace(holder: Data, key: Data, chance: random.Random) -> None:
    holder[key] = deepcopy(chance.choice(VALUES))


def _remove(holder: Data, key: Data, chance: random.Random) -> None:
    del holder[key]


def _nudge(holder: Data, key: Data, chance: random.Random) -> None:
    """Changes a value into another of its type, which readers accept more often than not."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = chance.choice(
            (value + 1, max(0, value - 1), 2 * value, 0, 1, 2, 3, 10**6, 2**31, 2**62)
        )
    elif isinstance(value, float):
        holder[key] = chance.choice((2 * value, value / 3, 0.0, 1.0, 1e-300, 1e12, 1e300))
    elif isinstance(value, str) and " " in value:
        words = value.split(" ")
        chance.choice(
            (chance.shuffle, lambda x: x.pop(), lambda x: x.append(chance.choice(x)), list.reverse)
        )(words)
        holder[key] = " ".join(words)
    elif isinstance(value, str):
        others = (
            [row for row in holder.values() if isinstance(row, str)] if isinstance(holder, dict) else holder
        )
        holder[key] = chance.choice((chance.choice(others), value[:-1], value * 2, EVIL, "x"))
    elif isinstance(value, list) and value:
        chance.choice(
            (chance.shuffle, list.pop, list.clear, list.reverse, lambda x: x.append(deepcopy(x[0])))
        )(value)


def _repeat(holder: Data, key: Data, chance: random.Random) -> None:
    if isinstance(holder, list):
        holder[key:key] = [deepcopy(holder[key]) for _ in range(chance.choice((1, 2, 1000)))]
    else:
        holder[chance.choice((EVIL, f"{key}s", "version", "0"))] = deepcopy(holder[key])


def _swap(holder: Data, key: Data, chance: random.Random) -> None:
    other = chance.choice(list(holder) if isinstance(holder, dict) else list(range(len(holder))))
    holder[key], holder[other] = holder[other], holder[key]


def _nest(holder: Data, key: Data, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 100))):
        holder[key] = [holder[key]] if chance.random() < 0.5 else {"a": holder[key]}


_CHANGES: tuple[Callable[[Data, Data, random.Random], None], ...] = (
    *[_nudge] * 12,
    *(_replace, _replace, _remove, _repeat, _swap, _nest),
)


def as_text(data: Data, chance: random.Random) -> str:
    """Returns JSON, which is YAML too; now and then a torn or doubled one."""
    text = json.dumps(data)
    if chance.random() < 0.03:
        return text[: chance.randrange(len(text) + 1)]
    return text.replace('"', "", 2) if chance.random() < 0.02 else text


def loaded(path: Path) -> Data:
    """Returns the plain data of a file of ours."""
    from planner.files import parse_document

    return parse_document(path.read_text(), name=str(path))


def folded(data: Data, chance: random.Random) -> Data:
    """Returns data with changes, perhaps inside of a text that is JSON itself, as rows of operations are."""
    spots = [path for path in _spots(data) if _is_json(_at(data, path))]
    if not spots or chance.random() < 0.5:
        return changed(data, chance)
    made = deepcopy(data)
    *path, last = chance.choice(spots)
    holder = _at(made, path)
    holder[last] = json.dumps(changed(json.loads(holder[last]), chance))
    return made


def _at(data: Data, path: Iterator[Data] | list[Data] | tuple[Data, ...]) -> Data:
    for step in path:
        data = data[step]
    return data


def _is_json(value: Data) -> bool:
    return isinstance(value, str) and value.startswith(("{", "["))


WORDS = (
    "0",
    "-1",
    "1",
    "2",
    "1e308",
    "nan",
    str(HUGE),
    "9" * 5000,
    "",
    " ",
    "\n",
    '"',
    "{",
    "[" * 200,
    EVIL,
    "\0",
)


def nudged_text(text: str, chance: random.Random) -> str:
    """Returns a text of which some numbers and words are others, which readers accept more often than not.

    Args: `chance` decides which.
    """
    for _ in range(chance.choice((1, 1, 2, 4))):
        spots = list(re.finditer(r"\d+|[A-Za-z_]\w*", text))
        at = chance.choice(spots)
        given = (
            chance.choice(("0", "1", "3", "1000000", "2147483648", "x"))
            if at[0].isdigit()
            else chance.choice(spots)[0]
        )
        text = text[: at.start()] + given + text[at.end() :]
    return text


def changed_text(text: str, chance: random.Random) -> str:
    """Returns a text with some of its words, lines or bytes changed.

    Args: `chance` decides which.
    """
    if chance.random() < 0.4:
        return nudged_text(text, chance)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.choice((0, 1, 1, 3, 20)))
        other = chance.randrange(len(text) + 1)
        given = chance.choice((*WORDS, text[other : other + chance.choice((1, 5, 50))]))
        lines = text.splitlines(keepends=True)
        chance.shuffle(lines) if chance.random() < 0.05 else None
        text = "".join(lines) if chance.random() < 0.1 else text[:at] + given + text[end:]
    return text[: chance.randrange(len(text) + 1)] if chance.random() < 0.05 else text


def changed_tensors(raw: bytes, chance: random.Random) -> bytes:
    """Returns a file of safetensors with changes in its header, its numbers, or both.

    Args: `chance` decides which.
    """
    length = int.from_bytes(raw[:8], "little")
    header, numbers = raw[8 : 8 + length], bytearray(raw[8 + length :])
    way = chance.randrange(10)
    if way < 6:
        header = as_text(folded(json.loads(header), chance), chance).encode("utf-8", "surrogatepass")
    elif way < 9 and numbers:
        for _ in range(chance.choice((1, 4, 40))):
            at = 4 * chance.randrange(max(1, len(numbers) // 4))
            numbers[at : at + 4] = chance.choice(_NUMBERS)
    else:
        given = bytearray(raw)
        given[chance.randrange(len(given))] ^= 1 << chance.randrange(8)
        return bytes(given[: chance.choice((len(given), chance.randrange(len(given))))])
    length = chance.choice((len(header),) * 12 + (0, max(0, len(header) - 1), 2**62))
    return length.to_bytes(8, "little") + header + numbers


_NUMBERS = (
    *(b"\0\0\0\0", b"\1\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\xff\xff\xff\x7f"),
    *(b"\0\0\x80\x7f", b"\0\0\xc0\x7f", b"\xff\xff\x7f\x7f"),
)
