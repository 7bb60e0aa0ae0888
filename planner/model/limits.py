"""Tells what a model does not allow of a plan: degrees and settings that would train it otherwise, or not at all.

The solver leaves such configurations out, `verify` finds them in any plan, and the runtime asks again before it
runs one.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.errors import Violation
from planner.model.check import served
from planner.model.graph import Buffer, ModelGraph, Parameter

ONE_STAGE = "one stage, shard_optimizer: false"
ONE_HOLDER = "data: 1, spatial: 1 and no Chimera"


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
