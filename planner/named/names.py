"""What has a name here, as rows for `shardwright list`: devices, models, clusters, families of schedules, rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.cluster import CATALOGUE, cluster_names, load, total_devices
from planner.errors import BadInput
from planner.named.models import known_models
from planner.schedule import FAMILIES
from planner.spatial import RULES
from planner.units import format_bytes

Rows = list[dict[str, object]]


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
}
