"""The graph as data: its dictionary, and what is refused when it comes back."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from planner.capture import capture
from planner.errors import BadInput
from planner.model import ModelGraph, crossings, stage_of_layers
from planner.model.check import graph_from_dict
from planner.workload import load


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    return capture(load("mlp")).graph


@pytest.fixture
def data(graph: ModelGraph) -> dict[str, Any]:
    return copy.deepcopy(json.loads(json.dumps(graph.to_dict())))


def test_a_graph_comes_back_from_json(graph: ModelGraph, data: dict[str, Any]) -> None:
    back = graph_from_dict(data)
    assert back == graph and back.fingerprint == graph.fingerprint


BUFFER = {
    "name": "b",
    "users": [],
    "shape": [],
    "dtype": "int64",
    "bytes": 8,
    "mutated": False,
    "remembered": True,
}
CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a missing table": (lambda d: d.pop("values"), "'values' is missing"),
    "an unknown key": (lambda d: d.update(more=1), "unknown key"),
    "a wrong type": (lambda d: d["layers"][0].update(name=3), "is not text"),
    "a size as text": (lambda d: d["values"][0].update(sample_bytes="4"), "is not an integer"),
    "a layer twice": (lambda d: d["layers"].insert(0, d["layers"][0]), "'0' is there twice"),
    "no layers": (lambda d: d.update(layers=[]), "the last one is not 'loss'"),
    "the loss is not last": (lambda d: d["layers"].reverse(), "the last one is not 'loss'"),
    "an unknown reader": (lambda d: d["values"][2].update(consumers=["nobody"]), "differ on whether"),
    "a reader forgotten": (lambda d: d["values"][2].update(consumers=[]), "differ on whether"),
    "another producer": (lambda d: d["values"][2].update(producer="2"), "differ on whether"),
    "an input with a producer": (lambda d: d["values"][2].update(role="input"), "is input with producer"),
    "an unknown parameter": (lambda d: d["layers"][0].update(parameters=["x"]), "differ on whether"),
    "a negative size": (lambda d: d["values"][2].update(sample_bytes=-4), "negative size"),
    "a negative parameter": (lambda d: d["parameters"][0].update(bytes=-4), "negative size"),
    "a buffer that nobody writes": (lambda d: d["buffers"].append(BUFFER), "remembered, but never written"),
    "negative operations": (lambda d: d["layers"][0].update(sample_flops=-1), "negative operations"),
    "no micro-batch": (lambda d: d.update(captured_micro=0), "captured_micro is 0"),
    "another loss": (lambda d: d.update(loss_kind="median"), "median"),
    "another fingerprint": (lambda d: d.update(fingerprint="sha256:0"), "fingerprint"),
    "a changed shape": (lambda d: d["values"][2].update(shape=[9]), "fingerprint"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_dictionary_that_no_graph_wrote_is_refused(data: dict[str, Any], change: str) -> None:
    edit, words = CHANGES[change]
    edit(data)
    with pytest.raises(BadInput, match=words):
        graph_from_dict(data)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(BadInput, match="not a mapping"):
        graph_from_dict([1])


def test_a_value_travels_from_its_producer_to_every_later_stage_that_reads_it() -> None:
    graph = capture(load("gpt2", {"size": "tiny", "seq": "8"})).graph
    found = {x.value: (x.source, x.targets) for x in crossings(graph, stage_of_layers(29, [3, 4]))}
    assert found == {
        "position:0": (0, (2,)),
        "blocks.0.norm1:0": (0, (1,)),
        "blocks.0.attention.qkv:0": (1, (2,)),
    }


def test_only_a_buffer_that_is_remembered_says_so_and_files_from_before_have_none() -> None:
    graph = capture(load("tests/runtime/workloads/remembers.py")).graph
    rows = json.loads(json.dumps(graph.to_dict()))
    assert graph_from_dict(rows) == graph
    said = {row["name"] for row in rows["buffers"] if "remembered" in row}
    assert said == {row.name for row in graph.buffers if row.remembered}
    assert said and said < {row.name for row in graph.buffers if row.mutated}
    for row in rows["buffers"]:
        row.pop("remembered", None)
    assert not any(row.remembered for row in graph_from_dict(rows).buffers)
