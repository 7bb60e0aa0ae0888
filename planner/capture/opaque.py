"""Takes modules whose code no trace can follow as layers: each call of such a module is one operation.

Two runs of a copy of the module show how its outputs grow with the batch, so the module has to be built for real.
What it computes, draws or writes is not looked into: its FLOPs count as none, its buffers as written.
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from planner.capture.traced_graph import LOSS, CannotTrace, Traced, call, parts_of
from planner.capture.untraceable import refusing_draws
from planner.capture.whole_calls import computing_once
from planner.errors import BadInput

Shapes = list[tuple[int, ...]]
_numbers = itertools.count()  # torch keeps the name of an operation beyond its library


@dataclass
class OpaqueCall:
    """One call of an opaque module at one batch size."""

    inputs: Shapes
    outputs: Shapes
    types: list[torch.dtype]
    results: pytree.TreeSpec
    others: dict[int, object]  # results that are no tensors
    assigned: frozenset[str]  # names of buffers that are other tensors afterwards


class OpaqueLayer:
    """A function of a module's state and of its tensor inputs, which stands in the graph for one call."""

    def __init__(
        self,
        path: str,
        skeleton: nn.Module,
        runs: tuple[OpaqueCall, OpaqueCall],
        sizes: tuple[int, int],
        training: bool,
    ) -> None:
        self.__name__, self.__module__ = f"opaque_{type(skeleton).__name__}", __name__
        self.path, self.skeleton, self.runs, self.sizes = path, skeleton, runs, sizes
        parameters = [name for name, _ in skeleton.named_parameters()]
        self.names = [*parameters, *(name for name, _ in skeleton.named_buffers())]
        self.parameters = len(parameters)
        self.training = training
        self.given: tuple[list[object], pytree.TreeSpec] = ([], pytree.tree_flatten(())[1])

    def record(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[Tensor]:
        """Keeps the arguments of a call that are no tensors.

        Returns: the tensors among the arguments, in order.
        """
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.given = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        return tensors

    def buffers(self, node: fx.Node) -> list[fx.Node]:
        """Returns the nodes of the module's buffers.

        Args: `node` is the call in the graph.
        """
        tensors = node.args[0]
        assert isinstance(tensors, list | tuple)
        return [x for x in tensors[self.parameters : len(self.names)] if isinstance(x, fx.Node)]

    def __call__(self, tensors: list[Tensor]) -> list[Tensor]:
        states, inputs = tensors[: len(self.names)], tensors[len(self.names) :]
        if any(x.is_meta or isinstance(x, FakeTensor) for x in tensors):
            needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
            return [x.requires_grad_(needs_grad and x.is_floating_point()) for x in self.empty(inputs)]
        leaves = list(self.given[0])
        for place, tensor in zip(self.places, inputs, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.given[1])
        self.skeleton.train(self.training)
        made = self._called(dict(zip(self.names, states, strict=True)), args, kwargs)
        return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]

    def _called(
        self, states: dict[str, Tensor], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Calls the module with states, and writes into them what it assigns to its buffers.

        A buffer that is assigned is given as a copy, since a backward may need it as it was.
        """
        assigned, after = self.runs[0].assigned, dict[str, Tensor]()
        given = {name: x.clone() if name in assigned else x for name, x in states.items()}

        def seen(module: nn.Module, _: object, made: object) -> None:
            after.update(module.named_buffers())

        handle = self.skeleton.register_forward_hook(seen)
        try:
            with computing_once():
                made = torch.func.functional_call(self.skeleton, given, args, kwargs)
        finally:
            handle.remove()
        with torch.no_grad():
            for name in assigned:
                states[name].copy_(after[name])
        return made

    def empty(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Returns outputs without values.

        Args: `inputs` tell the batch.
        Returns: tensors of the shapes that the two runs had, continued to that batch.
        """
        low, high = self.runs
        n = self._batch(inputs)
        shapes = [
            [self._at(a, b, n) for a, b in zip(*pair, strict=True)]
            for pair in zip(low.outputs, high.outputs, strict=True)
        ]
        return [
            inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes, low.types, strict=True)
        ]

    def _batch(self, inputs: Sequence[Tensor]) -> int:
        for tensor, low, high in zip(inputs, self.runs[0].inputs, self.runs[1].inputs, strict=True):
            for dim, (a, b) in enumerate(zip(low, high, strict=True)):
                if a != b:
                    slope = (b - a) // (self.sizes[1] - self.sizes[0])
                    return (tensor.shape[dim] - (a - slope * self.sizes[0])) // slope
        return self.sizes[0]

    def _at(self, low: int, high: int, n: int) -> int:
        if low == high:
            return low
        slope = (high - low) // (self.sizes[1] - self.sizes[0])
        return low - slope * self.sizes[0] + n * slope

    def result(self, tensors: list[Tensor]) -> object:
        """Returns what the module returned, with tensors in the place of its own.

        Args: `tensors` come in the order of the module's results.
        """
        rest, others = iter(tensors), self.runs[0].others
        leaves = [others[i] if i in others else next(rest) for i in range(len(tensors) + len(others))]
        return pytree.tree_unflatten(leaves, self.runs[0].results)


@dataclass
class Opaque:
    """Records each call of the opaque modules as one operation, while it is entered. `parts` are those by path."""

    parts: Mapping[str, nn.Module]
    runs: dict[str, list[tuple[OpaqueCall, OpaqueCall]]]
    sizes: tuple[int, int]
    training: bool = True  # the mode of the modules
    layers: dict[str, OpaqueLayer] = field(default_factory=dict)

    def __enter__(self) -> Opaque:
        self.library = torch.library.Library("shardwright", "FRAGMENT")  # type: ignore[no-untyped-call]
        for path, runs in self.runs.items():
            part = self.parts[path]
            part.forward = self._recorder(path, part, iter(runs))
        return self

    def __exit__(self, *_: object) -> None:
        for path in self.runs:
            del self.parts[path].forward
        self.library._destroy()  # type: ignore[no-untyped-call]

    def restore(self, traced: Traced) -> None:
        """Puts the opaque layers in the place of the recorded operations of a graph.

        Args: `traced` was traced while this was entered.
        """
        for node in traced.graph.nodes:
            schema = getattr(node.target, "_schema", None)
            if schema is not None and schema.name in self.layers:
                node.target = self.layers[schema.name]
                node._rename("opaque")  # so that its name does not tell what the process has captured before

    def _recorder(
        self, path: str, part: nn.Module, runs: Iterator[tuple[OpaqueCall, OpaqueCall]]
    ) -> Callable[..., object]:
        skeleton = copy.deepcopy(part).to("meta")

        def forward(*args: object, **kwargs: object) -> object:
            layer = OpaqueLayer(path, skeleton, next(runs), self.sizes, self.training)
            inputs = layer.record(args, kwargs)
            held = dict(part.named_parameters()) | dict(part.named_buffers())
            name = f"opaque{next(_numbers)}"
            self.layers[f"shardwright::{name}"] = layer
            self.library.define(f"{name}(Tensor[] tensors) -> Tensor[]")  # type: ignore[no-untyped-call]
            torch.library.register_fake(
                f"shardwright::{name}",
                lambda tensors: layer.empty(tensors[len(layer.names) :]),
                lib=self.library,
            )
            operation = getattr(torch.ops.shardwright, name)
            return layer.result(operation([*(held[name] for name in layer.names), *inputs]))

        return forward


def observe(
    module: nn.Module,
    loss: Callable[[object, object], object],
    paths: Sequence[str],
    batches: Sequence[tuple[object, object]],
    training: bool = True,
) -> dict[str, list[tuple[OpaqueCall, OpaqueCall]]]:
    """Returns the calls of each opaque module, as a run with each of two batches makes them.

    Args: `loss` is run where it is a WholeLoss; `paths` name the modules; `batches` are two pairs (inputs, targets); the module runs in training
        mode, or else in evaluation mode.
    Returns: by path, the calls in order, each as (with the first batch, with the second).
    Raises: BadInput for a path that is no module's; CannotTrace where a run fails.
    """
    if not paths:
        return {}
    known = parts_of(module, loss)
    for path in paths:
        if path not in known:
            raise BadInput(f"opaque: there is no module '{path}'", allowed=", ".join((*known, LOSS)))
    low, high = (_watch(module, loss, paths, given, training) for given in batches)
    return {path: list(zip(low[path], high[path], strict=True)) for path in paths}


def _watch(
    module: nn.Module,
    loss: Callable[[object, object], object],
    paths: Sequence[str],
    given: tuple[object, object],
    training: bool,
) -> dict[str, list[OpaqueCall]]:
    found: dict[str, list[OpaqueCall]] = defaultdict(list)
    copied, copied_loss = copy.deepcopy((module, loss))
    parts = parts_of(copied.train(training), copied_loss)

    def watch(path: str) -> None:
        before: dict[str, Tensor] = {}

        def begun(part: nn.Module, *_: object) -> None:
            before.update(part.named_buffers())

        def seen(part: nn.Module, args: object, kwargs: object, output: object) -> None:
            leaves, spec = pytree.tree_flatten(output)
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            others = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)}
            given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            shapes = [tuple(x.shape) for x in given], [tuple(x.shape) for x in tensors]
            found[path].append(
                OpaqueCall(*shapes, [x.dtype for x in tensors], spec, others, _assigned(path, part, before))
            )

        parts[path].register_forward_pre_hook(begun, prepend=True)
        parts[path].register_forward_hook(seen, with_kwargs=True)

    for path in paths:
        watch(path)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), refusing_draws(copied), computing_once():
            outputs = call(copied, given[0])
            if LOSS in parts and parts[LOSS] is copied_loss:
                copied_loss(outputs, given[1])
    except Exception as error:  # the user's module ran: it may raise anything
        raise CannotTrace from error
    return found


def _assigned(path: str, part: nn.Module, before: Mapping[str, Tensor]) -> frozenset[str]:
    """Returns the names of the buffers that a call has assigned; one of another shape or type is refused."""
    after = dict(part.named_buffers())
    for name, old in before.items():
        new = after.get(name)
        if new is None or new.shape != old.shape or new.dtype != old.dtype:
            made = "no tensor" if new is None else f"{new.dtype} {tuple(new.shape)}"
            raise BadInput(
                f"forward() makes buffer '{path}.{name}' {made}, where it was {old.dtype} {tuple(old.shape)}",
                allowed="a buffer of the same shape and type in every pass",
            )
    return frozenset(name for name, old in before.items() if after[name] is not old)


def opaque_layers(layer_of: Mapping[fx.Node, int]) -> set[int]:
    """Returns the numbers of the layers that have an opaque module.

    Args: `layer_of` has the layer of each node.
    """
    return {layer for node, layer in layer_of.items() if isinstance(node.target, OpaqueLayer)}
