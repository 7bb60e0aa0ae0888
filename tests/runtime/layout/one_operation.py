"""One operation computed by ranks that are threads, beside the same operation whole."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor, fx

from planner.capture import operation_of
from planner.layout import GroupLayout, LocalGraph, Wish, everywhere, granted, path, propagate
from planner.spatial import INPUT, STATE, Operation
from runtime.layout import Convert, CutGroup, localise
from tests.runtime.spatial.threads import run

EXACT = 1e-12
SEED = 20


@dataclass(frozen=True)
class Case:
    """An operation with its tensors: `given` come from another layer, `held` are parameters."""

    target: object  # an overload of torch.ops.aten
    args: tuple[object, ...]  # names of tensors, and everything else as it is; a list may have names
    given: Mapping[str, tuple[int, ...]]
    held: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    integers: Mapping[str, int] = field(
        default_factory=dict
    )  # tensors of numbers below this one; 0 for true or false
    kwargs: Mapping[str, object] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        found = {}
        for name, shape in {**self.given, **self.held}.items():
            if name in self.integers:
                numbers = torch.randint(self.integers[name] or 2, shape, generator=generator)
                found[name] = numbers if self.integers[name] else numbers.bool()
            else:
                found[name] = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
        return found

    def graph(self) -> tuple[fx.GraphModule, dict[str, fx.Node], list[Operation]]:
        """Returns the operation as a graph, with its nodes by the names of the operations."""
        graph, tensors = fx.Graph(), self.tensors()
        nodes = {name: graph.placeholder(name) for name in tensors}
        args = [self._argument(x, nodes) for x in self.args]
        done = graph.call_function(self.target, tuple(args), dict(self.kwargs))  # type: ignore[arg-type]
        whole = self.target(*(self._argument(x, tensors) for x in self.args), **self.kwargs)  # type: ignore[operator]
        made: list[fx.Node] = [done]
        values: dict[fx.Node, object] = {nodes[name]: tensor for name, tensor in tensors.items()}
        values[done] = whole
        if not isinstance(whole, Tensor):
            made = [graph.call_function(operator.getitem, (done, i)) for i in range(len(whole))]
            values |= dict(zip(made, whole, strict=True))
        graph.output(tuple(made))
        operations = [
            Operation(name, "", STATE if name in self.held else INPUT, {}, (tuple(tensor.shape),))
            for name, tensor in tensors.items()
        ]
        for node in dict.fromkeys((done, *made)):
            found = operation_of(node, values, "layer")
            assert found is not None
            operations.append(replace(found, name=node.name))
            nodes[node.name] = node
        return fx.GraphModule(torch.nn.Module(), graph), nodes, operations

    def _argument(self, value: object, known: Mapping[str, object]) -> object:
        if isinstance(value, str):
            return known.get(value, value)
        if isinstance(value, list):
            return [self._argument(x, known) for x in value]
        return value


def laid_out(
    case: Case, mesh: tuple[int, ...], factors: Sequence[str], given: Mapping[str, GroupLayout]
) -> tuple[LocalGraph, list[Operation]]:
    """The layouts of a case where the axes take these factors; an empty name wishes for nothing."""
    _, _, operations = case.graph()
    wishes = [Wish("layer", axis, factor) for axis, factor in enumerate(factors) if factor]
    trained = {name for name in (*case.given, *case.held) if name not in case.integers}
    known = granted(wishes, operations)
    return propagate(operations, mesh, known, trained, given=given), operations


def differences(
    case: Case,
    mesh: tuple[int, ...],
    factors: Sequence[str],
    given: Mapping[str, GroupLayout] | None = None,
    graph: LocalGraph | None = None,
) -> tuple[float, float]:
    """The largest differences of outputs and of gradients of one operation on parts from the whole one.

    Raises NoRule where it is refused, before anything runs.
    """
    given = given or {}
    laid, _ = (graph, []) if graph is not None else laid_out(case, mesh, factors, given)
    assert laid is not None
    outputs, gradients = _whole(case)

    def work(wire: object) -> tuple[float, float]:
        group = CutGroup(mesh, wire)  # type: ignore[arg-type]
        module, nodes, _ = case.graph()
        localise(module, nodes, laid, group)
        leaves = {name: x.clone() for name, x in case.tensors().items()}
        local = []
        for name, x in leaves.items():
            trained = name not in case.integers
            x.requires_grad_(trained)
            steps = path(everywhere(x.shape), laid.layouts[name][0], mesh, trained=trained)
            local.append(Convert(steps, group)(x))
        names = [node.name for node in case.graph()[0].graph.output_node().args[0]]  # type: ignore[union-attr]
        found = []
        for name, x in zip(names, module(*local), strict=True):
            own = laid.layouts[name][0]
            found.append(Convert(path(own, everywhere(own.shape), mesh, trained=True), group)(x))
        _backward(found)
        one = max(float((a.detach() - b).abs().max()) for a, b in zip(found, outputs, strict=True))
        grads = [
            float((leaves[name].grad - grad).abs().max())
            for name, grad in gradients.items()
            if leaves[name].grad is not None and grad is not None
        ]
        missing = [name for name, grad in gradients.items() if grad is not None and leaves[name].grad is None]
        assert not missing, missing
        return one, max(grads, default=0.0)

    pairs = run(prod(mesh), work)  # type: ignore[arg-type]
    return max(a for a, _ in pairs), max(b for _, b in pairs)


def _whole(case: Case) -> tuple[list[Tensor], dict[str, Tensor | None]]:
    module, _, _ = case.graph()
    leaves = {name: x.requires_grad_(name not in case.integers) for name, x in case.tensors().items()}
    found = list(module(*leaves.values()))
    _backward(found)
    return [x.detach() for x in found], {
        name: x.grad for name, x in leaves.items() if name not in case.integers
    }


def _backward(found: Sequence[Tensor]) -> None:
    made = [x for x in found if x.requires_grad]
    weights = [
        torch.rand(x.shape, generator=torch.Generator().manual_seed(i), dtype=x.dtype)
        for i, x in enumerate(made)
    ]
    if made:
        torch.autograd.backward(made, weights)
