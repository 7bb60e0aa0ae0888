"""Operations as lines of text, so that a profile file can hold what is needed to price a split.

An `Operation` is one operation of a captured model as integers: what it reads, and the shapes of what it makes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planner.errors import BadInput

TENSOR = "tensor"  # key of a reference


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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"not an operation: {text:.80}", where="operations") from error
    return Operation(name, layer, operation, arguments, shapes, samples, path)


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

    @property
    def place(self) -> str:
        """Returns where users find the operation in their model.

        An operation that belongs to no layer of its own is counted to a neighbouring layer; the text names both.
        """
        if self.path is None:
            return self.layer
        return f"{self.path or 'forward of the model'} (counted to layer '{self.layer}')"

    def reads(self) -> list[str]:
        """Returns the names of the tensors among the arguments, in the order of the arguments."""
        return [ref.name for value in self.arguments.values() for ref in _refs(value)]


def _refs(value: Given) -> list[Ref]:
    if isinstance(value, Ref):
        return [value]
    return [ref for x in value for ref in _refs(x)] if isinstance(value, tuple) else []
