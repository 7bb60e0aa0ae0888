"""Rows and whose they are: the integers of spatial parallelism against counting by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import BadInput
from planner.spatial import (
    Call,
    Cut,
    Fetch,
    Layout,
    NoRule,
    Operation,
    Ref,
    RowRun,
    check_grid,
    coordinates,
    entry,
    rank_at,
    take,
    whole,
)
from planner.spatial.layout import even, scaled
from planner.spatial.operation import from_text
from planner.spatial.regrid import Grids
from planner.spatial.rows_needed import gather, intervals, listed, recut
from planner.spatial.rules.table import RULES, rule
from planner.spatial.rules.windows import Window
from planner.spatial.segment import cut_model, propagate

runs = st.builds(
    RowRun, st.integers(0, 3), st.integers(0, 20), st.integers(1, 9), st.sampled_from([-3, -1, 0, 1, 2, 5])
)
cuts = st.lists(st.integers(1, 6), min_size=1, max_size=5).map(
    lambda parts: Cut(0, tuple(sum(parts[:i]) for i in range(len(parts) + 1)))
)


def _rows(run: RowRun) -> dict[int, int]:
    """Position -> global row."""
    return {run.at + i: run.start + i * run.step for i in range(run.length)}


@given(runs, st.integers(-5, 30), st.integers(-5, 30))
def test_a_part_of_a_run_is_its_rows_within_bounds(run: RowRun, low: int, high: int) -> None:
    found = run.part(low, high)
    expected = {at: row for at, row in _rows(run).items() if low <= row < high}
    assert (_rows(found) if found else {}) == expected


def _got(fetch: Fetch, receiver: int) -> dict[int, int]:
    """Position -> row, put together from what every rank gives; nobody gives what is not its own."""
    found: dict[int, int] = {}
    for sender in range(len(fetch.runs)):
        for run in fetch.pieces(receiver, sender):
            for at, row in _rows(run).items():
                assert at not in found
                assert fetch.points is None or fetch.points[sender] <= row < fetch.points[sender + 1]
                found[at] = row
    return found


@given(cuts, st.data())
def test_every_row_comes_once_and_from_its_owner(cut: Cut, data: st.DataObject) -> None:
    row = st.integers(-1, cut.size - 1)
    wanted = [data.draw(st.lists(row, max_size=12)) for _ in pairwise(cut.points)]
    fetch = listed(0, cut, wanted)
    for place, rows in enumerate(wanted):
        assert _got(fetch, place) == {at: row for at, row in enumerate(rows) if row >= 0}
        assert fetch.sizes[place] == len(rows)


@given(cuts, st.integers(-4, 4), st.integers(1, 9))
def test_rows_outside_the_tensor_are_fill(cut: Cut, low: int, length: int) -> None:
    fetch = intervals(0, cut, [(low, low + length)] * (len(cut.points) - 1))
    inside = {row - low: row for row in range(low, low + length) if 0 <= row < cut.size}
    assert all(_got(fetch, place) == inside for place in range(len(cut.points) - 1))


@given(cuts)
def test_gathering_taking_and_recutting_are_fetches(cut: Cut) -> None:
    parts = len(cut.points) - 1
    everything = {row: row for row in range(cut.size)}
    assert _got(gather(0, cut), 0) == everything
    own = [dict(enumerate(range(a, b))) for a, b in pairwise(cut.points)]
    assert [_got(take(0, cut), place) for place in range(parts)] == own
    assert recut(0, cut, cut).trivial
    assert not list(recut(0, cut, cut).messages())


windows = st.builds(Window, st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.integers(0, 4))


@given(windows, st.integers(0, 12), st.integers(1, 6))
def test_a_window_needs_exactly_the_rows_it_reads(window: Window, low: int, length: int) -> None:
    read = {
        o * window.stride - window.pad + window.dilation * k
        for o in range(low, low + length)
        for k in range(window.kernel)
    }
    first, end = window.need(low, low + length)
    assert (first, end) == (min(read), max(read) + 1)


@given(windows, st.integers(0, 12), st.integers(1, 6), st.integers(1, 20))
def test_at_the_borders_a_window_begins_and_ends_with_rows_that_it_reads(
    window: Window, low: int, length: int, size: int
) -> None:
    read = {
        o * window.stride - window.pad + window.dilation * k
        for o in range(low, low + length)
        for k in range(window.kernel)
    } & set(range(size))
    found = window.read(low, low + length, size)
    assert found == ((min(read), max(read) + 1) if read else (0, 0))


@given(windows, st.integers(0, 12), st.integers(1, 6), st.integers(1, 20))
def test_a_transposed_window_needs_the_rows_that_add_to_it_and_none_beyond(
    window: Window, low: int, length: int, size: int
) -> None:
    adding = {
        i
        for i in range(size)
        for k in range(window.kernel)
        if low <= i * window.stride - window.pad + window.dilation * k < low + length
    }
    found = window.read_transposed(low, low + length, size)
    assert found == ((min(adding), max(adding) + 1) if adding else (0, 0))


@given(cuts, st.integers(1, 40))
def test_a_scaled_cut_leaves_nobody_without_rows_where_there_are_enough(cut: Cut, size: int) -> None:
    points = scaled(cut.points, size)
    assert (points[0], points[-1]) == (0, size)
    assert all(a <= b for a, b in pairwise(points))
    if size >= len(points) - 1:
        assert all(a < b for a, b in pairwise(points))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 200))
def test_coordinates_and_ranks_are_inverse(grid: list[int], number: int) -> None:
    size = 1
    for parts in grid:
        size *= parts
    assert rank_at(coordinates(number % size, grid), grid) == number % size


def _convolution(layout: Layout, kernel: int, stride: int, pad: int, out: int) -> Call:
    arguments = {
        "input": layout,
        "weight": whole((1, 1, kernel)),
        "bias": None,
        "stride": (stride,),
        "padding": (pad,),
        "dilation": (1,),
        "groups": 1,
    }
    return Call("aten.conv1d", arguments, ((1, 1, out),), "layer")


def test_a_halo_wider_than_a_shard_comes_from_several_neighbours() -> None:
    layout = Layout((1, 1, 8), (None, None, Cut(0, (0, 2, 4, 6, 8))))
    step = rule(_convolution(layout, 7, 1, 3, 8))
    (fetch,) = step.fetches["input"]
    assert {(a, b): rows for a, b, rows in fetch.messages() if b == 1} == {(0, 1): 2, (2, 1): 2, (3, 1): 1}


def test_a_stride_of_two_on_even_parts_needs_rows_of_one_side_only() -> None:
    layout = Layout((1, 1, 8), (None, None, Cut(0, (0, 4, 8))))
    (fetch,) = rule(_convolution(layout, 3, 2, 1, 4)).fetches["input"]
    assert list(fetch.messages()) == [(0, 1, 1)]


def test_a_kernel_of_its_stride_needs_nothing_of_others() -> None:
    layout = Layout((1, 1, 8), (None, None, Cut(0, (0, 4, 8))))
    (fetch,) = rule(_convolution(layout, 2, 2, 0, 4)).fetches["input"]
    assert fetch.trivial


def test_an_operation_without_a_rule_is_named_with_its_layer() -> None:
    layout = entry((1, 2, 8), (2,))
    with pytest.raises(NoRule, match=r"block\.3: aten\.cumsum"):
        rule(Call("aten.cumsum", {"self": layout}, (layout.shape,), "block.3"))
    assert "aten.cumsum" not in RULES


def test_channels_are_not_space() -> None:
    layout = Layout((1, 4, 8), (None, Cut(0, (0, 2, 4)), None))
    with pytest.raises(NoRule, match="dimension 1 is cut"):
        rule(_convolution(layout, 3, 1, 1, 8))


@pytest.mark.parametrize(("shape", "grid"), [((2, 3, 4), (5,)), ((2, 3, 8, 2), (2, 3)), ((2, 3, 8), (2, 2))])
def test_more_ranks_than_rows_are_refused(shape: tuple[int, ...], grid: tuple[int, ...]) -> None:
    with pytest.raises(BadInput):
        check_grid(shape, grid)


def _operation(name: str, what: str, shape: tuple[int, ...], **arguments: object) -> Operation:
    return Operation(name, name, what, arguments, (shape,))  # type: ignore[arg-type]


def _pooled(out: int) -> list[Operation]:
    image, kernel = (
        (1, 1, 8),
        {"kernel_size": (8 // out,), "stride": (8 // out,), "padding": (0,), "ceil_mode": False},
    )
    return [
        _operation("x", "given.input", image),
        _operation("pool", "aten.max_pool1d", (1, 1, out), self=Ref("x"), **kernel),
        _operation("next", "aten.max_pool1d", (1, 1, 1), self=Ref("pool"), kernel_size=(out,), padding=(0,)),
    ]


def test_a_segment_ends_where_too_few_rows_are_left() -> None:
    segment = cut_model(_pooled(2), (4,))
    first = segment.placed[0]
    assert first.step is None and list(first.gathers) == ["x"]
    assert cut_model(_pooled(4), (4,)).placed[0].step is not None


def test_a_segment_ends_where_it_is_told_to() -> None:
    segment = cut_model(_pooled(4), (4,), gather_before=["pool"])
    assert segment.placed[0].gathers
    assert all(layout.whole for layouts in list(segment.layouts.values())[1:] for layout in layouts)


def test_what_slides_behind_an_operation_without_a_rule_is_cut_again() -> None:
    operations = [
        _operation("sum", "aten.cumsum", (1, 1, 8), self=Ref("x")),
        _operation("last", "aten.relu", (1, 1, 8), self=Ref("sum")),
    ]
    given_ = {"x": entry((1, 1, 8), (2,))}
    done = propagate(operations, given_)
    assert done.placed[0].gathers and not done.placed[1].resplits  # nothing slides behind it
    pool = _operation("pool", "aten.max_pool1d", (1, 1, 4), self=Ref("last"), kernel_size=(2,), padding=(0,))
    total, last, pooled = propagate([*operations, pool], given_, (), Grids(2, (2,))).placed
    assert total.around and not last.resplits  # what does not slide over space is computed alike
    assert pooled.resplits["last"].target == entry((1, 1, 8), (2,)) and pooled.step is not None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"name":1}', '{"name":"a","layer":"b","operation":"c","arguments":[1],"outputs":[]}'],
)
def test_a_line_that_is_no_operation_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not an operation"):
        from_text(text)


def test_an_even_cut_differs_by_one_row_at_most() -> None:
    for size in range(1, 30):
        for parts in range(1, size + 1):
            lengths = {b - a for a, b in pairwise(even(size, parts))}
            assert max(lengths) - min(lengths) <= 1
