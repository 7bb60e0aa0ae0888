"""Checks the tables of a ModelGraph against each other, and orders of its layers: a file may say what no capture would.

`refusals` tells what a model does not allow of a plan: degrees and settings that would train it otherwise, or not at
all. The solver leaves such configurations out, `verify` finds them in any plan, and the runtime asks again before it
runs one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from math import prod

from planner.errors import BadInput, Violation
from planner.files import WrongKey, decode
from planner.model.graph import Buffer, ModelGraph, Parameter

MOST = 2**44  # bytes or elements of one tensor
MOST_FLOPS = 2**60  # of one layer, for one sample


def misplaced(graph: ModelGraph, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Finds layers that stand before a layer that they depend on.

    Args: `names` are all the layers, in any order.
    Yields: (layer, the layer that it needs and that comes later).
    """
    at = {name: place for place, name in enumerate(names)}
    for before, after in dependences(graph):
        if at[before] > at[after]:
            yield after, before


def dependences(graph: ModelGraph) -> Iterator[tuple[str, str]]:
    """Lists which layer must come before which.

    A layer depends on the producers of its Values, and the loss on every layer. Layers that use a buffer which is
    written depend on each other in the order of the capture.

    Args: `graph` has at least one layer.
    Yields: (before, after), names of layers; a pair may come twice.
    """
    for value in graph.values:
        if value.producer:
            yield from ((value.producer, consumer) for consumer in value.consumers)
    for buffer in graph.buffers:
        if buffer.mutated:
            yield from zip(buffer.users, buffer.users[1:], strict=False)
    last = graph.layers[-1].name
    yield from ((layer.name, last) for layer in graph.layers[:-1])


def alone(graph: ModelGraph) -> bool:
    """Returns whether the order of the layers is the only one possible: every layer depends on the one before.

    Args: `graph` is any model.
    """
    needed = set(dependences(graph))
    return all((a.name, b.name) in needed for a, b in pairwise(graph.layers))


def graph_from_dict(data: object, where: str = "graph") -> ModelGraph:
    """Returns the graph that `ModelGraph.to_dict` wrote.

    Raises: BadInput for anything else than what `to_dict` wrote.
    """
    if not isinstance(data, dict):
        raise BadInput("is not a mapping", where=where, allowed="the mapping that to_dict wrote")
    claimed = data.get("fingerprint")
    rows = {key: value for key, value in data.items() if key != "fingerprint"}
    try:
        graph = decode(ModelGraph, _as_lists(rows))
    except WrongKey as error:
        place = ".".join([where, *map(str, error.path)])
        raise BadInput(error.what, where=place, allowed=error.allowed) from None
    wrong = inconsistency(graph)
    if wrong:
        raise BadInput(wrong, where=where)
    if claimed != graph.fingerprint:
        raise BadInput(f"fingerprint is {claimed!r:.80}", where=where, allowed=graph.fingerprint)
    return graph


def _as_lists(data: object) -> object:
    """Turns tuples, which `to_dict` keeps, into the lists that files hold."""
    if isinstance(data, dict):
        return {key: _as_lists(value) for key, value in data.items()}
    return [_as_lists(value) for value in data] if isinstance(data, tuple | list) else data


def inconsistency(graph: ModelGraph) -> str:
    """Finds the first thing that two tables of a graph say differently.

    Args: `graph` may come from any file.
    Returns: a sentence; empty where the tables agree.
    """
    tables: dict[str, list[str]] = {
        "layers": [x.name for x in graph.layers],
        "values": [x.name for x in graph.values],
        "parameters": [x.name for x in graph.parameters],
        "buffers": [x.name for x in graph.buffers],
    }
    for table, names in tables.items():
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            return f"{table}: '{twice}' is there twice"
    if not graph.layers or graph.layers[-1].name != "loss":
        return "layers: the last one is not 'loss'"
    return next(chain(_wrong_values(graph), _wrong_states(graph), _wrong_sizes(graph)), "")


def _wrong_values(graph: ModelGraph) -> Iterator[str]:
    reads = {(name, layer.name) for layer in graph.layers for name in layer.inputs}
    makes = {(name, layer.name) for layer in graph.layers for name in layer.outputs}
    said = {(value.name, user) for value in graph.values for user in value.consumers}
    made = {(value.name, value.producer) for value in graph.values if value.producer}
    for value, layer in sorted(reads ^ said):
        yield f"layer '{layer}' and value '{value}' differ on whether one reads the other"
    for value, layer in sorted(makes ^ made):
        yield f"layer '{layer}' and value '{value}' differ on whether one makes the other"
    for row in graph.values:
        start = graph.index[row.producer] if row.producer else -1
        places = [start, *(graph.index[user] for user in row.consumers)]
        if any(a >= b for a, b in pairwise(places)):
            yield f"value '{row.name}' is read out of order"
        if (row.role == "hidden") != bool(row.producer):
            yield f"value '{row.name}' is {row.role} with producer '{row.producer}'"


def _wrong_states(graph: ModelGraph) -> Iterator[str]:
    holders: list[Parameter | Buffer] = [*graph.parameters, *graph.buffers]
    said = {(row.name, user) for row in holders for user in row.users}
    used = {(name, x.name) for x in graph.layers for name in (*x.parameters, *x.buffers)}
    for state, layer in sorted(used ^ said):
        yield f"layer '{layer}' and tensor '{state}' differ on whether one uses the other"


def _wrong_sizes(graph: ModelGraph) -> Iterator[str]:
    for value in graph.values:
        if min(value.fixed_bytes, value.sample_bytes, *value.shape, 0) < 0:
            yield f"value '{value.name}' has a negative size"
        if max(value.fixed_bytes, value.sample_bytes, prod(value.shape)) > MOST:
            yield f"value '{value.name}' is larger than {MOST} bytes"
    states: list[Parameter | Buffer] = [*graph.parameters, *graph.buffers]
    for row in states:
        if min(row.bytes, *row.shape, 0) < 0:
            yield f"tensor '{row.name}' has a negative size"
        if max(row.bytes, prod(row.shape)) > MOST:
            yield f"tensor '{row.name}' is larger than {MOST} bytes"
    for buffer in graph.buffers:
        if buffer.remembered and not buffer.mutated:
            yield f"buffer '{buffer.name}' is remembered, but never written"
        if buffer.update and not buffer.mutated:
            yield f"buffer '{buffer.name}' has an update, but is never written"
    for name in graph.synchronised:
        if name not in graph.index:
            yield f"synchronised: there is no layer '{name}'"
    for layer in graph.layers:
        if min(layer.fixed_flops, layer.sample_flops) < 0:
            yield f"layer '{layer.name}' has negative operations"
        if max(layer.fixed_flops, layer.sample_flops) > MOST_FLOPS:
            yield f"layer '{layer.name}' has more than {MOST_FLOPS} operations"
    if not 1 <= graph.captured_micro <= MOST:
        yield f"captured_micro is {graph.captured_micro}"
    if graph.least_micro < 1 or 0 < graph.most_micro < graph.least_micro or graph.most_micro < 0:
        yield f"least_micro is {graph.least_micro}, most_micro {graph.most_micro}"


def served(graph: ModelGraph) -> str:
    """Returns the micro-batches that a captured model holds for, in words."""
    least, most = graph.least_micro, graph.most_micro
    if not graph.symbolic_batch:
        return f"micro-batch {graph.captured_micro} only"
    if not most:
        return "any micro-batch" if least == 1 else f"micro-batches of {least} or more"
    return f"micro-batches of {least} to {most}"


ONE_STAGE = "one stage, shard_optimizer: false"
ONE_HOLDER = "data: 1, spatial: 1 and no Chimera"


def own_states(graph: ModelGraph) -> dict[str, tuple[str, ...]]:
    """Returns the buffers that every holder updates from whole parameters, such as those of a spectral norm.

    Args: `graph` is the model.
    Returns: names of buffers, and the layers that use each.
    """
    return {row.name: row.users for row in graph.buffers if row.update == "own"}


def refusals(
    graph: ModelGraph,
    *,
    data: int = 1,
    spatial: int = 1,
    pipes: int = 1,
    compiled: bool = False,
    micro: int | None = None,
    stages: int = 1,
    shard: bool = False,
    joint: str = "",
) -> Iterator[Violation]:
    """Yields why a model cannot be trained so.

    Args: `data`, `spatial` and `pipes` are how many replicas, shards of a sample and pipes there are; `compiled` is
        whether stages are; `micro` is the samples of a micro-batch, None is any. `stages` is how many there are,
        `shard` whether optimizer state is sharded, and `joint` names an optimizer that looks at all parameters
        together, "" is any other.
    """
    types = {parameter.dtype for parameter in graph.parameters if parameter.trainable}
    if joint and (stages > 1 or shard or len(types) > 1):
        yield Violation(rule="optimizer", where=joint, message=_parted(types))
    if max(data, spatial, pipes) > 1 and (found := one_holder(graph)):
        cause, cure = found
        message = f"{cause}, and replicas, shards and pipes cannot keep it equal: {ONE_HOLDER}; or {cure}"
        yield Violation(rule="state", where="axes", message=message)
    if data > 1 and graph.synchronised:
        normed = f"'{graph.synchronised[0]}' has a SyncBatchNorm over {data} replicas, which does not go with"
        if spatial > 1:
            yield _setting("axes.spatial", f"{normed} split samples: spatial: 1")
        if compiled:
            yield _setting("execution", f"{normed} compiled stages: execution: eager")
    if compiled and spatial > 1:
        yield _setting("execution", "stages of split samples are not compiled: execution: eager")
    if micro is not None and not graph.serves(micro):
        message = f"is {micro}, but the model was captured for {served(graph)}"
        yield Violation(rule="batch", where="batch.micro", message=message)
    rows: list[Parameter | Buffer] = [*graph.parameters, *graph.buffers]
    for row in rows:
        if row.dtype == "complex128":
            message = "is complex128, which no checkpoint (safetensors) holds; complex64"
            yield Violation(rule="model", where=f"'{row.name}'", message=message)


def _parted(types: set[str]) -> str:
    cause = "looks at all parameters together, and is given those of one stage and type at a time"
    several = f", of which there are {' and '.join(sorted(types))}" if len(types) > 1 else ""
    return (
        f"{cause}{several}: {ONE_STAGE}; or an optimizer that updates each parameter by itself, and --clip-norm in "
        "place of clipping inside step()"
    )


def _setting(where: str, message: str) -> Violation:
    return Violation(rule="settings", where=where, message=message)


def one_holder(graph: ModelGraph) -> tuple[str, str] | None:
    """Returns why each stage of a model can have one holder only: the cause, and what else than that would help.

    Args: `graph` may be of a file that does not say how buffers are updated.
    Returns: None where several holders can keep all states equal.
    """
    for parameter in graph.parameters:
        if parameter.written and not parameter.trainable:
            what = f"the forward pass writes parameter '{parameter.name}', which is not trained"
            return what, "a buffer in its place (register_buffer), as for the average of weights of a teacher"
        if parameter.written:
            what = (
                f"the forward pass writes parameter '{parameter.name}' (as an embedding with max_norm does)"
            )
            return what, "an operation that gives a new tensor, as normalize does, in place of max_norm"
    for buffer in graph.buffers:
        if buffer.update == "samples":
            reads = "writes and reads" if buffer.remembered else "writes"
            what = f"the forward pass {reads} '{buffer.name}', which depends on the samples that it sees"
            return what, "a forward that does not write it (opaque does not help)"
        if buffer.remembered and not buffer.update:
            what = f"the forward pass writes and reads '{buffer.name}' in a way that its file does not say"
            return what, "a new profile"
    return None
