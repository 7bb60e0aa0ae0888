"""The factors of each family of operations: one entry a family, and all that follows from it is derived.

An operation that has no entry here is computed alike by all ranks, on tensors that lie alike on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from planner.layout.channels import CHANNELS, PICKING, extreme
from planner.layout.factor import Along, Factor, Side, broadcast, numbered, over, shape_of
from planner.spatial import BINARY, UNARY, Call

Factors = Callable[[Call], tuple[Factor, ...]]
RING: Final = "ring"


def linear(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a linear layer: its leading dimensions, `out` and `in`."""
    *lead, inside = shape_of(call, "input")
    outside = call.outputs[0][-1]
    last = Along(len(lead))
    rows = _rows(lead, "input", 1)
    return (
        *rows,
        Factor("out", outside, {"weight": Along(0), "bias": Along(0)}, (last,), cuts_weight=True),
        Factor("in", inside, {"input": last, "weight": Along(1), "bias": "P"}, ("P",), cuts_weight=True),
    )


def addmm(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a product of matrices with a bias: `rows`, `out` and `in`."""
    rows, inside = shape_of(call, "mat1")
    outside = shape_of(call, "mat2")[1]
    bias = shape_of(call, "self")
    of_rows: dict[str, Side] = {"mat1": Along(0)}
    of_out: dict[str, Side] = {"mat2": Along(1)}
    if len(bias) == 2 and bias[0] == rows:
        of_rows["self"] = Along(0)
    if bias[-1:] == (outside,):
        of_out["self"] = Along(len(bias) - 1)
    return (
        Factor("dim0", rows, of_rows, (Along(0),)),
        Factor("out", outside, of_out, (Along(1),), cuts_weight=True),
        Factor("in", inside, {"mat1": Along(1), "mat2": Along(0), "self": "P"}, ("P",), cuts_weight=True),
    )


def matmul(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a product of stacks of matrices: the stack, rows, `out` and `in`."""
    second = "other" if "other" in call.arguments else "mat2"
    left, right, shape = shape_of(call, "self"), shape_of(call, second), call.outputs[0]
    if len(left) < 2 or len(right) < 2:
        return ()
    rank, found = len(shape), []
    for dim in range(rank - 2):
        inputs: dict[str, Side] = {}
        for name, own in (("self", left), (second, right)):
            at = dim - rank + len(own)
            if at >= 0 and own[at] == shape[dim]:
                inputs[name] = Along(at)
        found.append(Factor(numbered(dim), shape[dim], inputs, (Along(dim),)))
    of_in: dict[str, Side] = {"self": Along(len(left) - 1), second: Along(len(right) - 2)}
    return (
        *found,
        Factor(numbered(rank - 2), left[-2], {"self": Along(len(left) - 2)}, (Along(rank - 2),)),
        Factor("out", right[-1], {second: Along(len(right) - 1)}, (Along(rank - 1),)),
        Factor("in", left[-1], of_in, ("P",)),
    )


def baddbmm(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a product of stacks of matrices with an addend: the stack, rows, `out` and `in`."""
    addend, (stack, rows, inside) = shape_of(call, "self"), shape_of(call, "batch1")
    outside = shape_of(call, "batch2")[2]
    found = []
    for dim, (name, size, of) in enumerate(
        (
            (numbered(0), stack, {"batch1": 0, "batch2": 0}),
            (numbered(1), rows, {"batch1": 1}),
            ("out", outside, {"batch2": 2}),
        )
    ):
        inputs: dict[str, Side] = {argument: Along(at) for argument, at in of.items()}
        at = dim - 3 + len(addend)
        if at >= 0 and addend[at] == size:
            inputs["self"] = Along(at)
        found.append(Factor(name, size, inputs, (Along(dim),)))
    of_in: dict[str, Side] = {"batch1": Along(2), "batch2": Along(1), "self": "P"}
    return (*found, Factor("in", inside, of_in, ("P",)))


def embedding(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a table of rows: dimensions of the indices, `out`, and `vocabulary`."""
    rows, width = shape_of(call, "weight")
    lead = shape_of(call, "indices")
    found = (
        *_rows(lead, "indices", 1),
        Factor("out", width, {"weight": Along(1)}, (Along(len(lead)),), cuts_weight=True),
    )
    if call.flag("scale_grad_by_freq") or call.flag("sparse"):
        return found
    return (*found, Factor("vocabulary", rows, {"weight": Along(0)}, ("P",), "vocabulary", cuts_weight=True))


def attention(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of attention: samples, `heads` (whole groups of them), and rows of the query."""
    query, key = shape_of(call, "query"), shape_of(call, "key")
    value, mask = shape_of(call, "value"), shape_of(call, "attn_mask")
    rank = len(query)
    if call.get("dropout_p", 0.0) or not len(key) == len(value) == rank or rank < 3:
        return ()
    found = []
    for dim in range(rank - 1):
        inputs: dict[str, Side] = {"query": Along(dim)}
        size = query[dim]
        if dim < rank - 2:
            if key[dim] != value[dim] or query[dim] % key[dim]:
                continue
            size = key[dim]
            inputs = {"query": Along(dim, query[dim] // size), "key": Along(dim), "value": Along(dim)}
        elif call.flag("is_causal") and query[dim] != key[dim]:
            continue
        at = dim - rank + len(mask)
        if mask and at >= 0 and mask[at] != 1:
            if mask[at] != query[dim]:
                continue
            inputs["attn_mask"] = Along(at, query[dim] // size)
        also = ("heads",) if dim == rank - 3 and rank > 3 else ()
        out = Along(dim, query[dim] // size)
        kernel = "causal" if dim == rank - 2 and call.flag("is_causal") else ""
        found.append(Factor(numbered(dim), size, inputs, (out,), kernel, also=also))
    return tuple(found) if ring_refused(call) else (*found, _ring(query, mask))


def ring_refused(call: Call) -> str:
    """Returns why keys and values of an attention cannot go round the ranks; "" where they can."""
    query, key, value = (shape_of(call, name) for name in ("query", "key", "value"))
    if call.get("dropout_p", 0.0):
        return "its kernel draws the dropout of attention inside"
    if not len(query) == len(key) == len(value) >= 3 or query[-2] != key[-2]:
        return f"{query[-2]} rows of the query meet {key[-2]} of the keys"
    if (*query[:-3], key[-3]) != (*key[:-3], value[-3]) or query[-3] % key[-3]:
        return "its keys have other samples or heads than its values or queries"
    return ""


def _ring(query: tuple[int, ...], mask: tuple[int, ...]) -> Factor:
    """Returns the factor of rows of the query, keys and values; a rank has its rows of a mask, for all keys."""
    rows = Along(len(query) - 2)
    inputs: dict[str, Side] = dict.fromkeys(("query", "key", "value"), rows)
    if mask[-2:-1] == query[-2:-1]:
        inputs["attn_mask"] = Along(len(mask) - 2)
    return Factor(RING, query[-2], inputs, (rows,), RING, asked_for=True)


def normalised(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a norm over trailing dimensions: those in front of them."""
    name = "input"
    sizes = call.get("normalized_shape")
    assert isinstance(sizes, tuple)
    shape = shape_of(call, name)
    lead = shape[: len(shape) - len(sizes)]
    found = []
    for dim, size in enumerate(lead):
        found.append(Factor(numbered(dim), size, {name: Along(dim)}, (Along(dim),) * len(call.outputs)))
    return tuple(found)


def along_one(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of an operation that mixes one dimension and keeps the shape: all other dimensions."""
    shape = call.outputs[0]
    mixed = call.integer("dim", -1) % max(len(shape), 1)
    return tuple(over(call, dim, shape) for dim in range(len(shape)) if dim != mixed and shape[dim] > 1)


def reduced(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a sum or mean: kept dimensions, and those summed over, which give addends."""
    name, shape = "self", shape_of(call, "self")
    over_dims = call.dims("dim", len(shape))
    kernel = "share" if call.operation == "aten.mean" else ""
    sums = call.operation in ("aten.mean", "aten.sum")
    keep, found, out = call.flag("keepdim"), [], 0
    for dim, size in enumerate(shape):
        if dim in over_dims:
            if sums:
                found.append(Factor(numbered(dim), size, {name: Along(dim)}, ("P",), kernel))
            out += keep
        else:
            outputs = (Along(out),) * len(call.outputs)
            found.append(Factor(numbered(dim), size, {name: Along(dim)}, outputs))
            out += 1
    return tuple(factor for factor in found if factor.size > 1)


def elementwise_loss(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a loss between two tensors of one shape: every dimension."""
    shape, reduction = shape_of(call, "self"), call.integer("reduction", 1)
    if any(layout.shape != shape for _, layout in call.tensors()):
        return ()
    if not reduction:
        return broadcast(call)
    kernel = "share" if reduction == 1 else ""
    names = [name for name, _ in call.tensors()]
    return tuple(
        Factor(numbered(dim), size, {name: Along(dim) for name in names}, ("P",), kernel)
        for dim, size in enumerate(shape)
        if size > 1
    )


def cross_entropy(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a cross entropy with class numbers: `classes`, and the dimensions of the targets."""
    shape, target = shape_of(call, "self"), shape_of(call, "target")
    if len(shape) < 2 or (shape[0], *shape[2:]) != target or call.get("weight") is not None:
        return ()
    reduction, found = call.integer("reduction", 1), []
    for dim, size in enumerate(target):
        inputs: dict[str, Side] = {"self": Along(dim if dim == 0 else dim + 1), "target": Along(dim)}
        out: Side = "P" if reduction else Along(dim)
        found.append(Factor(numbered(dim), size, inputs, (out,), "rows" if reduction == 1 else ""))
    if call.operation == "aten.cross_entropy_loss":
        found.append(Factor("classes", shape[1], {"self": Along(1), "target": "I"}, ("I",), "classes"))
    return tuple(found)


def joined(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a concatenation: the dimensions along which it does not join."""
    shape = call.outputs[0]
    dim = call.integer("dim") % len(shape)
    return tuple(
        Factor(
            numbered(i),
            size,
            {name: Along(i) for name, layout in call.tensors() if len(layout.shape) == len(shape)},
            (Along(i),),
        )
        for i, size in enumerate(shape)
        if i != dim and size > 1
    )


def dropped(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of dropout: every dimension; each rank makes the numbers of its part."""
    return broadcast(call, "dropped" if call.get("p") and call.flag("train") else "")


def stacked(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a stack of tensors: the dimensions that they have."""
    shape = call.outputs[0]
    new = call.integer("dim") % len(shape)
    names = [name for name, _ in call.tensors()]
    return tuple(
        Factor(numbered(i), size, {name: Along(i - (i > new)) for name in names}, (Along(i),))
        for i, size in enumerate(shape)
        if i != new and size > 1
    )


def _rows(lead: tuple[int, ...] | list[int], name: str, count: int) -> tuple[Factor, ...]:
    return tuple(
        Factor(numbered(dim), size, {name: Along(dim)}, (Along(dim),) * count)
        for dim, size in enumerate(lead)
        if size > 1
    )


def _named(text: str, rule: Factors) -> dict[str, Factors]:
    return {f"aten.{name}": rule for name in text.split()}


FAMILIES: Final[Mapping[str, Factors]] = (
    dict.fromkeys((*UNARY, *BINARY), broadcast)
    | _named("linear", linear)
    | _named("addmm", addmm)
    | _named("matmul mm bmm", matmul)
    | _named("baddbmm", baddbmm)
    | _named("embedding", embedding)
    | dict(CHANNELS)
    | _named("scaled_dot_product_attention", attention)
    | _named("layer_norm rms_norm", normalised)
    | _named("softmax log_softmax cumsum cumprod logcumsumexp", along_one)
    | _named("mean sum amax amin var std logsumexp argmax argmin", reduced)
    | _named("prod any all median linalg_vector_norm", reduced)
    | _named("max min", extreme(reduced))
    | dict(PICKING)
    | _named("topk sort argsort", along_one)
    | _named("mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits", elementwise_loss)
    | _named("cross_entropy_loss nll_loss nll_loss_nd", cross_entropy)
    | _named("cat", joined)
    | _named("stack", stacked)
    | _named("to type_as broadcast_tensors", broadcast)
    | _named("dropout", dropped)
)
