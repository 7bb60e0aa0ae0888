"""Folds repeated blocks of a model to one, which then stands for all of them.

The blocks of a model are modules under one path with numbers, such as `blocks.0` and `blocks.1`. They are folded
where each does the same on tensors of the same shapes, and reads only itself, the block before it, and what all of
them share. The tensor between blocks must then lie as the tensor that the first of them reads.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from planner.layout import of_path
from planner.spatial import INPUT, STATE, TARGET, Given, Operation, Ref

GIVEN: Final = (INPUT, TARGET, STATE)
Key = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class FoldedGraph:
    """The operations of a model, of which those of repeated blocks are there once."""

    operations: tuple[Operation, ...]
    times: Mapping[str, int] = field(
        default_factory=dict
    )  # operation -> blocks that it stands for, where several
    entries: Mapping[str, str] = field(
        default_factory=dict
    )  # what a first block reads -> what later ones read
    stands_for: Mapping[str, str] = field(
        default_factory=dict
    )  # of every operation of a block that was folded

    def count(self, name: str) -> int:
        """Returns how many operations of the model one of this graph stands for."""
        return self.times.get(name, 1)


class _Block(NamedTuple):
    container: str  # path of the module that holds the blocks
    number: int
    first: int  # positions in the list of operations
    end: int


def folded(operations: Sequence[Operation]) -> FoldedGraph:
    """Returns a model with its repeated blocks folded.

    Args: `operations` are all of the model, in the order of the capture.
    """
    graph = FoldedGraph(operations=tuple(operations))
    for run in _runs(operations):
        graph = _folded(graph, operations, run)
    return graph


def _runs(operations: Sequence[Operation]) -> Iterator[list[_Block]]:
    """Yields the blocks of each container that follow each other without anything in between."""
    blocks = []
    at = 0
    for key, group in itertools.groupby(_numbers(operations)):
        size = len(list(group))
        if key is not None:
            blocks.append(_Block(*key, at, at + size))
        at += size
    run: list[_Block] = []
    for block in blocks:
        if run and (block.container, block.number, block.first) != (
            run[-1].container,
            run[-1].number + 1,
            run[-1].end,
        ):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _numbers(operations: Sequence[Operation]) -> list[tuple[str, int] | None]:
    """Returns the block of each operation; what stands between two operations of one block belongs to it."""
    found = [_numbered(x) for x in operations]
    last: tuple[int, tuple[str, int]] | None = None
    for at, key in enumerate(found):
        if operations[at].operation in GIVEN:
            last = None
        elif key is not None:
            if last is not None and last[1] == key:
                found[last[0] : at] = [key] * (at - last[0])
            last = at, key
    return found


def _numbered(operation: Operation) -> tuple[str, int] | None:
    if operation.operation in GIVEN:
        return None
    names = of_path(operation).split(".")
    for i, name in enumerate(names):
        if name.isdigit():
            return ".".join(names[:i]), int(name)
    return None


def _folded(graph: FoldedGraph, operations: Sequence[Operation], run: list[_Block]) -> FoldedGraph:
    """Returns a graph with the longest part of a run folded in which all blocks are alike."""
    owner = {operations[i].name: (b, i - x.first) for b, x in enumerate(run) for i in range(x.first, x.end)}
    readers = _readers(operations)
    keys = [_key(operations, run, b, owner, readers) for b in range(len(run))]
    spans = [(_with_first(low, keys), high) for low, high in _alike(keys)]
    low, high = max(spans, key=lambda span: span[1] - span[0], default=(0, 0))
    given = {x.name for x in operations if x.operation in GIVEN}
    while high - low > 1:
        found = _entries(operations, run, low, owner)
        if found is not None and not given & set(found):
            break
        low += 1
    else:
        return graph
    if not _closed(operations, run, low, high, owner, readers):
        return graph
    return _collapsed(graph, operations, run[low:high], found)


def _readers(operations: Sequence[Operation]) -> Mapping[str, list[Operation]]:
    found: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        for name in dict.fromkeys(operation.reads()):
            found[name].append(operation)
    return found


def _key(
    operations: Sequence[Operation],
    run: Sequence[_Block],
    b: int,
    owner: Mapping[str, tuple[int, int]],
    readers: Mapping[str, list[Operation]],
) -> Key:
    """Returns what a block does, with what it reads named by where that comes from."""
    own_states: dict[str, int] = {}
    prefix = f"{run[b].container}.{run[b].number}".lstrip(".")

    def told(value: Given) -> object:
        if isinstance(value, tuple):
            return tuple(map(told, value))
        if not isinstance(value, Ref):
            return value
        if value.name in owner:
            block, place = owner[value.name]
            return ("own" if block == b else "before" if block == b - 1 else "other", place)
        if value.name.startswith("state:") and all(
            owner.get(x.name, (-1, 0))[0] == b for x in readers[value.name]
        ):
            return ("state", own_states.setdefault(value.name, len(own_states)))
        return ("outer", value.name)

    rows = []
    for x in operations[run[b].first : run[b].end]:
        arguments = tuple((name, told(value)) for name, value in x.arguments.items())
        rows.append((x.operation, of_path(x).removeprefix(prefix), arguments, x.outputs))
    return tuple(rows)


def _alike(keys: Sequence[Key]) -> Iterator[tuple[int, int]]:
    low = 0
    for high in range(1, len(keys) + 1):
        if high == len(keys) or keys[high] != keys[low]:
            yield low, high
            low = high


def _with_first(low: int, keys: Sequence[Key]) -> int:
    """Returns the start of a run that also has the block before it, where it differs in what it reads first alone."""
    if low == 0:
        return 0
    pairs = zip(keys[low - 1], keys[low], strict=False)
    same = len(keys[low - 1]) == len(keys[low]) and all(_like(a, b) for a, b in pairs)
    return low - 1 if same else low


def _like(first: object, later: object) -> bool:
    """Returns whether a first block does what a later one does, but for reading something else in the place of the
    block before it.
    """
    if isinstance(later, tuple) and later[:1] == ("before",):
        return isinstance(first, tuple) and first[:1] in (("before",), ("outer",))
    if isinstance(first, tuple) and isinstance(later, tuple):
        return len(first) == len(later) and all(map(_like, first, later))
    return first == later


def _entries(
    operations: Sequence[Operation], run: Sequence[_Block], low: int, owner: Mapping[str, tuple[int, int]]
) -> dict[str, str] | None:
    """Returns what the first block reads -> the tensor of that block that the next one reads in its place."""
    first, second = run[low], run[low + 1]
    found: dict[str, str] = {}
    for a, b in zip(operations[first.first : first.end], operations[second.first : second.end], strict=True):
        for one, other in zip(a.reads(), b.reads(), strict=True):
            if owner.get(other, (-1, 0))[0] == low and found.setdefault(one, other) != other:
                return None
    return found


def _closed(
    operations: Sequence[Operation],
    run: Sequence[_Block],
    low: int,
    high: int,
    owner: Mapping[str, tuple[int, int]],
    readers: Mapping[str, list[Operation]],
) -> bool:
    """Returns whether nothing but the next block reads what a block makes, the last one aside."""
    for b in range(low, high - 1):
        for x in operations[run[b].first : run[b].end]:
            if any(owner.get(reader.name, (-1, 0))[0] not in (b, b + 1) for reader in readers[x.name]):
                return False
    return True


def _collapsed(
    graph: FoldedGraph, operations: Sequence[Operation], blocks: Sequence[_Block], entries: Mapping[str, str]
) -> FoldedGraph:
    first, last = blocks[0], blocks[-1]
    kept = operations[first.first : first.end]
    stands = {operations[block.first + i].name: x.name for block in blocks for i, x in enumerate(kept)}
    ends = {operations[last.first + i].name: x.name for i, x in enumerate(kept)}
    gone = {x.name for block in blocks[1:] for x in operations[block.first : block.end]}
    left = []
    for x in graph.operations:
        if x.name not in gone:
            arguments = {name: _renamed(value, ends) for name, value in x.arguments.items()}
            left.append(replace(x, arguments=arguments))
    times = {x.name: len(blocks) for x in kept}
    read = {name for x in left for name in x.reads()}
    return FoldedGraph(
        operations=tuple(x for x in left if x.operation != STATE or x.name in read),
        times={**graph.times, **times},
        entries={**graph.entries, **entries},
        stands_for={**graph.stands_for, **stands},
    )


def _renamed(value: Given, names: Mapping[str, str]) -> Given:
    if isinstance(value, Ref):
        return Ref(names.get(value.name, value.name))
    return tuple(_renamed(x, names) for x in value) if isinstance(value, tuple) else value
