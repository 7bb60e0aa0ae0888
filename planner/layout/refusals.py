"""What cannot be done on parts of tensors, said with the operation, its module, and where the parts must end.

Operations may come from a stranger's file. So each is tried once on the rules, before anything is reckoned with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from planner.errors import BadInput
from planner.layout.factor import Along, Factor, Side, numbered
from planner.layout.families import FAMILIES, RING, ring_refused
from planner.layout.lying import DimCut
from planner.layout.moves import MOVES, source_of
from planner.spatial import (
    AFTER,
    AS_CAPTURED,
    GETITEM,
    INPUT,
    STATE,
    TARGET,
    Call,
    NoRule,
    Operation,
    Ref,
    call_of,
    whole,
)

Shape = tuple[int, ...]

PARTS: Final = "parts of tensors"


def refused(operation: Operation, why: str, allowed: str = "") -> NoRule:
    """Returns the error for an operation that ranks cannot share.

    Args: `why` goes on after the operation's name; `allowed` names another way than to end the parts before it.
    """
    stop = f"tensors that are alike before layer '{operation.layer}': no cut in the layers that it reads"
    return NoRule(
        f"{operation.operation} on {PARTS}: {why}",
        where=operation.place,
        allowed=f"{allowed}, or {stop}" if allowed else stop,
        layer=operation.layer,
    )


def too_few(operation: Operation, factor: Factor, parts: int) -> NoRule:
    """Returns the error for a factor that has fewer units than there are ranks to share them."""
    instead = f"up to {factor.size} ranks"
    if "heads" in factor.also:
        rows = numbered(len(operation.outputs[0]) - 2)
        instead += f", or rows of the query by '{RING}' or '{rows}'"
    return refused(
        operation, f"{factor.size} of '{(*factor.also, factor.name)[0]}' for {parts} ranks", instead
    )


def refuse_parts(operation: Operation, call: Call) -> None:
    """Refuses an operation that reads a tensor in parts and cannot.

    Raises: NoRule for one without a rule, one that writes in place, and attention that draws numbers.
    """
    kind = operation.operation
    if kind == AFTER or (kind.endswith("_") and not kind.endswith("__")):
        raise refused(operation, "it writes in place into a tensor that ranks hold in parts")
    if kind not in FAMILIES:
        raise refused(operation, "it has no rule")
    if kind == "aten.scaled_dot_product_attention" and call.get("dropout_p", 0.0):
        why = "its kernel draws the dropout of attention inside"
        raise refused(operation, why, "a dropout of 0 in attention")


def refuse_ring(operation: Operation, call: Call, chosen: Sequence[str], trained: Collection[str]) -> None:
    """Refuses an attention that is to be done in a ring and cannot.

    Args: `chosen` has the factor that it takes along each axis; `call` has the global shapes of its tensors, and
        `trained` the arguments that have a gradient.
    Raises: NoRule for one with dropout, with a mask that is trained, with unequal rows, or whose rows a second axis cuts.
    """
    if operation.operation != "aten.scaled_dot_product_attention":
        return
    instead = "'ulysses', or 'dim2', which gathers keys and values"
    if why := ring_refused(call):
        raise refused(operation, f"no ring: {why}", instead)
    if "attn_mask" in trained:
        raise refused(operation, "no ring: its mask is trained", instead)
    rows = numbered(len(operation.outputs[0]) - 2)
    if chosen.count(RING) > 1 or (RING in chosen and rows in chosen):
        raise refused(operation, "no ring: a second axis cuts its rows, too", "one axis for the sequence")


@contextmanager
def as_captured(operation: Operation) -> Iterator[None]:
    """Reads an operation by a rule: what only a file can make go wrong is told as the file's.

    Raises: BadInput where the arguments or shapes of the operation are none that torch would give it.
    """
    try:
        yield
    except BadInput:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError) as error:
        said = str(error) or type(error).__name__
        what = f"'{operation.name:.80}' is no {operation.operation:.80} that there can be: {said:.80}"
        raise BadInput(what, where="operations", allowed=AS_CAPTURED) from error


def try_rules(operations: Sequence[Operation]) -> None:
    """Asks the rules about every operation, and holds what they answer against the shapes of its tensors.

    Args: `operations` agree with each other, and may come from any file.
    Raises: BadInput for the first operation whose arguments or shapes are none that torch would give it.
    """
    shapes = {x.name: x.outputs for x in operations}
    for operation in operations:
        with as_captured(operation):
            _try(operation, {name: shapes[name] for name in operation.reads()})


def _try(operation: Operation, shapes: dict[str, tuple[Shape, ...]]) -> None:
    kind = operation.operation
    if kind in (INPUT, TARGET, STATE):
        return
    if kind == GETITEM:
        source, index = operation.arguments["self"], operation.arguments["index"]
        assert isinstance(source, Ref) and isinstance(index, int), "an entry of nothing"
        assert (shapes[source.name][index],) == operation.outputs, f"entry {index} of another shape"
        return
    reads = {argument: shapes[name][0] for argument, name in operation.named_reads()}
    call = call_of(operation, {name: whole(made[0]) for name, made in shapes.items()})
    if kind in MOVES and source_of(call) in reads:
        source_shape = reads[source_of(call)]
        for dim, size in enumerate(source_shape):
            moved = MOVES[kind](call, dim, DimCut((0,), (0, size)))
            for shape, (at, cut) in zip(operation.outputs, moved or (), strict=moved is not None):
                assert cut.size == shape[at], f"{size} rows become {shape[at]}"
    for factor in FAMILIES[kind](call) if kind in FAMILIES else ():
        for argument, shape in reads.items():
            _hold(factor.size, factor.side(argument), shape)
        for side, shape in zip(factor.outputs, operation.outputs, strict=True):
            _hold(factor.size, side, shape)


def _hold(size: int, side: Side, shape: Shape) -> None:
    if isinstance(side, Along):
        assert side.dim >= 0 and shape[side.dim] == size * side.unit, f"{size * side.unit} rows in {shape}"
