"""Words of `launch` that are more than a number."""

from __future__ import annotations

import pytest

from planner.errors import BadInput
from runtime.cli.launch import _store, _workers


def test_readers_are_a_number_or_as_many_as_hide_reading() -> None:
    assert [_workers("0"), _workers("12"), _workers("auto")] == [0, 12, None]
    for word in ("-1", "two", "", "1.5"):
        with pytest.raises(BadInput, match="a whole number, or auto"):
            _workers(word)


def test_a_store_is_chosen_with_its_window_or_left_to_the_plan() -> None:
    assert _store(None) == {} and _store("none") == {"store": "none"}
    assert _store("ram") == {"store": "ram", "store_steps": 0}
    assert _store("ram:7") == {"store": "ram", "store_steps": 7}
    for word in ("disk", "ram:", "ram:0", "ram:x", ""):
        with pytest.raises(BadInput, match="ram, ram:STEPS, none"):
            _store(word)
