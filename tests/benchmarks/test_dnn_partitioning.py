"""Planning instances as that collection writes them: stages of the forward graph, backward nodes beside theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import solver
from benchmarks.adapters import dnn_partitioning

# 1 -> 2 -> 4 and 1 -> 3 -> 4, each with its backward node; (identity, latency, colour)
FORWARD = [(1, 1.0, 1), (2, 4.0, 2), (3, 4.0, 3), (4, 1.0, 4)]
EDGES = [(1, 2, 0.25), (1, 3, 0.25), (2, 4, 0.5), (3, 4, 0.5)]


def write(folder: Path, *, devices: int, memory: float = 100.0, training: bool = True) -> Path:
    nodes = [row(*node, backward=False) for node in FORWARD]
    edges = [{"sourceId": a, "destId": b, "cost": cost} for a, b, cost in EDGES]
    if training:
        nodes += [row(10 + name, 2 * latency, colour, backward=True) for name, latency, colour in FORWARD]
        edges += [{"sourceId": 10 + b, "destId": 10 + a, "cost": 0.5} for a, b, _ in EDGES]
        edges += [{"sourceId": 4, "destId": 14, "cost": 9.0}]  # stays on the device
    inner = folder / "dnn-partitioning"
    inner.mkdir(exist_ok=True)
    path = inner / "hand.json"
    path.write_text(
        json.dumps({"maxFPGAs": devices, "maxSizePerFPGA": memory, "nodes": nodes, "edges": edges})
    )
    return path


def row(name: int, latency: float, colour: int, *, backward: bool) -> dict[str, object]:
    return {
        "id": name,
        "supportedOnFpga": 1,
        "fpgaLatency": latency,
        "isBackwardNode": int(backward),
        "colorClass": colour,
        "size": 10.0,
    }


def best(folder: Path, **facts: float | bool) -> float:
    return dnn_partitioning.best_load_ms(dnn_partitioning.load(write(folder, **facts)))  # type: ignore[arg-type]


def test_a_device_takes_a_branch_of_the_forward_pass(tmp_path: Path) -> None:
    """{1, 2} and {3, 4}: node 1 sends to 3, 2 to 4; a source is paid for on both sides."""
    assert best(tmp_path, devices=1, training=False) == 10.0
    assert best(tmp_path, devices=2, training=False) == 5.0 + 0.25 + 0.5


def test_backward_nodes_go_where_the_forward_ones_of_their_colour_went(tmp_path: Path) -> None:
    """Gradients of 3 and 4 come back, each 0.5, whoever of its readers is there."""
    assert best(tmp_path, devices=1) == 30.0
    assert best(tmp_path, devices=2) == 15.0 + 0.25 + 0.5 + 2 * 0.5


def test_what_fits_nowhere_has_no_load(tmp_path: Path) -> None:
    assert best(tmp_path, devices=2, memory=30.0) == float("inf")
    assert best(tmp_path, devices=4, memory=30.0) < float("inf")


def test_a_backward_node_without_a_colour_stands_where_the_backward_pass_puts_it(tmp_path: Path) -> None:
    path = write(tmp_path, devices=2, training=True)
    data = json.loads(path.read_text())
    del data["nodes"][4]["colorClass"]  # of node 1
    data["nodes"][4]["id"] = 11
    path.write_text(json.dumps(data))
    work = dnn_partitioning.work_of(dnn_partitioning.load(path))
    alone = [k for k in range(work.count) if work.cost[k] == 2.0]
    assert len(alone) == 1
    assert any(alone[0] in row for row in work.before)


def test_the_benchmark_lists_every_instance_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, devices=2)
    monkeypatch.setenv("SHARDWRIGHT_DATA", str(tmp_path))
    table = solver.contiguous()
    assert [line[0] for line in table.rows] == ["hand"]
    assert table.rows[0][4] == 16.75
    monkeypatch.setenv("SHARDWRIGHT_DATA", str(tmp_path / "dnn-partitioning"))
    assert "SHARDWRIGHT_DATA" in solver.contiguous().notes[0]
