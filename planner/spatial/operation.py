"""Operations as lines of text, so that a profile file can hold what is needed to price a split.

An `Operation` is one operation of a captured model as integers: what it reads, and the shapes of what it makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Final

from planner.errors import BadInput
from planner.model import Buffer, ModelGraph, Parameter
from planner.spatial.layout import REMEMBERED

TENSOR = "tensor"  # key of a reference
MOST = 2**44  # elements of one tensor
AS_CAPTURED = "operations as a capture writes them: profile the model again"


def to_text(operation: Operation) -> str:
    """Returns an operation as one line of JSON.

    Returns: text that `from_text` reads back as an equal operation.
    """
    facts: dict[str, object] = {
        "name": operation.name,
        "layer": operation.layer,
        "operation": operation.operation,
        "arguments": {name: _plain(value) for name, value in operation.arguments.items()},
        "outputs": operation.outputs,
    }
    if operation.samples:
        facts["samples"] = operation.samples
    if operation.path is not None:
        facts["path"] = operation.path
    return json.dumps(facts, separators=(",", ":"))


@lru_cache(maxsize=REMEMBERED)
def from_text(text: str) -> Operation:
    """Returns the operation that a line of JSON holds.

    Args: `text` is what `to_text` wrote.
    Raises: BadInput where the text is no operation.
    """
    try:
        facts = json.loads(text)
        arguments = {str(name): _given(value) for name, value in facts["arguments"].items()}
        shapes = tuple(tuple(int(n) for n in shape) for shape in facts["outputs"])
        samples = tuple(int(n) for n in facts.get("samples", ()))
        names = (facts[key] for key in ("name", "layer", "operation"))
        name, layer, operation = map(str, names)
        path = None if facts.get("path") is None else str(facts["path"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"not an operation: {text:.80}", where="operations") from error
    return Operation(name, layer, operation, arguments, shapes, samples, path)


def read_operations(graph: ModelGraph) -> tuple[Operation, ...]:
    """Returns the operations that a model's lines hold, for the micro-batch that was captured.

    Args: `graph` may come from any file.
    Raises: BadInput where operations do not agree with each other, or with the tables of the model.
    """
    found = tuple(map(from_text, graph.operations))
    wrong = next(_wrong(found, graph), "") if found else ""
    if wrong:
        raise BadInput(wrong, where="operations", allowed=AS_CAPTURED)
    return found


def _wrong(operations: Sequence[Operation], graph: ModelGraph) -> Iterator[str]:
    """Yields what an operation has and no capture would write."""
    holders: list[Parameter | Buffer] = [*graph.parameters, *graph.buffers]
    states = {f"state:{row.name}": row.shape for row in holders}
    made: set[str] = set()
    for x in operations:
        if x.name in made:
            yield f"'{x.name}' is made twice"
        if x.layer and x.layer not in graph.layer:
            yield f"'{x.name}' belongs to a layer '{x.layer}' that there is not"
        if lacking := [name for name in x.reads() if name not in made]:
            yield f"'{x.name}' reads '{lacking[0]}', which nothing before it makes"
        made.add(x.name)
        if not x.outputs or any(min(shape, default=1) < 0 or prod(shape) > MOST for shape in x.outputs):
            yield f"'{x.name}' has results of shapes {_briefly(x.outputs)}"
        if x.samples and not _are_dims(x.samples, x.outputs):
            yield f"'{x.name}' has its samples along {_briefly(x.samples)}"
        if x.operation == INPUT and x.samples and x.samples[0] >= 0 and not x.outputs[0][x.samples[0]]:
            yield f"'{x.name}' has no samples"
        if x.operation == STATE and states.get(x.name, x.outputs[0]) != x.outputs[0]:
            yield f"'{x.name}' has the shape {_briefly(x.outputs[0])} in one place and {states[x.name]} in another"
    if lacking := [value.name for value in graph.values if value.name not in made]:
        yield f"nothing makes the value '{lacking[0]}'"


def _are_dims(samples: Sequence[int], shapes: Sequence[Sequence[int]]) -> bool:
    return len(samples) == len(shapes) and all(
        OTHERWISE <= dim < len(shape) for dim, shape in zip(samples, shapes, strict=True)
    )


def _briefly(value: object) -> str:
    return f"{value!s:.80}"


def _plain(value: Given) -> object:
    if isinstance(value, Ref):
        return {TENSOR: value.name}
    return [_plain(x) for x in value] if isinstance(value, tuple) else value


def _given(value: object) -> Given:
    if isinstance(value, dict):
        return Ref(str(value[TENSOR]))
    if isinstance(value, list):
        return tuple(_given(x) for x in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(value)


GETITEM: Final = "getitem"
INPUT, TARGET, STATE = "given.input", "given.target", "given.state"  # what a model is given, in its list
NONE, OTHERWISE = -1, -2  # no size depends on the batch; some do otherwise than one that is a multiple of it


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor by the name of the operation that made it, or by the name of what the segment was given."""

    name: str


Given = None | bool | int | float | str | Ref | tuple["Given", ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a captured model, with everything that a rule may ask of it."""

    name: str
    layer: str
    operation: str  # "aten.conv3d", or GETITEM with arguments "self" and "index"
    arguments: Mapping[str, Given]  # by the names of the schema
    outputs: tuple[tuple[int, ...], ...]  # global shapes; one entry for a single tensor
    samples: tuple[int, ...] = ()  # dimension along which each output has its samples; empty if not known
    path: str | None = None  # of the module it is written in, "" of the model; None where that is the layer's
    _reads: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _named: tuple[tuple[str, str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Lists what is read once: walks through a model ask for it hundreds of thousands of times."""
        refs = [ref.name for value in self.arguments.values() for ref in _refs(value)]
        object.__setattr__(self, "_reads", tuple(refs))
        object.__setattr__(self, "_named", tuple(_named_reads(self.arguments)))

    @property
    def place(self) -> str:
        """Returns where users find the operation in their model.

        An operation that belongs to no layer of its own is counted to a neighbouring layer; the text names both.
        """
        if self.path is None:
            return self.layer
        return f"{self.path or 'forward of the model'} (counted to layer '{self.layer}')"

    def reads(self) -> tuple[str, ...]:
        """Returns the names of the tensors among the arguments, in the order of the arguments."""
        return self._reads

    def named_reads(self) -> tuple[tuple[str, str], ...]:
        """Returns (argument, tensor) for every tensor that is read; entries of a list are numbered."""
        return self._named


def _named_reads(arguments: Mapping[str, Given]) -> Iterator[tuple[str, str]]:
    for argument, value in arguments.items():
        if isinstance(value, Ref):
            yield argument, value.name
        elif isinstance(value, tuple):
            yield from ((f"{argument}.{i}", x.name) for i, x in enumerate(value) if isinstance(x, Ref))


def _refs(value: Given) -> list[Ref]:
    if isinstance(value, Ref):
        return [value]
    return [ref for x in value for ref in _refs(x)] if isinstance(value, tuple) else []
