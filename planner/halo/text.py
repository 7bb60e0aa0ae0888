"""Operations as lines of text, so that a profile file can hold what a split needs to be priced."""

from __future__ import annotations

import json

from planner.errors import BadInput
from planner.halo.operation import Given, Operation, Ref

TENSOR = "tensor"  # key of a reference


def to_text(operation: Operation) -> str:
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
