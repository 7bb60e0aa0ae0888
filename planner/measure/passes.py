"""The passes of one layer as they will run: forward, whole backward, and its halves; and the clocks that time them.

Gradients of parameters are added to buffers that exist already, gradients of inputs are made anew: that is what a
stage does, and the additions are part of what is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from planner.capture import StageModule
from planner.model import Layer
from planner.spatial import Layout

T = TypeVar("T")
Values = Mapping[str, Tensor]
Forward = Callable[[Values], Values]


class HalvedLayer(Protocol):
    """One layer whose backward runs in two halves."""

    @property
    def walks(self) -> bool:
        """Returns whether the halves walk through the graph, which the whole stage of the layer then has to do."""

    def forward(self, values: Values) -> Values:
        """Returns the layer's outputs for its inputs, both by the names of their Values.

        Args: `values` are the inputs.
        """

    def input_half(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
    ) -> object:
        """Leaves the gradients of the inputs in their `.grad`.

        Args: `gradients` belong to `outputs`, one each; `inputs` and `parameters` are those that need a gradient.
        Returns: what the weight half needs.
        """

    def weight_half(self, halfway: object, parameters: Sequence[Tensor]) -> None:
        """Adds the gradients of the parameters to their `.grad`.

        Args: `halfway` is what the input half returned.
        """


class BackwardSplit(Protocol):
    """A tool that halves backwards and draws random numbers as the runtime does.

    It is made without arguments, in the measuring process too.
    """

    def draw(self, module: StageModule, device: str) -> None:
        """Makes the random operations of a layer draw as those of a stage do, in place.

        Args: `module` is the layer's own module, before anything else is edited; `device` is where it runs.
        """

    def of(self, module: StageModule) -> HalvedLayer:
        """Returns the layer with a backward in halves.

        Args: `module` is the layer's own module, whose graph may be edited.
        """

    def walked(self, module: StageModule) -> HalvedLayer:
        """Returns the layer with a backward that walks, as it runs in a stage where another layer makes all layers
        walk.

        Args: `module` is the layer's own module, whose graph may be edited.
        """


class SpatialSplit(Protocol):
    """A tool that computes shards of a layer as the runtime does. It is made without arguments, in the measuring
    process too.

    `delivered` are the inputs that come cut, and how each is cut. What cannot be computed on shards raises NoRule.
    """

    def layouts(
        self, module: StageModule, grid: tuple[int, ...], delivered: Mapping[str, Layout]
    ) -> Mapping[str, Layout]:
        """Returns how the outputs are cut, by the names of their Values.

        Args: `grid` has the parts along the dims from 2 on; `delivered` are the inputs that come cut.
        Raises: NoRule where an operation of the layer has no rule for shards.
        """

    def shard(
        self, module: StageModule, grid: tuple[int, ...], delivered: Mapping[str, Layout], *, owing: bool
    ) -> None:
        """Edits the module so that it computes one shard that has neighbours. Messages of these neighbours cost
        nothing.

        Args: `grid` and `delivered` are those of `layouts`; `owing` is for a stage that owes weight gradients.
        """


@dataclass(frozen=True)
class Apart:
    """Halves for measuring where the runtime's split is absent.

    Each half runs for itself, so both go over the operations that they share.
    """

    forward: Forward
    walks: bool = False

    def input_half(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
    ) -> object:
        backward(outputs, gradients, inputs, keep=True)
        return outputs, gradients

    def weight_half(self, halfway: object, parameters: Sequence[Tensor]) -> None:
        assert isinstance(halfway, tuple)
        outputs, gradients = halfway
        backward(outputs, gradients, parameters, keep=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A layer with tensors to run it on."""

    layer: Layer
    forward: Forward
    halves: HalvedLayer
    walked: HalvedLayer | None  # where halves are executed
    inputs: Values  # leaves; those that take part in the backward require a gradient
    parameters: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]
    on_shards: bool = False

    @property
    def device(self) -> torch.device:
        tensors = (*self.inputs.values(), *self.parameters)
        return tensors[0].device if tensors else torch.device("cpu")

    @property
    def differentiable_inputs(self) -> tuple[Tensor, ...]:
        """Returns the inputs that need a gradient."""
        return tuple(x for x in self.inputs.values() if x.requires_grad)

    @property
    def trainable(self) -> tuple[Tensor, ...]:
        """Returns the parameters that are trained."""
        return tuple(x for x in self.parameters if x.requires_grad)

    @property
    def has_halves(self) -> bool:
        """Returns whether both halves have work; otherwise one is empty and the other one is the whole backward."""
        return bool(self.differentiable_inputs and self.trainable)

    def outputs(self, forward: Forward | None = None) -> tuple[Tensor, ...]:
        """Returns the outputs of one forward, in the order of the layer.

        Args: `forward` runs in place of the specimen's own, such as that of its halves.
        """
        results = (forward or self.forward)(self.inputs)
        return tuple(results[name] for name in self.layer.outputs)

    def input_half(self, roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> object:
        return self.halves.input_half(roots, gradients, self.differentiable_inputs, self.trainable)

    def weight_half(self, halfway: object) -> None:
        self.halves.weight_half(halfway, self.trainable)


def roots_of(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns the outputs at which a backward begins.

    Args: `outputs` are those of one forward; the ones without a gradient are left out.
    """
    return tuple(x for x in outputs if x.requires_grad)


def gradients_of(roots: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.ones_like(x) for x in roots)


def backward(
    roots: Sequence[Tensor], gradients: Sequence[Tensor], to: Sequence[Tensor], *, keep: bool
) -> None:
    if roots and to:
        torch.autograd.backward(roots, gradients, retain_graph=keep, inputs=list(to))


def whole_backward(specimen: Specimen, roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Runs the whole backward of a layer: input and weight gradients in one pass.

    Args: `roots` are the outputs to begin at, `gradients` their gradients.
    """
    backward(roots, gradients, (*specimen.differentiable_inputs, *specimen.trainable), keep=False)


def forget_gradients(specimen: Specimen) -> None:
    """Removes the gradients of the inputs.

    Gradients of the parameters stay, because they are buffers that live as long as the parameters.

    Args: `specimen` is the layer whose passes have run.
    """
    for tensor in specimen.differentiable_inputs:
        tensor.grad = None


class Clock(Protocol):
    """A clock that times actions on one kind of device."""

    def time(self, action: Callable[[], T], into: list[float]) -> T:
        """Runs an action and returns what it gave.

        Args: `into` gets its seconds, at the next `settle` at the latest.
        """

    def settle(self) -> None:
        """Waits until the device has done all that was timed, and tells what that took."""


class CpuClock:
    """A clock of wall time. With several threads on a busy machine it counts what other processes take as well."""

    now = staticmethod(time.perf_counter_ns)

    def time(self, action: Callable[[], T], into: list[float]) -> T:
        start = self.now()
        result = action()
        into.append((self.now() - start) * 1e-9)
        return result

    def settle(self) -> None:
        """Does nothing: a host tells at once."""


class ProcessorClock(CpuClock):
    """A clock of the processor time of this process, which other processes do not change; for a single thread."""

    now = staticmethod(time.process_time_ns)


class CudaClock:
    """A clock of the time between two events on the device, which the host does not wait for.

    So an action takes, as in a run, what the device computes or what the host takes to ask for it, if that is more.
    """

    def __init__(self) -> None:
        self._events: list[
            tuple[torch.cuda.Event, torch.cuda.Event]
        ] = []  # used again: to make one takes long
        self._open: list[list[float]] = []

    def time(self, action: Callable[[], T], into: list[float]) -> T:
        number = len(self._open)
        if not number:
            torch.cuda.synchronize()
        if number == len(self._events):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self._events.append((start, end))
            self._events[number][1].record()
        start, end = self._events[number]
        start.record()
        result = action()
        end.record()
        self._open.append(into)
        return result

    def settle(self) -> None:
        torch.cuda.synchronize()
        for (start, end), into in zip(self._events, self._open, strict=False):
            into.append(start.elapsed_time(end) * 1e-3)
        self._open.clear()


def clock_of(device: str) -> Clock:
    """Returns the clock for a device: events on a GPU, processor time for a single thread, else wall time.

    Args: `device` is a torch device, such as cuda:0.
    """
    if torch.device(device).type == "cuda":
        return CudaClock()
    return ProcessorClock() if torch.get_num_threads() == 1 else CpuClock()
