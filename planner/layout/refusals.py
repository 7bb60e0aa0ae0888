"""What cannot be done on parts of tensors, said with the operation, its module, and where the parts must end."""

from __future__ import annotations

from typing import Final

from planner.layout.families import FAMILIES
from planner.spatial import AFTER, Call, NoRule, Operation

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
