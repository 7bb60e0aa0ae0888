"""Profiles on disk: YAML of one row a line, which is JSON too, so that a thousand layers load in a moment."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal

from planner import files
from planner.files import WrongKey, decode, parse_document, write_whole
from planner.model import Buffer, Layer, ModelGraph, Parameter, Value, inconsistency
from planner.profile.check import check, faults
from planner.profile.profile import CostKey, LayerCost, OptimizerCost, Profile, SampleCost, Seconds

PROFILE_VERSION = 1
MOST_BYTES = 64 * 2**20  # of a profile file
_UNUSUAL = (
    "joint",
    "by_element",
    "gather_seconds_per_parameter",
    "scatter_seconds_per_parameter",
)  # if not set
HEADER = "# shardwright profile: what every layer costs, and the model that it was measured on\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRows:
    """The model in a profile file."""

    loss_kind: Literal["mean", "sum_count"]
    symbolic_batch: bool
    captured_micro: int
    fingerprint: str
    layers: tuple[Layer, ...]
    values: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]
    operations: tuple[str, ...] = ()
    synchronised: tuple[str, ...] = ()
    least_micro: int = 1
    most_micro: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """One layer at one setting in a profile file."""

    signature: str
    micro: int
    split: tuple[int, ...]
    precision: Literal["fp32", "bf16", "fp16"]
    execution: Literal["eager", "compiled"]
    forward: Seconds
    backward: Seconds
    input_grad: Seconds
    weight_grad: Seconds
    own_saved_bytes: int
    kept_inputs: tuple[int, ...]
    kept_outputs: tuple[int, ...]
    held_bytes: int
    workspace_bytes: int
    forward_workspace_bytes: int | None = None
    output_bytes: tuple[int, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    walks: bool = False
    walked_bytes: int = 0
    owing_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """One row in a profile file that could not be had, and why."""

    signature: str
    micro: int
    split: tuple[int, ...]
    precision: Literal["fp32", "bf16", "fp16"]
    execution: Literal["eager", "compiled"]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A profile file as it stands there."""

    version: int
    workload: str
    arguments: Mapping[str, object]
    device: str
    source: Literal["measured", "roofline"]
    versions: Mapping[str, str]
    optimizer: OptimizerCost
    graph: GraphRows
    costs: tuple[CostRow, ...]
    failures: tuple[FailureRow, ...] = ()
    others: float = 0.0
    samples: SampleCost | None = None


def dumps(profile: Profile) -> str:
    """Returns a profile as the text of a file; equal profiles give the same bytes.

    Args: `profile` is checked first.
    Raises: BadInput where the profile cannot be planned with.
    """
    check(profile)
    order = {layer.signature: i for i, layer in reversed(list(enumerate(profile.graph.layers)))}
    document = {
        "version": PROFILE_VERSION,
        "workload": profile.workload,
        "arguments": dict(profile.arguments),
        "device": profile.device,
        "source": profile.source,
        "versions": dict(profile.versions),
        **({"others": profile.others} if profile.others else {}),
        **({"samples": asdict(profile.samples)} if profile.samples else {}),
        "optimizer": {k: x for k, x in asdict(profile.optimizer).items() if x or k not in _UNUSUAL},
        "graph": profile.graph.to_dict(),
        "costs": [
            key._asdict() | {k: x for k, x in asdict(cost).items() if x is not None}
            for key, cost in sorted(profile.costs.items(), key=lambda row: (order[row[0].signature], row[0]))
        ],
        "failures": [key._asdict() | {"why": why} for key, why in sorted(profile.failures.items())],
    }
    return HEADER + "\n".join(_lines(document)) + "\n"


def _lines(table: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Yields a mapping as lines: one row of its lists a line, and one key a line where mappings hold such lists."""
    yield "{"
    last = len(table) - 1
    for i, (key, value) in enumerate(table.items()):
        comma = "," if i < last else ""
        head = f"{indent} {json.dumps(key)}: "
        if key == "graph" and isinstance(value, Mapping):
            first, *rest = _lines(value, indent + " ")
            yield from _joined(head, [first, *rest], comma)
        elif isinstance(value, list) and value:
            rows = [f"{indent}  {_compact(row)}" for row in value]
            parted = [row + "," for row in rows[:-1]] + rows[-1:]
            yield from _joined(head, ["[", *parted, f"{indent} ]"], comma)
        else:
            yield f"{head}{_compact(value)}{comma}"
    yield f"{indent}}}"


def _compact(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _joined(head: str, lines: list[str], tail: str) -> Iterable[str]:
    lines[0] = head + lines[0]
    lines[-1] += tail
    return lines


def save(profile: Profile, path: pathlib.Path | str) -> None:
    """Writes a profile to a file, whole or not at all.

    Args: `path` is replaced where it exists; callers decide before whether it may be.
    """
    write_whole(pathlib.Path(path), dumps(profile))


def load(path: pathlib.Path | str) -> Profile:
    """Returns the profile in a file.

    Args: `path` is a file that `save` wrote, or one written by hand.
    Raises: BadInput names the key, the line and what was allowed.
    """
    path = pathlib.Path(path)
    return loads(files.read_text(path, max_bytes=MOST_BYTES), str(path))


def loads(text: str, file: str = "profile") -> Profile:
    """Returns the profile in a text.

    Args: `file` stands for the file in messages.
    Raises: BadInput names the key, the line and what was allowed.
    """
    data = parse_document(text, name=file)
    try:
        _check_version(data)
        profile = _profile(decode(Document, data))
        for fault in faults(profile):
            raise WrongKey(*fault)
        return profile
    except WrongKey as error:
        raise error.in_file(file, text) from None


def _check_version(data: Mapping[str, object]) -> None:
    if "version" not in data:
        raise WrongKey((), "is no profile: it has no version", f"version: {PROFILE_VERSION}")
    version = data["version"]
    if type(version) is not int or not 1 <= version <= PROFILE_VERSION:
        raise WrongKey(("version",), f"{version!r} is not known here", f"{PROFILE_VERSION}; or update")


def _profile(document: Document) -> Profile:
    return Profile(
        workload=document.workload,
        arguments=document.arguments,
        graph=_graph(document.graph),
        device=document.device,
        source=document.source,
        costs=_costs(document.costs),
        optimizer=document.optimizer,
        versions=document.versions,
        failures={_key(row): row.why for row in document.failures},
        others=document.others,
        samples=document.samples,
    )


def graph_of(data: object) -> ModelGraph:
    """Returns the model in plain data, such as a profile holds.

    Args: `data` is what `ModelGraph.to_dict` gave.
    Raises: WrongKey where it is no model, or not the one that its fingerprint says.
    """
    return _graph(decode(GraphRows, data))


def _graph(rows: GraphRows) -> ModelGraph:
    graph = ModelGraph(**{x.name: getattr(rows, x.name) for x in fields(rows) if x.name != "fingerprint"})
    wrong = inconsistency(graph)
    if wrong:
        raise WrongKey(("graph",), wrong)
    if graph.fingerprint != rows.fingerprint:
        allowed = f"{graph.fingerprint}, which is that of these layers"
        raise WrongKey(("graph", "fingerprint"), "does not belong to these layers", allowed)
    return graph


def _key(row: CostRow | FailureRow) -> CostKey:
    return CostKey(row.signature, row.micro, row.split, row.precision, row.execution)


def _costs(rows: tuple[CostRow, ...]) -> dict[CostKey, LayerCost]:
    names = [x.name for x in fields(LayerCost)]
    costs: dict[CostKey, LayerCost] = {}
    for i, row in enumerate(rows):
        key = _key(row)
        if key in costs:
            raise WrongKey(
                ("costs", i), "a row with this signature and setting is there twice", "one of each"
            )
        costs[key] = LayerCost(**{name: getattr(row, name) for name in names})
    return costs
