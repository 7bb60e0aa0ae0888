"""Accelerate and torchrun: launch commands whose script takes the arguments of transformers' trainer.

Read are such commands, and the YAML that `accelerate config` writes, which says nothing of batches.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner import files
from planner.errors import BadInput
from planner.export import words
from planner.export.settings import Precision, Settings, Share, Trainer

SCRIPT = "train.py"
PRECISIONS: Mapping[str, Precision] = {"no": "fp32", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
RESHARD: Mapping[str, Share] = {
    "true": "parameters",
    "full_shard": "parameters",
    "hybrid_shard": "parameters",
    "1": "parameters",
    "4": "parameters",
    "false": "gradients",
    "shard_grad_op": "gradients",
    "hybrid_shard_zero2": "gradients",
    "2": "gradients",
    "5": "gradients",
    "no_shard": "",
    "3": "",
}
OTHER_DEGREES = {
    "parallelism_config_tp_size": "tensor parallelism",
    "parallelism_config_cp_size": "context parallelism",
    "parallelism_config_sp_size": "sequence parallelism",
}


def write_accelerate(settings: Settings, about: str) -> str:
    """Writes settings as a launch command of Accelerate.

    Args: `settings` has nothing that Accelerate cannot say; `about` is a comment above the command.
    """
    data = settings.data or 1
    flags: dict[str, object] = {
        "num_processes": data,
        "num_machines": settings.nodes,
        "mixed_precision": "no" if settings.precision == "fp32" else settings.precision,
        "dynamo_backend": "inductor" if settings.execution == "compiled" else "no",
    }
    if settings.share:
        flags |= {
            "use_fsdp": True,
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": str(settings.share == "parameters").lower(),
            "fsdp_activation_checkpointing": str(settings.recompute).lower(),
        }
    else:
        flags["multi_gpu"] = data > 1
    if settings.ranks:
        flags |= {
            "use_parallelism_config": True,
            "parallelism_config_dp_replicate_size": data // settings.ranks,
            "parallelism_config_dp_shard_size": settings.ranks,
        }
    launcher = words.command(["accelerate", "launch"], flags, about=about).removesuffix("\n")
    return f"{launcher} \\\n  {_script(settings, again=not settings.share)}"


def write_torchrun(settings: Settings, about: str) -> str:
    """Writes settings as a command of torchrun, for DistributedDataParallel.

    Args: as of `write_accelerate`.
    """
    nodes = settings.nodes
    launcher = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={(settings.data or 1) // nodes}"]
    head = words.command(launcher, {}, about=about).removesuffix("\n")
    return f"{head} \\\n  {_script(settings, again=True, precision=True)}"


def _script(settings: Settings, *, again: bool, precision: bool = False) -> str:
    """Returns the script with the arguments of transformers' trainer; Accelerate states precision itself."""
    flags: dict[str, object] = {
        "per_device_train_batch_size": settings.micro,
        "gradient_accumulation_steps": settings.accumulation,
        "gradient_checkpointing": again and settings.recompute,
        "bf16": precision and settings.precision == "bf16",
        "fp16": precision and settings.precision == "fp16",
        "torch_compile": precision and settings.execution == "compiled",
    }
    return words.command([SCRIPT], flags)


def read(text: str, where: str) -> Settings:
    """Reads a command of Accelerate or torchrun, or Accelerate's YAML.

    Raises: BadInput names what means nothing here.
    """
    flags = _flags(text, where)
    words.refuse_more_than_one(flags, OTHER_DEGREES, where)
    if words.flag(flags, "use_deepspeed") or words.flag(flags, "use_megatron_lm"):
        raise BadInput(
            "leaves the split to DeepSpeed or Megatron", where=where, allowed="their own configuration"
        )
    share, shard = _share(flags, where), words.whole(flags, "parallelism_config_dp_shard_size", where, 0)
    replicas = words.count(flags, "parallelism_config_dp_replicate_size", where, 1)
    return Settings(
        micro=words.count(flags, "per_device_train_batch_size", where, None),
        accumulation=words.count(flags, "gradient_accumulation_steps", where, 1),
        data=_processes(flags, where),
        recompute=any(
            words.flag(flags, name)
            for name in (
                "gradient_checkpointing",
                "activation_checkpointing",
                "fsdp_activation_checkpointing",
            )
        ),
        share=share,
        ranks=shard if share and replicas > 1 else 0,
        precision=_precision(flags, where),
        execution="compiled"
        if words.flag(flags, "torch_compile") or words.flag(flags, "dynamo_backend")
        else "eager",
    )


def _flags(text: str, where: str) -> dict[str, object]:
    if not is_yaml(text):
        return dict(words.flags_of(words.words_of(text, where)))
    found = files.parse_yaml(text, name=where)
    inner = {name: value for part in found.values() if isinstance(part, dict) for name, value in part.items()}
    kind = str(found.get("distributed_type", ""))
    named = {
        "FSDP": {"use_fsdp": True},
        "DEEPSPEED": {"use_deepspeed": True},
        "MEGATRON_LM": {"use_megatron_lm": True},
    }
    return {**inner, **found, **named.get(kind, {})}


def is_yaml(text: str) -> bool:
    """Returns whether a text looks like the YAML that `accelerate config` writes."""
    return any(line.startswith(("distributed_type:", "compute_environment:")) for line in text.splitlines())


def _processes(flags: Mapping[str, object], where: str) -> int | None:
    if (whole := words.count(flags, "num_processes", where, None)) is not None:
        return whole
    own = words.count(flags, "nproc_per_node", where, None)
    return None if own is None else own * words.count(flags, "nnodes", where, 1)


def _share(flags: Mapping[str, object], where: str) -> Share:
    if words.flag(flags, "use_fsdp"):
        key = "fsdp_sharding_strategy" if "fsdp_sharding_strategy" in flags else "fsdp_reshard_after_forward"
        return words.chosen(str(flags.get(key, "true")), RESHARD, key, where)
    if words.flag(flags, "fsdp"):
        first = str(flags["fsdp"]).split()[0]
        return words.chosen(first, RESHARD, "fsdp", where)
    return ""


def _precision(flags: Mapping[str, object], where: str) -> Precision:
    for name in ("bf16", "fp16"):
        if words.flag(flags, name):
            return PRECISIONS[name]
    return words.chosen(str(flags.get("mixed_precision", "no")), PRECISIONS, "mixed_precision", where)


ACCELERATE = Trainer(
    name="accelerate",
    about="a launch command, with the arguments of transformers' trainer",
    write=write_accelerate,
    read=read,
    shares=("", "gradients", "parameters"),
)
TORCHRUN = Trainer(
    name="torchrun",
    about="a launch command of DistributedDataParallel, with the arguments of transformers' trainer",
    write=write_torchrun,
    read=read,
)
