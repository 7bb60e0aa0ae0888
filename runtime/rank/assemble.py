"""From a plan and a captured model to everything that one rank needs to run steps."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from planner.capture import Captured, StageModule
from planner.errors import BadPlan
from planner.model import Buffer, Parameter
from planner.plan import Plan
from runtime.execute import Interpreter, Pulse, Tracer, program_of
from runtime.rank.parts import Load, RankOptions, RankParts
from runtime.rank.rank import Feed, Rank
from runtime.update import LrSchedule, Make, groups_of
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
    """Every rank calls this at the same time: communicators are made in the same order on all of them."""
    parts = RankParts(plan, captured, world, options)
    program = program_of(plan, world)
    if not world.agree(program.digest + captured.graph.fingerprint):
        raise BadPlan("the ranks have derived different programs: versions or files differ between nodes")
    modules = parts.modules(load)
    flats = parts.flats()
    groups = groups_of(parts.buckets, parts.mesh, world.rank, world.new_group)
    statistics = parts.statistics(modules)
    stages = parts.stages(modules, statistics)
    tracer = Tracer(world.rank)
    updater = parts.updater(flats, groups, stages, make_optimizer, lr_schedule, tracer)
    transport = parts.transport()
    feed = _feed(parts, modules)
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
    )
    return Rank(
        plan=plan,
        mesh=parts.mesh,
        world=world,
        graph=parts.graph,
        stages=stages,
        parameters=parts.parameters,
        buffers=parts.buffers,
        idle=_idle(parts, load),
        flats=flats,
        updater=updater,
        statistics=[one for found in statistics.values() for one in found],
        keys=parts.keys,
        transport=transport,
        interpreter=interpreter,
        tracer=tracer,
        feed=feed,
        scaler=parts.scale.scaler,
    )


def _feed(parts: RankParts, modules: Mapping[int, StageModule]) -> Feed:
    reads, device = _reads(parts, modules), parts.world.device
    if parts.sharing is None:
        return Feed(reads, device)
    samples = [value.name for value in parts.graph.values if value.role == "input"]
    region = parts.sharing.region(sorted(modules), samples)
    return Feed(reads, device, parts=parts.sharing.parts(sorted(modules)), region=region)


def _reads(parts: RankParts, modules: Mapping[int, StageModule]) -> dict[int, list[str]]:
    outer = {value.name for value in parts.graph.values if value.role != "hidden"}
    return {stage: [name for name in module.inputs if name in outer] for stage, module in modules.items()}


def _idle(parts: RankParts, load: Load) -> dict[str, Tensor]:
    """Parameters and buffers that no layer uses; the first rank keeps them for the checkpoints."""
    rows: list[Parameter | Buffer] = [*parts.graph.parameters, *parts.graph.buffers]
    unused = [row.name for row in rows if not row.users]
    return dict(load(unused)) if parts.world.rank == 0 and unused else {}
