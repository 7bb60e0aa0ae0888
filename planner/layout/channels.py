"""The factors of operations of convolutional networks: samples, and channels.

Between two convolutions, of which the first is cut by `out` and the second by `in`, norms, pools and resizes follow by
their channels, each of which they compute alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from planner.layout.factor import Along, Factor, Side, numbered, shape_of
from planner.spatial import Call

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
