"""Measured plans of eth-easl/sailor: OPT-350M on GH200, a device being a group of four GPUs with tensor degree 4.

Reads `profiles.json` (seconds a layer), `llm_info.json` (bytes a layer), `multizone_bandwidths.json` (fits of the
bandwidth over sizes) and `measured/*/*.json` from the folder given. Bytes and seconds are those of one GPU of a group.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.adapters.public import Row, profile
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.cluster import catalogue as devices
from planner.profile import Profile

MODEL, GPU, ZONE, TENSOR = "OPT-350", "GH-96", "us-central1-a", "4"
MEMORY_BYTES = 96 * 10**9
ADAM_STATE = 8.0  # bytes an element: two moments in fp32
# The table's seconds of an update are the same for every layer, of 3 or of 15 million elements: those of launching it
# layer by layer, where the engine updates all at once. So it takes what it moves: weights, gradients and moments, in
# fp32, of which the gradients are not written.
UPDATE_BYTES = 7 * 4
DEVICE = "GH200-96GB"
SEQUENCE, HEADS = 2048, 16  # of OPT-350M
# Attention is no fused kernel there: its backward has the gradients of the probabilities and of the scores at once.
BLOCK_BYTES = 2 * 4 * SEQUENCE**2 * HEADS // int(TENSOR)


@dataclass(frozen=True, kw_only=True)
class Measured:
    name: str
    stages: tuple[tuple[int, ...], ...]  # layers
    data: int
    micro: int
    batch: int
    step_s: float
    peak_bytes: int  # of the fullest GPU


def measured(folder: Path) -> Iterator[Measured]:
    for path in sorted((folder / "measured").glob("*/*.json")):
        text = path.read_text()
        for number, plan in enumerate(rows if isinstance(rows := json.loads(text), list) else [rows]):
            pipeline = plan["pipeline_list"][0]
            degrees = {group[1] for stage in pipeline["tmp_per_stage"] for group in _groups(stage)}
            if len(plan["pipeline_list"]) == 1 and degrees == {int(TENSOR)} and len(set(pipeline["dp"])) == 1:
                yield Measured(
                    name=path.stem.removeprefix("plan_config_") + (f" {number}" if number else ""),
                    stages=tuple(map(tuple, pipeline["layers_per_stage"])),
                    data=pipeline["dp"][0],
                    micro=plan["mbs"],
                    batch=plan["gbs"],
                    step_s=plan["real"],
                    peak_bytes=plan["max_mem"],
                )


def _groups(stage: object) -> list[tuple[object, int]]:
    """(devices, tensor degree) of every replica; files nest them by one level or by two."""
    assert isinstance(stage, list)
    return [tuple(stage)] if isinstance(stage[-1], int) else [g for part in stage for g in _groups(part)]


def costs(folder: Path, *, alone: bool = False) -> Profile:
    """Of one micro-batch that has no other before it (`alone`), or of several."""
    seconds = json.loads((folder / "profiles.json").read_text())[MODEL][GPU]
    sizes = json.loads((folder / "llm_info.json").read_text())[MODEL][TENSOR]
    micros = sorted(int(m) for m in seconds if TENSOR in seconds[m])
    names = sorted(sizes, key=int)
    rows = [
        Row(
            weight_bytes=sizes[name]["params_bytes"],
            out_bytes=sizes[name]["act_output_bytes"],
            saved_bytes=sizes[name]["act_mem_bytes"],
            workspace_bytes=_workspace_bytes(name, names, sizes[name]["act_output_bytes"], alone),
            seconds={m: tuple(seconds[str(m)][TENSOR][name][:2]) for m in micros},
        )
        for name in names
    ]
    return profile(
        GPU,
        rows,
        state_bytes_per_element=ADAM_STATE,
        seconds_per_element=UPDATE_BYTES / devices.find(DEVICE).memory_bytes_per_s,
    )


def _workspace_bytes(name: str, names: Sequence[str], out_bytes: int, alone: bool) -> int:
    """The table has what is kept. The loss of that engine makes its logits less their maximum and the exponentials of
    these, each as a tensor of its own, while the engine holds the logits: one more than the two in the table. It has
    two slots for what the last stage puts out, and empties none: the logits of the micro-batch before are there too."""
    if name == names[0]:
        return 0
    return (1 if alone else 2) * out_bytes if name == names[-1] else BLOCK_BYTES


def cluster(folder: Path, groups: int) -> Cluster:
    """One group of four a node; between two of them each GPU talks to its like over a card of its own."""
    link = _link(
        json.loads((folder / "multizone_bandwidths.json").read_text())[ZONE][GPU]["1"][ZONE][GPU]["1"]
    )
    node = NodeGroup(count=groups, device=GPU, devices_per_node=1, memory_bytes=MEMORY_BYTES)
    return Cluster(name=f"{groups} x 4 {GPU}", nodes=(node,), links=Links(rack=link))


def _link(fit: Sequence[object]) -> Link:
    """The table gives GB/s as a parabola of log2 of the megabytes, and its top: the line through 1 MB and the top."""
    parabola, top = fit
    assert isinstance(parabola, list) and isinstance(top, float)
    at_one_mb_s = 1e6 / (parabola[2] * 1e9)
    assert math.isfinite(at_one_mb_s)
    return Link(latency_s=max(0.0, at_one_mb_s - 1e6 / top), bandwidth_bytes_per_s=top)
