"""Rules of operations that treat every position alike: element-wise ones, and those over dimensions not cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from planner.spatial.layout import Cut, Layout
from planner.spatial.rows_needed import Fetch
from planner.spatial.rule import Call, Rule, Step, aligned


def elementwise(call: Call) -> Step:
    """Returns the Step of an element-wise operation whose operands broadcast.

    Returns: results cut as the first cut operand is; the other operands are sliced or re-cut to match.
    Raises: NoRule where operands are cut along different dimensions.
    """
    shape = max((call.outputs[0], *(x.shape for _, x in call.tensors())), key=len)
    target = _target(call, shape, (layout for _, layout in call.tensors()))
    fetches = {name: _matched(call, layout, target, len(shape)) for name, layout in call.tensors()}
    outputs = tuple(_laid(out, target, len(shape)) for out in call.outputs)
    axes = frozenset(cut.axis for cut in target.values())
    return Step(outputs, {name: found for name, found in fetches.items() if found}, axes=axes)


def _target(call: Call, shape: tuple[int, ...], layouts: Iterable[Layout]) -> dict[int, Cut]:
    """Returns the cuts by dimension of the broadcast shape; the first operand that is cut there decides."""
    target: dict[int, Cut] = {}
    for layout in layouts:
        shift = len(shape) - len(layout.shape)
        for dim in layout.cut_dims:
            cut = layout.cuts[dim]
            assert cut is not None
            if cut.size != shape[dim + shift]:
                raise call.refuse("its operands do not line up along a cut dimension")
            target.setdefault(dim + shift, Cut(cut.axis, call.wanted.get(cut.axis, cut.points)))
    if len({cut.axis for cut in target.values()}) < len(target):
        raise call.refuse("its operands are cut along different dimensions")
    return dict(sorted(target.items()))


def _matched(call: Call, layout: Layout, target: dict[int, Cut], ndim: int) -> tuple[Fetch, ...]:
    shift = ndim - len(layout.shape)
    own = {
        dim - shift: cut
        for dim, cut in target.items()
        if dim >= shift
        and layout.shape[dim - shift] == cut.size
        and (cut.size > 1 or layout.cuts[dim - shift] is not None)
    }
    return aligned(call, layout, own)


def _laid(shape: tuple[int, ...], target: dict[int, Cut], ndim: int) -> Layout:
    shift = ndim - len(shape)
    cuts: list[Cut | None] = [None] * len(shape)
    for dim, cut in target.items():
        cuts[dim - shift] = cut
    return Layout(shape, tuple(cuts))


def typed(call: Call) -> Step:
    """Returns the Step of a conversion to another tensor's type.

    Returns: the source's own layout; where the other tensor lies, and its shape, does not matter.
    """
    source = call.tensor("self")
    return Step((source,), axes=source.axes)


def last_dimension(call: Call) -> Step:
    """Returns the Step of a linear layer, or of a one-hot, which adds a last dimension.

    Raises: NoRule where a linear layer sums over a dimension that is cut.
    """
    name = "input" if "input" in call.arguments else "self"
    source, shape = call.tensor(name), call.outputs[0]
    last = len(source.shape) - 1
    if call.operation == "aten.linear" and last in source.cut_dims:
        raise call.refuse("it sums over a dimension that is cut")
    kept = source.cuts if call.operation == "aten.one_hot" else source.cuts[:last]
    output = Layout(shape, (*kept, None))
    return Step((output,), axes=output.axes)


def matmul(call: Call) -> Step:
    """Returns the Step of a product of matrices.

    Returns: the left operand may be cut in its rows and in its stack; each rank takes those right matrices it needs.
    Raises: NoRule where it sums over a dimension that is cut.
    """
    left, right = call.tensor("self"), call.tensor("other" if "other" in call.arguments else "mat2")
    shape = call.outputs[0]
    matrix = {len(right.shape) - 2, len(right.shape) - 1}
    if matrix & set(right.cut_dims) or len(left.shape) - 1 in left.cut_dims or len(right.shape) < 2:
        raise call.refuse("it sums over a dimension that is cut, or its right operand is")
    ndim = max(len(shape), len(left.shape))
    target = _target(call, shape, (left, right))
    stacked = {dim: cut for dim, cut in target.items() if dim < ndim - 2}
    fetches = {
        name: _matched(call, layout, cuts, ndim)
        for (name, layout), cuts in zip(call.tensors(), (target, stacked), strict=True)
    }
    output = _laid(shape, target, ndim)
    return Step((output,), {name: found for name, found in fetches.items() if found}, axes=output.axes)


def scatter(call: Call) -> Step:
    """Returns the Step of a scatter or gather along one dimension that is not cut.

    Raises: NoRule where its dimension is cut, or where the index has another size than the tensor along any other one.
    """
    target, index = call.tensor("self"), call.tensor("index")
    dim = call.integer("dim") % len(target.shape)
    others = [i for i in range(len(target.shape)) if i != dim]
    lead = target if target.cut_dims else index
    if dim in lead.cut_dims or any(target.shape[i] != index.shape[i] for i in others):
        raise call.refuse("it scatters along a dimension that is cut")
    cuts = {i: cut for i, cut in enumerate(lead.cuts) if cut is not None}
    names = [name for name, layout in call.tensors()]
    fetches = {name: aligned(call, call.tensor(name), cuts) for name in names}
    output = _laid(
        call.outputs[0] if call.operation != "aten.gather" else index.shape, cuts, len(target.shape)
    )
    return Step((output,), {name: found for name, found in fetches.items() if found}, axes=output.axes)


def glu(call: Call) -> Step:
    """Returns the Step of a gated linear unit, which multiplies one half of a dimension by the other.

    Raises: NoRule where this dimension is cut.
    """
    source = call.tensor("self")
    if call.integer("dim", -1) % len(source.shape) in source.cut_dims:
        raise call.refuse("it takes halves of a dimension that is cut")
    return Step((Layout(call.outputs[0], source.cuts),), axes=source.axes)


def cosine_similarity(call: Call) -> Step:
    """Returns the Step of the cosines between vectors of two tensors, whose shapes broadcast.

    Raises: NoRule where the vectors lie along a dimension that is cut.
    """
    given = dict(call.tensors())
    ndim = max(len(layout.shape) for layout in given.values())
    pairs = [(n, m) for n, m in zip(*(_aligned(x.shape, ndim) for x in given.values()), strict=True)]
    target = _target(call, tuple(map(max, pairs)), given.values())
    dim = call.integer("dim", 1) % ndim
    if dim in target:
        raise call.refuse("its vectors lie along a dimension that is cut")
    fetches = {name: _matched(call, layout, target, ndim) for name, layout in given.items()}
    left = {x - (x > dim): cut for x, cut in target.items()}
    output = _laid(call.outputs[0], left, ndim - 1)
    return Step((output,), {name: found for name, found in fetches.items() if found}, axes=output.axes)


def _aligned(shape: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    return (1,) * (ndim - len(shape)) + shape


def channel_shuffle(call: Call) -> Step:
    """Returns the Step of a shuffle of channels.

    Raises: NoRule where channels are cut.
    """
    source = call.tensor("self")
    if 1 in source.cut_dims:
        raise call.refuse("its channels are cut")
    return Step((source,), axes=source.axes)


def feature_dropout(call: Call) -> Step:
    """Returns the Step of a dropout of whole channels.

    Raises: NoRule where batch or channels are cut.
    """
    source = call.tensor("input")
    if set(source.cut_dims) & {0, 1}:
        raise call.refuse("its batch or channels are cut")
    return Step((source,), axes=source.axes)


def prelu(call: Call) -> Step:
    """Returns the Step of a PReLU, whose weight is one number a channel and is not cut.

    Raises: NoRule where batch or channels are cut.
    """
    source = call.tensor("self")
    if set(source.cut_dims) & {0, 1}:
        raise call.refuse("its batch or channels are cut")
    return Step((source,), axes=source.axes)


def _names(text: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in text.split())


UNARY: Final = _names(
    """abs acos alias asin atan bitwise_not celu ceil clamp clamp_max clamp_min clone contiguous cos cosh detach elu erf
    erfc exp expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh isfinite isinf isnan leaky_relu log log10
    log1p log2 log_sigmoid logical_not mish nan_to_num neg ones_like positive reciprocal relu relu6 round rsqrt selu
    sigmoid sign silu sin sinh softplus softshrink softsign sqrt square tan tanh tanhshrink threshold _to_copy trunc
    zeros_like full_like float double half long int bool"""
)
BINARY: Final = _names(
    """add sub rsub mul div floor_divide remainder fmod pow maximum minimum fmax fmin atan2 eq ne lt le gt ge
    bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor where lerp addcmul addcdiv masked_fill
    true_divide xlogy __and__ __or__ __xor__"""
)
IN_PLACE: Final = _names(
    """relu_ leaky_relu_ elu_ celu_ selu_ silu_ mish_ hardtanh_ hardswish_ hardsigmoid_ relu6_ sigmoid_ tanh_ clamp_
    threshold_ abs_ neg_ exp_ sqrt_ square_"""
)
AFTER: Final = "after"  # a tensor, once what writes into it has run


def in_place(call: Call) -> Step:
    """Returns the Step of an element-wise operation in place, on a tensor that was cloned to be written.

    Args: the call's "self" is such a clone, which `propagate` checks.
    Raises: NoRule where it writes into a part of a tensor, or into rows that would have to be fetched.
    """
    step = elementwise(call)
    if "self" in step.fetches:
        raise call.refuse("what it writes into would have to be fetched")
    return step


def after(call: Call) -> Step:
    """Returns the Step that orders a tensor behind the writes into it.

    Raises: NoRule where a write lies elsewhere than the tensor.
    """
    (_, source), *written = call.tensors()
    if any(layout != source for _, layout in written):
        raise call.refuse("a part of it was written elsewhere")
    return Step((source,), axes=source.axes)


POINTWISE: Final[Mapping[str, Rule]] = dict.fromkeys((*UNARY, *BINARY), elementwise) | {
    **dict.fromkeys(IN_PLACE, in_place),
    AFTER: after,
    "aten.to": typed,
    "aten.type_as": typed,
    "aten.dropout": elementwise,
    "aten.broadcast_tensors": elementwise,
    "aten.feature_dropout": feature_dropout,
    "aten.prelu": prelu,
    "aten.glu": glu,
    "aten.cosine_similarity": cosine_similarity,
    "aten.channel_shuffle": channel_shuffle,
    "aten.linear": last_dimension,
    "aten.one_hot": last_dimension,
    "aten.matmul": matmul,
    "aten.bmm": matmul,
    "aten.scatter": scatter,
    "aten.gather": scatter,
}
