"""The integer program finds the least price that there is, whatever the model, the mesh and the solver."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from planner.choose import (
    FoldedGraph,
    GroupWork,
    MeshOnCluster,
    Solver,
    decisions_of,
    explored,
    folded,
    graph_of,
    layouts,
    price,
    program,
    rows_of,
)
from planner.cluster import Cluster
from planner.errors import BadInput
from planner.layout import Mesh
from tests.draws import SEED
from tests.planner.choose.models import gpt2, llama, mlp, without_matmul
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
MOST_TRIED = 800


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


@pytest.mark.parametrize("case", range(12))
def test_no_layout_of_a_random_graph_costs_less(case: int) -> None:
    seed, mesh = _cases(12)[case]
    work, on = random_work(Random(seed), Random(seed).randint(2, 8)), MeshOnCluster(mesh=mesh, cluster=SMALL)
    decisions = decisions_of(
        folded(work.operations), mesh, work.with_gradients(), work.resolved, joined=False
    )
    asked, worth = program(decisions, work, on), WORTHS[case % len(WORTHS)]
    found = price(graph_of(work, decisions, asked.solve(worth)), work, on)
    assert found.ns + worth * found.bytes == pytest.approx(least_price(work, mesh, on, worth), rel=2e-6)


def _found(work: GroupWork, mesh: Mesh, worth: float, *, whole: bool = False, joined: bool = True) -> float:
    graph = FoldedGraph(operations=work.operations) if whole else folded(work.operations)
    on = MeshOnCluster(mesh=mesh, cluster=NODES)
    decisions = decisions_of(graph, mesh, work.with_gradients(), work.resolved, joined=joined)
    found = price(graph_of(work, decisions, program(decisions, work, on).solve(worth)), work, on)
    return found.ns + worth * found.bytes


@pytest.mark.parametrize("mesh", [(4,), (2, 2)])
@pytest.mark.parametrize("worth", [0.0, 0.02, 1.0])
def test_folding_changes_nothing(mesh: Mesh, worth: float) -> None:
    work = gpt2(blocks=4)
    assert _found(work, mesh, worth) == pytest.approx(_found(work, mesh, worth, whole=True), rel=2e-6)


@pytest.mark.parametrize("worth", [0.0, 0.02, 1.0])
def test_operations_that_follow_others_change_nothing(worth: float) -> None:
    for work in (gpt2(), llama()):
        assert _found(work, (4,), worth) == pytest.approx(_found(work, (4,), worth, joined=False), rel=2e-6)


@pytest.mark.parametrize("mesh", [(4,), (2, 2)])
def test_both_solvers_give_the_same_lines(mesh: Mesh) -> None:
    both = [
        [(x.mesh, x.lines, x.price) for x in layouts(gpt2(), NODES, 4, mesh=mesh, solver=solver)]
        for solver in ("highs", "cbc")
    ]
    assert both[0] == both[1]


def _choices(mesh: Mesh, solver: Solver) -> list[tuple[float, list[int]]]:
    work = gpt2()
    decisions = decisions_of(folded(work.operations), mesh, work.with_gradients(), work.resolved)
    on = MeshOnCluster(mesh=mesh, cluster=NODES)
    return explored(program(decisions, work, on), work, on, solver)


def test_equal_options_are_told_apart_the_same_way_every_time() -> None:
    assert _choices((2, 2), "highs") == _choices((2, 2), "highs") == _choices((2, 2), "cbc")


def test_meshes_of_swapped_sizes_mirror_each_other_on_a_flat_machine() -> None:
    flat = Cluster.model_validate(
        {
            "version": 1,
            "name": "flat",
            "nodes": [{"count": 1, "device": "A100-80GB", "devices_per_node": 8}],
            "links": {"node": {"latency_s": 5e-6, "bandwidth_bytes_per_s": 2e11}},
        }
    )
    work = gpt2()
    one, other = (layouts(work, flat, 8, mesh=mesh) for mesh in ((4, 2), (2, 4)))
    assert [x.price.ns for x in one] == pytest.approx([x.price.ns for x in other], rel=1e-5)
    swapped = {"x": "y", "y": "x", "layers": "layers"}
    for a, b in zip(one, other, strict=True):
        mirrored = [{swapped[key]: value for key, value in row.items()} for row in rows_of(b.lines)]
        assert sorted(map(str, map(sorted, (x.items() for x in rows_of(a.lines))))) == sorted(
            map(str, map(sorted, (x.items() for x in mirrored)))
        )


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
