"""Turns a YAML text into a validated model, and pydantic's errors into one message with file, line and key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from planner.errors import BadInput
from planner.files import disk, yaml_text

M = TypeVar("M", bound=BaseModel)
JsonSchema = dict[str, object]

LARGEST = 2**63 - 1
Count = Annotated[int, Field(ge=1, le=LARGEST, strict=True)]
Natural = Annotated[int, Field(ge=0, le=LARGEST, strict=True)]
NotNegative = Annotated[float, Field(ge=0, strict=True)]
Positive = Annotated[float, Field(gt=0, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(min_length=1)]


class Part(BaseModel):
    """A mapping of a file of ours: plain data, frozen, with no key that is not ours."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True
    )  # built when first read: importing is quick


def wrong(what: str, *, allowed: str = "", key: yaml_text.Key = ()) -> PydanticCustomError:
    """Makes the error that a validator of a model raises.

    Args: `allowed` says what would have been right; `key` is where, below the validated part.
    """
    return PydanticCustomError("wrong", "{what}", {"what": what, "allowed": allowed, "key": key})


def load(model: type[M], path: Path, *, version: int) -> M:
    """Reads a file into a model.

    Args: `version` is the newest version of the format that is understood.
    Raises: BadInput where the file cannot be read, or does not fit the model.
    """
    return read(model, disk.read_text(path), name=str(path), version=version)


def read(model: type[M], text: str, *, name: str, version: int) -> M:
    """Reads a text into a model.

    Args: `name` is the file's, for messages; `version` is the newest version that is understood.
    Raises: BadInput where the text is no YAML, or does not fit the model.
    """
    data = yaml_text.parse_yaml(text, name=name)
    _check_version(data, version, text, name)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise bad_input(model, error, text=text, name=name) from None


def _check_version(data: dict[str, yaml_text.Data], version: int, text: str, name: str) -> None:
    allowed = f"{version}" if version == 1 else f"1 to {version}"
    if "version" not in data:
        raise BadInput("missing key 'version'", where=name, allowed=allowed)
    found = data["version"]
    line = f"{name}:{yaml_text.locate(text, ('version',)).line}"
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise BadInput(f"version: {yaml_text.shown(found)} is no version", where=line, allowed=allowed)
    if found > version:
        raise BadInput(
            f"version: {found} is from the future of this program",
            where=line,
            allowed=f"{allowed}; or update",
        )


def bad_input(model: type[BaseModel], error: ValidationError, *, text: str, name: str) -> BadInput:
    """Turns the first of pydantic's errors into an error for users, unknown keys before others.

    Args: `text` is what was read and `name` its file.
    """
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    line, key = yaml_text.locate(text, (*first["loc"], *first.get("ctx", {}).get("key", ())))
    what, allowed = _words(first, model.model_json_schema(), key)
    shown_key = f"{yaml_text.dotted(key)}: " if key else ""
    return BadInput(f"{shown_key}{what}", where=f"{name}:{line}", allowed=allowed)


def _words(error: ErrorDetails, schema: JsonSchema, key: yaml_text.Key) -> tuple[str, str]:
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            keys = schema_at(schema, key[:-1]).get("properties", {})
            return f"unknown key '{key[-1]}'", ", ".join(keys) if isinstance(keys, dict) else ""
        case "missing":
            missing = str(error["loc"][-1])
            return f"missing key '{missing}'", describe(schema, schema_at(schema, (*key, missing)))
        case "wrong":
            return str(context.get("what", "")), str(context.get("allowed", ""))
        case "value_error":
            return error["msg"].removeprefix("Value error, "), ""
    allowed = describe(schema, schema_at(schema, key))
    too_large = f" and <= {LARGEST}" if context.get("le") == LARGEST else ""
    return f"{yaml_text.shown(error['input'])} does not fit", allowed + too_large


def schema_at(schema: JsonSchema, key: Sequence[str | int]) -> JsonSchema:
    """Finds the part of a JSON schema that describes a key.

    Args: `key` is a path of names and indices.
    Returns: the part, or an empty one where no part describes the key.
    """
    node = schema
    for step in key:
        node = next((found for part in _parts(schema, node) if (found := _child(part, step))), {})
    return next(iter(_parts(schema, node)), node)


def _parts(schema: JsonSchema, node: JsonSchema) -> list[JsonSchema]:
    """Returns a node with its reference followed, and its alternatives side by side."""
    if isinstance(reference := node.get("$ref"), str):
        definitions = schema.get("$defs", {})
        assert isinstance(definitions, dict)
        return _parts(schema, definitions[reference.rsplit("/", 1)[1]])
    if isinstance(options := node.get("anyOf"), list):
        return [node, *(part for option in options for part in _parts(schema, option))]
    return [node]


def _child(node: JsonSchema, step: str | int) -> JsonSchema:
    if isinstance(step, int):
        fixed = node.get("prefixItems")
        if isinstance(fixed, list) and step < len(fixed):
            return _schema(fixed[step])
        return _schema(node.get("items"))
    properties = node.get("properties")
    if isinstance(properties, dict) and step in properties:
        return _schema(properties[step])
    return _schema(node.get("additionalProperties"))


def _schema(node: object) -> JsonSchema:
    return node if isinstance(node, dict) else {}


def describe(schema: JsonSchema, node: JsonSchema) -> str:
    """Describes in words what a part of a JSON schema allows.

    Args: `schema` is the whole one, for references, and `node` the part.
    """
    if "$ref" in node:
        return describe(schema, _parts(schema, node)[0])
    if isinstance(options := node.get("anyOf"), list):
        return " or ".join(dict.fromkeys(describe(schema, option) for option in options))
    if "const" in node:
        return yaml_text.shown(node["const"])
    if isinstance(values := node.get("enum"), list):
        return ", ".join(map(str, values))
    if isinstance(properties := node.get("properties"), dict):
        return "a mapping with " + ", ".join(properties)
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "boolean": "true or false",
        "array": "a list",
        "object": "a mapping",
        "null": "null",
    }
    if "pattern" in node and "description" in node:
        return str(node["description"])
    kind = "some text" if node.get("minLength") else words.get(str(node.get("type")), "")
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "minItems": "of length >="}
    limits = " and ".join(
        f"{sign} {node[word]}" for word, sign in bounds.items() if node.get(word, LARGEST) != LARGEST
    )
    return f"{kind} {limits}".strip()
