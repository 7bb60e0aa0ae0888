"""Says how the weights of a training are held: which entries of pruned ones are kept, and which weights are in bf16.

Under `precision: bf16` a product or a convolution reads its weight rounded to bf16. With `weights: bf16` such a weight
is held as those numbers alone, and what is updated is held in fp32 beside it. So each operation reads the same numbers
either way, and the training is the same to the bit. A weight that anything else reads stays in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from planner.errors import BadInput, Violation
from planner.kept import kept_counts
from planner.model import ModelGraph
from planner.plan.cuts import is_cut
from planner.plan.plan import Plan
from planner.plan.sharding import shared_by_element
from planner.profile import Profile
from planner.spatial import Operation, Ref, from_text

STATE = "state:"  # before the name of a parameter, among what operations read
READ_IN_HALF = {
    "aten.linear": ("weight",),
    "aten.addmm": ("mat1", "mat2"),
    "aten.mm": ("self", "mat2"),
    "aten.matmul": ("self", "other"),
    "aten.bmm": ("self", "mat2"),
    "aten.baddbmm": ("batch1", "batch2"),
} | {
    f"aten.{name}": ("weight",) for dims in "123" for name in (f"conv{dims}d", f"conv_transpose{dims}d")
}  # operations that autocast always runs in half precision, and the arguments by which they read a weight


def halved_weights(graph: ModelGraph) -> frozenset[str]:
    """Returns the trained weights that `weights: bf16` holds in bf16.

    These are fp32 weights of two dims or more that only products and convolutions read.
    Args: `graph` has its operations; without them the result is empty.
    """
    read: set[str] = set()
    otherwise: set[str] = set()
    for text in graph.operations:
        operation = from_text(text)
        weights = _weights(operation)
        read |= weights
        otherwise |= {name for name in operation.reads() if name not in weights}
    return frozenset(
        row.name
        for row in graph.trained
        if row.dtype == "float32" and len(row.shape) > 1 and not row.written
        for state in [f"{STATE}{row.name}"]
        if state in read and state not in otherwise
    )


def with_halved(profile: Profile) -> Profile:
    """Returns a profile of which plans hold weights in bf16.

    Operations read these weights as they are, so no layer saves a copy of them in bf16 for its backward.
    Args: `profile` has rows in bf16.
    """
    graph, halved = profile.graph, halved_weights(profile.graph)
    copies: dict[str, int] = {}  # by signature, which layers of one kind share
    for layer in graph.layers:
        own = sum(graph.parameter[name].bytes // 2 for name in {*layer.parameters} & halved)
        copies[layer.signature] = min(own, copies.get(layer.signature, own))
    costs = {
        key: replace(row, own_saved_bytes=max(0, row.own_saved_bytes - copies.get(key.signature, 0)))
        if key.precision == "bf16"
        else row
        for key, row in profile.costs.items()
    }
    return replace(profile, costs=costs, halved=halved)


def held_in_half(profile: Profile, precision: str, execution: str, by_element: bool, cut: bool) -> Profile:
    """Returns `with_halved` of a profile.

    Args: the others are those of `not_with_halved`.
    Raises: BadInput where weights in bf16 do not go with what else is asked for.
    """
    for message in not_with_halved(
        profile.graph, precision=precision, execution=execution, by_element=by_element, cut=cut
    ):
        raise BadInput(message, where="fix weights")
    return with_halved(profile)


def _weights(operation: Operation) -> set[str]:
    given = (operation.arguments.get(name) for name in READ_IN_HALF.get(operation.operation, ()))
    return {value.name for value in given if isinstance(value, Ref)}


def kept_of(plan: Plan, graph: ModelGraph) -> dict[str, int]:
    """Returns how many entries each pruned parameter keeps; nothing where a plan prunes none.

    Args: `graph` is the model of the plan.
    """
    if plan.kept is None:
        return {}
    return dict(plan.kept.counts) or kept_counts(graph, plan.kept.share)


def refused_weights(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """Yields what cannot be had of the pruning and of the weights in bf16 that a plan asks for.

    Args: `graph` is the model of the plan.
    """
    yield from _refused_kept(plan, graph)
    if plan.weights == "bf16":
        for message in not_with_halved(
            graph,
            precision=plan.precision,
            execution=plan.execution,
            by_element=shared_by_element(plan),
            cut=is_cut(plan),
        ):
            yield Violation(rule="weights", where="weights", message=message)


def not_with_halved(
    graph: ModelGraph, *, precision: str, execution: str, by_element: bool, cut: bool
) -> Iterator[str]:
    """Yields what weights in bf16 do not go with, each with what does.

    Args: `by_element` is whether gradients or parameters are shared by element, `cut` whether tensors are in parts.
    """
    if precision != "bf16":
        yield f"weights are bf16 where products are in {precision}: precision bf16, or weights as they are"
    if execution == "compiled":
        yield "weights in bf16 do not go with compiled stages: eager, or weights as they are"
    if by_element:
        yield "weights in bf16 do not go with gradients or parameters shared by element: shard state, or nothing"
    if cut:
        yield "weights in bf16 do not go with tensors in parts: one of the two"
    if not graph.operations:
        yield "the model's operations are not known, so nobody can tell which weights are read in bf16: profile again"
    elif not halved_weights(graph):
        yield "no weight is read by products and convolutions alone: weights as they are"


def _refused_kept(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """Yields what cannot be had of the pruning that a plan asks for."""
    if plan.kept is None:
        return
    sizes = {row.name: prod(row.shape) for row in graph.trained}
    for name, count in plan.kept.counts.items():
        if name in sizes and graph.parameter[name].written:
            message = f"'{name}', which the model itself writes in its forward pass; other parameters"
            yield Violation(rule="kept", where="kept.counts", message=message)
        elif count >= sizes.get(name, 0):
            met = f"{sizes[name]} elements" if name in sizes else "no trained parameter of this model"
            message = f"{count} of '{name}', which has {met}; fewer than a trained parameter has"
            yield Violation(rule="kept", where="kept.counts", message=message)
    if plan.ema:
        message = "ema averages whole parameters, and these are pruned: no ema, or a dense plan"
        yield Violation(rule="kept", where="ema", message=message)
    if shared_by_element(plan):
        message = (
            "pruned weights do not go with gradients or parameters shared by element: shard state, or nothing"
        )
        yield Violation(rule="kept", where="kept", message=message)
