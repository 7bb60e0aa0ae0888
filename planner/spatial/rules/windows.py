"""Rules of operations that read a window of rows for each row they make: convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from planner.spatial.layout import Cut, Layout, full, scaled
from planner.spatial.rows_needed import Fetch, intervals
from planner.spatial.rule import LOWEST, Call, Rule, Step, rows_of


class Window(NamedTuple):
    """A window along one dimension, as a convolution or pool slides it."""

    kernel: int
    stride: int = 1
    dilation: int = 1
    pad: int = 0  # at the front; what lies behind the end is never asked for unless an output row needs it

    def need(self, low: int, high: int) -> tuple[int, int]:
        """Returns the input rows (start, stop) that output rows [low, high) read.

        Returns: rows outside the tensor are included: negative ones lie before it.
        """
        return (
            low * self.stride - self.pad,
            (high - 1) * self.stride - self.pad + self.dilation * (self.kernel - 1) + 1,
        )

    def read(self, low: int, high: int, size: int) -> tuple[int, int]:
        """Returns the input rows (start, stop) between which output rows [low, high) read a tensor of `size` rows.

        Returns: the first and the last row are read; no row where all that is read is padding.
        """
        found = []
        for tap in range(-self.pad, self.dilation * self.kernel - self.pad, self.dilation):
            first, last = max(low, -(tap // self.stride)), min(high - 1, (size - 1 - tap) // self.stride)
            if first <= last:
                found.append((first * self.stride + tap, last * self.stride + tap + 1))
        return _hull(found)

    def read_transposed(self, low: int, high: int, size: int) -> tuple[int, int]:
        """Returns the input rows (start, stop) that add to output rows [low, high) of the transposed operation.

        Returns: the first and the last row of `size` do add to them; no row where none does.
        """
        found = []
        for tap in range(-self.pad, self.dilation * self.kernel - self.pad, self.dilation):
            first, last = (
                max(0, -((tap - low) // self.stride)),
                min(size - 1, (high - 1 - tap) // self.stride),
            )
            if first <= last:
                found.append((first, last + 1))
        return _hull(found)


def _hull(found: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min((low for low, _ in found), default=0), max((high for _, high in found), default=0)


def spatial_dims(call: Call, layout: Layout, count: int) -> dict[int, int]:
    """Returns the cut dimensions of a tensor that an operation slides over.

    Args: `count` is the number of last dimensions that the operation slides over.
    Returns: cut dimension -> its position among these.
    Raises: NoRule where another dimension is cut.
    """
    first = len(layout.shape) - count
    for dim in layout.cut_dims:
        if dim < first:
            raise call.refuse(f"dimension {dim} is cut, which it does not slide over")
    return {dim: dim - first for dim in layout.cut_dims}


def output_cut(call: Call, cut: Cut, size: int) -> Cut:
    """Returns the cut of an output dimension in the proportions of the input's, or the one that is wanted.

    Raises: NoRule where fewer rows are left than there are ranks.
    """
    if cut.axis in call.wanted:
        return Cut(cut.axis, call.wanted[cut.axis])
    points = scaled(cut.points, size)
    if not full(points):
        raise call.too_few(size, len(points) - 1)
    return Cut(cut.axis, points)


def slide(
    call: Call, name: str, windows: Sequence[Window], fill: float = 0.0
) -> tuple[Layout, tuple[Fetch, ...]]:
    """Returns the layout of the result, and the rows to fetch of one argument.

    Args: `name` is the tensor that the windows slide over; `windows` has one for each dimension of space.
    """
    source = call.tensor(name)
    shape = call.outputs[0]
    cuts: list[Cut | None] = [None] * len(shape)
    fetches = []
    for dim, position in spatial_dims(call, source, len(windows)).items():
        cut = source.cuts[dim]
        assert cut is not None
        target = output_cut(call, cut, shape[dim])
        cuts[dim] = target
        needs = [windows[position].need(*rows) for rows in rows_of(target)]
        reads = [windows[position].read(*rows, cut.size) for rows in rows_of(target)]
        fetches.append(intervals(dim, cut, needs, fill, reads))
    return Layout(shape, tuple(cuts)), tuple(fetches)


def front_padding(call: Call, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """Returns the zeros in front of each dimension of space.

    Returns: an even kernel under "same" has the odd zero behind.
    """
    padding = call.get("padding", 0)
    if padding == "valid":
        return (0,) * len(kernel)
    if padding == "same":
        return tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    return call.integers("padding", len(kernel), (0,))


def convolution(call: Call) -> Step:
    kernel = call.tensor("weight").shape[2:]
    count = len(kernel)
    dilation = call.integers("dilation", count, (1,))
    stride = call.integers("stride", count, (1,))
    pad = front_padding(call, kernel, dilation)
    windows = [Window(*parts) for parts in zip(kernel, stride, dilation, pad, strict=True)]
    output, fetches = slide(call, "input", windows)
    return Step((output,), {"input": fetches}, axes=output.axes)


def transposed(call: Call) -> Step:
    source, shape = call.tensor("input"), call.outputs[0]
    kernel = call.tensor("weight").shape[2:]
    count = len(kernel)
    names = (("stride", 1), ("dilation", 1), ("padding", 0))
    settings = [call.integers(name, count, (default,)) for name, default in names]
    windows = [Window(*parts) for parts in zip(kernel, *settings, strict=True)]
    cuts: list[Cut | None] = [None] * len(shape)
    fetches, skips = [], {}
    for dim, position in spatial_dims(call, source, count).items():
        cut, window = source.cuts[dim], windows[position]
        assert cut is not None
        target = output_cut(call, cut, shape[dim])
        reads = [window.read_transposed(*rows, cut.size) for rows in rows_of(target)]
        needs = [(low, max(high, low + 1)) for low, high in reads]  # torch takes no tensor without rows
        cuts[dim] = target
        fetches.append(intervals(dim, cut, needs, reads=reads))
        made = [first * window.stride - window.pad for first, _ in needs]  # first row that the part makes
        skips[dim] = tuple(low - row for (low, _), row in zip(rows_of(target), made, strict=True))
    output = Layout(shape, tuple(cuts))
    return Step((output,), {"input": tuple(fetches)}, skips, output.axes)


def pool(call: Call) -> Step:
    count = int(call.operation[-2])  # "aten.max_pool2d"
    kernel = call.integers("kernel_size", count)
    stride = call.integers("stride", count, kernel)
    dilation = call.integers("dilation", count, (1,))
    pad = call.integers("padding", count, (0,))
    windows = [Window(*parts) for parts in zip(kernel, stride, dilation, pad, strict=True)]
    fill = LOWEST if "max" in call.operation else 0.0
    output, fetches = slide(call, "self", windows, fill)
    return Step((output,), {"self": fetches}, axes=output.axes)


def divisors(call: Call, dim: int, position: int) -> tuple[int, ...]:
    """Returns how many rows each output row of an average pool counts along one dimension.

    Args: `position` is that of dimension `dim` among the dimensions of space.
    """
    count = int(call.operation[-2])
    kernel = call.integers("kernel_size", count)
    stride = call.integers("stride", count, kernel)[position]
    pad = call.integers("padding", count, (0,))[position]
    size = call.tensor("self").shape[dim]
    padded = True if call.get("count_include_pad") is None else call.flag("count_include_pad")
    found = []
    for row in range(call.outputs[0][dim]):
        first = row * stride - pad
        last = min(first + kernel[position], size + pad)
        found.append(last - first if padded else min(last, size) - max(first, 0))
    return tuple(found)


WINDOWS: Final[Mapping[str, Rule]] = (
    {f"aten.conv{n}d": convolution for n in (1, 2, 3)}
    | {f"aten.conv_transpose{n}d": transposed for n in (1, 2, 3)}
    | {f"aten.{kind}_pool{n}d": pool for kind in ("max", "avg") for n in (1, 2, 3)}
)
