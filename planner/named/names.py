"""What has a name here, as rows for `shardwright list`: devices, models, clusters, schedules, rules, and what is pinned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.cluster import CATALOGUE, cluster_names, load, total_devices
from planner.errors import BadInput
from planner.named.models import known_models
from planner.schedule import FAMILIES
from planner.spatial import RULES
from planner.units import format_bytes

Rows = list[dict[str, object]]
PINS: Mapping[str, tuple[str, str]] = {  # key: an example or all values, and what is decided by it
    "data": ("data=8", "replicas of the model"),
    "pipeline": ("pipeline=4", "workers of a replica, each with its stages"),
    "schedule": ("schedule=1f1b", "the family of orders (`shardwright list schedules`)"),
    "pairs": ("pairs=1", "pairs of opposite pipelines (chimera)"),
    "chunks": ("chunks=2", "stages a worker (interleaved), or parts of its one stage (overlap)"),
    "cuts": ("cuts=h.4,h.8", "layers that open a stage, by name or number"),
    "stages": ("stages=[[a,b],[c]]", "layers of every stage; in Python"),
    "micro": ("micro=2", "samples of a micro-batch"),
    "devices": ("devices=16", "devices that are used at most"),
    "recompute": (
        "recompute=true|false",
        "whether stages compute their forward again in place of keeping it",
    ),
    "shard": ("shard=none|state|gradients|parameters:8", "what replicas share of a stage, and how many do"),
    "sums": ("sums='rings 2'", "how gradients of replicas are summed"),
    "update": ("update=barrier|rolling", "whether a step ends for all before the next one starts"),
    "weights": ("weights=same|bf16", "the type in which weights are held"),
    "ema": ("ema=true|false", "room for averages of the weights"),
    "out_of_order": ("out_of_order=true|false", "whether the orders of `overlap` are tried"),
    "spatial": ("spatial=2x2", "parts of a sample along its dimensions, each on a rank; 1: whole samples"),
    "gather": ("gather=LAYER|end|none", "before which layer parts of a sample are gathered"),
    "regrid": ("regrid=LAYER:2x1|LAYER:samples|none", "from which layer on samples lie in other parts"),
    "group": ("group=4|2x2", "ranks that have tensors in parts"),
    "cut": ("cut=blocks.*.attention:heads|FILE|any", "which tensors the group has in parts"),
}


def listed(kind: str) -> Rows:
    """Returns what has a name, a row each.

    Args: `kind` is a key of `KINDS`.
    Raises: BadInput for another kind.
    Example: `listed("clusters")[0]["cluster"]` is "a100x8".
    """
    if kind not in KINDS:
        raise BadInput(f"nothing is listed as '{kind}'", where="list", allowed=", ".join(KINDS))
    return KINDS[kind]()


def _devices() -> Rows:
    def tera(rate: float) -> str:
        return f"{rate / 1e12:g}"

    return [
        {
            "device": device.name,
            "memory": format_bytes(device.memory_bytes),
            "fp32 TFLOP/s": tera(device.fp32_flop_per_s),
            "bf16 TFLOP/s": tera(device.bf16_flop_per_s) if device.has_bf16 else "none",
            "fp16 TFLOP/s": tera(device.fp16_flop_per_s),
            "memory GB/s": f"{device.memory_bytes_per_s / 1e9:g}",
        }
        for device in CATALOGUE.values()
    ]


def _models() -> Rows:
    found = known_models().items()
    return [{"model": name, "what it is": about, "--set": given} for name, (about, given) in found]


def _clusters() -> Rows:
    found = [load(name) for name in cluster_names()]
    return [
        {
            "cluster": one.name,
            "devices": total_devices(one),
            "nodes": ", ".join(f"{g.count} of {g.devices_per_node} {g.device}" for g in one.nodes),
            "links": ", ".join(
                f"{name} {format_bytes(link.bandwidth_bytes_per_s)}/s" for name, link in one.links if link
            ),
        }
        for one in found
    ]


def _schedules() -> Rows:
    return [{"family": name, "what it is": family.about} for name, family in FAMILIES.items()]


def _pins() -> Rows:
    return [{"--fix": example, "what it decides": about} for example, about in PINS.values()]


def _rules() -> Rows:
    by_rule: dict[str, list[str]] = {}
    for operation, rule in RULES.items():
        by_rule.setdefault(rule.__name__.replace("_", " ").strip(), []).append(
            operation.removeprefix("aten.")
        )
    return [{"rule": name, "operations": ", ".join(sorted(found))} for name, found in by_rule.items()]


KINDS: Mapping[str, Callable[[], Rows]] = {
    "devices": _devices,
    "models": _models,
    "clusters": _clusters,
    "schedules": _schedules,
    "rules": _rules,
    "pins": _pins,
}
