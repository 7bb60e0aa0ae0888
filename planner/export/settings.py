"""What a configuration of any trainer says of how a training is split, and what a plan says in these words.

`Settings` is what all trainers have in common: degrees, batches, the schedule, cuts, recomputation, sharding. A plan
may hold more than that. `unsayable` names everything that would be lost, so that nothing is lost in silence. `Trainer`
is one trainer that plans are exported to and configurations are read from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from planner.errors import BadInput
from planner.plan import Axes, Plan, coordinates, schedule_of, shard_of, shard_ranks
from planner.schedule import FAMILIES, Schedule, generate, with_recompute

Share = Literal["", "state", "gradients", "parameters"]  # what data replicas share among them
Precision = Literal["fp32", "bf16", "fp16"]
AxisName = Literal["data", "pipeline", "spatial"]
Order = tuple[AxisName, AxisName, AxisName]

DATA_OUTSIDE: Order = ("data", "pipeline", "spatial")
PIPELINE_OUTSIDE: Order = ("pipeline", "data", "spatial")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a training is split, as far as trainers state it; what a configuration leaves open is None or empty."""

    batch: int | None = None  # samples a step, over all replicas
    micro: int | None = None  # samples of one micro-batch
    accumulation: int | None = None  # micro-batches a step of one replica
    data: int | None = None
    pipeline: int = 1
    devices: int | None = None  # data x pipeline, where that is what is known
    family: str = "1f1b"
    chunks: int = 1
    stages: tuple[tuple[str, ...], ...] = ()  # layers of each stage, or modules that hold them
    blocks: tuple[int, ...] = ()  # in the place of stages: repeated blocks of each
    recompute: bool = False
    share: Share = ""
    ranks: int = 0  # replicas that hold one copy among them; 0 is all
    copies: int = 1  # in the place of ranks: copies over all replicas
    precision: Precision | None = None
    execution: Literal["eager", "compiled"] = "eager"
    order: Order | None = None  # axes from the outermost
    nodes: int = 1
    flush: int | None = (
        None  # micro-batches after which the pipeline drains, where that is not the whole step
    )
    notes: tuple[str, ...] = ()  # what the configuration says and no price knows


def settings_of(plan: Plan) -> Settings:
    """Returns what a plan says in the words that trainers share.

    Args: `plan` may hold what these words cannot say; `unsayable` names that.
    """
    shard = shard_of(plan, 0)
    ranks = shard_ranks(plan, shard) if shard is not None and shard.what != "state" else 0
    return Settings(
        batch=plan.batch.samples,
        micro=plan.batch.micro,
        accumulation=plan.batch.micros,
        data=plan.axes.data,
        pipeline=plan.axes.pipeline,
        devices=plan.axes.data * plan.axes.pipeline,
        family="1f1b" if _runs_as(plan, "1f1b") else plan.schedule.family,
        chunks=plan.schedule.chunks,
        stages=tuple(stage.layers for stage in plan.stages),
        recompute=all(stage.recompute for stage in plan.stages),
        share="" if shard is None else shard.what,
        ranks=ranks if ranks < plan.axes.data else 0,
        precision=plan.precision,
        execution=plan.execution,
        order=PIPELINE_OUTSIDE if plan.axes.order.index("pipeline") == 0 else DATA_OUTSIDE,
        nodes=len({place.node for place in plan.places}),
    )


def unsayable(plan: Plan) -> Iterator[str]:
    """Yields what a plan has that no trainer's configuration can state, each with its value.

    Args: `plan` is right in form.
    """
    family = FAMILIES.get(plan.schedule.family)
    if family is not None and family.paired:
        yield f"schedule {plan.schedule.family}, whose pipelines run both ways over the same devices"
    elif not _runs_as(plan, "1f1b") and not _runs_as(plan, plan.schedule.family):
        yield f"schedule {plan.schedule.family} in an order of its own"
    if plan.schedule.update == "rolling":
        yield "update: rolling"
    if plan.axes.spatial > 1:
        yield f"spatial {plan.axes.spatial}: samples cut in space"
    if plan.batch.shares:
        yield f"shares {', '.join(map(str, plan.batch.shares))}: replicas with unequal numbers of micro-batches"
    if plan.kept is not None:
        yield f"kept: pruned weights, {plan.kept.share:.3g} of them trained"
    if plan.weights != "same":
        yield f"weights: {plan.weights}, with fp32 ones that are updated"
    if plan.ema:
        yield "ema: averages of the parameters"
    yield from _of_stages(plan)
    if len(set(Counter(place.node for place in plan.places).values())) > 1:
        yield "nodes that give unequal numbers of devices"


def _of_stages(plan: Plan) -> Iterator[str]:
    again = [stage.recompute for stage in plan.stages]
    if any(again) and not all(again):
        some = ", ".join(str(index) for index, found in enumerate(again) if found)
        yield f"recompute in stages {some} alone"
    if part := next((stage.recompute_before for stage in plan.stages if stage.recompute_before), ""):
        yield f"recompute up to layer '{part}' alone"
    if len({shard_of(plan, stage) for stage in range(len(plan.stages))}) > 1:
        yield "shard: stages that share otherwise than others"
    for stage in plan.stages:
        if stage.shard is not None and stage.shard.unit:
            yield f"shard: unit {stage.shard.unit}"
            break


def _runs_as(plan: Plan, family: str) -> bool:
    """Returns whether a plan's workers do exactly what a family, as it generates itself, has them do."""
    made = _generated(plan, family)
    own = schedule_of(plan)
    return made is not None and (made.place, made.pipe_of, made.orders) == (
        own.place,
        own.pipe_of,
        own.orders,
    )


def _generated(plan: Plan, family: str) -> Schedule | None:
    spec, chunks = FAMILIES.get(family), plan.schedule.chunks
    if spec is None or not (chunks >= spec.chunks if isinstance(spec.chunks, int) else chunks in spec.chunks):
        return None
    paired = {"pairs": plan.schedule.pairs} if spec.paired else {}
    try:
        made = generate(family, workers=plan.axes.pipeline, micros=plan.batch.micros, chunks=chunks, **paired)
    except BadInput:
        return None
    again = [index for index, stage in enumerate(plan.stages) if stage.recompute]
    return with_recompute(made, again) if again else made


def misplaced(plan: Plan, order: Order) -> bool:
    """Returns whether numbering the ranks in another order of the axes puts other ranks together on a node.

    Args: `order` is that of a trainer, from the outermost axis.
    """
    if plan.axes.order == order or min(plan.axes.data, plan.axes.pipeline) == 1:
        return False
    return _together(plan, plan.axes) != _together(plan, plan.axes.model_copy(update={"order": order}))


def _together(plan: Plan, axes: Axes) -> set[frozenset[tuple[int, ...]]]:
    """Returns the coordinates that each node holds."""
    nodes: dict[int, set[tuple[int, ...]]] = {}
    for place in plan.places:
        nodes.setdefault(place.node, set()).add(coordinates(axes, place.rank))
    return {frozenset(found) for found in nodes.values()}


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """What one trainer can state, how it writes that, and how its files are read."""

    name: str
    about: str  # the form of what is written
    write: Callable[[Settings, str], str]  # settings and a line about the plan, as text
    read: Callable[[str, str], Settings]  # text and its name
    families: Mapping[str, str] = field(
        default_factory=dict
    )  # ours: theirs; empty where there are no pipelines
    shares: tuple[Share, ...] = ("",)
    orders: tuple[Order, ...] = (DATA_OUTSIDE,)  # of the axes, that it can number ranks in
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    compiles: bool = True
    refuses: Callable[[Settings], Iterator[str]] = lambda settings: iter(())  # what else it cannot state

    def unsayable(self, settings: Settings) -> Iterator[str]:
        """Yields what this trainer has no word for, with what it has."""
        if settings.pipeline > 1 and not self.families:
            yield f"pipeline {settings.pipeline} (it has data-parallel replicas alone)"
        elif settings.family not in (self.families or {"1f1b": ""}):
            has = ", ".join(self.families) or "forwards and backwards in turn"
            yield f"schedule {settings.family} (it has {has})"
        elif settings.family.startswith("interleaved") and (settings.accumulation or 0) % settings.pipeline:
            yield f"{settings.accumulation} micro-batches interleaved over {settings.pipeline} workers (it has multiples)"
        if settings.share not in self.shares:
            has = ", ".join(share or "nothing" for share in self.shares)
            yield f"shard: {settings.share or 'nothing shared'} (it has {has})"
        if settings.precision not in self.precisions:
            yield f"precision {settings.precision} (it has {', '.join(self.precisions)})"
        if settings.execution == "compiled" and not self.compiles:
            yield "execution: compiled"
        yield from self.refuses(settings)
