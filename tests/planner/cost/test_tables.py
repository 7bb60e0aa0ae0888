"""The tables of intervals against sums taken one interval at a time."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from math import prod

import pytest

from planner.cost import Tables, price
from planner.errors import BadInput
from planner.model import ModelGraph, Parameter
from planner.profile import PERSISTENT, CostKey, LayerCost, Profile, stage_memory
from planner.schedule import Kind
from tests.planner.milp.instances import chain, profile, with_bf16

KEY = CostKey("", 2, (), "fp32", "eager")


def model(seed: int) -> Profile:
    """Skips, branches, tied parameters, kept outputs and views, by seed."""
    rng = random.Random(seed)
    made = profile(chain(8, seed, skips=4, loose=True), micros=(1, 2))
    graph = made.graph
    parameters = tuple(_tied(rng, p, graph) for p in graph.parameters)
    layers = tuple(
        replace(x, parameters=tuple(p.name for p in parameters if x.name in p.users)) for x in graph.layers
    )
    costs = {key: _kept(rng, graph, key, cost) for key, cost in made.costs.items()}
    return replace(made, graph=replace(graph, layers=layers, parameters=parameters), costs=costs)


def _tied(rng: random.Random, parameter: Parameter, graph: ModelGraph) -> Parameter:
    extra = rng.sample([layer.name for layer in graph.layers], rng.choice([0, 0, 1, 2]))
    users = sorted({*parameter.users, *extra}, key=lambda name: graph.index[name])
    return replace(parameter, users=tuple(users), trainable=rng.random() < 0.8)


def _kept(rng: random.Random, graph: ModelGraph, key: CostKey, cost: LayerCost) -> LayerCost:
    layer = next(x for x in graph.layers if x.signature == key.signature)
    view = rng.choice([(), (), ((0, PERSISTENT),), ((0, rng.randrange(len(layer.inputs))),)])
    inputs = tuple(k for k in range(len(layer.inputs)) if rng.random() < 0.5)
    outputs = (0,) if rng.random() < 0.5 else ()
    return replace(cost, kept_inputs=inputs, kept_outputs=outputs, aliases=view)


def intervals(tables: Tables) -> list[tuple[int, int, list[str]]]:
    names = [layer.name for layer in tables.graph.layers]
    return [(i, j, names[i:j]) for i, j in combinations(range(len(names) + 1), 2)]


@pytest.mark.parametrize("seed", range(20))
def test_saved_bytes_are_those_of_the_stage_each_storage_once(seed: int) -> None:
    made = model(seed)
    tables = price(made, KEY)
    for i, j, names in intervals(tables):
        assert tables.saved[i, j] == stage_memory(made, names, KEY), names


@pytest.mark.parametrize("seed", range(10))
def test_values_that_enter_and_leave_a_stage_count_once(seed: int) -> None:
    made = model(seed)
    tables, graph = price(made, KEY), made.graph
    for i, j, names in intervals(tables):
        outputs = {v for name in names for v in graph.layer[name].outputs}
        inputs = {v for name in names for v in graph.layer[name].inputs}
        out = {v for v in outputs if set(graph.value[v].consumers) - set(names)}
        assert tables.entered[i, j] == sum(graph.value[v].bytes(2) for v in inputs - outputs)
        assert tables.leaving[i, j] == sum(graph.value[v].bytes(2) for v in out)


def test_values_have_the_bytes_of_the_precision_that_they_were_profiled_in() -> None:
    made = with_bf16(model(1))
    low = KEY._replace(precision="bf16")
    tables = price(made, low)
    for i, j, names in intervals(tables):
        assert tables.saved[i, j] == stage_memory(made, names, low), names
    halved = [(made.graph.values[row].bytes(2) + 1) // 2 for row in tables.edges.value]
    assert tables.edges.bytes.tolist() == halved
    assert price(made, KEY).leaving[0, 4] == pytest.approx(2 * tables.leaving[0, 4], abs=2 * len(halved))


@pytest.mark.parametrize("seed", range(10))
def test_a_tied_parameter_counts_once_in_each_stage_that_uses_it(seed: int) -> None:
    made = model(seed)
    tables = price(made, KEY)
    for i, j, names in intervals(tables):
        used = [p for p in made.graph.parameters if set(p.users) & set(names)]
        trained = [p for p in used if p.trainable]
        assert tables.parameters[i, j] == sum(p.bytes for p in used)
        assert tables.gradients[i, j] == sum(p.bytes for p in trained)
        assert tables.elements[i, j] == sum(prod(p.shape) for p in trained)
        assert tables.tied[i, j] == sum(p.bytes for p in trained if set(p.users) - set(names))


def test_times_are_sums_of_whole_nanoseconds_a_layer() -> None:
    made = model(3)
    tables = price(made, KEY)
    for i, j, names in intervals(tables):
        costs = [made.cost(name, KEY) for name in names]
        forward, halves = tables.time_ns[Kind.F], (tables.time_ns[Kind.I], tables.time_ns[Kind.W])
        assert forward[j] - forward[i] == sum(round(c.forward.median * 1e9) for c in costs)
        assert halves[0][j] - halves[0][i] == sum(round(c.input_grad.median * 1e9) for c in costs)
        assert halves[1][j] - halves[1][i] == sum(round(c.weight_grad.median * 1e9) for c in costs)


def test_a_micro_batch_that_was_not_profiled_is_named() -> None:
    with pytest.raises(BadInput, match=r"micro-batch 7: not profiled.*micro 1, 2"):
        price(model(0), KEY._replace(micro=7))
