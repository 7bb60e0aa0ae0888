"""Tables of all cuts against the definition, one stage at a time, and the definition against hand-made cases."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import prod
from random import Random

import numpy as np
import pytest

from planner.cost import copies_of_statistics, losses_held, price, stage_bytes, step_bytes
from planner.cost.shared_weights import dropped, made_weights, reused
from planner.cost.stage_bytes import LEAF_BYTES, update_bytes
from planner.kept import WHOLE, KeptEntries
from planner.model import Buffer, Layer
from planner.plan import StageShard
from planner.profile import CostKey, LayerCost, OptimizerCost, Profile, Seconds
from planner.schedule import generate
from planner.simulate import SQUARE_BYTES, SQUARED_ELEMENTS
from tests.planner.cost.test_tables import KEY, intervals, model
from tests.planner.graphs import BYTES, chain, cost, profile
from tests.planner.milp.instances import with_bf16


def with_walks(made: Profile, seed: int) -> Profile:
    """Some layers whose stages walk."""
    rng = Random(seed)
    costs = {
        key: replace(cost, walks=rng.random() < 0.2, walked_bytes=rng.randint(0, 3000))
        for key, cost in made.costs.items()
    }
    return replace(made, costs=costs)


def with_made_weights(made: Profile, at: int) -> Profile:
    """One layer takes in parameters alone, and all after it take in what it makes."""
    graph, name = made.graph, made.graph.layers[at].name
    weight, last = made.graph.layers[at].outputs[0], len(made.graph.layers) - 1

    def inputs(k: int, row: Layer) -> tuple[str, ...]:
        if k == at:
            return ()
        return (*row.inputs, weight) if at < k < last and weight not in row.inputs else row.inputs

    layers = tuple(replace(row, inputs=inputs(k, row)) for k, row in enumerate(graph.layers))
    values = tuple(
        replace(row, consumers=tuple(x.name for x in layers if row.name in x.inputs)) for row in graph.values
    )
    costs = {
        key: replace(row, kept_inputs=(), aliases=()) if key.signature == graph.layer[name].signature else row
        for key, row in made.costs.items()
    }
    return replace(made, graph=replace(graph, layers=layers, values=values), costs=costs)


def with_buffers(made: Profile) -> Profile:
    """Some are read as well, some only written, and one is not written at all."""
    names = [layer.name for layer in made.graph.layers]
    users_of = [(names[0],), (names[1],), (names[2], names[5]), (names[3],), (names[4],)]
    buffers = tuple(
        Buffer(
            name=f"b{k}",
            users=users,
            shape=(8,),
            dtype="float32",
            bytes=(32 + k) << 3 * k,
            mutated=k != 1,
            remembered=k > 2,
        )
        for k, users in enumerate([*users_of, (names[2], names[4])])
    )
    return replace(made, graph=replace(made.graph, buffers=buffers))


@pytest.mark.parametrize("seed", range(16))
def test_every_cut_has_the_bytes_of_the_definition(seed: int) -> None:
    made, key = (model(seed), KEY) if seed % 3 else (with_bf16(model(seed)), KEY._replace(precision="bf16"))
    made = with_walks(made, seed) if seed % 2 else made
    made = with_buffers(made) if seed > 11 else made
    tables = price(made, key)
    for i, j, names in intervals(tables):
        for again in (False, True):
            parts = tables.moving_parts(np.array(i), np.array(j), np.bool_(again))
            found = asdict(stage_bytes(made, names, key, recompute=again))
            assert {name: int(size) for name, size in parts.items()} | {"update": found["update"]} == found, (
                names
            )
        optimizer = replace(made.optimizer, largest_bytes_per_parameter=8.0, other_bytes_per_parameter=1.0)
        found_update = stage_bytes(replace(made, optimizer=optimizer), names, key).update
        assert found_update == 7 * tables.largest[i, j] + tables.elements[i, j]


@pytest.mark.parametrize("seed", range(3))
def test_forwards_of_which_a_profile_does_not_tell_take_as_much_as_backwards(seed: int) -> None:
    """Of one layer already; what any pass takes is the same."""
    made = model(seed)
    layer = next(row for row in made.costs if row[1:] == KEY[1:])
    costs = {**made.costs, layer: replace(made.costs[layer], forward_workspace_bytes=None)}
    told, silent = price(made, KEY), price(replace(made, costs=costs), KEY)
    less = 0
    for i, j, names in intervals(told):
        now, then = (stage_bytes(each, names, KEY) for each in (made, replace(made, costs=costs)))
        assert then.reversing == silent.moving.reversing[i, j] == 0
        assert then.workspace == now.workspace + now.reversing
        assert replace(then, workspace=now.workspace, reversing=now.reversing) == now
        less += now.reversing > 0
    assert less > 0


def test_a_forward_has_no_gradients_and_counts_what_it_sends_once() -> None:
    """Three layers in a row keep nothing: each has its input and its output, and the last one's goes out."""
    graph = chain(3)
    row = replace(cost(), workspace_bytes=5 * BYTES, forward_workspace_bytes=2 * BYTES)
    made = profile(graph, dict.fromkeys(("a0", "a1", "a2", "a3", "loss"), row))
    key = next(iter(made.costs))._replace(signature="")
    found = stage_bytes(made, ["a0", "a1", "a2"], key)
    assert (found.sent + found.handed, found.workspace) == (BYTES, 2 * BYTES)
    assert found.workspace + found.reversing == 5 * BYTES
    assert stage_bytes(made, ["a2"], key).workspace == BYTES
    again = stage_bytes(made, ["a0", "a1", "a2"], key, recompute=True)
    assert (again.workspace, again.reversing) == (5 * BYTES, 0)


@pytest.mark.parametrize("what", ["gradients", "parameters"])
@pytest.mark.parametrize("seed", range(6))
def test_of_replicas_that_share_units_every_cut_has_the_bytes_of_the_definition(seed: int, what: str) -> None:
    made = with_walks(model(seed), seed) if seed % 2 else model(seed)
    tables = price(_in_blocks(made, 1 + seed % 3), KEY)
    workspace, reversing, walking = tables.with_units[what]
    shard = StageShard(what=what)  # type: ignore[arg-type]
    for i, j, names in intervals(tables):
        walks = bool(tables.walking.stages[i, j])
        for also in {walks, bool(tables.walking.stages[i].any())}:  # a layer of another part of the stage
            found = stage_bytes(replace(made, graph=tables.graph), names, KEY, shard=shard, walking=also)
            halves = walking.halves if also else walking.stored
            here = (workspace[i, j], reversing[i, j], halves.splitting[i, j], halves.weighing[i, j])
            assert here == (found.workspace, found.reversing, found.splitting, found.weighing), names
        assert walking.chosen.weighing[i, j] == (walking.halves if walks else walking.stored).weighing[i, j]


def _in_blocks(made: Profile, size: int) -> Profile:
    """Layers are named so that some of them in a row are a unit."""
    names = {layer.name: f"blocks.{k // size}.{layer.name}" for k, layer in enumerate(made.graph.layers)}
    told = lambda rows: tuple(map(names.__getitem__, rows))  # noqa: E731
    graph = replace(
        made.graph,
        layers=tuple(replace(row, name=names[row.name]) for row in made.graph.layers),
        values=tuple(
            replace(row, producer=names.get(row.producer, ""), consumers=told(row.consumers))
            for row in made.graph.values
        ),
        parameters=tuple(replace(row, users=told(row.users)) for row in made.graph.parameters),
        buffers=tuple(replace(row, users=told(row.users)) for row in made.graph.buffers),
    )
    return replace(made, graph=graph)


@pytest.mark.parametrize("seed", range(4))
def test_of_pruned_weights_and_of_those_in_bf16_every_cut_has_the_bytes_of_the_kept_entries(
    seed: int,
) -> None:
    made, rng = model(seed), Random(seed)
    counts = {row.name: rng.randint(1, prod(row.shape)) for row in made.graph.trained if rng.random() < 0.7}
    halved = frozenset(row.name for row in made.graph.trained if rng.random() < 0.5)
    made = replace(made, kept=KeptEntries(counts), halved=halved)
    tables, plain = price(made, KEY), price(replace(made, kept=WHOLE, halved=frozenset()), KEY)
    for i, j, names in intervals(tables):
        own = [row for row in made.graph.trained if set(row.users) & set(names)]
        stay = {row.name: counts.get(row.name, prod(row.shape)) for row in own}
        assert tables.elements[i, j] == sum(stay.values())
        assert tables.gradients[i, j] == sum(stay[row.name] * row.bytes // prod(row.shape) for row in own)
        dense = [dropped(made.graph, counts, halved, row.name) for row in own]
        apart = [row for row in own if row.name in counts or row.name in halved]
        more = sum(stay[row.name] * 4 for row in apart) + sum(4 * counts.get(row.name, 0) for row in apart)
        less = sum(row.bytes // 2 for row in own if row.name in halved)
        assert tables.parameters[i, j] == plain.parameters[i, j] + more - less
        assert tables.scattered[i, j] == sum(stay[row.name] for row in apart)
        assert tables.dropped[i, j] == max(dense, default=0)
        parts = tables.moving_parts(np.array(i), np.array(j), np.bool_(False))
        found = stage_bytes(made, names, KEY)
        assert int(parts["workspace"]) + max(dense, default=0) == found.workspace


@pytest.mark.parametrize("seed", range(4))
def test_as_a_part_of_a_stage_that_walks_every_cut_has_the_bytes_of_the_definition_too(seed: int) -> None:
    made = with_made_weights(with_walks(model(seed), seed), 1 + seed)
    tables = price(made, KEY)
    assert tables.walking.stages.any() and made_weights(made.graph) and reused(made.graph)
    for i, j, names in intervals(tables):
        found = stage_bytes(made, names, KEY, walking=True)
        here = {name: int(table[i, j]) for name, table in vars(tables.walking.halves).items()}
        assert here == {name: asdict(found)[name] for name in here}, names


def test_a_walk_keeps_all_that_lies_below_the_last_weights_and_the_gradients_that_wait_for_them() -> None:
    graph = chain(3)
    costs = {"a0": cost(own=1), "a1": cost(own=20), "a2": cost(own=300), "loss": cost(own=4000)}
    made = profile(graph, {name: replace(row, walked_bytes=7, held_bytes=5) for name, row in costs.items()})
    walks = profile(graph, {name: replace(row, walks=True) for name, row in named(made).items()})
    key, late = next(iter(made.costs))._replace(signature=""), ["a1", "a2", "loss"]
    assert stage_bytes(made, late, key).held == 3 * 5
    assert stage_bytes(walks, late, key).held == 20 + 300 + BYTES + 3 * 7 + LEAF_BYTES
    # nothing to walk to: the weight half is all of the backward
    assert stage_bytes(walks, ["a0", "a1"], key).held == 1 + 20 + BYTES + BYTES + LEAF_BYTES


def named(made: Profile) -> dict[str, LayerCost]:
    return {layer.name: made.cost(layer.name, next(iter(made.costs))) for layer in made.graph.layers}


@pytest.mark.parametrize("seed", range(4))
def test_what_a_step_holds_throughout_is_that_of_the_definition_for_every_cut(seed: int) -> None:
    made = with_buffers(model(seed))
    sizes = {row.name: row.bytes for row in made.graph.buffers}
    tables = price(made, KEY)
    seen = set()
    for i, j, layers in intervals(tables):
        want = step_bytes(made, layers, KEY, losses=5, copies=3)
        assert tables.step_bytes(np.array(i), np.array(j), losses=5, copies=3) == want, layers
        assert tables.trained[i, j] == len(
            {p.name for p in made.graph.parameters if p.trainable and set(p.users) & set(layers)}
        )
        seen.add(want)
    written = sizes["b0"], sizes["b0"] + sizes["b2"]
    assert {0, *(3 * size for size in written)} <= seen and 3 * written[1] < max(seen) < 3 * sizes["b3"]


def test_losses_are_held_by_pipe_and_statistics_are_copied_where_others_hold_them_or_forwards_run_twice() -> (
    None
):
    assert losses_held(generate("1f1b", workers=2, micros=6)) == 6
    assert losses_held(generate("chimera", workers=2, micros=5)) == 3
    copies = [copies_of_statistics(n, recompute=again) for n in (1, 2) for again in (False, True)]
    assert copies == [0, 1, 2, 3]


def test_an_update_one_by_one_takes_the_largest_and_one_of_all_at_once_takes_all() -> None:
    """And at least what the squares of gradients take, which are added up before."""
    cost = OptimizerCost(
        name="adamw", state_bytes_per_parameter=8.0, seconds_per_parameter=Seconds(median=0.0)
    )
    one_by_one = replace(cost, largest_bytes_per_parameter=12.0)
    at_once = replace(one_by_one, other_bytes_per_parameter=12.0)
    assert update_bytes(cost, [3, 5]) == SQUARE_BYTES * 5
    assert update_bytes(cost, [3, 5 * SQUARED_ELEMENTS]) == SQUARE_BYTES * SQUARED_ELEMENTS
    assert update_bytes(one_by_one, [3, 5]) == 60
    assert update_bytes(at_once, [3, 5]) == 96


def test_while_a_layer_runs_later_ones_have_saved_nothing() -> None:
    """A large workspace in the first layer comes when the second one's tensors are gone, or not yet there."""
    made = model(1)
    names = [layer.name for layer in made.graph.layers]
    key = CostKey(made.graph.layers[0].signature, *KEY[1:])
    costs = dict(made.costs)
    costs[key] = replace(costs[key], workspace_bytes=10**6)
    found = stage_bytes(replace(made, costs=costs), names, KEY)
    assert found.saved < found.saved + found.workspace < found.saved + 10**6


def test_copies_of_buffers_are_those_of_the_layers_that_recompute() -> None:
    plain, made = model(1), with_buffers(model(1))
    names, sizes = [row.name for row in made.graph.layers], {b.name: b.bytes for b in made.graph.buffers}
    for before, copied in (("", ("b3", "b4", "b5")), (names[4], ("b3", "b5")), (names[2], ())):
        have = asdict(stage_bytes(made, names, KEY, recompute=True, before=before))
        want = asdict(stage_bytes(plain, names, KEY, recompute=True, before=before))
        more = sum(sizes[name] for name in copied)
        assert {name: have[name] - want[name] for name in have if have[name] != want[name]} == (
            dict.fromkeys(("saved", "held", "kept"), more) if more else {}
        )
    assert stage_bytes(made, names, KEY) == stage_bytes(plain, names, KEY)
