"""One layer of a transformer as operations, without norms, and the ways in which papers cut it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.choose import GroupWork, Storing
from planner.layout import DimCut, GroupLayout, LocalGraph, Mesh, parted, propagate
from planner.spatial import GETITEM, INPUT, STATE, Operation, Ref

WEIGHTS = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}  # in and out, in units of the width


def operations_of_a_layer(tokens: int, width: int) -> tuple[Operation, ...]:
    """Returns the operations: attention is element-wise here, which cuts of samples and heads cannot tell."""
    found = [Operation("x", "", INPUT, {}, ((tokens, width),))]
    found += [
        Operation(f"state:{name}", "", STATE, {}, ((b * width, a * width),))
        for name, (a, b) in WEIGHTS.items()
    ]

    def add(name: str, kind: str, reads: Sequence[str], *shapes: tuple[int, ...], **more: object) -> None:
        names = ("input", "weight") if kind == "aten.linear" else ("self", "other")
        arguments = {key: Ref(x) for key, x in zip(names, reads, strict=False)} | more
        found.append(Operation(name, name, kind, arguments, shapes, path=name))  # type: ignore[arg-type]

    rows = (tokens, width)
    add("qkv", "aten.linear", ("x", "state:qkv"), (tokens, 3 * width), bias=None)
    add("pieces", "aten.chunk", ("qkv",), rows, rows, rows, chunks=3, dim=-1)
    for i, name in enumerate("qkv"):
        found.append(Operation(name + "1", "pieces", GETITEM, {"self": Ref("pieces"), "index": i}, (rows,)))
    add("scores", "aten.mul", ("q1", "k1"), rows)
    add("attention", "aten.mul", ("scores", "v1"), rows)
    add("out", "aten.linear", ("attention", "state:out"), rows, bias=None)
    add("between", "aten.gelu", ("out",), rows)
    add("up", "aten.linear", ("between", "state:up"), (tokens, 4 * width), bias=None)
    add("gelu", "aten.gelu", ("up",), (tokens, 4 * width))
    add("down", "aten.linear", ("gelu", "state:down"), rows, bias=None)
    add("end", "aten.gelu", ("down",), rows)
    return tuple(found)


@dataclass(frozen=True)
class Way:
    """A way to cut a layer: the factor of each kind of operation along each axis, and what is held in parts."""

    first: tuple[str, ...]  # qkv and up
    second: tuple[str, ...]  # out and down
    inner: tuple[str, ...]  # what is element-wise between them
    ends: tuple[str, ...]  # how the layer is given its input, and gives its result
    storing: Storing


def ways(name: str) -> Way:
    r, c = "dim0", "dim1"
    return {
        "1-D": Way(("out",), ("in",), (c,), ("",), Storing()),
        "2-D": Way((r, "out"), (r, "out"), (r, c), (r, c), Storing(axes=frozenset({0}), again="all")),
        "2.5-D": Way(
            (r, r, "out"), (r, r, "out"), (r, r, c), (r, r, c), Storing(axes=frozenset({1}), again="all")
        ),
        "3-D": Way(
            (r, "out", "in"), (r, "in", "out"), (r, c, r), (r, r, c), Storing(axes=frozenset({0}), again="")
        ),
        "3-D, gathered again": Way(
            (r, "out", "in"),
            (r, "in", "out"),
            (r, c, r),
            (r, r, c),
            Storing(axes=frozenset({0}), again="all"),
        ),
        "FSDP": Way((r,), (r,), (r,), (r,), Storing(axes=frozenset({0}))),
    }[name]


def graph_of_a_layer(way: Way, mesh: Mesh, tokens: int, width: int) -> LocalGraph:
    operations = operations_of_a_layer(tokens, width)
    factors: Mapping[str, tuple[str, ...]] = {
        "qkv": way.first,
        "up": way.first,
        "out": way.second,
        "down": way.second,
        "between": way.ends,
        "end": way.ends,
    }

    def wished(operation: Operation, axis: int) -> Sequence[tuple[str, object]]:
        return ((factors.get(operation.name, way.inner)[axis] or "alike", ""),)

    cuts: list[DimCut | None] = []
    for dim, size in enumerate((tokens, width)):
        axes = tuple(axis for axis, name in enumerate(way.ends) if name == f"dim{dim}")
        parts = 1
        for axis in axes:
            parts *= mesh[axis]
        points = parted(size, parts)
        cuts.append(DimCut(axes, points) if axes and points else None)
    given = {"x": GroupLayout((tokens, width), tuple(cuts))}
    trained = {"x", *(f"state:{name}" for name in WEIGHTS)}
    return propagate(operations, mesh, wished, trained, (), given)


def work_of_a_layer(tokens: int, width: int, *, element_bytes: int = 1, flop_per_s: float = 0.0) -> GroupWork:
    operations = operations_of_a_layer(tokens, width)
    ns = {}
    for name, (a, b) in WEIGHTS.items():
        flops = 3 * 2 * tokens * a * b * width**2
        ns[name] = flops / flop_per_s * 1e9 if flop_per_s else 0.0
    return GroupWork(
        operations=operations,
        trained=frozenset(f"state:{name}" for name in WEIGHTS),
        resolved=frozenset(),
        ns=ns,
        state_bytes=1.0,
        gradient_bytes=element_bytes,
        element_bytes=element_bytes,
    )
