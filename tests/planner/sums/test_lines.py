"""The formula of a sum is what its function does: rounds and bytes counted message by message."""

from __future__ import annotations

from collections import Counter
from math import isclose

import pytest

from planner.sums import ColourTree, SumLoad, SumName, fitted, line_of, names_for, strides


def sent(name: SumName, places: int, size: float) -> Counter[tuple[int, int]]:
    """Bytes from rank to rank of one sum."""
    found = Counter[tuple[int, int]]()
    for part in range(name.parts):
        if name.kind == "direct":
            pairs = [(i, j) for i in range(places) for j in range(places) if i != j]
            found.update(dict.fromkeys(pairs, 2 * size / places))
            return found
        if name.kind == "colours":
            for low, high in ColourTree(places, name.parts, part).links():
                found[low, high] += size / name.parts
                found[high, low] += size / name.parts
            continue
        stride = strides(places)[part % len(strides(places))]
        each = 2 * (places - 1) / places * size / name.parts
        found.update({(i, (i + stride) % places): each for i in range(places)})
    return found


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_bytes_through_the_busiest_card_are_those_that_leave_a_node(behind: int) -> None:
    for places in range(2 * behind, 13, behind):
        for name in names_for(places):
            if name.kind == "colours":
                continue
            leaves = Counter[int]()
            for (a, b), size in sent(name, places, 1.0).items():
                if a // behind != b // behind:
                    leaves[a // behind] += size
            assert isclose(line_of(name, SumLoad(places, behind)).bytes, max(leaves.values())), (name, places)


def test_rings_on_cards_of_their_own_take_a_share_of_the_bytes() -> None:
    one, two = (line_of(SumName("rings", 2), SumLoad(4, cards=cards)) for cards in (1, 2))
    assert one.bytes == line_of(SumName("ring"), SumLoad(4)).bytes == 2 * two.bytes
    assert one.rounds == two.rounds == 6


def test_the_rounds_of_a_sum_are_those_of_its_function() -> None:
    assert line_of(SumName("direct"), SumLoad(8)).rounds == 2
    assert line_of(SumName("ring"), SumLoad(8)).rounds == 14


@pytest.mark.parametrize("places", [4, 8, 16])
@pytest.mark.parametrize("parts", [2, 4])
def test_trees_cost_the_way_of_their_first_piece_and_the_bytes_behind_it(places: int, parts: int) -> None:
    """The formula 2 d * 2 latency + 2 m byte_s."""
    size, latency_s, byte_s = 10**6, 1e-3, 1e-8
    want = 2 * ColourTree(places, parts, 0).depth * 2 * latency_s + 2 * size * byte_s
    assert isclose(line_of(SumName("colours", parts), SumLoad(places)).seconds(size, latency_s, byte_s), want)


def test_ranks_with_children_in_several_colours_carry_for_all_of_them() -> None:
    depth = ColourTree(17, 8, 0).depth
    assert ColourTree(16, 8, 0).depth == depth
    assert (
        line_of(SumName("colours", 8), SumLoad(17)).bytes > line_of(SumName("colours", 8), SumLoad(16)).bytes
    )


@pytest.mark.parametrize("name", names_for(8, 2), ids=str)
def test_the_rate_of_a_sum_is_found_again_from_its_times(name: SumName) -> None:
    line, sizes = line_of(name, SumLoad(8, cards=2)), (2**16, 2**20, 2**23)
    rate = fitted(name, SumLoad(8, cards=2), [(size, line.seconds(size, 2e-4, 8e-8)) for size in sizes])
    assert isclose(rate.latency_s, 2e-4, rel_tol=1e-3)
    assert isclose(rate.bandwidth_bytes_per_s, 1.25e7, rel_tol=1e-3)


def test_times_that_fall_with_the_bytes_have_no_negative_rate() -> None:
    falling = [(2**16, 0.2), (2**20, 0.1), (2**23, 0.05)]
    rate = fitted(SumName("ring"), SumLoad(4), falling)
    assert rate.latency_s > 0
    assert rate.bandwidth_bytes_per_s > 1e9
    rising = [(2**16, 0.001), (2**20, 0.1), (2**23, 9.0)]
    assert fitted(SumName("ring"), SumLoad(4), rising).latency_s == 0
