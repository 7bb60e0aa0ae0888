"""All trainers by name: what a plan is exported to, and which of them a file is of."""

from __future__ import annotations

from collections.abc import Mapping

from planner.errors import BadInput
from planner.export import words
from planner.export.constants import constants_of, is_python
from planner.export.deepspeed import DEEPSPEED
from planner.export.fsdp2 import FSDP2
from planner.export.hugging_face import ACCELERATE, TORCHRUN, is_yaml
from planner.export.megatron import MEGATRON
from planner.export.settings import Settings, Trainer, misplaced, settings_of, unsayable
from planner.export.torchtitan import TORCHTITAN, is_toml
from planner.plan import Plan
from planner.units import plural

TRAINERS: Mapping[str, Trainer] = {
    trainer.name: trainer for trainer in (TORCHTITAN, MEGATRON, DEEPSPEED, ACCELERATE, FSDP2, TORCHRUN)
}


def export(plan: Plan, to: str, where: str = "plan") -> str:
    """Writes a plan as the configuration of another trainer.

    Args: `to` is a name of `TRAINERS`; `where` names the plan in messages.
    Returns: text that states the same degrees, batches, schedule, cuts, recomputation and sharding.
    Raises: BadInput with everything that the trainer cannot state.
    Example: export(load("plan.yaml"), "deepspeed")
    """
    if to not in TRAINERS:
        raise BadInput(f"no trainer is called '{to}'", where="--to", allowed=", ".join(TRAINERS))
    trainer, settings = TRAINERS[to], settings_of(plan)
    if lost := _lost(plan, trainer, settings):
        able = [name for name, other in TRAINERS.items() if not _lost(plan, other, settings)]
        others = f"{' or '.join(able)}, which can; or " if able else ""
        raise BadInput(
            f"{to} cannot state what this plan has: {'; '.join(lost)}",
            where=where,
            allowed=f"{others}a plan with {_pins(trainer, settings)} and other pins",
        )
    return trainer.write(settings, _about(plan))


def _lost(plan: Plan, trainer: Trainer, settings: Settings) -> list[str]:
    """Returns what of a plan a trainer cannot state, in a person's words."""
    lost = list(unsayable(plan)) or list(trainer.unsayable(settings))
    if not lost and settings.order not in trainer.orders and misplaced(plan, trainer.orders[0]):
        outer, inner, _ = plan.axes.order
        return [f"{inner} inside of {outer} over {settings.nodes} nodes (it numbers ranks otherwise)"]
    return lost


def _pins(trainer: Trainer, settings: Settings) -> str:
    """Returns the pins with which `plan` keeps to what a trainer can state, as far as these settings do not."""
    found = [f"--schedule {','.join(trainer.families or ('1f1b',))}"]
    if settings.pipeline > 1 and not trainer.families:
        found.append("--fix pipeline=1")
    if settings.share not in trainer.shares:
        found.append(f"--fix shard={trainer.shares[0] or 'none'}")
    return " ".join(found)


def _about(plan: Plan) -> str:
    axes, batch = plan.axes, plan.batch
    return (
        f"From a plan of shardwright for {plan.model.workload}: data {axes.data} x pipeline {axes.pipeline}, "
        f"{plural(batch.micros, 'micro-batch', 'micro-batches')} of {batch.micro}, {batch.samples} samples a step."
    )


_FLAGS = {
    "torchtitan": ("parallelism.", "training."),
    "megatron": ("tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size"),
    "accelerate": ("num_processes", "per_device_train_batch_size", "nproc_per_node"),
}


def read_settings(text: str, where: str) -> Settings:
    """Reads the configuration of any trainer; nothing of it is run.

    Args: `text` is a command, flags, JSON, YAML, TOML or Python; `where` names its file.
    Raises: BadInput where it is of none of them, or says what means nothing here.
    """
    return TRAINERS[_trainer_of(text, where)].read(text, where)


def _trainer_of(text: str, where: str) -> str:
    if text.lstrip().startswith("{"):
        return "deepspeed"
    if is_yaml(text):
        return "accelerate"
    if is_toml(text):
        return "torchtitan"
    if is_python(text):
        names = constants_of(text, where)
        if found := "torchtitan" if "PARALLELISM" in names else "fsdp2" if "DP_SHARD" in names else "":
            return found
    flags = words.flags_of(words.words_of(text, where))
    for trainer, marks in _FLAGS.items():
        if any(name.startswith(marks) for name in flags):
            return trainer
    raise BadInput("is no configuration that is known", where=where, allowed=f"one of {', '.join(TRAINERS)}")
