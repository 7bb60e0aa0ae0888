"""Assembles everything that one rank needs to run steps, from a plan and a captured model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from planner.capture import Captured, StageModule
from planner.errors import BadPlan
from planner.model import Buffer, Parameter
from planner.plan import Plan
from planner.program import Program
from planner.timeline import COLLECTIVE, Event, encode
from runtime.data import Feed
from runtime.draws import Keys
from runtime.execute import Interpreter, Pulse, Tracer, program_of
from runtime.layout import TensorParts
from runtime.rank.evaluation import Evaluation
from runtime.rank.parts import Node, RankOptions, RankParts
from runtime.rank.rank import Rank
from runtime.runfolder import COUNT
from runtime.sharding import Joining, Load
from runtime.stage import AnyStage
from runtime.update import (
    AnyFlat,
    Averages,
    Bucket,
    GradientSync,
    LrSchedule,
    Make,
    OnSum,
    PreviousNorm,
    Squares,
    Updater,
    groups_of,
    named_sums,
)
from runtime.world import World


def assemble(
    plan: Plan,
    captured: Captured,
    world: World,
    *,
    make_optimizer: Make,
    lr_schedule: LrSchedule,
    load: Load,
    options: RankOptions,
    pulse: Pulse,
) -> Rank:
    """Returns one rank, ready to run.

    All ranks call this at the same time, because communicators are made in the same order on all of them.
    Args: `load` reads tensors, or elements of them, by name; `pulse` is beaten by every call of the rank.
    Raises: BadPlan where the plan is not supported, or where ranks have derived different programs.
    """
    parts = RankParts(plan, captured, world, options)
    program = _agreed_program(plan, captured, world, parts)
    modules = parts.modules(load)
    flats = parts.flats(load)
    groups = groups_of(parts.buckets, parts.mesh, world.rank, world.new_group)
    named = named_sums(groups, plan.sums, world.rail)
    shared = parts.shared_states(modules)
    cut = parts.sharing if isinstance(parts.sharing, TensorParts) else None
    stages = parts.stages(modules, shared)
    tracer = Tracer(world.rank, world.clock, device=world.device)
    held = sorted({stage for _, stage in parts.held})
    uncounted = parts.sharing.uncounted(held) if parts.sharing else ()
    sync = GradientSync(flats, groups, uncounted, _traced_sums(tracer, parts.keys), named)
    updater = _updater(parts, flats, sync, stages, make_optimizer, lr_schedule)
    transport = parts.transport(parts.routes)
    idle, feed = _idle(parts, load), _feed(parts, modules)
    interpreter = Interpreter(
        program,
        parts.place.pipeline,
        stages=stages,
        routes=parts.routes,
        carrier=transport,
        updates=updater,
        feed=feed,
        pulse=pulse,
        tracer=tracer,
        converting_ns=None if cut is None else cut.converting_ns,
    )
    return Rank(
        plan=plan,
        mesh=parts.mesh,
        world=world,
        graph=parts.graph,
        stages=stages,
        parameters=parts.parameters,
        buffers=parts.buffers,
        idle=idle,
        flats=flats,
        units=parts.units,
        parts=cut,
        joining=Joining(groups, cut, _writers(plan), world.rank) if cut is not None else None,
        updater=updater,
        shared=[one for found in shared.values() for one in found],
        keys=parts.keys,
        transport=transport,
        interpreter=interpreter,
        tracer=tracer,
        feed=feed,
        make_evaluation=partial(Evaluation, parts, idle, updater, pulse),
        scaler=parts.scale.scaler,
    )


def _writers(plan: Plan) -> frozenset[int]:
    """Returns the ranks of the groups that write checkpoints: those of the first replica."""
    return frozenset(place.rank for place in plan.places if place.data == 0)


def _agreed_program(plan: Plan, captured: Captured, world: World, parts: RankParts) -> Program:
    """Returns the program of this rank's replica, once all ranks have derived the same of the plan."""
    program = program_of(plan, world)
    if not world.agree(program.digest + captured.graph.fingerprint):
        raise BadPlan("the ranks have derived different programs: versions or files differ between nodes")
    if parts.cut is not None and not world.agree(parts.cut.agreed):
        raise BadPlan(
            "the ranks have derived different parts of tensors: versions or files differ between nodes"
        )
    masks = parts.options.masks
    if not world.agree(masks.digest if masks is not None else ""):
        raise BadPlan("the ranks have other masks of pruned weights: the file differs between nodes")
    return program_of(plan, world, parts.place.data) if plan.batch.shares else program


def _updater(
    parts: RankParts,
    flats: Sequence[AnyFlat],
    sync: GradientSync,
    stages: Mapping[Node, AnyStage],
    make: Make,
    lr_schedule: LrSchedule,
) -> Updater:
    options, sharing, world = parts.options, parts.sharing, parts.world
    counted = parts.graph.loss_kind == "sum_count"
    losses = _LossCount(stages if sharing is None or sharing.place == 0 else {})
    squares = Squares(parts.buckets, world.rank, world.device)
    return Updater(
        sync,
        make,
        squares=squares,
        clip_norm=options.clip_norm if options.clip_by == "step" else None,
        count=((lambda: 1.0) if options.made_up else losses) if counted else None,
        scaler=parts.scale.scaler,
        schedule=lr_schedule,
        world=world.group,
        previous=_previous(options, world, flats, squares),
        draws=parts.keys.of_update,
        averages=Averages(flats, options.ema) if options.ema is not None else None,
    )


def _previous(
    options: RankOptions, world: World, flats: Sequence[AnyFlat], squares: Squares
) -> PreviousNorm | None:
    if options.clip_norm is None or options.clip_by == "step":
        return None
    group = world.new_group(range(world.size)) if world.group is not None else None
    return PreviousNorm(options.clip_norm, flats, squares, group)


def _traced_sums(tracer: Tracer, keys: Keys) -> OnSum:
    """Returns the recorder of gradient sums. A sum belongs to the step that launched it, however late it ends."""

    def on_sum(bucket: Bucket) -> Callable[[int, int], None]:
        return partial(tracer.add, keys.step, encode(Event(COLLECTIVE, bucket.stages[0])))

    return on_sum


@dataclass
class _LossCount:
    """The divisor of a step's summed losses on this rank, such as the number of words."""

    stages: Mapping[Node, AnyStage]

    def __call__(self) -> float:
        return sum(float(row[COUNT]) for stage in self.stages.values() for row in stage.losses.values())


def _feed(parts: RankParts, modules: Mapping[int, StageModule]) -> Feed:
    reads, device = {stage: parts.reads[stage] for stage in modules}, parts.world.device
    if parts.sharing is None:
        return Feed(reads, device)
    samples = [value.name for value in parts.graph.values if value.role == "input"]
    region = parts.sharing.region(sorted(modules), samples)
    return Feed(reads, device, parts=parts.sharing.parts(sorted(modules)), region=region)


def _idle(parts: RankParts, load: Load) -> dict[str, Tensor]:
    """Returns the parameters and buffers that no layer uses. The first rank keeps them for the checkpoints."""
    rows: list[Parameter | Buffer] = [*parts.graph.parameters, *parts.graph.buffers]
    unused = [row.name for row in rows if not row.users]
    return dict(load.parameters(unused)) if parts.world.rank == 0 and unused else {}
