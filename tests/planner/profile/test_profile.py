from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.errors import BadInput
from planner.model import ModelGraph
from planner.profile import PERSISTENT, CostKey, LayerCost, Profile, Seconds, check, stage_memory
from tests.planner.graphs import BYTES, chain, cost, profile, saved_bytes


def key_of(found: Profile) -> CostKey:
    (key,) = found.settings
    return key


def test_a_value_that_two_layers_keep_counts_once() -> None:
    found = profile(chain(), {"a0": cost(outputs=(0,)), "a1": cost(inputs=(0,), own=7)})
    assert saved_bytes(found, ["a0", "a1"], key_of(found)) == BYTES + 7


def test_a_cut_counts_a_value_on_both_sides() -> None:
    found = profile(chain(), {"a0": cost(outputs=(0,)), "a1": cost(inputs=(0,))})
    key = key_of(found)
    assert saved_bytes(found, ["a0"], key) + saved_bytes(found, ["a1"], key) == 2 * BYTES


def test_what_enters_a_stage_is_held_though_no_layer_keeps_it() -> None:
    found = profile(chain(), {})
    key = key_of(found)
    assert saved_bytes(found, ["a1", "a2"], key) == 0
    assert stage_memory(found, ["a1", "a2"], key) == BYTES


def test_targets_and_skips_are_held_too() -> None:
    found = profile(chain(4, skips={"a0": ("a3",)}), {})
    key = key_of(found)
    assert stage_memory(found, ["a2", "a3", "loss"], key) == 3 * BYTES  # a1:0, a0:0 and the target


def test_a_view_is_the_storage_that_it_is_a_view_of() -> None:
    kept = {"a0": cost(outputs=(0,)), "a1": cost(aliases=((0, 0),)), "a2": cost(inputs=(0,))}
    found = profile(chain(), kept)
    key = key_of(found)
    assert saved_bytes(found, ["a0", "a1", "a2"], key) == BYTES
    assert saved_bytes(found, ["a2"], key) == BYTES, "from outside it arrives as storage of its own"


def test_a_view_of_a_parameter_takes_nothing() -> None:
    found = profile(chain(), {"a0": cost(aliases=((0, PERSISTENT),)), "a1": cost(inputs=(0,))})
    assert saved_bytes(found, ["a0", "a1"], key_of(found)) == 0


def test_bytes_are_those_of_the_precision_where_it_changes_them() -> None:
    found = profile(chain(), {"a0": cost(outputs=(0,), output_bytes=(BYTES // 2,))}, micro=2)
    key = key_of(found)
    assert found.value_bytes("a0:0", key) == BYTES // 2
    assert found.value_bytes("a1:0", key) == 2 * BYTES
    assert saved_bytes(found, ["a0"], key) == BYTES // 2


def test_a_setting_at_which_a_layer_failed_is_not_offered() -> None:
    graph = chain()
    small = profile(graph, {})
    large = profile(graph, {}, micro=2)
    key = CostKey("s-a1", 2, (), "fp32", "eager")
    rest = {k: v for k, v in large.costs.items() if k != key}
    both = replace(small, costs={**small.costs, **rest}, failures={key: "out of memory"})
    assert [setting.micro for setting in check(both).settings] == [1]


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("column", ["forward", "backward", "input_grad", "weight_grad"])
def test_a_time_that_is_no_time_is_refused(column: str, number: float) -> None:
    bad = replace(cost(), **{column: Seconds(median=number)})
    with pytest.raises(BadInput, match=f"layer 'a2'.*{column}"):
        check(profile(chain(), {"a2": bad}))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (cost(own=-1), "own_saved_bytes is -1"),
        (replace(cost(), held_bytes=-1), "held_bytes is -1"),
        (replace(cost(), workspace_bytes=-1), "workspace_bytes is -1"),
        (replace(cost(), forward_workspace_bytes=-1), "forward_workspace_bytes is -1"),
        (replace(cost(), forward_workspace_bytes=1), "forward_workspace_bytes is 1"),  # of 0 in all passes
        (replace(cost(), forward=Seconds(median=1.0, spread=math.nan)), "forward.spread is nan"),
        (replace(cost(), forward=Seconds(median=0.0)), "forward takes no time"),
        (cost(inputs=(1,)), "kept_inputs has position 1"),
        (cost(outputs=(-1,)), "kept_outputs has position -1"),
        (cost(aliases=((0, 3),)), "aliases has position 3"),
        (cost(aliases=((1, 0),)), "aliases has position 1"),
        (cost(output_bytes=(1, 2)), "output_bytes has 2 entries"),
        (cost(output_bytes=(-4,)), "output_bytes is -4"),
    ],
)
def test_a_row_that_cannot_be_planned_with_is_refused(bad: LayerCost, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        check(profile(chain(), {"a2": bad}))


def test_a_missing_row_is_refused() -> None:
    found = profile(chain(), {})
    rest = {key: row for key, row in found.costs.items() if key.signature != "s-a3"}
    with pytest.raises(BadInput, match=r"'a3'.*no row"):
        check(replace(found, costs=rest))


def test_no_rows_at_all_are_refused() -> None:
    with pytest.raises(BadInput, match="no costs"):
        check(replace(profile(chain(), {}), costs={}))


def test_costs_of_a_stranger_are_refused() -> None:
    found = profile(chain(), {})
    stranger = CostKey("other", 1, (), "fp32", "eager")
    with pytest.raises(BadInput, match="no layer has signature other"):
        check(replace(found, costs={**found.costs, stranger: cost()}))


def test_the_chain_of_these_tests_is_a_model() -> None:
    graph = chain(3, skips={"a0": ("a2",)})
    assert isinstance(graph, ModelGraph)
    assert graph.value["a0:0"].consumers == ("a1", "a2")


@pytest.mark.parametrize("name", ["gather_seconds_per_parameter", "scatter_seconds_per_parameter"])
def test_an_update_that_takes_a_second_an_entry_is_no_profile(name: str) -> None:
    found = profile(chain(), {})
    with pytest.raises(BadInput, match=f"{name} is 1"):
        check(replace(found, optimizer=replace(found.optimizer, **{name: 1.0})))
