"""Rules of operations that sum over the sample: norms, reductions and losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.spatial.layout import Cut, Layout, whole
from planner.spatial.rows_needed import Fetch
from planner.spatial.rule import Call, Rule, Step, aligned, elements
from planner.spatial.rules.pointwise import elementwise


def batch_norm(call: Call) -> Step:
    """Returns the Step of a batch norm on shards.

    Returns: in training, two sums a channel and the count are reduced.
    Raises: NoRule where batch or channels are cut.
    """
    source = call.tensor("input")
    training = call.flag("training" if call.operation == "aten.batch_norm" else "use_input_stats")
    return _statistics(call, source, source.shape[1] if training else 0)


def instance_norm(call: Call) -> Step:
    """Returns the Step of an instance norm on shards.

    Returns: two sums a sample and channel and the count are reduced, unless running statistics are used.
    Raises: NoRule where batch or channels are cut.
    """
    source = call.tensor("input")
    training = call.flag("use_input_stats")
    return _statistics(call, source, source.shape[0] * source.shape[1] if training else 0)


def group_norm(call: Call) -> Step:
    """Returns the Step of a group norm on shards.

    Returns: two sums a sample and group and the count are reduced.
    Raises: NoRule where batch or channels are cut.
    """
    source = call.tensor("input")
    return _statistics(call, source, source.shape[0] * call.integer("num_groups"))


def _statistics(call: Call, source: Layout, groups: int) -> Step:
    """Returns the Step that reduces a mean and a sum of squares a group forward, with the count; two sums backward."""
    if set(source.cut_dims) & {0, 1}:
        raise call.refuse("its batch or channels are cut")
    count = 1 if groups else 0  # of what a statistic is taken over
    return Step((source,), axes=source.axes, reduced=2 * groups + count, reduced_backward=2 * groups)


def layer_norm(call: Call) -> Step:
    """Returns the Step of a layer norm or RMS norm, which is local.

    Raises: NoRule where it normalises over a dimension that is cut.
    """
    source = call.tensor("input")
    shape = call.get("normalized_shape")
    assert isinstance(shape, tuple)
    first = len(source.shape) - len(shape)
    if any(dim >= first for dim in source.cut_dims):
        raise call.refuse("it normalises over a dimension that is cut")
    return Step((source,), axes=source.axes)


def reduction(call: Call) -> Step:
    """Returns the Step of a sum, mean, maximum or the like over some dimensions.

    Returns: a result that is whole along the cut dimensions that it sums over, after an all-reduce.
    Raises: NoRule where it picks along a dimension that is cut, as argmax does; norms have orders 1 and 2 there.
    """
    if isinstance(call.get("other"), Layout):  # the larger of two tensors
        return elementwise(call)
    source = call.tensor("self")
    dims = call.dims("dim", len(source.shape))
    kept = [dim for dim in range(len(source.shape)) if dim not in dims]
    shape, keep = call.outputs[0], call.flag("keepdim")
    cuts: list[Cut | None] = [None] * len(shape)
    for position, dim in enumerate(kept):
        cuts[dim if keep else position] = source.cuts[dim]
    output = Layout(shape, tuple(cuts))
    over = source.axes - output.axes
    if over and (call.operation in LOCAL_ONLY or len(call.outputs) > 1):
        raise call.refuse("it picks along a dimension that is cut")
    _only_known_orders(call, over)
    local = elements(output.shape)
    outputs = (output,) * len(call.outputs)
    return Step(outputs, axes=source.axes, reduced=local if over else 0)


def _only_known_orders(call: Call, over: frozenset[int]) -> None:
    if call.operation == "aten.linalg_vector_norm" and over and call.get("ord", 2) not in (1, 2):
        raise call.refuse(f"the norm of order {call.get('ord')}", "orders 1 and 2")


def softmax(call: Call) -> Step:
    """Returns the Step of a softmax.

    Raises: NoRule where it sums along a dimension that is cut.
    """
    source = call.tensor("self")
    if call.integer("dim") % len(source.shape) in source.cut_dims:
        raise call.refuse("it sums along a dimension that is cut")
    return Step((source,) * len(call.outputs), axes=source.axes)


def cross_entropy(call: Call) -> Step:
    """Returns the Step of a cross entropy, with classes in dimension 1.

    Args: the call's targets are indices without that dimension, or probabilities with it.
    Raises: NoRule where batch or classes are cut.
    """
    source, target = call.tensor("self"), call.tensor("target")
    cut = {dim: c for dim, c in enumerate(source.cuts) if c is not None}
    if not cut:  # only the target is cut
        cut = {dim + (len(target.shape) < len(source.shape)): c for dim, c in enumerate(target.cuts) if c}
    if set(cut) & {0, 1}:
        raise call.refuse("its batch or classes are cut")
    indices = len(target.shape) < len(source.shape)
    fetches = {
        "self": aligned(call, source, cut),
        "target": aligned(call, target, {dim - indices: c for dim, c in cut.items()}),
    }
    return _loss(call, fetches, cut)


def elementwise_loss(call: Call) -> Step:
    """Returns the Step of a loss between prediction and target of one shape.

    Raises: NoRule where prediction and target differ in shape, and where there is a weight, which would broadcast.
    """
    source, target = call.tensor("self"), call.tensor("target")
    if source.shape != target.shape:
        raise call.refuse("its operands differ in shape", "operands of one shape")
    for name in ("weight", "pos_weight"):
        if isinstance(call.get(name), Layout):
            raise call.refuse(f"a {name}")
    leading = source if source.cut_dims else target
    cut = {dim: c for dim, c in enumerate(leading.cuts) if c is not None}
    fetches = {"self": aligned(call, source, cut), "target": aligned(call, target, cut)}
    return _loss(call, fetches, cut)


def _loss(call: Call, fetches: dict[str, tuple[Fetch, ...]], cut: dict[int, Cut]) -> Step:
    axes = frozenset(c.axis for c in cut.values())
    shape = call.outputs[0]
    kept = {name: value for name, value in fetches.items() if value}
    if call.get("reduction", 1) != 0:
        return Step((whole(shape),), kept, axes=axes, reduced=2)
    cuts: list[Cut | None] = [None] * len(shape)
    dropped = len(call.tensor("self").shape) - len(shape)  # the classes
    for dim, c in cut.items():
        cuts[dim - dropped] = c
    return Step((Layout(shape, tuple(cuts)),), kept, axes=axes)


SPATIAL_NORMS: Final = ("aten.batch_norm", "aten.instance_norm", "aten.group_norm")
LOCAL_ONLY: Final = frozenset({"aten.argmax", "aten.argmin", "aten.logsumexp", "aten.prod"})
SUMS: Final = ("sum", "mean", "amax", "amin", "max", "min", "var", "std", "linalg_vector_norm", "any", "all")
LOSSES: Final = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
)

REDUCTIONS: Final[Mapping[str, Rule]] = (
    {
        "aten.batch_norm": batch_norm,
        "aten.instance_norm": instance_norm,
        "aten.group_norm": group_norm,
        "aten.layer_norm": layer_norm,
        "aten.rms_norm": layer_norm,
        "aten.softmax": softmax,
        "aten.log_softmax": softmax,
        "aten.cross_entropy_loss": cross_entropy,
        "aten.nll_loss_nd": cross_entropy,
    }
    | {f"aten.{name}": reduction for name in SUMS}
    | dict.fromkeys(sorted(LOCAL_ONLY), reduction)
    | {f"aten.{name}": elementwise_loss for name in LOSSES}
)
