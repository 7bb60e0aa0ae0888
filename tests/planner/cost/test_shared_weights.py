"""Gradients of weights with several uses: when they are there, and of how many at once."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.shared_weights import (
    Reuse,
    arriving_at_made,
    early,
    made_weights,
    summed,
    waiting,
    weighing,
)
from tests.planner.graphs import BYTES, chain

ONE, OTHER = Reuse((1, 3, 4), 10), Reuse((0, 6), 100)


def test_the_gradient_of_the_last_use_waits_until_the_first_is_done_and_a_sum_is_one_more() -> None:
    assert [waiting([ONE], 0, 7, at) for at in range(7)] == [0, 20, 10, 20, 0, 0, 0]
    assert [waiting([ONE], 2, 7, at) for at in range(2, 7)] == [0, 20, 0, 0, 0]
    assert [waiting([ONE], 2, 4, at) for at in range(2, 4)] == [0, 0]  # one use is left
    assert waiting([ONE, OTHER], 0, 7, 2) == 110


def test_a_weight_half_has_all_uses_of_what_is_added_up_together() -> None:
    assert summed([ONE], 0, 7) == 30 and summed([ONE], 2, 7) == 20 and summed([ONE], 4, 7) == 0
    assert summed([ONE, OTHER], 0, 7) == 200  # one after the other
    assert summed([ONE, OTHER, Reuse((3, 6), 1)], 0, 7) == 232  # a layer has both
    assert early([ONE, OTHER], 0, 7) == 110 and early([ONE, OTHER], 2, 7) == 10


def test_a_layer_whose_weight_is_made_keeps_what_arrives_at_it_for_its_weight_half() -> None:
    graph = chain(3)
    first, second, *others = graph.layers
    frozen = tuple(replace(row, trainable=row.users == (first.name,)) for row in graph.parameters)
    both = replace(second, inputs=(*first.inputs, *second.inputs))
    graph = replace(graph, layers=(replace(first, inputs=()), both, *others), parameters=frozen)
    assert made_weights(graph) == set(first.outputs)
    assert arriving_at_made(graph, {value.name: BYTES for value in graph.values}) == [0, BYTES, 0, 0]
    assert weighing(graph) == [True, True, False, False]
