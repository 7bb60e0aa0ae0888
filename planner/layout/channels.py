"""The factors of operations that leave most dimensions alone: of convolutional networks, and what picks or contracts.

Between two convolutions, of which the first is cut by `out` and the second by `in`, norms, pools and resizes follow by
their channels, each of which they compute alone. What picks, turns or halves a dimension goes over all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from planner.layout.factor import Along, Factor, Side, broadcast, numbered, shape_of
from planner.spatial import Call, Layout

OF_CHANNELS: Final = 1  # the dimension


def convolution(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a convolution, transposed or not: samples, and `out` and `in` along its channels."""
    source, weight = shape_of(call, "input"), shape_of(call, "weight")
    if len(source) != len(weight):
        return ()
    samples = Factor("dim0", source[0], {"input": Along(0)}, (Along(0),))
    if call.get("groups", 1) != 1 or isinstance(call.get("padding"), str):
        return (samples,)
    outside, inside = (1, 0) if "transpose" in call.operation else (0, 1)
    of_out: dict[str, Side] = {"weight": Along(outside), "bias": Along(0)}
    of_in: dict[str, Side] = {"input": Along(OF_CHANNELS), "weight": Along(inside), "bias": "P"}
    return (
        samples,
        Factor("out", weight[outside], of_out, (Along(OF_CHANNELS),), cuts_weight=True),
        Factor("in", weight[inside], of_in, ("P",), cuts_weight=True),
    )


def normalised_channels(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a norm of each channel, or of groups of them: samples, and channels by whole groups."""
    shape = shape_of(call, "input")
    if call.get("running_mean") is not None:
        return ()
    groups = call.integer("num_groups") if "num_groups" in call.arguments else shape[OF_CHANNELS]
    size = shape[OF_CHANNELS] // groups
    inputs: dict[str, Side] = {"input": Along(OF_CHANNELS, size)}
    inputs |= {name: Along(0, size) for name in ("weight", "bias") if call.get(name) is not None}
    kernel = "grouped" if "num_groups" in call.arguments else ""
    return (
        Factor("dim0", shape[0], {"input": Along(0)}, (Along(0),)),
        Factor(numbered(OF_CHANNELS), groups, inputs, (Along(OF_CHANNELS, size),), kernel),
    )


def each_channel(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a pool or a resize, which goes over each sample and channel alone: these two."""
    name = "input" if "input" in call.arguments else "self"
    shape, dims = shape_of(call, name), int(call.operation[-2])
    if len(shape) != dims + 2:
        return ()
    return tuple(
        Factor(numbered(dim), shape[dim], {name: Along(dim)}, (Along(dim),) * len(call.outputs))
        for dim in (0, OF_CHANNELS)
    )


def _each(
    names: str, dims: str, rule: Callable[[Call], tuple[Factor, ...]]
) -> dict[str, Callable[[Call], tuple[Factor, ...]]]:
    return {f"aten.{name}{n}d": rule for name in names.split() for n in dims}


CHANNELS: Final[Mapping[str, Callable[[Call], tuple[Factor, ...]]]] = (
    _each("conv conv_transpose", "123", convolution)
    | {"aten.instance_norm": normalised_channels, "aten.group_norm": normalised_channels}
    | _each("max_pool avg_pool adaptive_avg_pool adaptive_max_pool upsample_nearest", "123", each_channel)
    | _each("upsample_linear", "1", each_channel)
    | _each("upsample_bilinear upsample_bicubic", "2", each_channel)
    | _each("upsample_trilinear", "3", each_channel)
)


def einsum(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a contraction: the letters of its result, and `in`, the largest that is summed over."""
    equation = call.get("equation")
    assert isinstance(equation, str)
    given, arrow, made = equation.replace(" ", "").partition("->")
    parts, named = given.split(","), dict(call.tensors())
    plain = arrow and "." not in equation and len(parts) == len(named)
    if not plain or any(len(set(part)) < len(part) for part in (*parts, made)):
        return ()
    lying: dict[str, dict[str, int]] = {}
    for part, name in zip(parts, named, strict=True):
        for dim, letter in enumerate(part):
            lying.setdefault(letter, {})[name] = dim
    found, summed = list[Factor](), list[Factor]()
    for letter, dims in sorted(lying.items()):
        size = max(named[name].shape[dim] for name, dim in dims.items())
        inputs: dict[str, Side] = {
            name: Along(dim) for name, dim in dims.items() if named[name].shape[dim] == size
        }
        if size == 1:
            continue
        if letter in made:
            found.append(Factor(numbered(made.index(letter)), size, inputs, (Along(made.index(letter)),)))
        elif len(inputs) == len(dims):
            summed.append(Factor("in", size, inputs, ("P",)))
    return (*found, *sorted(summed, key=lambda factor: -factor.size)[:1])


def gathered(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a gather: dimensions that tensor and index share, and rows of the index."""
    shape, index = shape_of(call, "self"), shape_of(call, "index")
    mixed = call.integer("dim") % max(len(shape), 1)
    if len(shape) != len(index):
        return ()
    found = []
    for dim, size in enumerate(index):
        inputs: dict[str, Side] = {"index": Along(dim)}
        if dim != mixed:
            if shape[dim] != size:
                continue
            inputs["self"] = Along(dim)
        found.append(Factor(numbered(dim), size, inputs, (Along(dim),)))
    return tuple(factor for factor in found if factor.size > 1)


def scattered(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a scatter: the dimensions that all its tensors share."""
    shape = call.outputs[0]
    mixed = call.integer("dim") % max(len(shape), 1)
    tensors = dict(call.tensors())
    if any(len(layout.shape) != len(shape) for layout in tensors.values()):
        return ()
    return tuple(
        Factor(numbered(dim), size, {name: Along(dim) for name in tensors}, (Along(dim),))
        for dim, size in enumerate(shape)
        if dim != mixed and size > 1 and all(layout.shape[dim] == size for layout in tensors.values())
    )


def selected(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of rows that a vector of indices picks: other dimensions, and the indices."""
    shape, rows = shape_of(call, "self"), shape_of(call, "index")
    mixed = call.integer("dim") % max(len(shape), 1)
    found = _others(call, "self", {mixed})
    if len(rows) != 1 or rows[0] < 2:
        return found
    return (*found, Factor(numbered(mixed), rows[0], {"index": Along(0)}, (Along(mixed),)))


def repeated(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of rows that are each repeated: other dimensions, and the rows with their copies."""
    shape, times = shape_of(call, "self"), call.get("repeats")
    if not isinstance(call.get("dim"), int) or not isinstance(times, int) or times < 1:
        return ()
    mixed = call.integer("dim") % len(shape)
    found = _others(call, "self", {mixed})
    if call.get("output_size") is not None or shape[mixed] < 2:
        return found
    own = Factor(numbered(mixed), shape[mixed], {"self": Along(mixed)}, (Along(mixed, times),))
    return (*found, own)


def halved(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a gated linear unit: all dimensions but the one that it takes halves of."""
    return _others(call, "self", {call.integer("dim", -1) % len(shape_of(call, "self"))})


def turned(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a flip or roll: the dimensions that stay as they are."""
    given = call.get("dims")
    dims = (given,) if isinstance(given, int) else given
    if not dims or not isinstance(dims, tuple):
        return ()
    ndim = len(shape_of(call, "self"))
    return _others(call, "self", {dim % ndim for dim in dims if isinstance(dim, int)})


def triangle(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a triangle of each matrix: the dimensions of their stack."""
    ndim = len(shape_of(call, "self"))
    return _others(call, "self", {ndim - 2, ndim - 1})


def paired(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of a view of pairs as complex numbers, or of these as pairs: the dimensions of the numbers."""
    numbers = min(len(shape_of(call, "self")), len(call.outputs[0]))
    return _others(call, "self", set(range(numbers, len(shape_of(call, "self")))))


def cosine(call: Call) -> tuple[Factor, ...]:
    """Returns the factors of cosines between vectors of two tensors of one shape: all dimensions but the vectors' own."""
    shape, other = shape_of(call, "x1"), shape_of(call, "x2")
    mixed = call.integer("dim", 1) % max(len(shape), 1)
    if shape != other:
        return ()
    return tuple(
        Factor(
            f"dim{dim - (dim > mixed)}",
            size,
            {"x1": Along(dim), "x2": Along(dim)},
            (Along(dim - (dim > mixed)),),
        )
        for dim, size in enumerate(shape)
        if dim != mixed and size > 1
    )


def extreme(reduced: Callable[[Call], tuple[Factor, ...]]) -> Callable[[Call], tuple[Factor, ...]]:
    """Returns the rule of a largest or smallest number: of two tensors element by element, else along a dimension."""

    def rule(call: Call) -> tuple[Factor, ...]:
        return broadcast(call) if isinstance(call.get("other"), Layout) else reduced(call)

    return rule


def _others(call: Call, name: str, mixed: set[int]) -> tuple[Factor, ...]:
    """Returns the factors of all dimensions but those that an operation mixes; they are the same of its results."""
    return tuple(
        Factor(numbered(dim), size, {name: Along(dim)}, (Along(dim),) * len(call.outputs))
        for dim, size in enumerate(shape_of(call, name))
        if dim not in mixed and size > 1
    )


PICKING: Final[Mapping[str, Callable[[Call], tuple[Factor, ...]]]] = {
    "aten.einsum": einsum,
    "aten.gather": gathered,
    "aten.scatter": scattered,
    "aten.scatter_add": scattered,
    "aten.index_select": selected,
    "aten.repeat_interleave": repeated,
    "aten.glu": halved,
    "aten.flip": turned,
    "aten.roll": turned,
    "aten.triu": triangle,
    "aten.tril": triangle,
    "aten.view_as_complex": paired,
    "aten.view_as_real": paired,
    "aten.cosine_similarity": cosine,
}
