"""Writes a captured model as plain data, and makes it again where nobody has the user's code.

    data = to_data(captured)           # JSON: operations by name, with their arguments
    again = from_data(data, constants) # the same layers, stages and fingerprint

What comes in may be a stranger's file. Only operations of torch that compute are found by their names, and what was
made again is compared with the signatures of its layers. What only lives in the user's code, such as opaque modules
and functions with their own backward, cannot travel and is refused by its path.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from planner.capture.captured import Captured, Recorded
from planner.capture.describe import signature
from planner.capture.export_workarounds import average_batch_norm
from planner.capture.fake_run import after, probe
from planner.capture.layers import Grouping
from planner.capture.opaque import OpaqueLayer
from planner.capture.slices import Slicing, affine
from planner.capture.trace import quiet
from planner.capture.traced_graph import SYNCHRONISED, Like, Source, Traced, line_of
from planner.errors import BadInput
from planner.files import WrongKey
from planner.profile import graph_of
from planner.workload import DAMAGES

VERSION = 1
NAMESPACES = ("aten", "prims", "torchvision", "quantized_decomposed")
# They reach for files, storage or memory that is not the tensor's own.
REFUSED = ("from_file", "set_", "resize_", "_resize", "as_strided_", "record_stream", "_print", "_debug")
OPERATORS = (
    *("getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "neg"),
    *("pow", "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_"),
)
SYMBOLIC = ("sym_int", "sym_float", "sym_max", "sym_min", "sym_not", "sym_ite")
PLAIN: dict[str, Callable[..., Any]] = {
    **{f"operator.{name}": getattr(operator, name) for name in OPERATORS},
    **{f"torch.{name}": getattr(torch, name) for name in SYMBOLIC},
    "shardwright.after": after,
    "shardwright.average_batch_norm": average_batch_norm,
}
NAMES = {function: name for name, function in PLAIN.items()}
KINDS = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}

Json = Any  # what json.loads gives


def to_data(captured: Captured) -> dict[str, Json]:
    """Returns a captured model as data that JSON can hold; its tensors are not in it.

    Raises: BadInput with the path of what only the user's code can compute, and what to do about it.
    """
    layout, traced = captured.layout, captured.layout.traced
    writer = _Writer(layout)
    return {
        "version": VERSION,
        "graph": captured.graph.to_dict(),
        "nodes": [writer.row(node) for node in traced.graph.nodes],
        "outputs": [writer.number[node] for node in traced.outputs],
        "layers": list(layout.grouping.names),
        "aliases": {name: list(names) for name, names in traced.aliases.items()},
        "saved": dict(traced.saved),
        "plain": dict(traced.plain),
        "symbolic": traced.symbolic,
        "micro": traced.micro,
        "probes": [each.n for each in layout.probes],
        "metrics": list(captured.metrics),
    }


class _Writer:
    def __init__(self, layout: Slicing) -> None:
        self.layout = layout
        self.number = {node: i for i, node in enumerate(layout.traced.graph.nodes)}

    def row(self, node: fx.Node) -> dict[str, Json]:
        if (source := self.layout.traced.sources.get(node)) is not None:
            return {"name": node.name, "kind": source.kind, "source": source.name, **self._like(node)}
        stack = node.meta.get("stack") or ()
        path = "loss()" if node.meta.get("in_loss") else stack[-1][0] if stack else ""
        found: dict[str, Json] = {
            "name": node.name,
            "call": _name(node, path),
            "args": [self._value(x, path) for x in node.args],
            "layer": self.layout.grouping.layer_of[node],
        }
        optional = {
            "kwargs": {key: self._value(x, path) for key, x in node.kwargs.items()},
            "context": [[self._value(x, path) for x in part] for part in node.meta["context"]],
            "stack": [list(part) for part in stack],
            "loss": bool(node.meta.get("in_loss")),
            "line": line_of(node),
            "synchronised": bool(node.meta.get(SYNCHRONISED)),
        }
        return found | {key: value for key, value in optional.items() if value}

    def _like(self, node: fx.Node) -> dict[str, Json]:
        probes = self.layout.probes
        low, high = (each.tensor(node) for each in probes)
        assert low is not None and high is not None

        def lines(a: Sequence[int], b: Sequence[int]) -> list[list[int]]:
            try:
                sizes = [affine(x, y, probes) for x, y in zip(a, b, strict=True)]
            except AssertionError:
                raise BadInput(
                    f"'{self.layout.name(node)}' grows faster than the batch", allowed="a module file"
                ) from None
            return [[size.fixed, size.slope] for size in sizes]

        return {
            "shape": lines(low.shape, high.shape),
            "stride": lines(low.stride(), high.stride()),
            "dtype": str(low.dtype).removeprefix("torch."),
        }

    def _value(self, value: object, path: str) -> Json:
        if isinstance(value, fx.Node):
            return {"node": self.number[value]}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return {"float": repr(value)}
        if isinstance(value, complex):
            return {"complex": [repr(value.real), repr(value.imag)]}
        if isinstance(value, list | tuple):
            rows = [self._value(x, path) for x in value]
            return rows if isinstance(value, list) else {"tuple": rows}
        if isinstance(value, slice):
            return {"slice": [self._value(x, path) for x in (value.start, value.stop, value.step)]}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if type(value) in KINDS:
            return {KINDS[type(value)]: str(value).removeprefix("torch.")}
        raise _cannot(f"an argument of type {type(value).__name__}", path)


def _name(node: fx.Node, path: str) -> str:
    if isinstance(node.target, OpaqueLayer):
        raise _cannot("an opaque module", path)
    if isinstance(node.target, OpOverload):
        name = str(node.target)
        if _operation(name) is node.target:
            return name
    elif callable(node.target) and node.target in NAMES:
        return NAMES[node.target]
    raise _cannot(
        f"'{getattr(node.target, '__name__', node.target)}', code of yours with its own backward", path
    )


def _cannot(what: str, path: str) -> BadInput:
    return BadInput(
        f"{what} cannot travel as data",
        where=f"module '{path}'" if path else "",
        allowed="a module file with build(), which ranks import; or a factory: sw.Workload('file.py')",
    )


def _operation(name: str) -> OpOverload | None:
    """Returns the operation of torch by its name; None where there is none, or where it does more than compute."""
    namespace, _, rest = name.partition(".")
    operation, _, overload = rest.partition(".")
    if namespace not in NAMESPACES or operation.startswith(REFUSED) or not overload:
        return None
    found = getattr(getattr(getattr(torch.ops, namespace), operation, None), overload, None)
    return found if isinstance(found, OpOverload) else None


def from_data(
    data: Mapping[str, Json], constants: Mapping[str, Tensor], evaluation: Mapping[str, Json] | None = None
) -> Captured:
    """Returns the captured model that `to_data` wrote.

    Args: `constants` are tensors by name, of which those of the constants are taken. `evaluation` is the data of the
        model in evaluation mode, or has under "refused" why there is none.
    Raises: BadInput where the data is damaged, of another version, or names what is no operation of torch.
    """
    try:
        if data["version"] != VERSION:
            raise BadInput(f"a model of version {data['version']!r}", allowed=f"version {VERSION}; or update")
        with quiet([]):  # torch prints what an operation raises
            found = _made(data, constants, Recorded(partial(_evaluated, evaluation or {}, constants)))
        signatures = [signature(found.layout, index) for index in range(len(found.graph.layers))]
    except WrongKey as error:
        raise BadInput(f"is no captured model: {error.told}", allowed=error.allowed) from error
    except DAMAGES as error:
        raise BadInput(f"is no captured model: {type(error).__name__}: {error}") from error
    changed = [x.name for x, own in zip(found.graph.layers, signatures, strict=True) if own != x.signature]
    if changed:
        raise BadInput(f"layer '{changed[0]}' is not what its signature says: the file was changed")
    return found


def _evaluated(data: Mapping[str, Json], constants: Mapping[str, Tensor], micro: int) -> Captured:
    data = data.get("one", data) if micro == 1 else data
    if "nodes" in data:
        return from_data(data, constants)
    raise BadInput(str(data.get("refused", "the model was written without its evaluation")))


def _made(data: Mapping[str, Json], constants: Mapping[str, Tensor], origin: Recorded) -> Captured:
    rows, graph = cast(Sequence[Mapping[str, Json]], data["nodes"]), fx.Graph()
    nodes: list[fx.Node] = []
    sources: dict[fx.Node, Source] = {}
    grouping = Grouping([str(x) for x in data["layers"]])
    for row in rows:
        if "kind" in row:
            node = graph.placeholder(str(row["name"]))
            node.meta = {"val": _like(row)}
            sources[node] = Source(kind=row["kind"], name=row["source"])
        else:
            node = _call(graph, row, nodes)
            grouping.layer_of[node] = int(row["layer"])
        nodes.append(node)
    traced = Traced(
        graph=graph,
        sources=sources,
        constants={x.name: constants[x.name] for x in sources.values() if x.kind == "constant"},
        outputs=tuple(nodes[i] for i in data["outputs"]),
        aliases={name: tuple(x) for name, x in data["aliases"].items()},
        saved=dict(data["saved"]),
        plain=dict(data.get("plain", {})),
        symbolic=bool(data["symbolic"]),
        micro=int(data["micro"]),
    )
    described = graph_of(data["graph"])
    trainable = {row.name: row.trainable for row in described.parameters}
    first = probe(traced, int(data["probes"][0]), trainable)
    second = probe(traced, int(data["probes"][1]), trainable) if traced.symbolic else first
    metrics = tuple(str(name) for name in data.get("metrics", ()))
    layout = Slicing(traced, grouping, (first, second))
    if lacking := sorted(set(layout.crossing.values()) - described.value.keys()):
        raise BadInput(f"is no captured model: no Value is called '{lacking[0]}', which it computes")
    return Captured(described, layout, origin, metrics=metrics)


def _like(row: Mapping[str, Json]) -> Like:
    dtype = getattr(torch, row["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype '{row['dtype']}'")
    shape, stride = (tuple((int(a), int(b)) for a, b in row[key]) for key in ("shape", "stride"))
    return Like(shape, stride, dtype)


def _call(graph: fx.Graph, row: Mapping[str, Json], nodes: Sequence[fx.Node]) -> fx.Node:
    name = str(row["call"])
    target = PLAIN.get(name) or _operation(name)
    if target is None:
        raise BadInput(
            f"'{name}' is no operation that a model may have", allowed="operations of torch, by name"
        )
    args = tuple(_read(x, nodes) for x in row["args"])
    kwargs = {key: _read(x, nodes) for key, x in row.get("kwargs", {}).items()}
    node = graph.call_function(target, args, kwargs)
    file, _, number = str(row.get("line", "")).rpartition(":")
    node.meta = {
        "context": tuple(tuple(_read(x, nodes) for x in part) for part in row.get("context", ())),
        "stack": tuple((str(path), str(key)) for path, key in row.get("stack", ())),
        "in_loss": bool(row.get("loss")),
        "trace": f'File "{file}", line {number}' if file else "",
        **({SYNCHRONISED: True} if row.get("synchronised") else {}),
    }
    return node


def _read(value: Json, nodes: Sequence[fx.Node]) -> Any:  # Any: an argument of any operation
    if isinstance(value, list):
        return [_read(x, nodes) for x in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    return dict(_readers(nodes))[kind](inner)


def _readers(nodes: Sequence[fx.Node]) -> Iterator[tuple[str, Callable[[Json], Any]]]:
    yield "node", lambda x: nodes[x]
    yield "float", float
    yield "complex", lambda x: complex(float(x[0]), float(x[1]))
    yield "tuple", lambda x: tuple(_read(y, nodes) for y in x)
    yield "slice", lambda x: slice(*(_read(y, nodes) for y in x))
    yield "device", torch.device
    for kind, name in KINDS.items():
        yield name, partial(_of_torch, kind)


def _of_torch(kind: type, name: str) -> object:
    found = getattr(torch, name)
    if not isinstance(found, kind):
        raise ValueError(f"no {kind.__name__} '{name}'")
    return found
