"""The captured model: plain data, with the traced operations that stage modules are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.capture.batch import Batch
from planner.capture.layers import FREE, Grouping
from planner.capture.slices import Slicing
from planner.capture.traced_graph import named_leaves, plain_leaves
from planner.errors import BadInput
from planner.model import Buffer, ModelGraph, Parameter, misplaced, served
from planner.shown import Shown

Loss = Callable[..., object]
Metrics = Callable[..., object]  # outputs, targets -> {name: (sum, count)}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """All that a model is traced from, so that it can be traced again in another mode."""

    where: str  # names it in errors
    build: Callable[[], tuple[FakeTensorMode | None, nn.Module]]
    batch: Batch
    loss: Loss
    opaque: Sequence[str]
    metrics: Metrics | None = None


# Of the metrics traced last; a trace undoes what it changes in objects that a loss reaches.
_NAMES: ContextVar[tuple[str, ...]] = ContextVar("names of metrics", default=())


class LossAndMetrics:
    """A loss with the user's metrics after it: for each a sum and a count, under the names that these have."""

    def __init__(self, loss: Loss, metrics: Metrics | None) -> None:
        self._loss, self._metrics = loss, metrics
        _NAMES.set(())

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names that the metrics had when they were last traced."""
        return _NAMES.get()

    def __call__(self, outputs: object, targets: object) -> object:
        loss = self._loss(outputs, targets)
        if self._metrics is None or isinstance(loss, Mapping):
            return loss
        found = self._metrics(outputs, targets)
        if not isinstance(found, Mapping) or not all(
            isinstance(x, tuple | list) and len(x) == 2 for x in found.values()
        ):
            raise BadInput(
                f"metrics() gives {type(found).__name__}",
                where="metrics",
                allowed="{name: (sum, count), ...}",
            )
        _NAMES.set(tuple(map(str, found)))
        numbers = [_number(part, name) for name, pair in found.items() for part in pair]
        return (*(loss if isinstance(loss, tuple | list) else (loss,)), *numbers)


def _number(value: object, name: str) -> Tensor:
    """Returns a sum or a count as a tensor of its own in double precision, so that counts stay exact."""
    if not isinstance(value, Tensor):
        return torch.ones((), dtype=torch.float64) * value  # type: ignore[operator]
    if value.ndim:
        raise BadInput(
            f"metrics()['{name}'] has a tensor of shape {tuple(value.shape)}",
            where="metrics",
            allowed="a sum and a count over the batch, each one number",
        )
    return value.to(torch.float64).clone()


@dataclass(frozen=True)
class Recorded:
    """What a model that travelled knows of its origin: how it is evaluated."""

    evaluated: Callable[[int], Captured]  # raises BadInput where it could not be captured in evaluation mode

    def evaluated_as(self, captured: Captured, micro: int) -> Captured:
        """Returns the model in evaluation mode, with its layers in the order of the training.

        Args: `micro` is the micro-batch that it is to serve.
        Raises: BadInput where evaluation reads a layer that comes later in this order, or was not captured for
            such micro-batches.
        """
        if not captured.graph.serves(micro) and not (micro == 1 and captured.graph.symbolic_batch):
            raise BadInput(f"micro-batch {micro} in evaluation mode", allowed=served(captured.graph))
        found, names = self.evaluated(micro), [layer.name for layer in captured.graph.layers]
        for late, needed in misplaced(found.graph, names):
            raise BadInput(
                f"in evaluation mode, layer '{late}' reads '{needed}', which comes later in this plan"
            )
        return found.ordered(names)


@dataclass(frozen=True, repr=False)
class Captured(Shown):
    """A model as plain data (`graph`), with the traced operations of each layer (`layout`) for stage modules."""

    graph: ModelGraph
    layout: Slicing
    origin: Origin | Recorded
    left_out: Mapping[int, str] = field(
        default_factory=dict
    )  # micro-batches asked for and not served, and why
    alone: str = ""  # why one micro-batch alone is served, where that is so
    metrics: tuple[
        str, ...
    ] = ()  # of a model in evaluation mode: names of the sums and counts after its loss

    def ordered(self, names: Sequence[str]) -> Captured:
        """Returns the captured model with its layers in another order.

        Args: `names` has every layer's name once; no layer stands before a layer that it depends on.
        """
        graph = self.graph.ordered(names)
        if graph is self.graph:
            return self
        layout, place = self.layout, [graph.index[name] for name in self.layout.grouping.names]
        moved = {x: i if i == FREE else place[i] for x, i in layout.grouping.layer_of.items()}
        grouping = Grouping(names=list(names), layer_of=moved)
        return replace(self, graph=graph, layout=Slicing(layout.traced, grouping, layout.probes), left_out={})

    def without(self, left: Mapping[int, str]) -> Captured:
        """Returns the captured model with the reasons why it does not serve some micro-batches.

        Args: `left` may have reasons for micro-batches that are served, too.
        """
        return replace(self, left_out={m: why for m, why in left.items() if not self.graph.serves(m)})

    @property
    def saved(self) -> dict[str, str]:
        """Returns the name of each tensor by its name in the state_dict of the user's module."""
        return self.layout.traced.saved

    def batch_values(self, inputs: object, targets: object) -> dict[str, Tensor]:
        """Returns the tensors of a batch by the names of their Values.

        Raises: BadInput where the batch lacks a tensor that the model reads, or has other numbers and words.
        """
        leaves = [*named_leaves("input", inputs), *named_leaves("target", targets)]
        values = {name: leaf for name, leaf in leaves if isinstance(leaf, Tensor)}
        for value in self.graph.values:
            if value.role != "hidden" and value.consumers and value.name not in values:
                raise BadInput(f"the batch has no '{value.name}'", allowed=", ".join(values))
        known = self.layout.traced.plain
        if known or len(values) < len(leaves):
            found = plain_leaves(inputs, targets) | dict.fromkeys(values.keys() & known.keys(), "a tensor")
            both = [(x, found.get(x, "None"), known.get(x, "None")) for x in dict.fromkeys((*found, *known))]
            for name, now, then in (each for each in both if each[1] != each[2]):
                raise BadInput(
                    f"the batch has {now} as '{name}', and the model was captured with {then}",
                    allowed="the same in every batch; or a tensor, and torch.where in the place of if",
                )
        strange = [x for x in values if x not in self.graph.value]
        if strange:
            raise BadInput(
                f"the model was captured without '{strange[0]}'", allowed="the tensors that batch(n) gave"
            )
        return values

    def initial(self, module: nn.Module) -> dict[str, Tensor]:
        """Returns the parameters, buffers and constants of a module that was built for real, by their names.

        Raises: BadInput where the module lacks one of them, or has it in another shape.
        """
        known = dict(module.named_parameters()) | dict(module.named_buffers())
        found: dict[str, Tensor] = {}
        rows: list[Parameter | Buffer] = [*self.graph.parameters, *self.graph.buffers]
        for row in rows:
            tensor = known.get(row.name)
            if tensor is None:
                tensor = attribute(module, row.name)
            if tensor is None:
                tensor = self.layout.traced.constants.get(row.name)
            if tensor is None or tuple(tensor.shape) != row.shape:
                raise BadInput(f"the module has no tensor '{row.name}' of shape {row.shape}")
            found[row.name] = tensor.detach()
        return found


def attribute(module: nn.Module, name: str) -> Tensor | None:
    """Returns the tensor under a path of attributes; None where there is none.

    Args: `name` has the attributes from the module on, with dots between.
    """
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, Tensor) else None
