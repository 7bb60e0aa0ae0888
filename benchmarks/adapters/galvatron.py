"""The search of PKU-DAIR/Hetu-Galvatron over 32 layers of Llama-2 7B on eight GPUs, as a question of ours.

Reads what its repository ships: milliseconds and mebibytes of a layer, of embedding with head, and of all-reduces. A
strategy of theirs becomes decisions that can be pinned, and a plan of ours a strategy that their cost model prices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.adapters.public import Row, profile
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.plan import Plan
from planner.profile import Profile

GPUS, LAYERS, BATCH, SEQUENCE, WIDTH = 8, 32, 16, 2048, 4096
MEMORY_MIB = 36 * 1024
CACHE = 0.2  # of the memory: their search keeps it free for the allocator
CONTEXT_MIB = 1024  # and this for the driver, which they count as memory of embedding and head
HALF_BYTES, STATE_BYTES = 2, 12  # bf16 weights and gradients; their copies in fp32 with two moments
MIB = 2**20
BACKWARD = 2.0  # forwards that a backward takes, in their cost model
OVERRIDES = (
    "search_engine.profiling_info.time_profile_mode=batch",
    f"SEQ_LENGTH={SEQUENCE}",
    f"MEMORY_CONSTRAINT={MEMORY_MIB // 1024}",
    f"search_engine.batch_size_info.min_bsz={BATCH}",
    f"search_engine.batch_size_info.max_bsz={BATCH}",
)
_MODEL = Path("galvatron", "models", "gpt", "configs")
_MACHINE = Path("galvatron", "profile_hardware", "hardware_configs")


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A plan in their words; `sharing` is ddp, zero2 or zero3, and `recomputed` counts the first layers of each stage."""

    pipeline: int
    data: int
    chunks: int  # micro-batches of a replica
    sharing: str
    layers: tuple[int, ...]  # of each stage
    recomputed: tuple[int, ...]
    tensor: int = 1
    embedding_tensor: int = 1

    @property
    def micro(self) -> int:
        """Returns the samples of a micro-batch."""
        return BATCH // self.data // self.chunks


def costs(folder: Path, micros: Sequence[int] = (1, 2, 4, 8)) -> Profile:
    """Returns their measurements as a profile: an embedding, the layers, and a head.

    Args: `folder` is a checkout; `micros` are micro-batches that they measured.
    """
    took = _json(folder / _MODEL / "computation_profiling_bf16_llama2-7b_all.json")
    held = _json(folder / _MODEL / "memory_profiling_bf16_llama2-7b_all.json")
    layer = held["layertype_0_sp"][str(SEQUENCE)]
    first, last = (held[f"other_memory_pp_on_{end}_sp"][str(SEQUENCE)] for end in ("first", "last"))
    both = held["other_memory_pp_off_sp"][str(SEQUENCE)]["activation"]["1"]
    out = HALF_BYTES * SEQUENCE * WIDTH

    def seconds(kind: str, share: float) -> dict[int, tuple[float, float]]:
        """Their tables have milliseconds of a sample, forward."""
        forward = {m: took[f"layertype_{kind}_bsz{m}_seq{SEQUENCE}"] * m * share * 1e-3 for m in micros}
        return {m: (s, BACKWARD * s) for m, s in forward.items()}

    def end(states_mib: float, saved_mib: float, out_bytes: int) -> Row:
        """Their states are four times the weights in fp32."""
        return Row(
            weight_bytes=_even(states_mib / 4 * MIB / 2),
            out_bytes=out_bytes,
            saved_bytes=round(saved_mib * MIB),
            seconds=seconds("other", 0.5),
        )

    block = Row(
        weight_bytes=_even(layer["parameter_size"] * MIB / 2),
        out_bytes=out,
        saved_bytes=round(layer["tp_activation_per_bsz_dict"]["1"] * MIB),
        seconds=seconds("0", 1.0),
    )
    head_mib = last["activation"]["1"]
    return profile(
        "A100",
        [
            end(first["model_states"]["1"], max(0.0, both - head_mib), out),
            *[block] * LAYERS,
            end(last["model_states"]["1"], head_mib, 4),
        ],
        state_bytes_per_element=STATE_BYTES,
        seconds_per_element=0.0,
        bytes_per_element=HALF_BYTES,
        by_element=True,
    )


def _even(size: float) -> int:
    return round(size / HALF_BYTES) * HALF_BYTES


def cluster(folder: Path) -> Cluster:
    """Returns their node: the bandwidth of their all-reduce, and the latency that the least of them leaves."""
    rate = _json(folder / _MACHINE / "allreduce_bandwidth_1nodes_8gpus_per_node.json")
    least_s = (
        _json(folder / _MACHINE / "sp_time_1nodes_8gpus_per_node.json")["allreduce_size_8_1MB_time"] * 1e-3
    )
    bandwidth = rate["allreduce_size_8_consec_1"] * 1e9
    turns = 2 * (GPUS - 1)
    latency = max(0.0, least_s / turns - MIB / GPUS / bandwidth)
    node = NodeGroup(
        count=1,
        device="A100",
        devices_per_node=GPUS,
        memory_bytes=MEMORY_MIB * MIB,
        margin_bytes=round(CACHE * MEMORY_MIB * MIB) + CONTEXT_MIB * MIB,
    )
    wire = Link(latency_s=latency, bandwidth_bytes_per_s=bandwidth)
    return Cluster(name=f"{GPUS} x A100", nodes=(node,), links=Links(node=wire))


def shipped(folder: Path) -> Strategy:
    """Returns the answer that their repository has for this question."""
    return strategy_of(
        _json(folder / _MODEL / "galvatron_config_llama2-7b_1nodes_8gpus_per_node_36GB_bf16.json")
    )


def strategy_of(config: Mapping[str, object]) -> Strategy:
    """Returns a file of theirs as a strategy; its layers must be cut and shared alike, as those of this question are."""
    stages = _numbers(config["pp_division"])
    tensor, again, shared = (_numbers(config[key]) for key in ("tp_sizes_enc", "checkpoint", "dp_types_enc"))
    assert len(set(tensor)) == 1 and len(set(shared)) == 1, "layers of one strategy alone have pins"
    ends = [sum(stages[: i + 1]) for i in range(len(stages))]
    recomputed = tuple(sum(again[end - size : end]) for size, end in zip(stages, ends, strict=True))
    pipeline, chunks = int(str(config["pp_deg"])), int(str(config["chunks"]))
    return Strategy(
        pipeline=pipeline,
        data=GPUS // pipeline // tensor[0],
        chunks=chunks,
        sharing="zero3" if shared[0] else str(config["default_dp_type"]),
        layers=stages,
        recomputed=recomputed,
        tensor=tensor[0],
        embedding_tensor=int(str(config["vtp"])),
    )


def _numbers(text: object) -> tuple[int, ...]:
    return tuple(int(word) for word in str(text).split(","))


def pinned(strategy: Strategy) -> dict[str, object]:
    """Returns the decisions of a strategy that our plans have, but for which layers recompute."""
    share = {"zero3": "parameters", "zero2": "gradients", "ddp": "none"}[strategy.sharing]
    return {
        "data": strategy.data,
        "pipeline": strategy.pipeline,
        "micro": strategy.micro,
        "shard": share if strategy.data > 1 else "none",
        "schedule": "1f1b",
    }


def told(plan: Plan) -> Strategy:
    """Returns a plan of ours in their words, where all stages of a worker are one.

    Args: `plan` has one pipe; what replicas share is that of its first stage.
    """
    names = [name for stage in plan.stages for name in stage.layers]
    ends = {names[0], names[-1]}  # embedding and head, which they do not count
    shared = plan.stages[0].shard
    word = shared.what if shared is not None else "state" if plan.shard_optimizer else "none"
    layers, again = [0] * plan.axes.pipeline, [0] * plan.axes.pipeline
    for worker, stage in zip(plan.schedule.place[0], plan.stages, strict=True):
        layers[worker] += len(set(stage.layers) - ends)
        again[worker] += _recomputed(stage.layers, stage.recompute, stage.recompute_before, ends)
    return Strategy(
        pipeline=plan.axes.pipeline,
        data=plan.axes.data,
        chunks=BATCH // plan.axes.data // plan.batch.micro,
        sharing={"parameters": "zero3", "gradients": "zero2", "state": "zero2"}.get(word, "ddp"),
        layers=tuple(layers),
        recomputed=tuple(again),
    )


def _recomputed(layers: Sequence[str], again: bool, before: str, ends: set[str]) -> int:
    if before:
        return len(set(layers[: layers.index(before)]) - ends)
    return len(set(layers) - ends) if again else 0


def _json(path: Path) -> Any:
    return json.loads(path.read_text())
