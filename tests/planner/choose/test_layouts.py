"""The layouts that people know are found where they are best, and nobody names them to the search."""

from __future__ import annotations

from math import prod

import pytest

from planner.choose import (
    GroupWork,
    LayoutPrice,
    decisions_of,
    explored,
    folded,
    graph_by,
    graph_of,
    layouts,
    price,
    program,
    reasons,
    rows_of,
)
from planner.cluster import Cluster
from planner.group import MeshOnCluster
from planner.layout import Laid, LocalGraph, LocalOperation, Wish
from tests.planner.choose.models import gpt2, llama, on_device

NODE = Cluster.model_validate(
    {
        "version": 1,
        "name": "a node of 8",
        "nodes": [{"count": 1, "device": "A100-80GB", "devices_per_node": 8}],
        "links": {"node": {"latency_s": 1e-7, "bandwidth_bytes_per_s": 2e11}},
    }
)
PARTS = {
    "gpt2": {"qkv": "out", "attention.out": "in", "up": "out", "down": "in"},
    "llama": {
        "q_proj": "out",
        "k_proj": "out",
        "v_proj": "out",
        "o_proj": "in",
        "gate_proj": "out",
        "up_proj": "out",
        "down_proj": "in",
    },
}
MODELS = {"gpt2": gpt2, "llama": llama}


def _taken(graph: LocalGraph, end: str) -> list[LocalOperation]:
    return [
        x for x in graph.placed if x.operation.layer.endswith(end) and x.operation.operation == "aten.linear"
    ]


def _choices(work: GroupWork, ranks: int) -> list[tuple[LayoutPrice, LocalGraph]]:
    """Returns the choices on one axis of so many ranks that are best at some price of memory, fastest first."""
    on = MeshOnCluster(mesh=(ranks,), cluster=NODE)
    decisions = decisions_of(folded(work.operations), on.mesh, work.with_gradients(), work.resolved)
    choices = explored(program(decisions, work, on), work, on)
    graphs = [graph_of(work, decisions, choice) for _, choice in choices]
    return sorted(((price(x, work, on), x) for x in graphs), key=lambda x: x[0].ns)


def _fits(work: GroupWork, ranks: int, share: float) -> LocalGraph:
    """Returns the fastest layout whose parameters take at most a share of the whole ones."""
    whole = work.state_bytes * _elements(work)
    return next(graph for price, graph in _choices(work, ranks) if price.state_bytes <= share * whole)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", MODELS)
def test_megatrons_layout_is_found_where_parameters_must_shrink(name: str, ranks: int) -> None:
    work = MODELS[name]()
    graph = _fits(work, ranks, 1.1 / ranks)
    for end, factor in PARTS[name].items():
        linear = _taken(graph, end)
        assert linear and all(x.factors == (factor,) for x in linear), (end, [x.factors for x in linear])


def _elements(work: GroupWork) -> float:
    sizes = {x.name: x.outputs[0] for x in work.operations if x.name in work.trained}
    return float(sum(map(prod, sizes.values())))


@pytest.mark.parametrize("name", MODELS)
def test_the_batch_or_the_sequence_is_cut_where_parameters_may_stay_whole(name: str) -> None:
    work = on_device(MODELS[name](), micros=64)
    linear = [x for x in _choices(work, 4)[0][1].placed if x.operation.operation == "aten.linear"]
    assert {x.factors[0] for x in linear} <= {"dim0", "dim1"}


def test_norms_are_cut_by_sequence_or_samples_where_activations_must_shrink() -> None:
    graph = _choices(gpt2(), 4)[-1][1]
    norms = [x for x in graph.placed if x.operation.operation == "aten.layer_norm"]
    assert norms and all(x.factors[0] in ("dim0", "dim1") for x in norms)


def test_the_vocabulary_is_cut_where_its_embedding_is_most_of_the_model() -> None:
    work = gpt2(vocab=16384)
    tables = {
        x.operation.layer: x.factors
        for x in _fits(work, 4, 0.4).placed
        if x.operation.operation == "aten.embedding"
    }
    assert tables["token"] == ("vocabulary",)


def test_every_layout_of_a_list_takes_longer_and_less_memory_than_the_one_before() -> None:
    found = layouts(gpt2(), NODE, 4, mesh=(4,))
    times, sizes = [x.price.ns for x in found], [x.price.bytes for x in found]
    assert times == sorted(times) and sizes == sorted(sizes, reverse=True) and len(found) <= 8
    said = reasons(found)
    assert said[0] == "It is the fastest."
    assert all("It saves" in each for each in said[1:])
    assert all(set(row) <= {"layers", "x"} for x in found for row in rows_of(x.lines))


def test_weights_rest_in_parts_where_samples_are_cut_and_parameters_must_shrink() -> None:
    """More tokens than 4.5 times the width are dearer to send than weights: nobody named a method."""
    work = on_device(gpt2(width=64, tokens=256))
    found = layouts(work, NODE, 4, mesh=(4,))
    least = found[-1]
    assert least.price.state_bytes < 0.5 * found[0].price.state_bytes
    assert "stored" in {line.factor for line in least.lines}
    gathered = [x for x in least.graph.conversions() if x.gathers_parameter]
    assert gathered and not [x for x in found[0].graph.conversions() if x.gathers_parameter]


def test_layouts_are_the_same_where_operations_are_remembered() -> None:
    """Lines of every kind after each other, so that what one line laid is met by the next."""
    work = gpt2()
    laid: Laid = {}
    heads, hidden = Wish("blocks.*.attention", 0, "heads"), Wish("blocks.*.feedforward", 0, "hidden")
    for place in ("samples", "sequence"):
        for lines in ([heads], [heads, hidden], [hidden], [], [Wish("*", 0, "stored")]):
            asked = [Wish("token", 1, place), *lines]
            assert graph_by(work, (2, 2), asked, laid) == graph_by(work, (2, 2), asked)


def test_blocks_that_repeat_are_laid_as_if_each_were_laid_alone() -> None:
    """The lines ask for conversions between blocks, for weights that rest in parts, and for cuts in several places."""
    for model in (gpt2, llama):
        work, laid = model(blocks=4), Laid()
        stands_for = folded(work.operations).stands_for
        blocks = "blocks.*" if model is gpt2 else "model.layers.*"
        attention = Wish(f"{blocks}.{'attention' if model is gpt2 else 'self_attn'}", 0, "heads")
        hidden = Wish(f"{blocks}.{'feedforward' if model is gpt2 else 'mlp'}", 1, "hidden")
        assert stands_for
        for place in ("samples", "sequence"):
            for lines in ([attention], [attention, hidden], [Wish("*", 0, "stored")], []):
                asked = [Wish(blocks, 1, place), *lines]
                shared = graph_by(work, (2, 2), asked, laid, stands_for)
                assert shared == graph_by(work, (2, 2), asked)
                assert shared.agreed == graph_by(work, (2, 2), asked).agreed
