"""Evaluates a batch: forwards alone, of the model as its `eval()` makes it run.

The model is captured once more, in evaluation mode, when the first batch is evaluated. Its stages have messages of
their own and share the tensors of the training; what they write into a buffer is written into a copy. Random numbers
that are drawn in evaluation mode, too, are drawn under the keys of the training step before, whatever the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread

import torch
import torch.distributed as dist
from torch import Tensor

from planner.capture import Captured, StageModule, cut, drawing_order, evaluation_of, name_of, with_names
from planner.errors import BadInput, BadPlan
from planner.model import Buffer, Parameter
from runtime.data import Feed
from runtime.draws import Keys, key_random_operations
from runtime.execute import AUTOCAST, Interpreter, Pulse, Tensors, Tracer, forward_program
from runtime.messages import routes_of
from runtime.rank.parts import RankParts
from runtime.runfolder import LOSS
from runtime.update import Updater
from runtime.world import World


class EvaluationStage:
    """A stage that only runs forward."""

    def __init__(
        self,
        module: StageModule,
        tensors: Tensors,
        keys: Keys,
        first_micro: int = 0,
        autocast: torch.dtype | None = None,
    ) -> None:
        """Prepares a stage of a model that was captured in evaluation mode.

        Args: `tensors` has those that the stage reads, by name, and may have more; constants need not be given.
        """
        self._module, self._keys = module, keys
        self.first_micro, self._autocast = first_micro, autocast
        self._states = [_state(module, slot, tensors, keys.device) for slot in module._states]
        self.losses: dict[int, dict[str, Tensor]] = {}

    def forward(self, micro: int, inputs: Tensors) -> dict[str, Tensor]:
        self._keys.micro = self.first_micro + micro
        given, kind = [inputs[name] for name in self._module.inputs], self._keys.device.type
        with torch.no_grad(), torch.autocast(kind, self._autocast, enabled=self._autocast is not None):
            results = self._module._run(*given, *self._states)
        made: dict[str, Tensor] = dict(zip(self._module.outputs, results, strict=True))
        if LOSS in made:
            self.losses[micro] = {name: x for name, x in made.items() if name.startswith(LOSS[:-1])}
        return made

    def backward(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        raise AssertionError("an evaluation has no backward")

    input_half = backward

    def weight_half(self, micro: int) -> None:
        raise AssertionError("an evaluation has no backward")

    recompute = weight_half


def _state(module: StageModule, slot: str, tensors: Tensors, device: torch.device) -> Tensor:
    name = name_of(slot)
    return tensors[name] if name in tensors else module._constants[name].to(device)


@contextmanager
def _beating(pulse: Pulse) -> Iterator[None]:
    """Beats a pulse every second, since a large model may take longer to capture than a rank may be silent."""
    done = Event()

    def beat() -> None:
        while not done.wait(1.0):
            pulse.beat(True)

    beats = Thread(target=beat, daemon=True)
    beats.start()
    try:
        yield
    finally:
        done.set()
        beats.join()


class Evaluation:
    """The stages of one rank that evaluate, with their messages. All ranks make and run it at the same time."""

    def __init__(
        self, parts: RankParts, idle: Mapping[str, Tensor], updater: Updater, pulse: Pulse, micro: int
    ) -> None:
        """Captures the model in evaluation mode and cuts it as the plan cuts it.

        Args: `parts` are those of the training; `micro` is the micro-batch to be served; `idle` are tensors that no layer of it uses, on the first
            rank; `updater` is the training's and has nothing to do here.
        Raises: BadInput or BadPlan, where the model cannot be evaluated under this plan.
        """
        plan, world = parts.plan, parts.world
        with _beating(pulse):
            captured = evaluation_of(parts.captured, micro)
        if not captured.graph.symbolic_batch and captured.graph.captured_micro != micro:
            raise BadInput(
                f"in evaluation mode the model serves no micro-batch of {micro}", where="evaluation"
            )
        self.metrics = captured.metrics
        every = cut(captured, parts.edges)
        outer = {value.name for value in captured.graph.values if value.role != "hidden"}
        reads = {i: [name for name in module.inputs if name in outer] for i, module in enumerate(every)}
        _check_reads(reads, parts.reads)
        routes = routes_of(captured.graph, parts.stage_of)
        program = forward_program(plan, world, routes)
        if not world.agree(program.digest + captured.graph.fingerprint):
            raise BadPlan(
                "the ranks have derived different programs of an evaluation: versions or files differ"
            )
        if plan.batch.shares:
            program = forward_program(plan, world, routes, parts.place.data)
        sharing = (
            parts.sharing.of_others(plan, every, micro, with_names(captured.graph, captured.layout))
            if parts.sharing
            else None
        )
        self._feed = Feed(reads, world.device)
        modules = {stage: every[stage] for _, stage in parts.held}
        draws = drawing_order(captured.layout.traced.graph)
        for module in modules.values():
            module.place(world.device)
            numbers = [draws[node] for node in module._slice.nodes if node in draws]
            key_random_operations(module, parts.keys, numbers)
        if sharing is not None:
            sharing.shard(modules)
        tensors = {**parts.parameters, **parts.buffers, **_unused(parts.captured, captured, world, idle)}
        first, autocast = plan.batch.first(parts.place.data), AUTOCAST[plan.precision]
        self._stages = {
            node: EvaluationStage(modules[node[1]], tensors, parts.keys, first, autocast)
            for node in parts.held
        }
        self._tracer = Tracer(world.rank)
        self._transport = parts.transport(routes)
        self._interpreter = Interpreter(
            program,
            parts.place.pipeline,
            stages=self._stages,
            routes=routes,
            carrier=self._transport,
            updates=updater,
            feed=self._feed,
            pulse=pulse,
            tracer=self._tracer,
            forwards=True,
        )

    def __call__(self, values: Mapping[int, Tensors]) -> dict[int, dict[str, float]]:
        """Computes the losses of one batch.

        Args: `values` has the batch by micro-batch of this replica.
        Returns: micro-batch over all replicas -> loss, and its count where there is one.
        """
        self._feed.values = values
        self._interpreter.run(0)
        self._transport.finish()
        self._feed.values = {}
        self._tracer.rows.clear()
        found = {}
        for stage in self._stages.values():
            for micro, row in stage.losses.items():
                found[stage.first_micro + micro] = {name: float(tensor) for name, tensor in row.items()}
            stage.losses.clear()
        return found


def _check_reads(reads: Mapping[int, Sequence[str]], trained: Mapping[int, Sequence[str]]) -> None:
    for stage, names in reads.items():
        missing = sorted(set(names) - set(trained[stage]))
        if missing:
            raise BadInput(
                f"in evaluation mode stage {stage} reads '{missing[0]}' of the batch, which it does not read in "
                f"training, so that its ranks do not have it",
                allowed="another cut, or a model that reads the same of the batch in both modes",
            )


def _unused(
    trained: Captured, captured: Captured, world: World, idle: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns what evaluation reads and no layer uses in training, which the first rank sends to all."""
    rows: list[Parameter | Buffer] = [*trained.graph.parameters, *trained.graph.buffers]
    unused = {row.name for row in rows if not row.users}
    wanted: list[Parameter | Buffer] = [*captured.graph.parameters, *captured.graph.buffers]
    found = {}
    for row in wanted:
        if row.name not in unused or not row.users:
            continue
        kind = getattr(torch, row.dtype)
        tensor = idle[row.name].cpu().contiguous() if world.rank == 0 else torch.empty(row.shape, dtype=kind)
        if world.group is not None:
            dist.broadcast(tensor.reshape(-1).view(torch.uint8), src=0, group=world.group)
        found[row.name] = tensor
    return found
