"""Which questions are asked in other orders of the layers, too."""

from __future__ import annotations

import pytest

from planner.configurations.pins import pins
from planner.milp.layer_orders.orders import _free


@pytest.mark.parametrize(
    ("fix", "free"),
    [
        ({}, True),
        ({"spatial": 1}, True),
        ({"gather": "none"}, True),
        ({"regrid": "none"}, True),
        ({"gather": "conv3"}, False),
        ({"regrid": "conv3:2x2"}, False),
        ({"spatial": 2}, False),
        ({"pipeline": 1}, False),
    ],
)
def test_other_orders_are_searched_only_where_the_pins_allow_whole_samples(
    fix: dict[str, object], free: bool
) -> None:
    assert _free(pins(fix, None)) == free
