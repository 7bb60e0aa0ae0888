"""Edits to the graph of a stage before it runs: layers that owe their weight gradients, and tensors that stages share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.fx.node import Argument

from planner.capture import StageModule, name_of
from runtime.stage import deferred_weights
from runtime.stage.deferred_weights import WeightStore

ATEN = torch.ops.aten
_CONVOLUTIONS = {ATEN.conv1d.default: 1, ATEN.conv2d.default: 2, ATEN.conv3d.default: 3}
_TRANSPOSED = {
    ATEN.conv_transpose1d.default: 1,
    ATEN.conv_transpose2d.input: 2,
    ATEN.conv_transpose3d.input: 3,
}


def graph_of(module: StageModule) -> fx.GraphModule:
    """Returns the graph that a stage runs, also behind `torch.compile`.

    Args: `module` may be compiled or not.
    """
    run: fx.GraphModule = getattr(module._run, "_orig_mod", module._run)
    return run


def states_of(module: StageModule) -> dict[fx.Node, str]:
    """Returns the placeholders of parameters and buffers, which come after the inputs.

    Args: `module` is a stage with its graph.
    Returns: the user's name of each, in the order of the graph.
    """
    placeholders = [node for node in graph_of(module).graph.nodes if node.op == "placeholder"]
    names = [name_of(slot) for slot in module._states]
    return dict(zip(placeholders[len(module.inputs) :], names, strict=True))


def could_owe(module: StageModule) -> set[str]:
    """Returns the trainable parameters that are used by nothing but layers that can owe their gradients.

    Args: `module` is a stage whose graph has no store yet.
    Returns: names.
    """
    held = _held(module)
    calls = {node: _owing(node, held) for node in graph_of(module).graph.nodes}
    return {
        name
        for node, name in _trainable(module).items()
        if all((call := calls[user]) is not None and node not in call.others for user in node.users)
    }


def store_weights(module: StageModule, store: WeightStore) -> None:
    """Makes linear, convolution and embedding layers with trainable parameters owe their gradients; edits the
    graph in place.

    Args: `store` takes their debts.
    """
    run = graph_of(module)
    run.weight_store = store  # type: ignore[assignment]
    held = _held(module)
    for node in list(run.graph.nodes):
        call = _owing(node, held)
        if call is None:
            continue
        with run.graph.inserting_before(node):
            given = (_attribute(run, "weight_store"), *call.args)
            new = run.graph.call_function(call.function, given, dict(call.named))
        node.replace_all_uses_with(new)
        run.graph.erase_node(node)
    run.recompile()


def _attribute(run: fx.GraphModule, name: str) -> fx.Node:
    """Returns a node for a plain object of ours; `get_attr()` would warn that it is neither module nor tensor."""
    return run.graph.create_node("get_attr", name)


def _trainable(module: StageModule) -> dict[fx.Node, str]:
    names = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return {node: name for node, name in states_of(module).items() if name in names}


def _held(module: StageModule) -> dict[fx.Node, nn.Parameter]:
    parameters = dict(module.named_parameters())
    return {node: parameters[name] for node, name in states_of(module).items() if name in parameters}


@dataclass(frozen=True)
class _Call:
    """The call that takes a node's place."""

    function: Callable[..., Tensor]
    args: tuple[Argument, ...]  # behind the store
    weights: tuple[Argument, ...]  # whose gradients are owed, or None
    others: tuple[Argument, ...]  # whose gradients are not
    named: Mapping[str, bool] = field(default_factory=dict)  # further arguments


def _owing(node: fx.Node, held: Mapping[fx.Node, nn.Parameter]) -> _Call | None:
    """Returns the call that takes a node's place, or None where the node must stay.

    Debts are added to the `.grad` of parameters. So a weight that was made of others, here or in an earlier stage,
    cannot be owed, and the gradient of a bias that was made goes on with that of the input. The store's formulas are
    for real numbers and for weights that are no vectors.
    """
    call = _stored(node)
    if call is None or not isinstance(call.weights[0], fx.Node):
        return None
    weight, *biases = [x for x in call.weights if isinstance(x, fx.Node)]
    parameters = [held[x] for x in (weight, *biases) if x in held]
    owns = weight in held and any(parameter.requires_grad for parameter in parameters)
    plain = owns and parameters[0].ndim > 1 and not parameters[0].is_complex()
    made = any(x not in held for x in biases)
    if not plain:
        return None
    return replace(call, others=(*call.others, *biases), named={"made_bias": True}) if made else call


def _stored(node: fx.Node) -> _Call | None:
    """Returns the weight store's call for an operation, or None where it has none."""
    args = list(node.args)
    if node.op != "call_function" or node.kwargs or not isinstance(node.target, OpOverload):
        return None
    if node.target is ATEN.linear.default:
        return _Call(deferred_weights.linear, tuple(args), tuple(args[1:]), tuple(args[:1]))
    if node.target is ATEN.embedding.default:
        sparse = len(args) > 4 and bool(args[4])
        return None if sparse else _Call(deferred_weights.embedding, tuple(args[:4]), (args[0],), (args[1],))
    if node.target in _CONVOLUTIONS:
        dims = _CONVOLUTIONS[node.target]
        args += [None, [1], [0], [1], 1][len(args) - 2 :]
        x, weight, bias, stride, padding, dilation, groups = args
        output: Argument = 0
    elif node.target in _TRANSPOSED:
        dims = _TRANSPOSED[node.target]
        args += [None, [1], [0], [0], 1, [1]][len(args) - 2 :]
        x, weight, bias, stride, padding, output, groups, dilation = args
    else:
        return None
    wide = [_wide(size, dims) for size in (stride, padding, dilation)]
    settings = (*wide, node.target in _TRANSPOSED, _wide(output, dims), groups)
    return _Call(deferred_weights.convolution, (x, weight, bias, *settings), (weight, bias), (x,))


def _wide(size: object, dims: int) -> list[int]:
    """Returns one number for each dimension; ATen lets one number stand for all."""
    sizes = [int(x) for x in size] if isinstance(size, Iterable) else [int(size)]  # type: ignore[call-overload]
    return sizes * dims if len(sizes) == 1 else sizes


def share_parameters(module: StageModule, known: dict[str, nn.Parameter]) -> None:
    """Makes a parameter that several stages of a rank hold one tensor.

    Args: `known` has those seen before by name, and grows by those of `module`.
    """
    slots = [slot for slot, _ in nn.Module.named_parameters(module, recurse=False)]
    for slot, (name, parameter) in zip(slots, module.named_parameters(), strict=True):
        shared = known.setdefault(name, parameter)
        if shared is not parameter:
            setattr(module, slot, shared)


def share_buffers(module: StageModule, known: dict[str, Tensor]) -> None:
    """Makes a buffer that several stages of a rank hold one tensor.

    Args: `known` has those seen before by name, and grows by those of `module`.
    """
    slots = [slot for slot, _ in nn.Module.named_buffers(module, recurse=False)]
    for slot, (name, buffer) in zip(slots, module.named_buffers(), strict=True):
        shared = known.setdefault(name, buffer)
        if shared is not buffer:
            setattr(module, slot, shared)
