"""Layers for the profiler as a stage runs them: with backwards in halves, and random numbers by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from planner.capture import StageModule
from runtime.draws import Keys, key_random_operations, random_operations
from runtime.stage import backward, deferred_weights, graph_edits
from runtime.stage.backward import Boundary, Owed, Root, anchor_on
from runtime.stage.deferred_weights import Debt, WeightStore

Tensors = Sequence[Tensor]
Values = Mapping[str, Tensor]


class Split:
    """The profiler's way to split backwards, which it is handed since the planner does not import the runtime."""

    def draw(self, module: StageModule, device: str) -> None:
        """Makes the random operations of a layer draw as those of a stage do, in place.

        Args: `module` is one layer, of which nothing has been edited; `device` is where it runs.
        """
        numbers = range(len(random_operations(module)))
        key_random_operations(module, Keys(0, torch.device(device)), numbers)

    def of(self, module: StageModule) -> Stored | Walked:
        """Returns a layer whose backward is split as a stage of it would split it.

        Args: `module` is one layer; where it can owe all large weights, its graph is edited in place.
        """
        large = {name for name, p in module.named_parameters() if p.requires_grad and p.ndim > 1}
        if not large <= graph_edits.could_owe(module):
            return self.walked(module)
        store = WeightStore()
        graph_edits.store_weights(module, store)
        return Stored(module, store)

    def walked(self, module: StageModule) -> Walked:
        """Returns a layer whose backward is split by the graph walk, which works for any layer.

        Args: `module` is one layer.
        """
        return Walked(module)


class _Entered:
    """A layer whose inputs come in over a boundary; one micro-batch at a time."""

    def __init__(self, module: StageModule) -> None:
        self._module = module
        self._leaves: dict[str, Tensor] = {}
        self._boundary: Boundary | None = None

    def forward(self, values: Values) -> Values:
        """Runs the layer's forward for a new micro-batch.

        Args: `values` has its inputs by name.
        Returns: its outputs by name, with their graph.
        """
        held = chain(values.values(), self._module.parameters())  # a layer may take in weights alone
        boundary = self._boundary = Boundary(anchor_on(next(held).device))
        self._leaves = {name: x for name, x in values.items() if x.requires_grad}
        entered = {name: boundary.enter(name, x) for name, x in self._leaves.items()}
        made: Values = self._module({**values, **entered})
        return made

    def _take(self) -> Boundary:
        assert self._boundary is not None
        return self._boundary

    def _leave(self) -> None:
        for name, gradient in self._take().collect().items():
            self._leaves[name].grad = gradient
        self._boundary, self._leaves = None, {}


class Walked(_Entered):
    """A layer whose backward is split by the graph walk."""

    walks = True

    def input_half(self, outputs: Tensors, gradients: Tensors, inputs: Tensors, parameters: Tensors) -> Owed:
        """Takes gradients to the layer's inputs, and leaves them in their `.grad`.

        Args: `gradients` are those of `outputs`, in the same order.
        Returns: what the weight half has to do still.
        """
        owed = backward.input_half(_roots(outputs, gradients), self._take().anchor, parameters)
        self._leave()
        return owed

    def weight_half(self, halfway: object, parameters: Tensors) -> None:
        """Adds the gradients of the parameters to their `.grad`.

        Args: `halfway` is what the input half returned; it is emptied.
        """
        assert isinstance(halfway, Owed)
        nodes = [branch.node for branch in halfway.branches]  # the layers above would hold on to them
        backward.weight_half(halfway)
        nodes.clear()


class Stored(_Entered):
    """A layer whose weight gradients are owed to a store: linear, convolution and embedding layers."""

    walks = False

    def __init__(self, module: StageModule, store: WeightStore) -> None:
        super().__init__(module)
        self._store = store

    def input_half(
        self, outputs: Tensors, gradients: Tensors, inputs: Tensors, parameters: Tensors
    ) -> list[Debt]:
        """Takes gradients to the layer's inputs, and leaves them in their `.grad`.

        Args: `gradients` are those of `outputs`, in the same order.
        Returns: the debts that the weight half pays.
        """
        backward.whole(_roots(outputs, gradients))
        debts = self._store.collect()
        self._leave()
        return debts

    def weight_half(self, halfway: object, parameters: Tensors) -> None:
        """Adds the gradients of the parameters to their `.grad`.

        Args: `halfway` is what the input half returned; it is emptied.
        """
        assert isinstance(halfway, list)
        deferred_weights.pay(halfway)


def _roots(outputs: Tensors, gradients: Tensors) -> list[Root]:
    return [(backward.edge(x), gradient) for x, gradient in zip(outputs, gradients, strict=True)]
