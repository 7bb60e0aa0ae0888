"""Rings and trees share no directed link, for every number of ranks that they are offered to."""

from __future__ import annotations

from itertools import combinations

import pytest

from planner.errors import BadInput
from planner.sums import ColourTree, SumName, disjoint, inner_twice, names_for, offered, parse, strides


@pytest.mark.parametrize("parts", [2, 3, 4, 8])
def test_trees_of_distinct_colours_share_no_directed_link_where_they_are_offered(parts: int) -> None:
    for places in range(2, 65):
        if not offered(SumName("colours", parts), places):
            continue
        trees = [ColourTree(places, parts, colour).links() for colour in range(parts)]
        assert all(a.isdisjoint(b) for a, b in combinations(trees, 2)), places


@pytest.mark.parametrize(
    ("parts", "refused"),
    [(2, set()), (3, {4, 5, 7}), (4, {6, 7, 9, 10, 13}), (8, set(range(8, 16)))],
)
def test_trees_that_would_share_links_are_not_offered(parts: int, refused: set[int]) -> None:
    found = {p for p in range(parts, 17) if not offered(SumName("colours", parts), p)}
    assert refused <= found
    assert all(not disjoint(p, parts) or p in refused for p in found)


def test_every_rank_stands_once_in_a_tree_below_its_parent() -> None:
    for places, parts in [(2, 2), (7, 2), (9, 3), (16, 4), (17, 8)]:
        for colour in range(parts):
            tree = ColourTree(places, parts, colour)
            below = [child for rank in range(places) for child in tree.children(rank)]
            root = next(rank for rank in range(places) if tree.parent(rank) is None)
            assert sorted([root, *below]) == list(range(places))
            assert all(tree.parent(child) == rank for rank in range(places) for child in tree.children(rank))


def test_the_depth_of_a_tree_is_the_way_of_its_last_rank() -> None:
    for places in range(2, 40):
        for parts in (2, 3, 4):
            tree, ways = ColourTree(places, parts, 0), []
            for rank in range(places):
                ways.append(0)
                above = tree.parent(rank)
                while above is not None:
                    ways[-1], above = ways[-1] + 1, tree.parent(above)
            assert tree.depth == max(ways) and ways == [tree.level(rank) for rank in range(places)]


def test_ranks_with_children_are_others_in_every_colour_for_two_colours_and_where_the_number_divides() -> (
    None
):
    for places in range(2, 65):
        assert inner_twice(places, 2) == 1
        assert all(inner_twice(places, k) == 1 for k in (2, 3, 4, 8) if places % k == 0)
    assert inner_twice(17, 8) > 1


def test_rings_visit_every_rank_and_share_no_directed_link() -> None:
    for places in range(2, 40):
        known = strides(places)
        assert known[0] == 1
        for stride in known:
            assert len({step * stride % places for step in range(places)}) == places
        links = [{(i, (i + c) % places) for i in range(places)} for c in known]
        assert all(a.isdisjoint(b) for a, b in combinations(links, 2))


def test_more_rings_than_strides_need_more_cards() -> None:
    assert not offered(SumName("rings", 2), 2)
    assert offered(SumName("rings", 2), 2, cards=2)
    assert SumName("rings", 3) not in names_for(4)
    assert SumName("rings", 3) in names_for(4, cards=3)


@pytest.mark.parametrize("text", ["ring", "direct", "rings 2", "colours 8", "nccl"])
def test_a_name_is_read_as_it_is_written(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "rings", "rings 5", "colours", "ring 2", "tree", "colours  2", "rings 2\n3"]
)
def test_what_is_no_name_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(BadInput, match="colours K, where K is one of 2, 3, 4, 8"):
        parse(text)
