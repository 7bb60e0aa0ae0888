"""Small models as data, for tests that need no torch."""

from __future__ import annotations

from itertools import pairwise

from planner.model import Layer, ModelGraph, Parameter, Value
from planner.profile import CostKey, LayerCost, OptimizerCost, Profile, Seconds, kept_values

BYTES = 100  # of every Value, a sample


def chain(length: int = 4, *, skips: dict[str, tuple[str, ...]] | None = None) -> ModelGraph:
    """x -> a0 -> a1 -> ... -> loss, with a parameter each; `skips` adds consumers to the output of a layer."""
    names = [*(f"a{i}" for i in range(length)), "loss"]
    reads: dict[str, list[str]] = {name: [f"{before}:0"] for before, name in pairwise(names)}
    reads["a0"] = ["input"]
    reads["loss"].append("target")
    for producer, consumers in (skips or {}).items():
        for consumer in consumers:
            reads[consumer].append(f"{producer}:0")
    layers = tuple(
        Layer(
            name=name,
            signature=f"s-{name}",
            inputs=tuple(reads[name]),
            outputs=(f"{name}:0",),
            parameters=() if name == "loss" else (f"{name}.weight",),
            buffers=(),
            operations=("aten.linear",),
            fixed_flops=0,
            sample_flops=1000,
        )
        for name in names
    )
    values = [
        _value("input", "", reads),
        _value("target", "", reads),
        *(_value(f"{name}:0", name, reads) for name in names),
    ]
    parameters = tuple(
        Parameter(name=f"{x}.weight", users=(x,), shape=(5, 5), dtype="float32", bytes=100, trainable=True)
        for x in names[:-1]
    )
    return ModelGraph(
        layers=layers,
        values=tuple(values),
        parameters=parameters,
        buffers=(),
        loss_kind="mean",
        symbolic_batch=True,
        captured_micro=3,
    )


def _value(name: str, producer: str, reads: dict[str, list[str]]) -> Value:
    return Value(
        name=name,
        role="hidden" if producer else "target" if name == "target" else "input",
        producer=producer,
        consumers=tuple(layer for layer, inputs in sorted(reads.items()) if name in inputs),
        shape=(1, 25),
        dtype="float32",
        fixed_bytes=0,
        sample_bytes=BYTES,
        needs_grad=bool(producer),
    )


def cost(
    *,
    own: int = 0,
    inputs: tuple[int, ...] = (),
    outputs: tuple[int, ...] = (),
    aliases: tuple[tuple[int, int], ...] = (),
    output_bytes: tuple[int, ...] = (),
    forward: float = 1.0,
) -> LayerCost:
    second = Seconds(median=1.0)
    return LayerCost(
        forward=Seconds(median=forward),
        backward=second,
        input_grad=second,
        weight_grad=second,
        own_saved_bytes=own,
        kept_inputs=inputs,
        kept_outputs=outputs,
        held_bytes=0,
        workspace_bytes=0,
        aliases=aliases,
        output_bytes=output_bytes,
    )


def profile(graph: ModelGraph, costs: dict[str, LayerCost], *, micro: int = 1) -> Profile:
    """Layers that `costs` does not name cost what `cost()` says."""
    rows = {x.signature: costs.get(x.name, cost()) for x in graph.layers}
    return Profile(
        workload="chain",
        arguments={"size": "small"},
        graph=graph,
        device="cpu",
        source="measured",
        costs={CostKey(name, micro, (), "fp32", "eager"): row for name, row in rows.items()},
        optimizer=OptimizerCost(
            name="adamw", state_bytes_per_parameter=8.0, seconds_per_parameter=Seconds(median=1e-9)
        ),
        versions={"torch": "0"},
    )


def saved_bytes(found: Profile, layers: list[str], key: CostKey) -> int:
    """Returns the bytes that autograd keeps for the backward of some layers, each storage once."""
    own = sum(found.cost(name, key).own_saved_bytes for name in layers)
    return own + sum(found.value_bytes(name, key) for name in kept_values(found, layers, key))
