"""The integer program finds the least price that there is, whatever the model, the mesh and the solver."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from planner.choose import (
    FoldedGraph,
    GroupWork,
    Solver,
    decisions_of,
    folded,
    graph_of,
    layouts,
    price,
    program,
)
from planner.choose.prices import NOT_STORED, PricedParts, anywhere
from planner.choose.written import taken
from planner.cluster import Cluster
from planner.errors import BadInput
from planner.group import MeshOnCluster
from planner.layout import Mesh
from tests.draws import SEED
from tests.planner.choose.models import gpt2, llama, mlp, on_device, without_matmul
from tests.planner.choose.random_graphs import count_of, least_price, random_work

WORTHS = (0.0, 0.5, 5.0, 50.0)  # nanoseconds a byte
SMALL = Cluster.model_validate(
    {
        "version": 1,
        "name": "2 nodes of 2",
        "nodes": [{"count": 2, "device": "A100-80GB", "devices_per_node": 2}],
        "links": {
            "node": {"latency_s": 1e-7, "bandwidth_bytes_per_s": 2e9},
            "rack": {"latency_s": 3e-7, "bandwidth_bytes_per_s": 1e9},
        },
    }
)
NODES = Cluster.model_validate(
    {
        "version": 1,
        "name": "8 nodes of 8",
        "nodes": [{"count": 8, "device": "A100-80GB", "devices_per_node": 8}],
        "links": {
            "node": {"latency_s": 5e-6, "bandwidth_bytes_per_s": 2e11},
            "rack": {"latency_s": 15e-6, "bandwidth_bytes_per_s": 1.25e10},
        },
    }
)
FLAT = Cluster.model_validate(
    {
        "version": 1,
        "name": "flat",
        "nodes": [{"count": 1, "device": "A100-80GB", "devices_per_node": 8}],
        "links": {"node": {"latency_s": 5e-6, "bandwidth_bytes_per_s": 2e11}},
    }
)
FLAT16 = Cluster.model_validate(
    {
        "version": 1,
        "name": "a fast node of 16",
        "nodes": [{"count": 1, "device": "A100-80GB", "devices_per_node": 16}],
        "links": {"node": {"latency_s": 1e-8, "bandwidth_bytes_per_s": 5e12}},
    }
)
MOST_TRIED = 400


@cache
def _cases(count: int) -> list[tuple[int, Mesh]]:
    """Returns seeds of random graphs that few enough layouts can be had of to try each."""
    random, found = Random(SEED), list[tuple[int, Mesh]]()
    while len(found) < count:
        seed, mesh = random.randrange(10**6), random.choice(((2,), (4,), (2, 2)))
        work = random_work(Random(seed), Random(seed).randint(2, 8))
        if 30 < count_of(work, mesh) < MOST_TRIED:
            found.append((seed, mesh))
    return found


@pytest.mark.parametrize("stored", [False, True], ids=["", "weights may rest in parts"])
@pytest.mark.parametrize("case", range(8))
def test_no_layout_of_a_random_graph_costs_less(case: int, stored: bool) -> None:
    seed, mesh = _cases(8)[case]
    work, on = random_work(Random(seed), Random(seed).randint(2, 8)), MeshOnCluster(mesh=mesh, cluster=SMALL)
    decisions = decisions_of(
        folded(work.operations), mesh, work.with_gradients(), work.resolved, joined=False
    )
    storing = anywhere(mesh) if stored else NOT_STORED
    asked, worth = program(decisions, work, on, storing), WORTHS[case % len(WORTHS)]
    found = price(graph_of(work, decisions, asked.solve(worth)), work, on, storing, worth)
    right = least_price(work, mesh, on, worth, storing)
    assert found.ns + worth * found.bytes == pytest.approx(right, rel=2e-6)


def _found(work: GroupWork, mesh: Mesh, worth: float, *, whole: bool = False, joined: bool = True) -> float:
    graph = FoldedGraph(operations=work.operations) if whole else folded(work.operations)
    on = MeshOnCluster(mesh=mesh, cluster=NODES)
    decisions = decisions_of(graph, mesh, work.with_gradients(), work.resolved, joined=joined)
    found = price(graph_of(work, decisions, program(decisions, work, on).solve(worth)), work, on)
    return found.ns + worth * found.bytes


@pytest.mark.parametrize(("mesh", "worth"), [((4,), 0.0), ((4,), 0.02), ((4,), 1.0), ((2, 2), 0.02)])
def test_folding_changes_nothing(mesh: Mesh, worth: float) -> None:
    work = gpt2(blocks=4)
    assert _found(work, mesh, worth) == pytest.approx(_found(work, mesh, worth, whole=True), rel=2e-6)


@pytest.mark.parametrize("worth", [0.0, 0.02])
def test_operations_that_follow_others_change_nothing(worth: float) -> None:
    for work in (gpt2(), llama()):
        assert _found(work, (4,), worth) == pytest.approx(_found(work, (4,), worth, joined=False), rel=2e-6)


def test_both_solvers_give_the_same_lines() -> None:
    solvers: tuple[Solver, ...] = ("highs", "cbc")
    both = [
        [(x.lines, x.price) for x in layouts(gpt2(), NODES, 4, mesh=(4,), solver=solver)]
        for solver in solvers
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize("worth", [0.0, 0.1])
def test_equal_options_are_told_apart_the_same_way_every_time(worth: float) -> None:
    """Both axes of the mesh are alike, so that every layout has a twin that costs the same."""
    work, on = gpt2(), MeshOnCluster(mesh=(2, 2), cluster=FLAT)
    decisions = decisions_of(folded(work.operations), (2, 2), work.with_gradients(), work.resolved)
    asked = program(decisions, work, on)
    assert asked.solve(worth, "highs") == asked.solve(worth, "cbc")


@pytest.mark.parametrize("worth", [0.0, 0.02])
def test_meshes_of_swapped_sizes_mirror_each_other_on_a_flat_machine(worth: float) -> None:
    found = []
    for mesh in ((4, 2), (2, 4)):
        on = MeshOnCluster(mesh=mesh, cluster=FLAT)
        work = gpt2()
        decisions = decisions_of(folded(work.operations), mesh, work.with_gradients(), work.resolved)
        choice = program(decisions, work, on).solve(worth)
        took = sorted(str(sorted(x.factors)) for x in taken(decisions, choice).values())
        found.append((price(graph_of(work, decisions, choice), work, on), took))
    (one, first), (other, second) = found
    assert one.ns + worth * one.bytes == pytest.approx(other.ns + worth * other.bytes, rel=1e-5)
    assert first == second


def test_two_axes_do_not_both_take_the_batch_where_that_is_not_best() -> None:
    """Each axis alone is best off with the batch of 4 samples, which both together cannot have."""
    work = on_device(gpt2(), micros=64)
    found = []
    for mesh in ((4,), (4, 4)):
        on = MeshOnCluster(mesh=mesh, cluster=FLAT16)
        decisions = decisions_of(folded(work.operations), mesh, work.with_gradients(), work.resolved)
        graph = graph_of(work, decisions, program(decisions, work, on).solve(0.0))
        cuts = graph.layouts["blocks.0.norm1:0"][0].cuts
        found.append(({cut.axes: dim for dim, cut in enumerate(cuts) if cut}, price(graph, work, on).ns))
    (one, slow), (both, fast) = found
    assert one == {(0,): 0}
    assert sorted(both.values()) != [0, 0] and len(both) == 2 and fast < slow


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("model", [mlp, without_matmul])
def test_any_number_of_ranks_and_any_model_has_a_layout(model: object, ranks: int) -> None:
    work = model()  # type: ignore[operator]
    found = layouts(work, NODES, ranks)
    assert found and found[0].price.ns > 0
    if ranks == 1:
        assert len(found) == 1 and found[0].lines == ()


def test_a_group_larger_than_the_cluster_is_refused() -> None:
    with pytest.raises(BadInput, match="up to 64"):
        layouts(mlp(), NODES, 65)


@pytest.mark.parametrize("mesh", [(4,), (2, 2)])
def test_a_price_of_memory_has_the_same_answer_whatever_was_asked_before(mesh: Mesh) -> None:
    work, on = gpt2(), MeshOnCluster(mesh=mesh, cluster=NODES)
    decisions = decisions_of(folded(work.operations), mesh, work.with_gradients(), work.resolved)
    asked = program(decisions, work, on, anywhere(mesh))
    for worth in (0.0, 1.0, 0.02, 0.1, 0.0):
        alone = program(decisions, work, on, anywhere(mesh))
        assert asked.solve(worth, "highs") == alone.solve(worth, "cbc"), worth


def test_parts_that_are_priced_once_give_the_price_of_the_whole() -> None:
    work, on = gpt2(), MeshOnCluster(mesh=(2, 2), cluster=NODES)
    decisions = decisions_of(folded(work.operations), (2, 2), work.with_gradients(), work.resolved)
    asked, known = program(decisions, work, on), PricedParts(work, on)
    for worth in (0.0, 0.02, 1.0, 0.02):
        graph = graph_of(work, decisions, asked.solve(worth))
        assert known.price(graph) == price(graph, work, on)
