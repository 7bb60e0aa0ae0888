"""Small models and clusters made by hand or by seed, for the tests of the solver."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.model import Layer, ModelGraph, Parameter, Value
from planner.profile import CostKey, LayerCost, OptimizerCost, Profile, Seconds

NS = 1e-9


@dataclass(frozen=True, kw_only=True)
class Block:
    """One layer: nanoseconds, bytes, and which earlier layers' outputs it reads (-1 is the batch)."""

    forward: int
    input_grad: int
    weight_grad: int
    out: int
    own: int
    weight: int
    reads: tuple[int, ...]
    workspace: int = 0
    held: int = 0


def profile(blocks: list[Block], *, micros: tuple[int, ...] = (1,), scale: float = 1.0) -> Profile:
    """Costs of micro-batch m are m times those of the block; `scale` stretches the times."""
    count = len(blocks)
    readers: dict[int, list[int]] = {k: [] for k in range(-1, count)}
    for k, block in enumerate(blocks):
        for source in block.reads:
            readers[source].append(k)
    values = [_value("x", "input", "", readers[-1], 64, False)]
    for k, block in enumerate(blocks):
        values.append(_value(f"v{k}", "hidden", f"l{k}", readers[k], block.out, True))
    parameters = tuple(
        Parameter(
            name=f"w{k}",
            users=(f"l{k}",),
            shape=(block.weight // 4,),
            dtype="float32",
            bytes=block.weight // 4 * 4,
            trainable=True,
        )
        for k, block in enumerate(blocks)
        if block.weight
    )
    layers = tuple(
        Layer(
            name=f"l{k}",
            signature=f"s{k}",
            inputs=tuple("x" if source < 0 else f"v{source}" for source in block.reads),
            outputs=(f"v{k}",),
            parameters=(f"w{k}",) if block.weight else (),
            buffers=(),
            operations=(),
            fixed_flops=0,
            sample_flops=0,
        )
        for k, block in enumerate(blocks)
    )
    graph = ModelGraph(
        layers=layers,
        values=tuple(values),
        parameters=parameters,
        buffers=(),
        loss_kind="mean",
        symbolic_batch=True,
        captured_micro=1,
    )
    costs = {
        CostKey(f"s{k}", micro, (), "fp32", "eager"): _cost(block, micro, scale)
        for k, block in enumerate(blocks)
        for micro in micros
    }
    return Profile(
        workload="hand.py",
        arguments={},
        graph=graph,
        device="cpu",
        source="roofline",
        costs=costs,
        optimizer=OptimizerCost(
            name="adamw", state_bytes_per_parameter=8.0, seconds_per_parameter=Seconds(median=1e-12)
        ),
        versions={},
    )


def keeping(made: Profile, seed: int) -> Profile:
    """Some layers keep what they make, which the stage after theirs holds once with them on one worker."""
    rng = random.Random(seed)
    keys = sorted(key for key in made.costs)
    chosen = {name for name in sorted({key.signature for key in keys}) if rng.random() < 0.6}
    costs = {
        key: replace(cost, kept_outputs=(0,)) if key.signature in chosen else cost
        for key, cost in made.costs.items()
    }
    return replace(made, costs=costs)


def with_bf16(made: Profile) -> Profile:
    """Also in bf16: half the bytes between layers, three fifths of the time."""
    graph, found = made.graph, dict(made.costs)
    for layer in graph.layers:
        for key in [key for key in made.costs if key.signature == layer.signature]:
            cost = made.costs[key]
            found[key._replace(precision="bf16")] = replace(
                cost,
                forward=_faster(cost.forward),
                backward=_faster(cost.backward),
                input_grad=_faster(cost.input_grad),
                weight_grad=_faster(cost.weight_grad),
                output_bytes=tuple((graph.value[name].bytes(key.micro) + 1) // 2 for name in layer.outputs),
            )
    return replace(made, costs=found)


def _faster(time: Seconds) -> Seconds:
    return Seconds(median=round(time.median / NS * 0.6) * NS, spread=time.spread)


def _value(name: str, role: str, producer: str, users: list[int], size: int, grad: bool) -> Value:
    return Value(
        name=name,
        role=role,  # type: ignore[arg-type]
        producer=producer,
        consumers=tuple(f"l{k}" for k in users),
        shape=(1, size // 4),
        dtype="float32",
        fixed_bytes=0,
        sample_bytes=size,
        needs_grad=grad,
    )


def _cost(block: Block, micro: int, scale: float) -> LayerCost:
    def time(ns: int) -> Seconds:
        return Seconds(median=round(ns * micro * scale) * NS, spread=round(ns * micro * scale / 20) * NS)

    return LayerCost(
        forward=time(block.forward),
        backward=time(block.input_grad + block.weight_grad),
        input_grad=time(block.input_grad),
        weight_grad=time(block.weight_grad),
        own_saved_bytes=block.own * micro,
        kept_inputs=tuple(range(len(block.reads))),
        kept_outputs=(),
        held_bytes=block.held * micro,
        workspace_bytes=block.workspace * micro,
        forward_workspace_bytes=block.workspace * (block.out % 4) // 3 * micro,
    )


def chain(count: int, seed: int, *, equal: bool = False, skips: int = 0, loose: bool = False) -> list[Block]:
    """`loose`: some layers do not read the one before them, but an earlier one or the batch."""
    rng = random.Random(seed)
    blocks = []
    for k in range(count):
        forward = 1000 if equal else rng.randint(200, 3000)
        reads = [rng.randint(-1, k - 1)] if loose and rng.random() < 0.4 else [k - 1]
        blocks.append(
            Block(
                forward=forward,
                input_grad=forward if equal else rng.randint(forward // 2, 2 * forward),
                weight_grad=forward if equal else rng.randint(forward // 2, 2 * forward),
                out=rng.randint(100, 4000),
                own=rng.randint(0, 8000),
                weight=4 * rng.randint(0, 3000),
                reads=tuple(reads),
                workspace=rng.randint(0, 2000),
                held=rng.randint(0, 3000),
            )
        )
    for _ in range(skips):
        a, b = sorted(rng.sample(range(count), 2))
        block = blocks[b]
        if a not in block.reads:
            blocks[b] = replace(block, reads=(*block.reads, a))
    return blocks


def cluster(
    nodes: int,
    per_node: int = 1,
    *,
    memory: int = 1 << 40,
    latency_s: float = 50e-9,
    bandwidth: float = 2e10,
) -> Cluster:
    near = Link(latency_s=latency_s / 5, bandwidth_bytes_per_s=5 * bandwidth)
    far = Link(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)
    return Cluster(
        name="hand",
        nodes=(NodeGroup(count=nodes, device="cpu", devices_per_node=per_node, memory_bytes=memory),),
        links=Links(node=near, rack=far, cluster=far),
    )
