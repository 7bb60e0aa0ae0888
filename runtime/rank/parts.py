"""The parts of one rank, each made from a plan and a captured model: stages, gradient buckets and statistics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from planner.capture import Captured, StageModule, StateUse, cut, use_of_states, with_names
from planner.errors import BadPlan
from planner.kept import Masks
from planner.model import Buffer
from planner.plan import Plan, graph_on_group, is_cut, refused, schedule_of
from planner.schedule import Action, Kind, Schedule
from runtime import draws
from runtime import stage as stages
from runtime import update as updates
from runtime.execute import AUTOCAST
from runtime.kept import flat_maker
from runtime.layout import TensorParts, places_of_parts, ranks_together
from runtime.messages import Routes, Transport, check_hops, in_order_of, routes_of, stages_of_layers
from runtime.rank import sync_batchnorm
from runtime.sharding import Load, RankUnits, SharedFlat, StageUnits, flats_of, shared_buckets, stand_in
from runtime.stage import (
    AnyStage,
    LossScale,
    PartedStage,
    Scaler,
    SharedState,
    SplitWay,
    TorchStage,
    WeightStore,
    compile_stage,
    first_bad_layer,
    graph_of,
    in_two,
    observed,
    shared_states,
    states_of,
)
from runtime.update import AnyFlat, ClipBy, buckets_of, trained
from runtime.world import RankMesh, World

Node = tuple[int, int]  # pipe, stage


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """The settings of a rank that are not in its plan."""

    seed: int = 0
    clip_norm: float | None = None
    clip_by: ClipBy = "step"
    ema: float | None = None  # decay of the average of parameters
    made_up: bool = False  # what comes from other ranks is: no number is judged
    masks: Masks | None = None  # of pruned weights
    shard: int = 0  # of the stream of samples, that this run trains on


def check_supported(plan: Plan, captured: Captured) -> None:
    """Refuses a plan that is not for its model, or that the model does not allow, as the planner does.

    Args: `captured` is the model that the plan is for.
    Raises: BadPlan with the first thing that is wrong.
    """
    graph = captured.graph
    if plan.model.fingerprint != graph.fingerprint:
        raise BadPlan(
            f"the plan is for another model: fingerprint {plan.model.fingerprint}, captured {graph.fingerprint}"
        )
    for found in refused(plan, graph):
        raise BadPlan(str(found))


class RankParts:
    """The parts of one rank, in the order in which `assemble` asks for them."""

    def __init__(self, plan: Plan, captured: Captured, world: World, options: RankOptions) -> None:
        check_supported(plan, captured)
        self.plan, self.captured, self.world, self.options = plan, in_order_of(plan, captured), world, options
        self.graph = self.captured.graph
        updates.check(plan, options.clip_norm, options.clip_by)
        self.stage_of = stages_of_layers(plan, self.graph)
        self.mesh = RankMesh.of(plan)
        self.edges = [i for i in range(1, len(self.stage_of)) if self.stage_of[i] != self.stage_of[i - 1]]
        self.held, self.place = self.mesh.held(world.rank), self.mesh.by_rank[world.rank]
        self.schedule = schedule_of(plan, self.place.data)
        self.routes = routes_of(self.graph, self.stage_of)
        check_hops(self.routes, plan.hops)
        self.keys = draws.Keys(options.seed, world.device, first=options.shard * plan.batch.whole)
        named = with_names(self.graph, self.captured.layout)
        self.cut = graph_on_group(plan, named) if is_cut(plan) else None
        parts = places_of_parts(self.cut) if self.cut is not None else None
        found = buckets_of(self.graph, self.stage_of, self.mesh, trained(self.captured), parts)
        self.buckets = shared_buckets(found, plan, self.graph, self.mesh)
        self.units = RankUnits([])
        self.parameters: dict[str, nn.Parameter] = {}
        self.buffers: dict[str, Tensor] = {}
        weight = 1.0 / plan.batch.whole if self.graph.loss_kind == "mean" else 1.0
        self.scale = LossScale(weight, Scaler() if plan.precision == "fp16" else None)

    def modules(self, load: Load) -> dict[int, StageModule]:
        """Returns the stage modules of this rank, loaded one after another.

        A parameter that several stages hold is one tensor in all of them.
        Args: `load` returns tensors of a checkpoint by name.
        """
        every = cut(self.captured, self.edges)
        outer = {value.name for value in self.graph.values if value.role != "hidden"}
        self.reads = {i: [x for x in module.inputs if x in outer] for i, module in enumerate(every)}
        self.sharing = ranks_together(self.plan, every, self.cut, self.mesh, self.world)
        self.replicas = sync_batchnorm.peers(self.plan, every, self.world)
        mine: dict[int, StageModule] = {}
        self.draws = draws.numbered(every, self.graph)
        for stage, module in enumerate(every):
            if any(stage == number for _, number in self.held):
                module.materialise(self._loaded(module, load), self.world.device)
                stages.share_parameters(module, self.parameters)
                stages.share_buffers(module, self.buffers)
                draws.key_random_operations(module, self.keys, self.draws[stage])
                mine[stage] = module
        return mine

    def _loaded(self, module: StageModule, load: Load) -> Mapping[str, Tensor]:
        """Returns the tensors of a stage, with stand-ins for those of which ranks hold parts."""
        apart = {name for each in self.buckets if each.shared == "parameters" for name in each.names}
        rows = self._rows(module)
        if isinstance(self.sharing, TensorParts):  # one after the other: whole ones need not fit together
            own = self.sharing.shrunk(module).own
            here = {n: own(n, load.parameters([n])[n]) for n in rows if n not in apart}
        else:
            here = dict(load.parameters([name for name in rows if name not in apart]))
        absent = {name: tensor for name, tensor in module.named_parameters() if name in apart}
        return {**here, **{name: stand_in(tensor, self.world.device) for name, tensor in absent.items()}}

    def transport(self, routes: Routes) -> Transport:
        """Returns this rank's side of all messages.

        Args: `routes` has what they carry.
        """
        return Transport(
            routes=routes,
            place=self.schedule.place,
            peers=self.mesh.peers(self.world.rank),
            device=self.world.device,
            group=self.world.group,
        )

    def _rows(self, module: StageModule) -> list[str]:
        """Returns the names of a stage's tensors in a checkpoint; constants of the graph come with the capture."""
        names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
        return [name for name in names if name in self.graph.parameter or name in self.graph.buffer]

    def flats(self, load: Load) -> list[AnyFlat]:
        """Returns the gradient buckets of this rank, each with its parameters and gradients in flat tensors.

        All ranks call this at one time; `load` returns the parts of parameters that ranks share.
        """
        cut = self.sharing if isinstance(self.sharing, TensorParts) else None
        whole = flat_maker(self.plan, self.graph, self.options.masks, cut, pretend=self.options.made_up)
        mine = flats_of(self.buckets, self.parameters, self.held, self.world, load, whole, cut)
        self.units = RankUnits([flat for flat in mine if isinstance(flat, SharedFlat)])
        return mine

    def shared_states(self, modules: Mapping[int, StageModule]) -> dict[int, list[SharedState]]:
        """Returns the buffers to keep equal, by stage.

        These are of stages whose forward writes buffers that other ranks or pipes hold too. All ranks call
        this, because communicators are made in one order.
        Args: `modules` are the stage modules of this rank.
        """
        found: dict[int, list[SharedState]] = {}
        for stage in range(self.schedule.stages):
            written = self._written(stage)
            ranks = self.mesh.holders([stage])
            if not written or (len(ranks) == 1 and self.schedule.pipes == 1):
                continue
            summed = any(not row.update for row in written)
            group = self.world.new_group(ranks) if len(ranks) > 1 and summed else None
            if stage in modules:
                module, forwards = modules[stage], self._forwards(stage)
                common = sync_batchnorm.states(module) if self.replicas else ()
                found[stage] = shared_states(
                    module, written, self.buffers, common, self.plan, self.place, group, forwards
                )
        return found

    def _written(self, stage: int) -> list[Buffer]:
        return [
            row
            for row in self.graph.buffers
            if row.mutated and any(self.stage_of[self.graph.index[user]] == stage for user in row.users)
        ]

    def _forwards(self, stage: int) -> int:
        """Returns how many forwards of a stage this rank runs in a step, over its pipes."""
        pipes = {pipe for pipe, held in self.held if held == stage}
        return sum(pipe in pipes for pipe in self.schedule.pipe_of)

    def stages(
        self, modules: Mapping[int, StageModule], shared: Mapping[int, Sequence[SharedState]]
    ) -> dict[Node, AnyStage]:
        """Returns the stages of this rank, by pipe and stage, ready for the interpreter.

        Args: `modules` are those of this rank; `shared` is what `shared_states` has returned.
        """
        kinds = _kinds(self.schedule)
        parts = {stage: self._parts(stage, module) for stage, module in modules.items()}
        every = [part for own in parts.values() for part in own]
        uses = {part: use_of_states(graph_of(part).graph, states_of(part)) for part in every}
        if self.replicas is not None:
            sync_batchnorm.synchronise(dict(enumerate(every)), self.replicas)
        if self.sharing is not None:
            self.sharing.shard(modules, {stage for stage in modules if Kind.I in kinds[stage]})
        splits = {stage: self._split(module, kinds[stage]) for stage, module in modules.items()}
        stores = {stage: WeightStore() for stage, split in splits.items() if split == "store"}
        for stage, store in stores.items():
            for part in parts[stage]:
                stages.store_weights(part, store)
        units = {stage: self.units.of(stage, own, stores.get(stage)) for stage, own in parts.items()}
        for module in modules.values() if self.plan.execution == "compiled" else ():
            compile_stage(module, [self.graph.layer[name].signature for name in module.layers])
        made: dict[Node, AnyStage] = {}
        for pipe, stage in self.held:
            seen = observed(shared[stage]) if stage in shared else None
            ran = [
                self._torch_stage(
                    part,
                    uses[part],
                    splits[stage],
                    stores.get(stage),
                    recompute=Kind.R in kinds[stage] and part is parts[stage][0],
                    on_forward=seen if len(parts[stage]) == 1 else None,
                    units=own,
                )
                for part, own in zip(parts[stage], units[stage], strict=True)
            ]
            first, last = ran[0], ran[-1]
            made[pipe, stage] = first if first is last else PartedStage(modules[stage], first, last, seen)
        return made

    def _parts(self, stage: int, module: StageModule) -> list[StageModule]:
        """Returns the module of a stage, or its recomputed part and the rest where only some layers are
        recomputed.
        """
        before, numbers = self.plan.stages[stage].recompute_before, self.draws[stage]
        if not before:
            return [module]
        found = in_two(module, before, self.captured, self.world.device)
        for part in found:
            stages.share_parameters(part, self.parameters)
            stages.share_buffers(part, self.buffers)
            count = len(draws.random_operations(part))
            draws.key_random_operations(part, self.keys, numbers[:count])
            numbers = numbers[count:]
        return found

    def _torch_stage(
        self,
        module: StageModule,
        use: StateUse,
        split: SplitWay,
        store: WeightStore | None,
        *,
        recompute: bool,
        on_forward: Callable[[int], AbstractContextManager[object]] | None,
        units: StageUnits | None,
    ) -> TorchStage:
        parted = self.sharing or (units and units.gathers)
        return TorchStage(
            module,
            needs_grad={value.name for value in self.graph.values if value.needs_grad and value.producer},
            scale=self.scale,
            keys=self.keys,
            first_micro=self.plan.batch.first(self.place.data),
            split=split,
            store=store,
            recompute=recompute,
            written=use.written,
            read=use.read,
            autocast=AUTOCAST[self.plan.precision],
            on_forward=on_forward,
            units=units,
            diagnose=None if parted else partial(first_bad_layer, self.captured, module),
            made_up=self.options.made_up,
        )

    def _split(self, module: StageModule, kinds: Collection[Kind]) -> SplitWay:
        if Kind.I not in kinds or self.plan.execution == "compiled":
            return "none"  # a compiled backward is one function, which frees what it has saved
        large = {name for name, p in module.named_parameters() if p.requires_grad and p.ndim > 1}
        return "store" if large <= stages.could_owe(module) else "walk"


def _kinds(schedule: Schedule) -> dict[int, set[Kind]]:
    actions: list[Action] = [action for order in schedule.orders for action in order]
    return {stage: {a.kind for a in actions if a.stage == stage} for stage in range(schedule.stages)}
