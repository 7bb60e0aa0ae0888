"""Where public measurements lie, and tables of layers as profiles of ours: a chain, one row a micro-batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.model import Layer, ModelGraph, Parameter, Value
from planner.plan import Hop, Plan, StageTimes
from planner.profile import CostKey, LayerCost, OptimizerCost, Profile, Seconds

FloatArray = NDArray[np.float64]


def folder(name: str) -> Path | None:
    """Of one collection, in SHARDWRIGHT_DATA; None where it is not there."""
    root = os.environ.get("SHARDWRIGHT_DATA")
    found = Path(root) / name if root else None
    return found if found is not None and found.is_dir() else None


def absent(name: str) -> str:
    return f"Skipped: no folder '{name}' in SHARDWRIGHT_DATA; see benchmarks/adapters/public.py."


@dataclass(frozen=True, kw_only=True)
class Row:
    """A layer as a collection has it; bytes are of one sample, but for the weights."""

    weight_bytes: int
    out_bytes: int
    saved_bytes: int
    seconds: Mapping[int, tuple[float, float]]  # micro-batch -> forward and backward
    shares: int | None = None  # the layer whose weights it uses
    workspace_bytes: int = 0  # more than what is saved, while it runs


def profile(
    name: str,
    rows: Sequence[Row],
    *,
    state_bytes_per_element: float,
    seconds_per_element: float,
    bytes_per_element: int = 4,
    by_element: bool | None = None,
) -> Profile:
    """Names of layers are their numbers; `by_element` says whether the optimizer updates parts of parameters alike."""
    count = len(rows)
    values = [_value("batch", "input", "", 0, 0, False)]
    values += [
        _value(f"v{i}", "hidden", str(i), i + 1, row.out_bytes, True) for i, row in enumerate(rows[:-1])
    ]
    values.append(_value("loss", "loss", str(count - 1), None, 4, True))
    layers = [
        Layer(
            name=str(i),
            signature=f"s{i}",
            inputs=("batch" if i == 0 else f"v{i - 1}",),
            outputs=("loss" if i == count - 1 else f"v{i}",),
            parameters=_weights(i, row),
            buffers=(),
            operations=(),
            fixed_flops=0,
            sample_flops=0,
        )
        for i, row in enumerate(rows)
    ]
    parameters = [
        Parameter(
            name=f"w{i}",
            users=(str(i), *(str(j) for j, other in enumerate(rows) if other.shares == i)),
            shape=(row.weight_bytes // bytes_per_element,),
            dtype="float32" if bytes_per_element == 4 else "float16",
            bytes=row.weight_bytes,
            trainable=True,
        )
        for i, row in enumerate(rows)
        if row.weight_bytes
    ]
    graph = ModelGraph(
        layers=tuple(layers),
        values=tuple(values),
        parameters=tuple(parameters),
        buffers=(),
        loss_kind="mean",
        symbolic_batch=True,
        captured_micro=1,
    )
    return Profile(
        workload=name,
        arguments={},
        graph=graph,
        device=name,
        source="measured",
        costs={
            CostKey(f"s{i}", micro, (), "fp32", "eager"): _cost(row, micro)
            for i, row in enumerate(rows)
            for micro in row.seconds
        },
        optimizer=OptimizerCost(
            name="adam",
            state_bytes_per_parameter=state_bytes_per_element,
            seconds_per_parameter=Seconds(median=seconds_per_element),
            by_element=by_element,
        ),
        versions={},
    )


def _weights(number: int, row: Row) -> tuple[str, ...]:
    if row.shares is not None:
        return (f"w{row.shares}",)
    return (f"w{number}",) if row.weight_bytes else ()


def _cost(row: Row, micro: int) -> LayerCost:
    """Collections time a backward whole; nothing here asks for its halves."""
    forward, backward = row.seconds[micro]
    return LayerCost(
        forward=Seconds(median=forward),
        backward=Seconds(median=backward),
        input_grad=Seconds(median=backward / 2),
        weight_grad=Seconds(median=backward / 2),
        own_saved_bytes=row.saved_bytes * micro,
        kept_inputs=(),
        kept_outputs=(),
        held_bytes=row.saved_bytes * micro,
        workspace_bytes=row.workspace_bytes * micro,
    )


def _value(name: str, role: str, producer: str, user: int | None, size: int, grad: bool) -> Value:
    return Value(
        name=name,
        role=role,  # type: ignore[arg-type]
        producer=producer,
        consumers=() if user is None else (str(user),),
        shape=(1, size // 4),
        dtype="float32",
        fixed_bytes=0,
        sample_bytes=size,
        needs_grad=grad,
    )


def in_turn(plan: Plan) -> Plan:
    """Messages as part of the work of those who send and receive them."""

    def wire_ns(stage: int, direction: str) -> int:
        return sum(
            hop.ns for hop in plan.hops if hop.direction == direction and stage in (hop.sender, hop.receiver)
        )

    def longer(stage: int, times: StageTimes) -> StageTimes:
        forward, backward = (wire_ns(stage, way) for way in ("act", "grad"))
        return times.model_copy(
            update={
                "forward_ns": times.forward_ns + forward,
                "backward_ns": times.backward_ns + backward,
            }
        )

    def free(hop: Hop) -> Hop:
        return hop.model_copy(update={"ns": 0})

    return plan.model_copy(
        update={
            "times": tuple(longer(stage, times) for stage, times in enumerate(plan.times)),
            "hops": tuple(map(free, plan.hops)),
        }
    )
