"""Measured plans of VIA-Research/vTrain: GPT models on 2, 4 or 8 A100 of one node; those of tensor degree 1 here.

Reads `single.csv` (plans and milliseconds an iteration) and `trace-a100/AR_GPU*_LUT` (NCCL all-reduce) from the
folder given. The collection has no times of layers, so five constants stand for them, fitted to the plans of other
models than the one at hand: what a layer takes at least, however little there is to compute; the device's rate, and
the width at which it has half of it; what an update takes an element; what a message between stages costs those who
send and receive it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from benchmarks.adapters.public import FloatArray, Row, profile
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.profile import Profile

VOCABULARY = 51200
HALF_BYTES = 2  # weights, activations and gradients travel in half precision
MEMORY_BYTES = 80 * 2**30
_SHARPNESS = 6  # of the bend between a layer's least time and its computation
_ROUNDS = 40


@dataclass(frozen=True, kw_only=True)
class Measured:
    gpus: int
    batch: int
    micro: int
    hidden: int
    layers: int
    sequence: int
    data: int
    pipeline: int
    step_s: float

    @property
    def job(self) -> tuple[int, ...]:
        """What was asked; the rest are answers."""
        return self.gpus, self.batch, self.hidden, self.layers, self.sequence

    @property
    def micros(self) -> int:
        return self.batch // self.data // self.micro


def measured(folder: Path) -> list[Measured]:
    """Those of one node and tensor degree 1."""
    return [
        Measured(
            gpus=int(row[0]),
            batch=int(row[1]),
            micro=int(row[2]),
            hidden=int(row[3]),
            layers=int(row[5]),
            sequence=int(row[6]),
            data=int(row[8]),
            pipeline=int(row[9]),
            step_s=float(row[10]) * 1e-3,
        )
        for row in _rows(folder / "single.csv")
        if int(row[7]) == 1
    ]


def degrees(folder: Path) -> dict[str, list[int]]:
    """The tensor degree of every measured plan, by file; `multi.csv`, over several nodes, begins with the model's size."""
    found = {"single.csv": [int(row[7]) for row in _rows(folder / "single.csv")]}
    if (folder / "multi.csv").exists():
        found["multi.csv"] = [int(row[8]) for row in _rows(folder / "multi.csv")]
    return found


def _rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))[1:]


def all_reduces(folder: Path) -> dict[int, FloatArray]:
    """GPUs -> rows of bytes and seconds."""
    found = {}
    for path in sorted((folder / "trace-a100").glob("AR_GPU*_LUT")):
        with path.open(newline="") as file:
            rows = [(float(row[0]), float(row[3]) * 1e-9) for row in csv.reader(file) if row[0].isdigit()]
        found[int(path.name.removeprefix("AR_GPU").partition("_")[0])] = np.array(rows)
    return found


def link(tables: dict[int, FloatArray]) -> Link:
    """The latency and bandwidth with which the cost model's ring comes closest to the tables, by relative error."""
    columns, one = [], []
    for gpus, table in tables.items():
        turns = 2 * (gpus - 1)
        columns.append(np.stack([turns / table[:, 1], turns / gpus * table[:, 0] / table[:, 1]], 1))
        one.append(np.ones(len(table)))
    (latency, byte), *_ = np.linalg.lstsq(np.concatenate(columns), np.concatenate(one), rcond=None)
    return Link(latency_s=max(float(latency), 0.0), bandwidth_bytes_per_s=1.0 / float(byte))


@dataclass(frozen=True)
class Constants:
    layer_s: float
    flop_per_s: float
    half_width: float
    update_s: float  # a billion elements
    message_s: float

    def block_s(self, row: Measured, micro: int) -> float:
        """Forward and backward of one block."""
        hidden, sequence = row.hidden, row.sequence
        flops = 3 * micro * (24 * sequence * hidden**2 + 4 * sequence**2 * hidden)
        compute = flops / self.rate(hidden)
        return float((self.layer_s**_SHARPNESS + compute**_SHARPNESS) ** (1 / _SHARPNESS))

    def head_s(self, row: Measured, micro: int) -> float:
        return 6 * micro * row.sequence * row.hidden * VOCABULARY / self.rate(row.hidden)

    def rate(self, hidden: int) -> float:
        return self.flop_per_s * hidden / (hidden + self.half_width)


START = Constants(2e-3, 250e12, 1000.0, 0.1, 5e-4)


def closed_form_s(row: Measured, known: Constants, wire: Link) -> float:
    """Close enough to fit by; what is compared with measurements comes from the simulator."""
    block, depth = known.block_s(row, row.micro), row.pipeline
    stages = [row.layers / depth * block] * depth
    stages[-1] += known.head_s(row, row.micro)
    for stage in range(depth):
        stages[stage] += 2 * known.message_s * ((stage > 0) + (stage < depth - 1))
    elements = 12 * row.hidden**2 * row.layers / depth + VOCABULARY * row.hidden
    ring = (
        2 * (row.data - 1) * (wire.latency_s + elements * HALF_BYTES / row.data / wire.bandwidth_bytes_per_s)
    )
    return sum(stages) + (row.micros - 1) * max(stages) + ring + known.update_s * elements * 1e-9


def fit(rows: Sequence[Measured], wire: Link) -> Constants:
    """Least squares of the logarithms, by damped Gauss-Newton steps."""
    logs = np.log(np.array(astuple(START)))
    damping, error = 1e-2, _errors(rows, logs, wire)
    for _ in range(_ROUNDS):
        slopes = np.stack(
            [(_errors(rows, logs + shift, wire) - error) / 1e-4 for shift in 1e-4 * np.eye(len(logs))], 1
        )
        normal = slopes.T @ slopes
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -slopes.T @ error)
        tried = _errors(rows, logs + np.clip(step, -1, 1), wire)
        if tried @ tried < error @ error:
            logs, error, damping = logs + np.clip(step, -1, 1), tried, damping / 3
        else:
            damping *= 5
    return Constants(*np.exp(logs).tolist())


def _errors(rows: Sequence[Measured], logs: FloatArray, wire: Link) -> FloatArray:
    known = Constants(*np.exp(logs).tolist())
    return np.array([math.log(closed_form_s(row, known, wire) / row.step_s) for row in rows])


def costs(row: Measured, known: Constants, micros: Sequence[int]) -> Profile:
    """The model of a job: an embedding, its blocks, and a head that shares the embedding's weights."""
    hidden, sequence = row.hidden, row.sequence
    out = HALF_BYTES * sequence * hidden
    embedding = Row(
        weight_bytes=HALF_BYTES * VOCABULARY * hidden,
        out_bytes=out,
        saved_bytes=0,
        seconds=dict.fromkeys(micros, (0.0, 0.0)),
    )
    block = Row(
        weight_bytes=HALF_BYTES * 12 * hidden**2,
        out_bytes=out,
        saved_bytes=17 * out,
        seconds={micro: _thirds(known.block_s(row, micro)) for micro in micros},
    )
    head = Row(
        weight_bytes=0,
        shares=0,
        out_bytes=4,
        saved_bytes=4 * sequence * VOCABULARY,
        seconds={micro: _thirds(known.head_s(row, micro)) for micro in micros},
    )
    return profile(
        "A100",
        [embedding, *[block] * row.layers, head],
        state_bytes_per_element=12.0,
        seconds_per_element=known.update_s * 1e-9,
        bytes_per_element=HALF_BYTES,
    )


def _thirds(seconds: float) -> tuple[float, float]:
    """A backward is two forwards."""
    return seconds / 3, 2 * seconds / 3


def cluster(gpus: int, wire: Link) -> Cluster:
    node = NodeGroup(count=1, device="A100", devices_per_node=gpus, memory_bytes=MEMORY_BYTES)
    return Cluster(name=f"{gpus} x A100", nodes=(node,), links=Links(node=wire))
