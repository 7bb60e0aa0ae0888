"""PyTorch's own `fully_shard` (FSDP2): a Python file with its settings and the function that applies them."""

from __future__ import annotations

from planner.export import words
from planner.export.constants import constants_of, module_text
from planner.export.settings import Settings, Share, Trainer
from planner.plan import unit_names

CONSTANTS = (
    *("DP_REPLICATE", "DP_SHARD", "RESHARD_AFTER_FORWARD", "GLOBAL_BATCH_SIZE", "MICRO_BATCH_SIZE"),
    *("ACCUMULATION_STEPS", "PARAM_DTYPE", "RECOMPUTE", "COMPILE"),
)
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

APPLY = '''

def shard(model, device="cuda"):
    """Returns the model with its parameters sharded; call it on every rank before the optimizer is made."""
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    axes = ("dp_replicate", "dp_shard")
    mesh = init_device_mesh(device, (DP_REPLICATE, DP_SHARD), mesh_dim_names=axes)
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, PARAM_DTYPE), reduce_dtype=torch.float32)
    uses = _uses(model)  # a parameter that others use, too, is left to the model as a whole
    names = [name for name in UNITS if _uses(model.get_submodule(name)).items() <= uses.items()]
    units = [model.get_submodule(name) for name in names]
    if RECOMPUTE:
        apply_activation_checkpointing(model, check_fn=lambda module: any(module is unit for unit in units))
        units = [model.get_submodule(name) for name in names]
    for unit in [*units, model]:
        if COMPILE and unit is not model:
            unit.compile()
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=RESHARD_AFTER_FORWARD)
    return model


def _uses(part):
    """Returns how many modules of a part of the model have each of its parameters."""
    from collections import Counter

    return Counter(id(x) for module in part.modules() for x in module._parameters.values() if x is not None)
'''


def write(settings: Settings, about: str) -> str:
    """Writes settings as a Python file with a function that shards a model.

    Args: `settings` has nothing that FSDP2 cannot say; `about` is a line about the plan.
    """
    data = settings.data or 1
    shard = (settings.ranks or data) if settings.share else 1
    layers = [name for names in settings.stages for name in names][:-1]
    units = dict.fromkeys(name.partition("#")[0].partition(" from ")[0] for name in unit_names(layers))
    values = {
        "DP_REPLICATE": data // shard,
        "DP_SHARD": shard,
        "RESHARD_AFTER_FORWARD": settings.share == "parameters",
        # What lies around other units is left to the model as a whole, which is sharded last.
        "UNITS": [name for name in units if not any(other.startswith(f"{name}.") for other in units)],
        "GLOBAL_BATCH_SIZE": settings.batch,
        "MICRO_BATCH_SIZE": settings.micro,
        "ACCUMULATION_STEPS": settings.accumulation,
        "PARAM_DTYPE": DTYPES[settings.precision or "fp32"],
        "RECOMPUTE": settings.recompute,
        "COMPILE": settings.execution == "compiled",
    }
    return module_text(f"Settings of fully_shard. {about}", "", values) + APPLY


def read(text: str, where: str) -> Settings:
    """Reads the constants of such a file; nothing of it is run.

    Raises: BadInput where a number of it is none.
    """
    found = constants_of(text, where, CONSTANTS)
    replicas, shard = (words.count(found, name, where, 1) for name in ("DP_REPLICATE", "DP_SHARD"))
    share: Share = (
        ""
        if shard == 1
        else "parameters"
        if words.flag(found, "RESHARD_AFTER_FORWARD", True)
        else "gradients"
    )
    precisions = {theirs: own for own, theirs in DTYPES.items()}
    precision = words.chosen(str(found.get("PARAM_DTYPE", "float32")), precisions, "PARAM_DTYPE", where)
    batch = words.count(found, "GLOBAL_BATCH_SIZE", where, None)
    return Settings(
        batch=batch,
        micro=words.count(found, "MICRO_BATCH_SIZE", where, None),
        accumulation=words.count(found, "ACCUMULATION_STEPS", where, 1 if batch is None else None),
        data=replicas * shard,
        recompute=words.flag(found, "RECOMPUTE"),
        share=share,
        ranks=shard if share and replicas > 1 else 0,
        precision="bf16" if precision == "bf16" else "fp16" if precision == "fp16" else "fp32",
        execution="compiled" if words.flag(found, "COMPILE") else "eager",
    )


FSDP2 = Trainer(
    name="fsdp2",
    about="a Python file with a function that calls fully_shard",
    write=write,
    read=read,
    shares=("", "gradients", "parameters"),
)
