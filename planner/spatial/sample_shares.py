"""Rules for whole samples that are shared among the ranks of a group, from a layer on.

Every rank has the same number of whole samples, one after the other. An operation is computed on a share where each
sample goes its own way, or where sums over samples are summed over the ranks. Any other operation is refused by
name: one without a rule here, and one whose result has its samples elsewhere than its rule says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from planner.errors import BadInput
from planner.spatial.layout import Cut, Layout, even, whole
from planner.spatial.operation import NONE, OTHERWISE, Operation
from planner.spatial.regrid import Grid, Resplit
from planner.spatial.rule import Call, NoRule, Rule, Step
from planner.spatial.rules import pointwise, reductions, resample, reshapes, rows, windows

SHARE: Final = "a share of the samples"
ALLOWED: Final = "samples shared from a later layer on, or a gather"
_LAST: Final = 1 << 62  # the end of a slice that has none


def wider(operation: Operation, times: int) -> Operation:
    """Returns an operation as it is in a batch of `times` as many samples.

    Raises: NoRule where it is not known how the results grow with the batch.
    """
    why = f"'{operation.name}', made by {operation.operation}, is no multiple of the batch"
    if not operation.samples:
        why = "the model was captured for one batch alone, or profiled before this was asked"
    if not operation.samples or OTHERWISE in operation.samples:
        what = f"samples are not shared: {why}"
        raise NoRule(what, where=operation.place, allowed=ALLOWED, layer=operation.layer)
    pairs = zip(operation.outputs, operation.samples, strict=True)
    return replace(operation, outputs=tuple(grown(shape, dim, times) for shape, dim in pairs))


def grown(shape: Sequence[int], dim: int, times: int) -> tuple[int, ...]:
    """Returns a shape with one dimension `times` as long.

    Args: `dim` is the dimension that grows; NONE for none.
    """
    return tuple(n * times if i == dim else n for i, n in enumerate(shape))


def moved(
    layout: Layout, dim: int | None, before: Grid, ranks: int, reader: Operation, maker: Operation | None
) -> Resplit | None:
    """Returns the move that brings a tensor to this rank's samples; None where the tensor lies so already.

    Args: `dim` is the dimension of samples; a tensor without samples is made whole. `before` is the grid it lies on;
        `reader` reads it; `maker` made it, if it was not given.
    Raises: NoRule where samples are not known to lie along one dimension.
    """
    if dim is None or dim == OTHERWISE or dim in layout.cut_dims:
        made = f"{maker.operation} made" if maker is not None else f"{reader.operation} reads"
        what = f"{made} a tensor whose samples are not known to lie along one dimension, which is brought to {SHARE}"
        where, allowed = (maker or reader).place, f"{ALLOWED}; a model of any batch size"
        raise NoRule(f"{what} for '{reader.layer}'", where=where, allowed=allowed, layer=reader.layer)
    if dim == NONE:
        return None if layout.whole else Resplit(layout, before, whole(layout.shape), (ranks,))
    target = whole(layout.shape).with_cut(dim, Cut(0, even(layout.shape[dim], ranks)))
    return Resplit(layout, before, target, (ranks,), dim)


def step(call: Call, samples: Sequence[int]) -> Step:
    """Returns the Step of an operation of which some tensor is a share of the samples.

    Args: `samples` has, for each result, the dimension of its samples.
    Raises: NoRule where there is no rule, or where the operation mixes samples.
    """
    found = SHARES.get(call.operation)
    if found is None:
        raise call.refuse("there is no rule for it", ALLOWED)
    made = found(call)
    right = [(dim,) if dim >= 0 else () for dim in samples]
    if any(made.fetches.values()) or OTHERWISE in samples or [x.cut_dims for x in made.outputs] != right:
        raise call.refuse("it mixes samples", ALLOWED)
    return made


def _refused(call: Call, why: str) -> BadInput:
    return call.refuse(why, ALLOWED)


def by_sample(call: Call) -> Step:
    """Returns the Step of an operation that treats every sample alone.

    Args: the call's samples come first, then channels, then as many dimensions of space as the operation's name says.
    """
    source = call.tensor("input" if "input" in call.arguments else "self")
    found = re.search(r"(\d)d", call.operation)
    least = len(source.shape) == int(found[1]) + 2 if found else len(source.shape) > 1
    others = [layout for _, layout in call.tensors() if layout is not source]
    if source.cut_dims != (0,) or not least or any(not x.whole for x in others):
        raise _refused(call, "its samples do not come first")
    return _along(call, 0, source.cuts[0])


def _along(call: Call, dim: int, cut: Cut | None) -> Step:
    if cut is None or any(shape[dim : dim + 1] != (cut.size,) for shape in call.outputs):
        raise _refused(call, "it mixes samples")
    outputs = tuple(whole(shape).with_cut(dim, cut) for shape in call.outputs)
    return Step(outputs, axes=frozenset({cut.axis}))


def batch_norm(call: Call) -> Step:
    """Returns the Step of a batch norm, whose statistics are over the samples of all ranks.

    Returns: in training, `reduced` counts two numbers a channel and the count, as for a grid.
    """
    made = by_sample(call)
    if not call.flag("training"):
        return made
    channels = made.output.shape[1]
    return Step(made.outputs, axes=made.axes, reduced=2 * channels + 1, reduced_backward=2 * channels)


def instance_norm(call: Call) -> Step:
    """Returns the Step of an instance norm.

    Raises: NoRule where running statistics are updated, since these are means over samples.
    """
    if call.flag("use_input_stats") and isinstance(call.get("running_mean"), Layout):
        raise _refused(call, "its running statistics are means over samples")
    return by_sample(call)


def cross_entropy(call: Call) -> Step:
    """Returns the Step of a cross entropy whose samples come first.

    Returns: a whole result with two reduced numbers, sum and count, unless the loss is not reduced.
    """
    source, target = call.tensor("self"), call.tensor("target")
    if len(source.shape) < 2 or source.cut_dims != (0,) or target.cut_dims != (0,):
        raise _refused(call, "its samples do not come first")
    if call.get("reduction", 1) == 0:
        return _along(call, 0, source.cuts[0])
    return Step((whole(call.outputs[0]),), axes=source.axes, reduced=2)


def reduction(call: Call) -> Step:
    """Returns the Step of a sum, mean or the like.

    Raises: NoRule for a variance over samples.
    """
    made = reductions.reduction(call)
    if made.output.axes != made.axes and call.operation in ("aten.var", "aten.std"):
        raise _refused(call, "it is taken over samples")
    return made


def picked(call: Call) -> Step:
    """Returns the Step of an operation that picks rows along other dimensions than that of samples, or picks all rows.

    Raises: NoRule where it picks among samples.
    """
    for _, source in call.tensors():
        for dim in _touched(call, len(source.shape)) & set(source.cut_dims):
            if not _everything(call):
                raise _refused(call, "it picks among samples")
            return _along(call, dim, source.cuts[dim])
    return rows.ROWS[call.operation](call)


def _everything(call: Call) -> bool:
    """Returns whether a call is a slice of all rows, whatever their number."""
    endless = call.get("end") is None or call.integer("end") >= _LAST
    return (
        call.operation == "aten.slice" and not call.get("start") and endless and call.integer("step", 1) == 1
    )


def _touched(call: Call, ndim: int) -> set[int]:
    name = call.operation.removeprefix("aten.")
    if name in ("flip", "roll"):
        return set(call.dims("dims", ndim))
    if name in ("pad", "constant_pad_nd"):
        amounts = call.integers("pad", 0)
        return {ndim - 1 - i // 2 for i, amount in enumerate(amounts) if amount}
    return set() if name == "stack" else {call.integer("dim") % ndim}


def unflatten(call: Call) -> Step:
    """Returns the Step of an unflatten.

    Raises: NoRule where it takes the dimension of samples apart.
    """
    source = call.tensor("self")
    if call.integer("dim") % len(source.shape) in source.cut_dims:
        raise _refused(call, "it takes the dimension of samples apart")
    return reshapes.view(call)


def matmul(call: Call) -> Step:
    """Returns the Step of a product of matrices one by one, or of rows with one matrix.

    Raises: NoRule where the product sums over samples.
    """
    left, right = call.tensor("self"), call.tensor("other" if "other" in call.arguments else "mat2")
    if right.whole:
        return pointwise.matmul(call)
    ndim, found = len(call.outputs[0]), {}
    for layout in (left, right):
        for dim in layout.cut_dims:
            if dim >= len(layout.shape) - 2:
                raise _refused(call, "it sums over samples")
            found[dim + ndim - len(layout.shape)] = layout.cuts[dim]
    if len(found) > 1 or (left.whole and len(left.shape) > 2):
        raise _refused(call, "its operands have their samples along different dimensions")
    ((dim, cut),) = found.items()
    return _along(call, dim, cut)


def attention(call: Call) -> Step:
    """Returns the Step of an attention in which every sample has its own queries, keys and values.

    Raises: NoRule where samples do not come first, and for dropout within the attention.
    """
    parts = [call.tensor(name) for name in ("query", "key", "value")]
    mask = call.get("attn_mask")
    shared = isinstance(mask, Layout) and not mask.whole
    if any(x.cut_dims != (0,) or len(x.shape) < 3 for x in parts) or call.get("dropout_p", 0.0):
        raise _refused(call, "its samples do not come first, or it drops some weights")
    if (
        shared
        and isinstance(mask, Layout)
        and (mask.cut_dims != (0,) or len(mask.shape) != len(parts[0].shape))
    ):
        raise _refused(call, "its mask has its samples elsewhere")
    return _along(call, 0, parts[0].cuts[0])


def embedding(call: Call) -> Step:
    """Returns the Step of an embedding of indices whose samples are shared.

    Raises: NoRule where gradients depend on all samples, as with `scale_grad_by_freq`.
    """
    weight, indices = call.tensor("weight"), call.tensor("indices")
    if not weight.whole or call.flag("scale_grad_by_freq") or call.flag("sparse"):
        raise _refused(call, "its gradients depend on all samples, or its weight on some")
    (dim,) = indices.cut_dims
    return _along(call, dim, indices.cuts[dim])


def _of(operations: Collection[str], rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(operations, rule)


_BY_SAMPLE: Final = (
    *windows.WINDOWS,
    *resample.RESAMPLES,
    "aten.feature_dropout",
    "aten.group_norm",
    "aten.prelu",
)

_REDUCTIONS: Final = [f"aten.{name}" for name in reductions.SUMS] + sorted(reductions.LOCAL_ONLY)
_AS_IN_SPACE: Final = [f"aten.{name}" for name in ("layer_norm", "rms_norm", "softmax", "log_softmax")]

SHARES: Final[Mapping[str, Rule]] = {
    **pointwise.POINTWISE,
    **reshapes.RESHAPES,
    **{name: reductions.REDUCTIONS[name] for name in _AS_IN_SPACE},
    **{f"aten.{name}": reductions.REDUCTIONS[f"aten.{name}"] for name in reductions.LOSSES},
    **_of(rows.ROWS, picked),
    **_of(_BY_SAMPLE, by_sample),
    **_of(_REDUCTIONS, reduction),
    **_of(("aten.matmul", "aten.bmm"), matmul),
    **_of(("aten.cross_entropy_loss", "aten.nll_loss_nd"), cross_entropy),
    "aten.batch_norm": batch_norm,
    "aten.instance_norm": instance_norm,
    "aten.unflatten": unflatten,
    "aten.scaled_dot_product_attention": attention,
    "aten.embedding": embedding,
}
