"""Evaluates a batch: forwards alone, without dropout, with learnt statistics instead of those of the batch.

The captured graph was recorded in training mode. The arguments `train`, `training`, `use_input_stats` and
`dropout_p` of ATen are set as `module.eval()` would set them. Counters stand still. An opaque module is put
into evaluation mode. A module whose Python code differs outside of training is evaluated as it trains. Random
numbers that are drawn in either mode are drawn under the keys of the training step before, whatever the plan.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from planner.capture import OpaqueLayer, StageModule, Target, argument_names, average_batch_norm
from runtime.execute import Tensors
from runtime.runfolder import COUNT, LOSS
from runtime.spatial import operation_of
from runtime.stage import ATEN, Keys, graph_of, states_of

_STATISTICS = {"training": "running_mean", "use_input_stats": "running_mean"}


def evaluating(module: StageModule) -> fx.GraphModule:
    """Returns the graph of a stage in evaluation mode.

    Args: `module` is a stage that trains; the graph shares every tensor with it.
    """
    run = graph_of(module)
    graph = fx.Graph()
    seen: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(run.graph, seen))
    states = {seen[node] for node in states_of(module)}
    for node in list(graph.nodes):
        if node.target is ATEN.add_.Tensor and node.args[0] in states and not node.users:
            graph.erase_node(node)
        elif isinstance(node.target, OpaqueLayer):
            node.target = node.target.evaluating()
        elif isinstance(node.target, OpOverload) or node.target is average_batch_norm:
            _switch(node, node.target)
        elif (operation := operation_of(run, node)) is not None:
            _switch(node, operation, first=1)
    return fx.GraphModule(run, graph)


def _switch(node: fx.Node, operation: Target, first: int = 0) -> None:
    """Sets the arguments of an operation to evaluation mode.

    The operation's arguments begin at position `first` of the node's arguments.
    """
    arguments = {name: i + first for i, name in enumerate(argument_names(operation))}
    for name, value in (
        ("train", False),
        ("training", False),
        ("use_input_stats", False),
        ("dropout_p", 0.0),
    ):
        position = arguments.get(name)
        if position is None or position >= len(node.args):
            continue
        statistics = arguments.get(_STATISTICS.get(name, ""))
        if statistics is None or node.args[statistics] is not None:
            node.update_arg(position, value)


class EvaluationStage:
    """A stage that only runs forward."""

    def __init__(
        self, module: StageModule, keys: Keys, first_micro: int, autocast: torch.dtype | None
    ) -> None:
        self._module, self._run, self._keys = module, evaluating(module), keys
        self.first_micro, self._autocast = first_micro, autocast
        self.losses: dict[int, dict[str, Tensor]] = {}

    def forward(self, micro: int, inputs: Tensors) -> dict[str, Tensor]:
        self._keys.micro = self.first_micro + micro
        states = [getattr(self._module, slot) for slot in self._module._states]
        given = [inputs[name] for name in self._module.inputs]
        kind = given[0].device.type
        with torch.no_grad(), torch.autocast(kind, self._autocast, enabled=self._autocast is not None):
            made: dict[str, Tensor] = dict(zip(self._module.outputs, self._run(*given, *states), strict=True))
        if LOSS in made:
            self.losses[micro] = {name: made[name] for name in (LOSS, COUNT) if name in made}
        return made

    def backward(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        raise AssertionError("an evaluation has no backward")

    input_half = backward

    def weight_half(self, micro: int) -> None:
        raise AssertionError("an evaluation has no backward")

    recompute = weight_half


def losses_of(stages: Mapping[tuple[int, int], EvaluationStage]) -> dict[int, dict[str, float]]:
    """Returns the losses of the last evaluation and forgets them.

    Args: `stages` are the stages of this rank by pipe and stage.
    Returns: micro-batch over all replicas -> loss, and its count where there is one.
    """
    found = {}
    for stage in stages.values():
        for micro, row in stage.losses.items():
            found[stage.first_micro + micro] = {name: float(tensor) for name, tensor in row.items()}
        stage.losses.clear()
    return found
