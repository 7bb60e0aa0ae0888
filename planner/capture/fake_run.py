"""Builds a module on fake tensors, and runs its graph on them at one batch size: shapes, aliases, gradients, FLOPs.

Two such runs, at two and three samples, say how every size depends on the batch; nothing is allocated. FLOPs of some
operations are counted by hand, since torch's counter does not know their CPU kernels.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from planner.capture.left_behind import Reachable
from planner.capture.traced_graph import Context, Like, Traced, concrete, line_of
from planner.errors import BadInput
from planner.workload import Workload

LARGEST_BYTES = 2**30  # of parameters and buffers of a module that is built for real


@dataclass(slots=True)
class Probe:
    """The fake value and the FLOPs of each node for a batch of `n`.

    The values are kept alive, so that their storages can be told apart.
    """

    n: int
    value: dict[fx.Node, object]
    flops: dict[fx.Node, int]

    def tensor(self, node: fx.Node) -> Tensor | None:
        """Returns the tensor that a node gave; None where it gave something else.

        Args: `node` is of the graph that was run.
        """
        found = self.value[node]
        return found if isinstance(found, Tensor) else None


def after(value: object, *done: object) -> object:
    """Returns `value` unchanged; the call orders it behind the operations that made `done`, which write into it.

    Args: `done` are the results of these operations.
    """
    return value


def build_fake(source: Workload | nn.Module, *, for_real: bool) -> tuple[FakeTensorMode | None, nn.Module]:
    """Builds the module of a workload on fake tensors if its code can, else for real.

    A small one that keeps tensors in containers is built for real, too: no build gives their values later on.
    """
    if isinstance(source, nn.Module):
        return None, source
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    if not for_real:
        with contextlib.suppress(BadInput), forgetting(), mode:
            module = source.build()
            if not is_small(module) or not Reachable(module, None, to_undo=False).unregistered(module):
                return mode, module
    with torch.random.fork_rng(devices=[]):
        return None, source.build()


def is_small(module: nn.Module) -> bool:
    """Returns whether a module may be built for real only to see what it computes."""
    return sum(x.nbytes for x in (*module.parameters(), *module.buffers())) <= LARGEST_BYTES


def probe(traced: Traced, n: int, trainable: Mapping[str, bool]) -> Probe:
    """Returns a run of the graph on fake tensors of a batch of `n`.

    Args: `trainable` says which parameters need a gradient, by name.
    Raises: BadInput where an operation does not run alone, as inside torch.vmap.
    """
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
    name = getattr(node.target, "__name__", str(node.target))
    try:
        with entered(node.meta["context"]):
            return node.target(*args, **kwargs)
    except AssertionError as error:  # of torch, where real and fake tensors meet
        raise BadInput(
            f"'{name}' computes with a tensor that it is not given: {(str(error).splitlines() or [''])[0]:.200}",
            where=line_of(node),
            allowed="every tensor that such a function uses among the arguments of apply(), held by register_buffer "
            "where one step leaves it to the next",
        ) from error
    except RuntimeError as error:  # what holds inside torch.vmap alone, for one
        raise BadInput(
            f"'{name}' does not run operation by operation: {str(error).splitlines()[0]:.200}",
            where=line_of(node),
            allowed="operations on whole batches in the place of torch.vmap and torch.func; or the module's path, "
            "as opaque = ['path.of.a.module'] in a module file",
        ) from error


def arguments(
    node: fx.Node, values: Mapping[fx.Node, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Returns the arguments of a node with values in the place of nodes.

    Returns: positional arguments and keyword arguments.
    """

    def fill(argument: object) -> object:
        return values[argument] if isinstance(argument, fx.Node) else argument

    return pytree.tree_map(fill, node.args), pytree.tree_map(fill, node.kwargs)


@contextlib.contextmanager
def entered(context: Context) -> Iterator[None]:
    """Enters the context that an operation was traced under: gradients on or off, autocast.

    Args: `context` comes from the node's meta.
    """
    with contextlib.ExitStack() as stack:
        for kind, *settings in context:
            if kind == "grad":
                stack.enter_context(torch.set_grad_enabled(bool(settings[0])))
            else:
                device, dtype, enabled, cache = settings
                assert isinstance(device, str)
                stack.enter_context(torch.autocast(device, dtype, bool(enabled), cache))  # type: ignore[arg-type]
        yield


@contextlib.contextmanager
def forgetting() -> Iterator[None]:
    """Empties what `lru_cache` has kept meanwhile, since a fake tensor that is kept would be met by real ones.

    Yields: nothing; caches of torch and of Python's own library are left as they are.
    """
    before = {id(cache): cache.cache_info().misses for cache in _caches()}
    try:
        yield
    finally:
        for cache in _caches():
            if cache.cache_info().misses != before.get(id(cache), 0):
                cache.cache_clear()


def _caches() -> list[functools._lru_cache_wrapper[object]]:
    kind = functools._lru_cache_wrapper  # each of them refers to it; to list all objects takes twice as long
    found = (x for x in gc.get_referrers(kind) if type(x) is kind)
    _met.update(x for x in found if str(getattr(x, "__module__", "")).partition(".")[0] not in _OTHERS)
    return list(_met)


# Those that gc.freeze() has hidden since stay known.
_met: weakref.WeakSet[functools._lru_cache_wrapper[object]] = weakref.WeakSet()
_OTHERS = {"torch", "sympy", *sys.stdlib_module_names}


def _empty(like: Tensor | Like, n: int) -> Tensor:
    if isinstance(like, Like):
        shape, stride = ([fixed + n * slope for fixed, slope in sizes] for sizes in (like.shape, like.steps))
        return torch.empty_strided(shape, stride, dtype=like.dtype)
    shape, stride = ([_whole(size, n) for size in sizes] for sizes in (like.shape, like.stride()))
    return torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)


def _whole(size: object, n: int) -> int:
    found = concrete(size, n)
    assert isinstance(found, int)
    return found


def unknown(value: object) -> bool:
    """Returns whether a value is a number, or a tensor with a size, that only the values of tensors tell.

    Args: `value` is what a node gave on fake tensors; a list or tuple is unknown if a part of it is.
    """
    parts = value if isinstance(value, list | tuple) else [value]
    sizes = [size for part in parts for size in (part.shape if isinstance(part, Tensor) else [part])]
    return any(isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool) for size in sizes)


RECURRENT = {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}
ATTENTION = "aten.scaled_dot_product_attention.default"


def flops_by_hand(node: fx.Node, values: Mapping[fx.Node, object]) -> int:
    """Returns the FLOPs of attention and recurrent layers; 0 where torch's own counter knows them.

    Args: `values` has what the nodes before gave.
    """
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
