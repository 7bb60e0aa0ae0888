"""A stage of real layers: forward, backward whole or in halves, and recomputation, one micro-batch at a time.

Also here: the loss scale of fp16, which grows while gradients stay finite and halves when they do not; that step
is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import GradientEdge

from planner.capture import StageModule
from runtime.draws import Keys
from runtime.execute import NotFinite, Tensors
from runtime.runfolder import COUNT, LOSS
from runtime.stage import backward, deferred_weights
from runtime.stage.backward import Boundary, Owed, Root
from runtime.stage.deferred_weights import Debt, WeightStore
from runtime.stage.graph_edits import graph_of

SplitWay = Literal["none", "store", "walk"]  # none: the input half is the whole backward
BackwardPart = Literal["whole", "input", "weight"]  # of a backward


@dataclass
class Live:
    """A micro-batch's state between its forward and the end of its backward."""

    inputs: dict[str, Tensor]
    boundary: Boundary
    roots: dict[str, GradientEdge] = field(default_factory=dict)  # of outputs that need one
    states: dict[str, Tensor] = field(
        default_factory=dict
    )  # buffers as the forward that is done again saw them
    debts: list[Debt] = field(default_factory=list)
    owed: Owed | None = None


class Gathered(Protocol):
    """The parameters of a stage that are here only while they are used; see `runtime.sharding`."""

    gathers: bool  # whether any are

    def pack(self, tensor: Tensor) -> object: ...
    def unpack(self, kept: Any) -> Tensor: ...
    def during(self, part: BackwardPart) -> AbstractContextManager[None]: ...


class TorchStage:
    """One stage of one pipe on one rank; `runtime.execute` calls it by the actions of the schedule."""

    def __init__(
        self,
        module: StageModule,
        *,
        needs_grad: Collection[str],
        scale: LossScale,
        keys: Keys,
        first_micro: int = 0,
        split: SplitWay = "none",
        store: WeightStore | None = None,
        recompute: bool = False,
        written: Collection[str] = (),
        read: Collection[str] = (),
        autocast: torch.dtype | None = None,
        on_forward: Callable[[int], AbstractContextManager[object]] | None = None,
        diagnose: Callable[[Tensors], str] | None = None,
        made_up: bool = False,
        units: Gathered | None = None,
    ) -> None:
        """Prepares a stage whose module has its tensors and its edits.

        Args: `needs_grad` names inputs that need a gradient; `split` is how the backward is halved, with
            `store` for "store"; `written` are buffers that the forward writes, `read` those of them that it
            reads as well; `diagnose` names the layer where NaN began; `made_up` inputs excuse NaN in what is
            made of them; `units` are parameters that are not always here.
        """
        self.module, self._scale, self._keys, self._units = module, scale, keys, units
        self._needs_grad, self.first_micro = frozenset(needs_grad), first_micro
        self._split, self._store, self._recompute = split, store, recompute
        self._autocast, self._on_forward, self._diagnose = autocast, on_forward, diagnose
        self._made_up = made_up
        self._parameters: list[nn.Parameter] = [p for _, p in module.named_parameters() if p.requires_grad]
        self._written = [b for name, b in module.named_buffers() if name in written and name not in read]
        slots = zip(nn.Module.named_buffers(module, recurse=False), module.named_buffers(), strict=True)
        self._read = [slot for (slot, _), (name, _) in slots if name in written and name in read]
        self._anchor = backward.anchor_on(keys.device)
        self._live: dict[int, Live] = {}
        self.losses: dict[int, dict[str, Tensor]] = {}  # of the step, by micro-batch, where the loss is

    def forward(self, micro: int, inputs: Tensors) -> dict[str, Tensor]:
        """Runs the forward of a micro-batch, and keeps what its backward needs.

        Args: `micro` is the number within the replica; `inputs` by the names of their Values.
        Returns: outputs by name, without a graph.
        Raises: NotFinite on the host, where an output has NaN or the loss is not finite.
        """
        observed = self._on_forward(micro) if self._on_forward else nullcontext()
        kept = {name: inputs[name] for name in self.module.inputs}
        live = self._live[micro] = Live(kept, Boundary(self._anchor))
        with observed, torch.no_grad() if self._recompute else nullcontext():
            if self._recompute:  # as the forward is about to see them
                live.states = {slot: getattr(self.module, slot).clone() for slot in self._read}
            outputs = self._run(micro, live)
        made = {name: tensor.detach() for name, tensor in outputs.items()}
        self._check(made, inputs)
        if LOSS in made:
            # some kernels leave the mean in the memory of all that it is a mean of
            self.losses[micro] = {name: made[name].clone() for name in (LOSS, COUNT) if name in made}
        return made

    def recompute(self, micro: int) -> None:
        """Runs the forward of a micro-batch again, now with its graph.

        Buffers that the forward writes keep what the first one wrote; those that it reads hold meanwhile what
        the first one saw.
        Args: `micro` has had its forward and no backward.
        """
        live = self._live[micro]
        before = [(buffer, buffer.clone()) for buffer in self._written]
        held = {slot: getattr(self.module, slot) for slot in live.states}
        for slot, buffer in live.states.items():
            setattr(self.module, slot, buffer)
        live.states = {}
        try:
            self._run(micro, live)
        finally:
            for slot, buffer in held.items():
                setattr(self.module, slot, buffer)
        for buffer, value in before:
            buffer.data.copy_(value)  # not seen by autograd, which may have saved it for another micro-batch

    def backward(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        """Runs the whole backward of a micro-batch, and lets its state go.

        Args: `grads` by the names of outputs, and of inputs whose later readers have gradients for them.
        Returns: gradients of the stage's inputs by name; those of parameters are added to their `.grad`.
        """
        live = self._live.pop(micro)
        paying = nullcontext() if self._store is None else self._store.paying_at_once()
        with paying, self._during("whole"):
            backward.whole(self._roots(micro, live, grads))
        return live.boundary.collect()

    def input_half(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        """Runs the half of a micro-batch's backward that other stages wait for.

        Args: `grads` by the names of outputs, and of inputs whose later readers have gradients for them.
        Returns: gradients of the stage's inputs by name.
        """
        live = self._live[micro]
        with self._during("input"):
            roots = self._roots(micro, live, grads)
            if self._split != "walk":
                backward.whole(roots)
                live.debts = self._store.collect() if self._store is not None else []
            else:
                live.owed = backward.input_half(roots, self._anchor, self._parameters)
        live.roots = {}
        return live.boundary.collect()

    def weight_half(self, micro: int) -> None:
        """Adds the gradients of the parameters of one micro-batch to their `.grad`, and lets its state go.

        Args: `micro` has had its input half.
        """
        live = self._live.pop(micro)
        with self._during("weight"):
            deferred_weights.pay(live.debts)
            if live.owed is not None:
                backward.weight_half(live.owed)

    def _during(self, part: BackwardPart) -> AbstractContextManager[None]:
        return nullcontext() if self._units is None else self._units.during(part)

    def _run(self, micro: int, live: Live) -> dict[str, Tensor]:
        self._keys.micro = self.first_micro + micro
        device = self._keys.device.type
        inputs = live.inputs if not torch.is_grad_enabled() else self._entered(live)
        with torch.autocast(device, self._autocast) if self._autocast else nullcontext(), self._saved():
            outputs: dict[str, Tensor] = self.module(inputs)
        live.roots = {name: backward.edge(x) for name, x in outputs.items() if x.requires_grad}
        return outputs

    def _saved(self) -> AbstractContextManager[object]:
        """Returns a context in which autograd saves copies of buffers that a later forward writes before its backward."""
        units = self._units if self._units is not None and self._units.gathers else None
        compiled = graph_of(self.module) is not self.module._run
        if (
            not torch.is_grad_enabled() or compiled or not (self._read or units)
        ):  # compiled: saves none it writes
            return nullcontext()
        written = {getattr(self.module, slot).untyped_storage()._cdata for slot in self._read}

        def pack(tensor: Tensor) -> object:
            tensor = tensor.clone() if tensor.untyped_storage()._cdata in written else tensor
            return tensor if units is None else units.pack(tensor)

        unpack = (lambda tensor: tensor) if units is None else units.unpack
        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _entered(self, live: Live) -> dict[str, Tensor]:
        """Returns inputs under autograd; from here on the graph holds what it needs of them."""
        inputs, live.inputs = live.inputs, {}
        return {
            name: live.boundary.enter(name, tensor) if name in self._needs_grad else tensor
            for name, tensor in inputs.items()
        }

    def _roots(self, micro: int, live: Live, grads: Tensors) -> list[Root]:
        """Returns where gradients enter; those from later readers of an input enter at its leaf, ahead of
        the stage's own share."""
        roots = [(root, grads[name]) for name, root in live.roots.items() if name in grads]
        if LOSS in live.roots:
            loss = self.losses[micro][LOSS]
            roots.append((live.roots[LOSS], torch.full_like(loss, self._scale.weight)))
        entered = live.boundary.entered
        return roots + [(backward.edge(x), grads[name]) for name, x in entered.items() if name in grads]

    def _check(self, made: Tensors, inputs: Tensors) -> None:
        """Looks for NaN on the host, where looking costs no wait; the stage that made an input has looked at it."""
        if self._keys.device.type != "cpu" or isinstance(next(iter(made.values()), None), FakeTensor):
            return
        for name, tensor in made.items():
            bad = not bool(tensor.isfinite().all()) if name == LOSS else _has_nan(tensor)
            if bad and not self._made_up:
                layer = self._diagnose(inputs) if self._diagnose else self.module.layers[-1]
                raise NotFinite(
                    f"step {self._keys.step}: stage {self.module.index}, layer '{layer}' made NaN or infinity "
                    f"of micro-batch {self._keys.micro}, seen in '{name}'{_samples(tensor)}"
                )


def _has_nan(tensor: Tensor) -> bool:
    """Returns whether a tensor has NaN, without another tensor of its size: the largest of numbers with a
    NaN is NaN."""
    numbers = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return numbers.is_floating_point() and numbers.numel() > 0 and bool(numbers.amax().isnan())


def _samples(tensor: Tensor) -> str:
    if tensor.ndim == 0:
        return ""
    rows = (~tensor.isfinite()).flatten(1).any(1) if tensor.ndim > 1 else ~tensor.isfinite()
    return f", samples {rows.nonzero().flatten().tolist()[:8]} of it"


FIRST_SCALE = 65536.0
GROWTH_INTERVAL = 2000  # steps


@dataclass
class Scaler:
    """The loss scale of fp16, which moves with every step."""

    scale: float = FIRST_SCALE
    good_steps: int = 0  # since the last change

    def update(self, finite: bool) -> None:
        """Halves the scale after a step that was not finite; doubles it after many that were.

        Args: `finite` tells whether all gradients of the step were.
        """
        if not finite:
            self.scale, self.good_steps = self.scale / 2, 0
            return
        self.good_steps += 1
        if self.good_steps == GROWTH_INTERVAL:
            self.scale, self.good_steps = self.scale * 2, 0


@dataclass
class LossScale:
    """The gradient of the step's loss with respect to the loss of one micro-batch."""

    base: float = 1.0
    scaler: Scaler | None = None

    @property
    def weight(self) -> float:
        """Returns the gradient with which the backward of a micro-batch starts, fp16's scale included."""
        return self.base if self.scaler is None else self.base * self.scaler.scale
