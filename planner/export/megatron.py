"""Megatron-LM: flags of its pretraining scripts, behind the torchrun command that gives them their devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from planner.errors import BadInput
from planner.export import words
from planner.export.cuts import blocks_of
from planner.export.settings import DATA_OUTSIDE, PIPELINE_OUTSIDE, Precision, Settings, Share, Trainer

STRATEGIES: Mapping[str, Share] = {
    "no_shard": "",
    "optim": "state",
    "optim_grads": "gradients",
    "optim_grads_params": "parameters",
}
OTHER_DEGREES = {
    "tensor_model_parallel_size": "tensor parallelism",
    "context_parallel_size": "context parallelism",
    "expert_model_parallel_size": "expert parallelism",
}


def write(settings: Settings, about: str) -> str:
    """Writes settings as the command of a pretraining script of Megatron-LM.

    Args: `settings` has nothing that Megatron-LM cannot say; `about` is a comment above the command.
    """
    nodes, devices = settings.nodes, settings.devices or 1
    strategy = next(theirs for theirs, share in STRATEGIES.items() if share == settings.share)
    by_element = settings.share in ("gradients", "parameters")
    flags: dict[str, object] = {
        "tensor-model-parallel-size": 1,
        "pipeline-model-parallel-size": settings.pipeline,
        "micro-batch-size": settings.micro,
        "global-batch-size": settings.batch,
    }
    if settings.pipeline > 1:
        flags["pipeline-model-parallel-layout"] = layout_of(blocks_of(settings.stages))
        flags["use-tp-pp-dp-mapping"] = settings.order == DATA_OUTSIDE
    if settings.recompute:
        flags |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    flags["use-distributed-optimizer"] = bool(settings.share)
    if by_element:
        flags |= {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": strategy}
        flags["num-distributed-optimizer-instances"] = (
            (settings.data or 1) // settings.ranks if settings.ranks else None
        )
    flags |= {"bf16": settings.precision == "bf16", "fp16": settings.precision == "fp16"}
    launcher = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={devices // nodes}", "pretrain_gpt.py"]
    return words.command(launcher, flags, about=about)


def layout_of(blocks: Sequence[int]) -> str:
    """Returns the layout of stages with so many transformer layers each, such as Ett|tt|ttL."""
    rows = ["t" * count for count in blocks]
    rows[0], rows[-1] = f"E{rows[0]}", f"{rows[-1]}L"
    return "|".join(rows)


def blocks_of_layout(layout: str, where: str) -> tuple[int, ...]:
    """Returns the transformer layers of each stage of a layout.

    Raises: BadInput for letters that mean other layers, or parts that none are made of.
    """
    plain = layout.replace(",", "")
    for inner in (r"\(([^()]*)\)\*(\d{1,4})", r"([A-Za-z])\*(\d{1,4})"):
        plain = re.sub(inner, lambda found: found[1] * int(found[2]), plain)
    rows = plain.rstrip("|").split("|")
    counts = tuple(row.count("t") for row in rows)
    right = "".join(rows).strip("t") in ("", "E", "L") or re.fullmatch(r"Et*L", "".join(rows))
    if not right or len(plain) > 10_000:
        allowed = "E, t and L, such as Ett|tt|ttL"
        raise BadInput(f"pipeline_model_parallel_layout is '{layout:.60}'", where=where, allowed=allowed)
    return counts


def read(text: str, where: str) -> Settings:
    """Reads the flags of Megatron-LM in a script.

    Raises: BadInput names what means nothing here.
    """
    flags = words.flags_of(words.words_of(text, where))
    words.refuse_more_than_one(flags, OTHER_DEGREES, where)
    pipeline = words.count(flags, "pipeline_model_parallel_size", where, 1)
    layout = flags.get("pipeline_model_parallel_layout")
    blocks = () if layout is None else blocks_of_layout(layout, where)
    if len(blocks) % pipeline:
        said = f"a layout of {len(blocks)} stages over {pipeline} workers"
        raise BadInput(said, where=where, allowed=f"a multiple of {pipeline}")
    chunks = len(blocks) // pipeline or words.count(flags, "num_virtual_stages_per_pipeline_rank", where, 1)
    again, notes = _recompute(flags, where)
    share, instances = (
        _share(flags, where),
        words.count(flags, "num_distributed_optimizer_instances", where, 1),
    )
    precision: Precision = (
        "bf16" if words.flag(flags, "bf16") else "fp16" if words.flag(flags, "fp16") else "fp32"
    )
    return Settings(
        batch=words.count(flags, "global_batch_size", where, None),
        micro=words.count(flags, "micro_batch_size", where, None),
        pipeline=pipeline,
        devices=_devices(flags, where),
        family="interleaved" if chunks > 1 else "1f1b",
        chunks=chunks,
        blocks=blocks,
        recompute=again,
        share=share,
        copies=instances if share in ("gradients", "parameters") else 1,
        precision=precision,
        order=DATA_OUTSIDE if words.flag(flags, "use_tp_pp_dp_mapping") else PIPELINE_OUTSIDE,
        notes=notes,
    )


def _devices(flags: Mapping[str, str], where: str) -> int | None:
    nodes, own = (words.count(flags, name, where, None) for name in ("nnodes", "nproc_per_node"))
    return None if own is None else own * (nodes or 1)


def _share(flags: Mapping[str, str], where: str) -> Share:
    if words.flag(flags, "use_megatron_fsdp") or words.flag(flags, "use_custom_fsdp"):
        given = flags.get("data_parallel_sharding_strategy", "no_shard")
        return words.chosen(given, STRATEGIES, "data_parallel_sharding_strategy", where)
    if words.flag(flags, "use_torch_fsdp2"):
        return "parameters"
    return "state" if words.flag(flags, "use_distributed_optimizer") else ""


def _recompute(flags: Mapping[str, str], where: str) -> tuple[bool, tuple[str, ...]]:
    how = flags.get("recompute_granularity", "none")
    if how == "full" and flags.get("recompute_method") == "block":
        return True, ("recomputation of some blocks: priced as of all",)
    notes = ("recomputation is 'selective': priced as none",) if how == "selective" else ()
    return how == "full", notes


def refuses(settings: Settings) -> Iterator[str]:
    """Yields what Megatron-LM trains otherwise: other models, and parts of blocks."""
    try:
        counts = blocks_of(settings.stages)
    except BadInput as error:
        yield f"{error} (it has transformer layers alone, and cuts between them)"
        return
    if settings.share in ("gradients", "parameters") and settings.pipeline > 1:
        yield f"shard: {settings.share} in a pipeline"
    if settings.pipeline > 1 and not all(counts[1:-1]):
        yield "a stage without a block"


MEGATRON = Trainer(
    name="megatron",
    about="a command with the flags of Megatron-LM",
    write=write,
    read=read,
    families={"1f1b": "", "interleaved": ""},
    orders=(PIPELINE_OUTSIDE, DATA_OUTSIDE),
    shares=("", "state", "gradients", "parameters"),
    compiles=False,
    refuses=refuses,
)
