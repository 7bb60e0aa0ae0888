"""DeepSpeed: the JSON of its configuration, with the `pipeline` section that a PipelineModule is made by."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from planner.errors import BadInput
from planner.export import words
from planner.export.cuts import even_stages
from planner.export.settings import PIPELINE_OUTSIDE, Precision, Settings, Share, Trainer

STAGES: tuple[Share, ...] = ("", "state", "gradients", "parameters")  # by ZeRO stage


def write(settings: Settings, about: str) -> str:
    """Writes settings as a configuration of DeepSpeed.

    Args: `settings` has nothing that DeepSpeed cannot say; `about` is left out, since JSON has no comments.
    """
    zero: dict[str, object] = {"stage": STAGES.index(settings.share)}
    data: dict[str, object] = {
        "train_batch_size": settings.batch,
        "train_micro_batch_size_per_gpu": settings.micro,
        "gradient_accumulation_steps": settings.accumulation,
        "zero_optimization": zero,
        "bf16": {"enabled": settings.precision == "bf16"},
        "fp16": {"enabled": settings.precision == "fp16"},
    }
    if settings.pipeline > 1:
        data["pipeline"] = {
            "stages": settings.pipeline,
            "partition": "uniform",
            "activation_checkpoint_interval": int(settings.recompute),
        }
    return json.dumps(data, indent=2) + "\n"


def read(text: str, where: str) -> Settings:
    """Reads a configuration of DeepSpeed.

    Raises: BadInput names what means nothing here.
    """
    found = _document(text, where)
    zero, pipeline = _section(found, "zero_optimization"), _section(found, "pipeline")
    batch, micro, own = (
        _number(found, name, where)
        for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    stage = words.whole(zero, "stage", where, 0)
    if not 0 <= stage < len(STAGES):
        raise BadInput(f"zero_optimization.stage is {stage}", where=where, allowed="0 to 3")
    words.refuse_more_than_one(
        {**_section(found, "tensor_parallel"), **found},
        {"autotp_size": "tensor parallelism", "sequence_parallel_size": "sequence parallelism"},
        where,
    )
    on = {name for name in ("bf16", "fp16") if words.flag(_section(found, name), "enabled")}
    precision: Precision = "bf16" if "bf16" in on else "fp16" if on else "fp32"
    return Settings(
        batch=batch,
        micro=micro,
        accumulation=own if own is not None or batch is None or micro is None else None,
        pipeline=_number(pipeline, "stages", where) or 1,
        recompute=words.whole(pipeline, "activation_checkpoint_interval", where, 0) > 0,
        share=STAGES[stage],
        ranks=max(0, words.whole(zero, "mics_shard_size", where, 0)),
        precision=precision,
        order=PIPELINE_OUTSIDE,
        notes=tuple(_notes(found, zero, pipeline)),
    )


def _notes(
    found: Mapping[str, object], zero: Mapping[str, object], pipeline: Mapping[str, object]
) -> Iterator[str]:
    """Yields what is priced otherwise than it will run."""
    partition = str(pipeline.get("partition", "uniform"))
    if pipeline and partition != "uniform":
        yield f"partition is '{partition}': priced as stages of equally many blocks"
    if any(_section(zero, name) for name in ("offload_optimizer", "offload_param")):
        yield "offloading: priced as none"
    if words.whole(zero, "zero_hpz_partition_size", "", 1) > 1:
        yield "zero_hpz_partition_size: second copies of parameters, priced as none"
    if _section(found, "activation_checkpointing"):
        yield "activation_checkpointing: the model's code says where, priced as none"


def _document(text: str, where: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is no JSON: {error}", where=where) from None
    if not isinstance(found, dict):
        raise BadInput("is no configuration", where=where, allowed="an object with names")
    return found


def _section(found: Mapping[str, object], name: str) -> dict[str, object]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _number(found: Mapping[str, object], name: str, where: str) -> int | None:
    """Returns a number, None where it is left open or "auto"."""
    return None if found.get(name) == "auto" else words.count(found, name, where, None)


def refuses(settings: Settings) -> Iterator[str]:
    """Yields pipelines that DeepSpeed cuts or updates otherwise."""
    if settings.pipeline > 1:
        layers = [name for names in settings.stages for name in names]
        if settings.stages != _even(layers, settings.pipeline):
            yield "uneven cuts (it cuts into stages of equally many layers)"
        if settings.share in ("gradients", "parameters"):
            yield f"shard: {settings.share} in a pipeline (it has state alone there)"
    elif settings.recompute:
        yield "recompute without a pipeline (there, the model's own code says it)"
    if settings.ranks:
        yield f"{settings.share} shared by {settings.ranks} of the replicas (it shares among all)"


def _even(layers: list[str], stages: int) -> object:
    try:
        return even_stages(layers, stages)
    except BadInput:
        return None


DEEPSPEED = Trainer(
    name="deepspeed",
    about="the JSON of its configuration",
    write=write,
    read=read,
    families={"1f1b": ""},
    shares=STAGES,
    orders=(PIPELINE_OUTSIDE,),
    compiles=False,
    refuses=refuses,
)
