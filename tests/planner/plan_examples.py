"""A small model with a skip and a tied weight, and right plans for it, to be spoilt by tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from itertools import pairwise
from typing import Any

from planner.cluster import CATALOGUE, Cluster
from planner.cost import stage_bytes
from planner.files import validated
from planner.model import Layer, ModelGraph, Parameter, Value, crossings, stage_of_layers
from planner.plan import (
    Axes,
    Batch,
    Hop,
    Memory,
    ModelRef,
    Plan,
    Prediction,
    Provenance,
    ScheduleChoice,
    StagePlan,
    StageTimes,
    places,
    schedule_of,
)
from planner.profile import CostKey, Profile
from planner.schedule import Kind, generate
from planner.simulate import compile, duration_vector
from planner.simulate.longest_path import makespan
from tests.planner.rooflines import from_graph

NAMES = ("embed", "down", "middle", "up", "head", "loss")
# value: producer, consumers, bytes a sample; `skip` passes by two layers
VALUES = (
    ("x", "embed", ("down",), 400),
    ("skip", "down", ("middle", "up"), 800),
    ("m", "middle", ("up",), 800),
    ("u", "up", ("head",), 800),
    ("logits", "head", ("loss",), 1200),
    ("loss", "loss", (), 4),
)
WEIGHTS = (
    ("table", ("embed", "head"), 300),
    ("d", ("down",), 50),
    ("m", ("middle",), 50),
    ("u", ("up",), 60),
)


def graph() -> ModelGraph:
    hidden = [
        Value(
            name=name,
            role="hidden",
            producer=producer,
            consumers=consumers,
            shape=(1, size // 4),
            dtype="float32",
            fixed_bytes=0,
            sample_bytes=size,
            needs_grad=True,
        )
        for name, producer, consumers, size in VALUES
    ]
    ids = _outer("ids", "input", "embed")
    targets = _outer("targets", "target", "loss")
    values = (ids, targets, *hidden)
    parameters = tuple(
        Parameter(name=name, users=users, shape=(size,), dtype="float32", bytes=4 * size, trainable=True)
        for name, users, size in WEIGHTS
    )
    return ModelGraph(
        layers=tuple(_layer(name, values, parameters) for name in NAMES),
        values=values,
        parameters=parameters,
        buffers=(),
        loss_kind="mean",
        symbolic_batch=True,
        captured_micro=2,
    )


def _outer(name: str, role: str, consumer: str) -> Value:
    return Value(
        name=name,
        role="target" if role == "target" else "input",
        producer="",
        consumers=(consumer,),
        shape=(1, 10),
        dtype="int64",
        fixed_bytes=0,
        sample_bytes=80,
        needs_grad=False,
    )


def _layer(name: str, values: Sequence[Value], parameters: Sequence[Parameter]) -> Layer:
    return Layer(
        name=name,
        signature=f"signature-of-{name}",
        inputs=tuple(value.name for value in values if name in value.consumers),
        outputs=tuple(value.name for value in values if value.producer == name),
        parameters=tuple(parameter.name for parameter in parameters if name in parameter.users),
        buffers=(),
        operations=("aten.linear",),
        fixed_flops=0,
        sample_flops=10**9,
    )


def profile(micros: Sequence[int] = (1, 2)) -> Profile:
    return from_graph(graph(), CATALOGUE["A100-40GB"], micros=micros)


def parse_cluster(text: str, *, name: str = "cluster") -> Cluster:
    return validated.read(Cluster, text, name=name, version=1)


def machines() -> Cluster:
    return parse_cluster(
        """
        version: 1
        name: test
        nodes:
          - {count: 4, device: A100-40GB, devices_per_node: 2, margin_bytes: 1000000, nodes_per_rack: 2}
        links:
          node: {latency_s: 1.0e-6, bandwidth_bytes_per_s: 1.0e+11}
          rack: {latency_s: 2.0e-6, bandwidth_bytes_per_s: 1.0e+10}
          cluster: {latency_s: 3.0e-6, bandwidth_bytes_per_s: 1.0e+10}
        """,
        name="test.yaml",
    )


def plan(
    *,
    family: str = "1f1b",
    cuts: Sequence[int] = (3,),
    workers: int = 2,
    data: int = 2,
    micros: int = 4,
    pairs: int = 1,
    recompute: bool = False,
) -> Plan:
    """A right plan: layers cut before the given indices, and everything else as it follows from them."""
    costs, micro, axes = profile(), 2, Axes(data=data, pipeline=workers)
    edges = [0, *cuts, len(NAMES)]
    stages = tuple(StagePlan(layers=NAMES[a:b], recompute=recompute) for a, b in pairwise(edges))
    made = generate(family, workers=workers, micros=micros, pairs=pairs)
    orders = tuple(" ".join(map(str, order)) for order in made.orders)
    if recompute:
        orders = tuple(_with_recomputation(order) for order in orders)
    times = tuple(_times(costs, stage, micro) for stage in stages)
    hops = _hops(costs.graph, cuts, micro)
    schedule = ScheduleChoice(
        family=family, pairs=pairs, place=made.place, pipe_of=made.pipe_of, orders=orders
    )
    plan = Plan(
        model=ModelRef(workload="tiny.py", fingerprint=costs.graph.fingerprint),
        batch=Batch(samples=micro * micros * data, micro=micro, micros=micros),
        axes=axes,
        schedule=schedule,
        stages=stages,
        places=places(axes, machines()),
        times=times,
        hops=hops,
        prediction=Prediction(
            step_ns=0,
            low_ns=0,
            high_ns=10**12,
            memory=tuple(_memory(costs, stages, made.place, micros, micro, w) for w in range(workers)),
        ),
        provenance=Provenance(profile="A100-40GB, roofline", cluster="test"),
    )
    compiled = compile(schedule_of(plan), hops, update="barrier")
    return edited(plan, {"prediction.step_ns": makespan(compiled, duration_vector(times, hops))})


def _with_recomputation(order: str) -> str:
    words = [[w.replace("B", "R"), w] if Kind.B in w else [w] for w in order.split()]
    return " ".join(word for group in words for word in group)


def _times(costs: Profile, stage: StagePlan, micro: int) -> StageTimes:
    rows = [costs.cost(name, CostKey("", micro, (), "fp32", "eager")) for name in stage.layers]
    forward = sum(round(row.forward.median * 1e9) for row in rows)
    return StageTimes(
        forward_ns=forward,
        backward_ns=sum(round(row.backward.median * 1e9) for row in rows),
        input_grad_ns=sum(round(row.input_grad.median * 1e9) for row in rows),
        weight_grad_ns=sum(round(row.weight_grad.median * 1e9) for row in rows),
        recompute_ns=forward if stage.recompute else 0,
    )


def _hops(model: ModelGraph, cuts: Sequence[int], micro: int) -> tuple[Hop, ...]:
    """By hand from the definition, not with the code that judges: each crossing out, and its gradients back."""
    carried: dict[tuple[str, int, int], list[str]] = {}
    for crossing in crossings(model, stage_of_layers(len(NAMES), cuts)):
        previous = crossing.source
        for target in crossing.targets:
            carried.setdefault(("act", crossing.source, target), []).append(crossing.value)
            carried.setdefault(("grad", target, previous), []).append(crossing.value)
            previous = target
    return tuple(
        Hop(
            direction="act" if direction == "act" else "grad",
            sender=sender,
            receiver=receiver,
            values=tuple(values),
            bytes=sum(model.value[name].bytes(micro) for name in values),
            ns=1000,
        )
        for (direction, sender, receiver), values in sorted(carried.items())
    )


def _memory(
    costs: Profile,
    stages: Sequence[StagePlan],
    place: Sequence[Sequence[int]],
    micros: int,
    micro: int,
    worker: int,
) -> Memory:
    """Generous: every micro-batch of every stage held at the same time, and all that moves with it."""
    held = [stage for row in place for stage, holder in enumerate(row) if holder == worker]
    names = [name for stage in held for name in stages[stage].layers]
    used = [name for layer in names for name in costs.graph.layer[layer].parameters]
    weights = sum(costs.graph.parameter[name].bytes for name in used)
    key = CostKey("", micro, (), "fp32", "eager")
    return Memory(
        parameters=weights,
        gradients=weights,
        optimizer=2 * weights,
        activations=2 * micros * sum(sum(astuple(stage_bytes(costs, stages[s].layers, key))) for s in held),
        buffers=sum(costs.cost(name, key).workspace_bytes for name in names),
        margin=10**6,
        limit=40 * 10**9,
    )


def edited(plan: Plan, changes: Mapping[str, object]) -> Plan:
    """The plan with other values at some keys, such as `stages.0.layers`."""
    data = plan.model_dump(mode="json")
    for key, value in changes.items():
        *path, last = [int(step) if step.isdigit() else step for step in key.split(".")]
        spot: Any = data
        for step in path:
            spot = spot[step]
        spot[last] = value
    return Plan.model_validate(data)
