"""torchtitan: a Python file with the values of its configuration, since lists of modules have no flags.

Read are that file, flags such as `--parallelism.pipeline_parallel_degree 2`, and TOML as older versions had it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping

from planner.errors import BadInput
from planner.export import words
from planner.export.constants import constants_of, is_python, module_text
from planner.export.cuts import modules_of
from planner.export.settings import PIPELINE_OUTSIDE, Settings, Share, Trainer

CONSTANTS = ("PARALLELISM", "TRAINING", "COMPILE", "ACTIVATION_CHECKPOINT")
FAMILIES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "interleaved-zb": "InterleavedZeroBubble",
}
DEEPEST = 2  # a module of the model, or one of a list in it
RESHARD = {"parameters": "always", "gradients": "never", "": "default"}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
OTHER_DEGREES = {
    "tensor_parallel_degree": "tensor parallelism",
    "context_parallel_degree": "context parallelism",
    "expert_parallel_degree": "expert parallelism",
}

APPLY = '''

def apply(config):
    """Returns a torchtitan configuration with the settings above; call it in a function of your config_registry."""
    parts = {"parallelism": PARALLELISM, "training": TRAINING, "compile": COMPILE}
    for part, values in parts.items():
        for name, value in values.items():
            setattr(getattr(config, part), name, value)
    config.activation_checkpoint = None
    if ACTIVATION_CHECKPOINT == "full":
        from torchtitan.distributed.activation_checkpoint import FullAC

        config.activation_checkpoint = FullAC.Config()
    return config
'''


def write(settings: Settings, about: str) -> str:
    """Writes settings as a Python file that changes a configuration of torchtitan.

    Args: `settings` has nothing that torchtitan cannot say; `about` is a line about the plan.
    """
    data, ranks = settings.data or 1, settings.ranks or settings.data or 1
    shard = ranks if settings.share else 1
    micro, own = settings.micro or 1, settings.accumulation or 1
    piped = settings.pipeline > 1
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": data // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": RESHARD[settings.share],
        "tensor_parallel_degree": 1,
        "context_parallel_degree": 1,
        "pipeline_parallel_degree": settings.pipeline,
    }
    if piped:
        parallelism |= {
            "pipeline_parallel_schedule": FAMILIES[settings.family],
            "pipeline_parallel_microbatch_size": micro,
            "module_fqns_per_model_part": [list(names) for names in modules_of(settings.stages, DEEPEST)],
        }
    values = {
        "PARALLELISM": parallelism,
        "TRAINING": {
            "local_batch_size": micro * own if piped else micro,
            "global_batch_size": settings.batch,
            "mixed_precision_param": DTYPES[settings.precision or "fp32"],
        },
        "COMPILE": {"enable": settings.execution == "compiled"},
        "ACTIVATION_CHECKPOINT": "full" if settings.recompute else "none",
    }
    note = "Modules without layers of their own, which no list names, go with the module that feeds them."
    return module_text(f"Settings of torchtitan. {about}", note if piped else "", values) + APPLY


def read(text: str, where: str) -> Settings:
    """Reads a configuration of torchtitan in any of its three forms.

    Raises: BadInput names what means nothing here.
    """
    found = _flat(text, where)
    parallel, training = _part(found, "parallelism"), _part(found, "training")
    words.refuse_more_than_one(parallel, OTHER_DEGREES, where)
    pipeline = words.count(parallel, "pipeline_parallel_degree", where, 1)
    replicas = words.count(parallel, "data_parallel_replicate_degree", where, 1)
    shard = words.whole(parallel, "data_parallel_shard_degree", where, -1)
    if shard < 1 and replicas > 1:
        said = "data_parallel_shard_degree is left open beside data_parallel_replicate_degree"
        raise BadInput(said, where=where, allowed="a number")
    local = words.count(training, "local_batch_size", where, 8)
    micro = words.count(parallel, "pipeline_parallel_microbatch_size", where, 1) if pipeline > 1 else local
    whole_batch = words.whole(training, "global_batch_size", where, -1)
    data = replicas * shard if shard > 0 else None
    family = (
        _family(str(parallel.get("pipeline_parallel_schedule", "1F1B")), where) if pipeline > 1 else "1f1b"
    )
    modules = parallel.get("module_fqns_per_model_part") or ()
    if not isinstance(modules, list | tuple) or not all(isinstance(part, list | tuple) for part in modules):
        raise BadInput("module_fqns_per_model_part", where=where, allowed="a list of lists of names")
    if pipeline > 1 and local % micro:
        raise BadInput(f"local_batch_size is {local}", where=where, allowed=f"a multiple of {micro}")
    again, notes = _recompute(found)
    if pipeline > 1 and not modules:
        notes = (*notes, "it names no modules: stages of equally many blocks")
    share: Share = (
        "" if shard == 1 else _share(str(parallel.get("fsdp_reshard_after_forward", "default")), pipeline)
    )
    wide = whole_batch > 0
    return Settings(
        batch=whole_batch if wide else None,
        micro=micro,
        accumulation=None if wide else local // micro,
        flush=local // micro if pipeline > 1 else None,
        data=data,
        pipeline=pipeline,
        family=family,
        chunks=max(1, len(modules) // pipeline) if modules else 2 if family.startswith("interleaved") else 1,
        stages=tuple(tuple(str(name) for name in part) for part in modules),
        recompute=again,
        share=share,
        ranks=shard if share and replicas > 1 else 0,
        precision="bf16" if training.get("mixed_precision_param", "bfloat16") == "bfloat16" else "fp32",
        execution="compiled" if words.flag(_part(found, "compile"), "enable") else "eager",
        order=PIPELINE_OUTSIDE,
        notes=notes,
    )


def is_toml(text: str) -> bool:
    """Returns whether a text has a section as torchtitan's TOML has them."""
    return any(line.strip() in ("[parallelism]", "[training]") for line in text.splitlines())


def _flat(text: str, where: str) -> dict[str, object]:
    """Returns the values of any form by `section.name`."""
    if is_toml(text):
        try:
            return _joined(tomllib.loads(text))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise BadInput(f"is no TOML: {error}", where=where) from None
    if is_python(text):
        given = constants_of(text, where, CONSTANTS)
        parts = {name.lower(): value for name, value in given.items() if isinstance(value, dict)}
        return {**_joined(parts), "activation_checkpoint.mode": given.get("ACTIVATION_CHECKPOINT", "none")}
    every = words.words_of(text, where)
    policy = next(
        (word.partition(":")[2] for word in every if word.startswith("activation-checkpoint:")), None
    )
    mode = {} if policy is None else {"activation_checkpoint.mode": policy}
    return {**words.flags_of(every), **mode}


def _joined(parts: Mapping[str, object]) -> dict[str, object]:
    return {
        f"{part}.{name}": value
        for part, values in parts.items()
        if isinstance(values, dict)
        for name, value in values.items()
    }


def _part(found: Mapping[str, object], part: str) -> dict[str, object]:
    return {key.partition(".")[2]: value for key, value in found.items() if key.startswith(f"{part}.")}


def _family(theirs: str, where: str) -> str:
    return words.chosen(
        theirs, {name.lower(): own for own, name in FAMILIES.items()}, "pipeline_parallel_schedule", where
    )


def _share(reshard: str, pipeline: int) -> Share:
    """With a pipeline, torchtitan's default keeps parameters gathered between micro-batches."""
    kept = reshard == "never" or (reshard == "default" and pipeline > 1)
    return "gradients" if kept else "parameters"


def _recompute(found: Mapping[str, object]) -> tuple[bool, tuple[str, ...]]:
    mode = str(found.get("activation_checkpoint.mode", "selective"))
    notes = () if mode in ("full", "none") else (f"recomputation is '{mode}': priced as none",)
    return mode == "full", notes


def refuses(settings: Settings) -> Iterator[str]:
    """Yields cuts that torchtitan cannot make."""
    if settings.pipeline > 1:
        try:
            modules_of(settings.stages, DEEPEST)
        except BadInput as error:
            yield f"{error} (it moves modules of the model, and those of its lists)"


TORCHTITAN = Trainer(
    name="torchtitan",
    about="a Python file for its config_registry",
    write=write,
    read=read,
    families=FAMILIES,
    shares=("", "gradients", "parameters"),
    orders=(PIPELINE_OUTSIDE,),
    precisions=("fp32", "bf16"),
    refuses=refuses,
)
