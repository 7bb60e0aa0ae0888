"""The traced graph run on fake tensors of one concrete batch size: shapes, strides, aliases, gradients, FLOPs.

Two such runs, at two and three samples, say how every size depends on the batch; nothing is allocated.

FLOPs of operations that torch's counter misses on a CPU, whose kernels it does not know.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from planner.capture.traced_graph import Context, Traced, line_of
from planner.errors import BadInput


@dataclass(slots=True)
class Probe:
    """What each node gave for a batch of `n`; fakes are kept alive, so storages can be told apart."""

    n: int
    value: dict[fx.Node, object]
    flops: dict[fx.Node, int]

    def tensor(self, node: fx.Node) -> Tensor | None:
        found = self.value[node]
        return found if isinstance(found, Tensor) else None


def after(value: object, *done: object) -> object:
    """`value`, once `done` has happened: orders a tensor behind the operation that writes into it."""
    return value


def probe(traced: Traced, n: int, trainable: Mapping[str, bool]) -> Probe:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    found = Probe(n, {}, {})
    with torch.random.fork_rng(devices=[]), mode, FlopCounterMode(display=False) as counter:
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                source = traced.sources[node]
                grad = source.kind == "parameter" and trainable.get(source.name, False)
                found.value[node] = _empty(node.meta["val"], n).requires_grad_(grad)
            else:
                before = counter.get_total_flops()
                found.value[node] = _run(node, found.value)
                counted = counter.get_total_flops() - before
                flops = flops_by_hand(node, found.value) or counted
                found.flops[node] = flops if isinstance(flops, int) else 0  # as many as the values say
    return found


def _run(node: fx.Node, values: Mapping[fx.Node, object]) -> object:
    args, kwargs = arguments(node, values)
    assert callable(node.target)
    try:
        with entered(node.meta["context"]):
            return node.target(*args, **kwargs)
    except RuntimeError as error:  # what holds inside torch.vmap alone, for one
        name = getattr(node.target, "__name__", str(node.target))
        raise BadInput(
            f"'{name}' does not run operation by operation: {str(error).splitlines()[0]:.200}",
            where=line_of(node),
            allowed="operations on whole batches in the place of torch.vmap and torch.func; or the module's path, "
            "as opaque = ['path.of.a.module']",
        ) from error


def arguments(
    node: fx.Node, values: Mapping[fx.Node, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Of a node, with values in the place of nodes."""

    def fill(argument: object) -> object:
        return values[argument] if isinstance(argument, fx.Node) else argument

    return pytree.tree_map(fill, node.args), pytree.tree_map(fill, node.kwargs)


@contextlib.contextmanager
def entered(context: Context) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for kind, *settings in context:
            if kind == "grad":
                stack.enter_context(torch.set_grad_enabled(bool(settings[0])))
            else:
                device, dtype, enabled, cache = settings
                assert isinstance(device, str)
                stack.enter_context(torch.autocast(device, dtype, bool(enabled), cache))  # type: ignore[arg-type]
        yield


def concrete(size: object, n: int) -> int:
    """A size of the export at a batch of `n`; there is one symbol at most."""
    if isinstance(size, torch.SymInt):
        expression = size.node.expr
        return int(expression.subs(dict.fromkeys(expression.free_symbols, n)))
    assert isinstance(size, int)
    return size


def _empty(like: Tensor, n: int) -> Tensor:
    shape = [concrete(size, n) for size in like.shape]
    stride = [concrete(step, n) for step in like.stride()]
    return torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)


def unknown(value: object) -> bool:
    """A number, or a tensor with a size, that only the values of tensors tell."""
    parts = value if isinstance(value, list | tuple) else [value]
    sizes = [size for part in parts for size in (part.shape if isinstance(part, Tensor) else [part])]
    return any(isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool) for size in sizes)


RECURRENT = {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}
ATTENTION = "aten.scaled_dot_product_attention.default"


def flops_by_hand(node: fx.Node, values: Mapping[fx.Node, object]) -> int:
    """0 where torch's own counter knows."""
    if str(node.target) == ATTENTION:
        query, key, value = (_shape(x, values) for x in node.args[:3])
        scores = math.prod(query[:-1]) * key[-2]
        return 2 * scores * (query[-1] + value[-1])  # the scores that a mask hides count too
    if str(node.target) in RECURRENT:
        sequence, weights = _shape(node.args[0], values), node.args[2]
        assert isinstance(weights, list | tuple)
        matrices = [shape for shape in (_shape(x, values) for x in weights) if len(shape) == 2]
        return 2 * math.prod(sequence[:-1]) * sum(map(math.prod, matrices))
    return 0


def _shape(node: object, values: Mapping[fx.Node, object]) -> tuple[int, ...]:
    assert isinstance(node, fx.Node)
    tensor = values[node]
    assert isinstance(tensor, Tensor)
    return tuple(tensor.shape)
