"""Tables of all cuts against the definition, one stage at a time, and the definition against hand-made cases."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from planner.cost import price
from planner.profile import CostKey, OptimizerCost, Seconds
from planner.stage_bytes import stage_bytes, update_bytes
from tests.planner.milp.instances import with_bf16
from tests.planner.test_cost import KEY, intervals, model


@pytest.mark.parametrize("seed", range(12))
def test_every_cut_has_the_bytes_of_the_definition(seed: int) -> None:
    made, key = (model(seed), KEY) if seed % 3 else (with_bf16(model(seed)), KEY._replace(precision="bf16"))
    tables = price(made, key)
    for i, j, names in intervals(tables):
        here = {name: int(table[i, j]) for name, table in vars(tables.moving).items()}
        found = asdict(stage_bytes(made, names, key))
        assert here == {name: found[name] for name in here}, names
        assert found["saved"] == tables.saved[i, j] and found["kept"] == tables.entered[i, j]
        assert found["held"] == tables.held[j] - tables.held[i]
        assert stage_bytes(made, names, key, recompute=True).sent == tables.leaving[i, j]
        optimizer = replace(made.optimizer, largest_bytes_per_parameter=8.0, other_bytes_per_parameter=1.0)
        found_update = stage_bytes(replace(made, optimizer=optimizer), names, key).update
        assert found_update == 7 * tables.largest[i, j] + tables.elements[i, j]


def test_an_update_one_by_one_takes_the_largest_and_one_of_all_at_once_takes_all() -> None:
    cost = OptimizerCost(
        name="adamw", state_bytes_per_parameter=8.0, seconds_per_parameter=Seconds(median=0.0)
    )
    one_by_one = replace(cost, largest_bytes_per_parameter=8.0)
    at_once = replace(one_by_one, other_bytes_per_parameter=8.0)
    assert update_bytes(cost, [3, 5]) == 0
    assert update_bytes(one_by_one, [3, 5]) == 40
    assert update_bytes(at_once, [3, 5]) == 64


def test_while_a_layer_runs_later_ones_have_saved_nothing() -> None:
    """A large workspace in the first layer comes when the second one's tensors are gone, or not yet there."""
    made = model(1)
    names = [layer.name for layer in made.graph.layers]
    key = CostKey(made.graph.layers[0].signature, *KEY[1:])
    costs = dict(made.costs)
    costs[key] = replace(costs[key], workspace_bytes=10**6)
    found = stage_bytes(replace(made, costs=costs), names, KEY)
    assert found.saved < found.saved + found.workspace < found.saved + 10**6
