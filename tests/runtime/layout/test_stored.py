"""Weights that rest in parts and are gathered for use: trainings are one process's, and nothing gathered is kept."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from planner.errors import BadInput
from planner.layout import GroupLayout, LocalGraph, Wish, of_path
from planner.layout.local_graph import rested
from runtime.layout.convert import GatheredWeights
from runtime.layout.stage import local_graph
from tests.draws import part
from tests.runtime.layout.cut_models import MODELS
from tests.runtime.layout.test_models import prepared
from tests.runtime.layout.training import EXACT, Trained, difference, together

SAMPLES, ALL = Wish("*", 0, "samples"), (Wish("*", 0, "stored"), Wish("*", 1, "stored"))
BY_SAMPLES = {  # what lies between operations that have no rule on parts of samples
    "BERT": ("bert.encoder", "cls"),
    "T5": ("encoder.block.*.layer.1", "decoder.block.*.layer.2"),
    "Whisper": ("model.encoder.layers", "model.decoder.layers"),
}
WAYS = ("sharded parameters", "2-D", "2-D, stored along both", "3-D", "alike")
TABLE = [*product(MODELS, WAYS)]
TURNED = {"out": "in", "in": "out"}
DRAWN = 5


def cuts(name: str, way: str) -> tuple[tuple[int, ...], list[Wish]]:
    if way == "alike":
        return (3,), [ALL[0]]
    rows = [SAMPLES._replace(pattern=pattern) for pattern in BY_SAMPLES.get(name, ("*",))]
    if way == "sharded parameters":
        return (2,), [*rows, ALL[0]]
    heads = [Wish(pattern, 1, factor) for pattern, factor in MODELS[name][1]["heads"].items()]
    if way == "3-D":  # along the third axis each layer takes what its pair takes along the second
        pairs = local_graph(prepared(name)[0], (2,), [wish._replace(axis=0) for wish in heads]).placed
        turned = {of_path(x.operation): TURNED[x.factors[0]] for x in pairs if x.factors[0] in TURNED}
        third = [Wish(path, 2, factor) for path, factor in turned.items()]
        return (2, 2, 2), [*rows, *heads, *third, ALL[0]]
    return (2, 2), [*rows, *heads, *ALL[: 2 if "both" in way else 1]]


def row(name: str, way: str) -> tuple[float, list[Trained], LocalGraph]:
    captured, tensors, batches, one = prepared(name)
    others, graph = together(captured, tensors, batches, *cuts(name, way))
    return max(difference(one, others)), others, graph


def stored(graph: LocalGraph) -> list[str]:
    return [x.tensor for x in graph.conversions() if x.gathers_parameter]


@pytest.mark.parametrize(("name", "way"), part(TABLE, DRAWN))
def test_a_model_whose_weights_rest_in_parts_trains_as_one_process(name: str, way: str) -> None:
    apart, _, graph = row(name, way)
    assert apart < EXACT and stored(graph)
    if way == "3-D":
        weights = [x for x in graph.states.values() if len(x.cut_axes) == 3]
        assert weights and {len(x.shape) for x in weights} == {2}


CUBE: Mapping[
    str, tuple[str, str, str]
] = {  # rows by the first axis; the pairs of layers take turns with the others
    "blocks.*.attention.qkv": ("samples", "out", "in"),
    "blocks.*.attention.out": ("samples", "in", "out"),
    "blocks.*.feedforward.up": ("samples", "out", "in"),
    "blocks.*.feedforward.down": ("samples", "in", "out"),
    "*": ("samples", "", ""),
}


def test_a_cube_of_ranks_trains_as_one_process_and_sends_what_its_graph_says() -> None:
    captured, tensors, batches, one = prepared("our GPT-2")
    wishes = [Wish(pattern, axis, x) for pattern, own in CUBE.items() for axis, x in enumerate(own) if x]
    others, graph = together(captured, tensors, batches, (2, 2, 2), [*wishes, ALL[0]])
    assert max(difference(one, others)) < EXACT
    assert graph.states["state:blocks.0.attention.qkv.weight"].cut_axes == (0, 1, 2)
    said = sum(sum(x.sent((2, 2, 2))) for x in graph.conversions()) * 8
    assert others[0].sent == pytest.approx(said, rel=0.02)


def test_gathers_and_sums_of_sharded_parameters_are_counted_at_the_wire() -> None:
    """A weight is gathered, gathered again for the gradient of what it reads, and its gradient is summed in parts."""
    _, others, graph = row("our GPT-2", "sharded parameters")
    weights = [
        x
        for x in graph.conversions()
        if x.gathers_parameter and "token" not in x.tensor and "head" not in x.tensor
    ]
    inside = [x for x in weights if "blocks" in x.tensor]
    assert len(inside) == 2 * 4 and {x.again for x in inside} == {1}
    for x in inside:
        n = x.target.shape[0] * x.target.shape[1]
        assert x.sent((2,)) == (n / 2, 2 * n / 2)
    said = sum(sum(x.sent((2,))) for x in graph.conversions()) * 8
    assert others[0].sent == pytest.approx(said, rel=0.02)


def test_a_weight_rests_along_a_dimension_that_parts_evenly_and_inside_of_cuts_where_all_are_cut() -> None:
    def resting(shape: tuple[int, ...], mesh: tuple[int, ...], *axes: int) -> str:
        layout: GroupLayout | None = GroupLayout(shape, (None,) * len(shape))
        for axis in axes:
            assert layout is not None
            layout = rested(layout, axis, mesh)
        return "none" if layout is None else layout.text()

    assert resting((6, 4), (2,), 0) == "S(0) by 0"
    assert resting((5, 4), (2,), 0) == "S(1) by 0"
    assert resting((5, 3), (2,), 0) == "S(0) by 0"
    assert resting((4, 4), (2, 2, 2), 0, 1, 2) == "S(0) by 0, 2, S(1) by 1"
    assert resting((1, 2), (3,), 0) == resting((8,), (2,), 0) == "none"


def test_nothing_that_was_gathered_is_there_between_the_passes() -> None:
    whole, gathered = torch.randn(6, 4, requires_grad=True), GatheredWeights()
    gathers = []

    def again() -> torch.Tensor:
        gathers.append(1)
        return whole.detach().clone()

    x = torch.randn(3, 4, requires_grad=True)
    with gathered.not_kept():
        used = whole * 1.0  # as a gather makes it: not the parameter's own storage
        gathered.note(used, again)
        made = torch.nn.functional.linear(x, used.t().t()).exp()
    gone = StorageWeakRef(used.untyped_storage())
    del used
    assert gone.expired() and not gathers  # type: ignore[no-untyped-call]
    made.sum().backward()
    assert gathers == [1]
    assert x.grad is not None and torch.equal(x.grad, made.detach() @ whole.detach())


def test_a_module_without_weights_of_two_dimensions_cannot_rest_in_parts() -> None:
    captured, *_ = prepared("our GPT-2")
    with pytest.raises(
        BadInput, match=r"no parameter of 'norm' can rest in parts .*have a row for each rank"
    ):
        local_graph(captured, (2,), [Wish("norm", 0, "stored")])
