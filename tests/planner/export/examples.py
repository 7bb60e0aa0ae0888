"""A model of repeated blocks as data, plans of it that differ in what they decide, and who can state them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.cluster import Cluster, find
from planner.milp import Question, solve
from planner.model import ModelGraph
from planner.plan import Plan, load
from planner.profile import Profile
from tests.planner.graphs import chain
from tests.planner.milp.instances import cluster, with_bf16
from tests.planner.rooflines import from_graph

PLANS = Path(__file__).parents[3] / "plans"
BLOCKS = 6
NAMES = (
    "embed",
    *(f"blocks.{block}.{part}" for block in range(BLOCKS) for part in ("norm", "up", "down")),
    "norm",
    "head",
    "loss",
)
PIPELINES = ("torchtitan", "megatron", "deepspeed")
REPLICAS = (*PIPELINES, "accelerate", "fsdp2", "torchrun")


def renamed(graph: ModelGraph, names: tuple[str, ...]) -> ModelGraph:
    """Returns a model whose layers have other names, and so have the values and weights that are named after them."""
    new = dict(zip([layer.name for layer in graph.layers], names, strict=True))

    def of(name: str) -> str:
        for end in ("", ":0", ".weight"):
            if name.endswith(end) and (own := name.removesuffix(end)) in new:
                return new[own] + end
        return name

    def each(found: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(of, found))

    return replace(
        graph,
        layers=tuple(
            replace(
                x,
                name=of(x.name),
                signature=f"s-{of(x.name)}",
                inputs=each(x.inputs),
                outputs=each(x.outputs),
                parameters=each(x.parameters),
                sample_flops=4_000_000,
            )
            for x in graph.layers
        ),
        values=tuple(
            replace(x, name=of(x.name), producer=of(x.producer), consumers=each(x.consumers))
            for x in graph.values
        ),
        parameters=tuple(replace(x, name=of(x.name), users=each(x.users)) for x in graph.parameters),
    )


@cache
def costs() -> Profile:
    graph = renamed(chain(len(NAMES) - 1), NAMES)
    return with_bf16(from_graph(graph, find("cpu"), micros=(1, 2, 4), workload="blocks"))


@dataclass(frozen=True, kw_only=True)
class Example:
    """What is fixed of a plan, and the trainers that can state it; of all others, `missing` is what they lack."""

    fix: Mapping[str, object] = field(default_factory=dict)
    by: tuple[str, ...] = REPLICAS
    nodes: int = 1
    per_node: int = 4
    batch: int = 16
    precision: str = "fp32"

    @property
    def machines(self) -> Cluster:
        return cluster(self.nodes, self.per_node)

    @property
    def costs(self) -> Profile:
        return costs()

    def plan(self) -> Plan:
        fix = {"data": 1, "pipeline": 1, "micro": 2, "recompute": False, "shard": False, "schedule": "1f1b"}
        asked = Question(
            profile=self.costs,
            cluster=self.machines,
            batch=self.batch,
            fix={**fix, **self.fix},
            precision=self.precision,
        )
        return solve(asked)


MIDDLE = "blocks.3.norm"
EXAMPLES: Mapping[str, Example] = {
    "one device": Example(),
    "replicas": Example(fix={"data": 4}),
    "replicas in bf16": Example(fix={"data": 2, "micro": 4}, precision="bf16"),
    "replicas that recompute": Example(
        fix={"data": 2, "recompute": True}, by=("torchtitan", "megatron", "accelerate", "fsdp2", "torchrun")
    ),
    "parameters shared": Example(
        fix={"data": 4, "shard": "parameters"},
        by=("torchtitan", "megatron", "deepspeed", "accelerate", "fsdp2"),
    ),
    "parameters shared by two": Example(
        fix={"data": 4, "shard": "parameters:2"},
        by=("torchtitan", "megatron", "accelerate", "fsdp2"),
    ),
    "gradients shared": Example(
        fix={"data": 4, "shard": "gradients"},
        by=("torchtitan", "megatron", "deepspeed", "accelerate", "fsdp2"),
    ),
    "gradients shared by two": Example(
        fix={"data": 4, "shard": "gradients:2"}, by=("torchtitan", "megatron", "accelerate", "fsdp2")
    ),
    "state shared": Example(fix={"data": 4, "shard": "state"}, by=("megatron", "deepspeed")),
    "two stages": Example(fix={"pipeline": 2, "cuts": MIDDLE}, by=("torchtitan", "megatron")),
    "even stages": Example(
        fix={"pipeline": 3, "cuts": "blocks.2.norm,blocks.5.norm"}, by=PIPELINES, batch=24
    ),
    "replicas of stages": Example(
        fix={"data": 2, "pipeline": 2, "cuts": MIDDLE, "recompute": True}, by=("torchtitan", "megatron")
    ),
    "replicas of stages over nodes": Example(
        fix={"data": 2, "pipeline": 2, "cuts": MIDDLE},
        nodes=2,
        per_node=2,
        by=("torchtitan", "megatron"),
    ),
    "interleaved": Example(
        fix={
            "pipeline": 2,
            "schedule": "interleaved",
            "chunks": 2,
            "cuts": "blocks.1.norm,blocks.3.norm,blocks.5.norm",
        },
        by=("torchtitan", "megatron"),
    ),
    "interleaved with weight gradients apart": Example(
        fix={
            "pipeline": 2,
            "schedule": "interleaved-zb",
            "chunks": 2,
            "cuts": "blocks.1.norm,blocks.3.norm,blocks.5.norm",
        },
        by=("torchtitan",),
    ),
    "gpipe": Example(fix={"pipeline": 2, "schedule": "gpipe", "cuts": MIDDLE}, by=("torchtitan",)),
    "a cut through a block": Example(fix={"pipeline": 2, "cuts": "blocks.3.up"}, by=()),
    "a cut in the head": Example(fix={"pipeline": 2, "cuts": "head"}, by=("torchtitan",)),
    "zb-h1": Example(fix={"pipeline": 2, "schedule": "zb-h1", "cuts": MIDDLE}, by=()),
    "chimera": Example(fix={"pipeline": 2, "schedule": "chimera", "cuts": MIDDLE}, by=()),
    "rolling updates": Example(fix={"data": 2, "update": "rolling"}, by=()),
    "averages": Example(fix={"data": 2, "ema": True}, by=()),
}


@cache
def planned(name: str) -> Plan:
    """Returns the plan of an example, or of a file in plans/."""
    return EXAMPLES[name].plan() if name in EXAMPLES else load(PLANS / f"{name}.yaml")


def with_latency(machines: Cluster, seconds: float) -> Cluster:
    """Returns machines whose links within a node take another time to start."""
    node: Any = machines.links.node
    links = machines.links.model_copy(update={"node": node.model_copy(update={"latency_s": seconds})})
    return machines.model_copy(update={"links": links})
