"""Ranks onto devices, innermost axis first."""

from __future__ import annotations

import pytest

from planner.errors import Infeasible
from planner.plan import Axes, Place, places
from tests.planner.plan_examples import machines


def test_the_innermost_axis_fills_a_node_first() -> None:
    table = places(Axes(data=2, pipeline=2, order=("pipeline", "data", "spatial")), machines())
    assert table[1] == Place(rank=1, node=0, slot=1, data=1, pipeline=0, spatial=0)
    assert table[2] == Place(rank=2, node=1, slot=0, data=0, pipeline=1, spatial=0)
    other = places(Axes(data=2, pipeline=2), machines())
    assert other[1] == Place(rank=1, node=0, slot=1, data=0, pipeline=1, spatial=0)


def test_given_nodes_are_used_in_their_order() -> None:
    table = places(Axes(data=3), machines(), [1, 3])
    assert [(place.node, place.slot) for place in table] == [(1, 0), (1, 1), (3, 0)]


def test_too_few_devices_are_infeasible() -> None:
    with pytest.raises(Infeasible, match=r"3 x 3 x 1 .* needs 9 devices; its nodes in cluster 'test' have 8"):
        places(Axes(data=3, pipeline=3), machines())
    with pytest.raises(Infeasible, match="1 of its nodes in cluster 'test' have 2"):
        places(Axes(data=3), machines(), [0])
