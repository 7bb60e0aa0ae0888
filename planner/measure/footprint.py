"""Counts what autograd keeps of one layer and how much its passes allocate, from tensors that need not be real.

Everything here is bookkeeping over storages: fake tensors, where nothing is computed, give the same answer as real
ones. Fake tensors claim to be on the CPU, so that attention takes a fused kernel as it does on a GPU. Masks and
positions that a stage computes for itself count in every layer that keeps them: an overestimate.

Fake tensors do not show the reserve that a recurrent kernel keeps for its backward. oneDNN's LSTM leaves its gates and
states in one tensor, page after page. torch makes that tensor empty where nothing is computed. Its size is known from
the shapes, to the byte in fp32. Other precisions take no more. Other devices keep gates and states as well, so the size
is an estimate for them. GRUs and plain recurrent layers run as ordinary operations, whose tensors are seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from planner.capture import meter_of, storage_of
from planner.measure.passes import Apart, Specimen, forget_gradients, gradients_of, roots_of, whole_backward
from planner.profile import PERSISTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The bytes of one layer, with the meaning that `planner.profile.LayerCost` gives to the same names."""

    own_saved_bytes: int
    kept_inputs: tuple[int, ...]
    kept_outputs: tuple[int, ...]
    output_bytes: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...]
    slack_bytes: int  # of storages that outputs keep alive and do not show; not among the bytes above
    held_bytes: int
    workspace_bytes: int
    forward_workspace_bytes: int
    walks: bool
    walked_bytes: int
    owing_bytes: int


class SavedTensors:
    """A record of every tensor that autograd keeps, and of those that a backward asked for."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}
        self.used: dict[int, Tensor] = {}

    def watching(self) -> saved_tensors_hooks:
        """Returns the context in which autograd's tensors are recorded."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Tensor:
        self.kept[storage_of(tensor)] = tensor
        return tensor

    def _unpack(self, tensor: Tensor) -> Tensor:
        self.used[storage_of(tensor)] = tensor
        return tensor


def footprint(specimen: Specimen) -> Footprint:
    """Returns what autograd keeps of a layer and what its passes allocate, all in bytes.

    Args: `specimen` is run forwards and backwards several times; its tensors may be fake.
    """
    saved = SavedTensors()
    with saved.watching():
        outputs = specimen.outputs()
        sources = _Sources(specimen, outputs)
        own, kept_inputs, kept_outputs = sources.sort(saved.kept.values())
        own += sum(sources.slack.pop(i, 0) for i in kept_outputs)
        kept_bytes = own + sources.value_bytes(kept_inputs, kept_outputs)
        held = _held_bytes(specimen, outputs, saved, sources)
    owing = max(0, _owing_bytes(specimen, kept_inputs, kept_outputs) - own)
    del outputs, saved
    peaks = _peaks(specimen)
    if peaks.halfway is not None:
        held = peaks.halfway
    forward = max(0, sum(sources.sizes) + peaks.forward - kept_bytes)
    return Footprint(
        own_saved_bytes=own,
        kept_inputs=kept_inputs,
        kept_outputs=kept_outputs,
        output_bytes=sources.output_bytes,
        aliases=sources.aliases,
        slack_bytes=sum(sources.slack.values()),
        held_bytes=held,
        workspace_bytes=max(forward, peaks.backward),
        forward_workspace_bytes=forward,
        walks=specimen.halves.walks,
        walked_bytes=_walked_bytes(specimen),
        owing_bytes=owing,
    )


def _owing_bytes(specimen: Specimen, kept_inputs: Iterable[int], kept_outputs: Iterable[int]) -> int:
    """Returns what a shard saves besides its kept Values where the stage owes weight gradients.

    There, what neighbours send is joined to a copy of the input, and the copy stays.
    """
    if isinstance(specimen.halves, Apart) or not specimen.on_shards:
        return 0
    saved = SavedTensors()
    with saved.watching():
        outputs = specimen.outputs(specimen.halves.forward)
        sources = _Sources(specimen, outputs)
        own, inputs, made = sources.sort(saved.kept.values())
    own += sum(sources.slack.get(i, 0) for i in made)
    return own + sources.value_bytes({*inputs} - {*kept_inputs}, {*made} - {*kept_outputs})


class _Sources:
    """The owners of storages: a parameter, an input, an output, or the layer itself."""

    def __init__(self, specimen: Specimen, outputs: Sequence[Tensor]) -> None:
        self._persistent = {storage_of(x) for x in (*specimen.parameters, *specimen.buffers)}
        self._inputs: dict[int, int] = {}
        self._outputs: dict[int, list[int]] = {}
        inputs = [specimen.inputs[name] for name in specimen.layer.inputs]
        self.sizes = [x.nbytes for x in inputs]
        self.output_bytes = tuple(x.nbytes for x in outputs)
        for i, tensor in enumerate(inputs):
            self._inputs.setdefault(storage_of(tensor), i)
        found = []
        for i, tensor in enumerate(outputs):
            key = storage_of(tensor)
            self._outputs.setdefault(key, []).append(i)
            if key in self._persistent:
                found.append((i, PERSISTENT))
            elif key in self._inputs:
                found.append((i, self._inputs[key]))
        self.aliases = tuple(found)
        self.slack = self._slack(outputs, {i for i, _ in found})

    def _slack(self, outputs: Sequence[Tensor], views: set[int]) -> dict[int, int]:
        """Returns the bytes of new storages that no output shows, by their first output."""
        found = {}
        for first, *others in self._outputs.values():
            if first not in views:
                shown = sum(self.output_bytes[i] for i in (first, *others))
                found[first] = max(0, outputs[first].untyped_storage().nbytes() - shown)
        return found

    def sort(self, tensors: Iterable[Tensor]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Returns the layer's own bytes among tensors, then the positions of the inputs and of the outputs among
        them.

        Args: `tensors` may share storages; each storage counts once.
        """
        own, inputs, outputs = 0, set(), set()
        for key, tensor in {storage_of(x): x for x in tensors}.items():
            if key in self._persistent:
                continue
            if key in self._inputs:
                inputs.add(self._inputs[key])
            elif key in self._outputs:
                outputs.update(self._outputs[key])
            else:
                own += tensor.untyped_storage().nbytes()
        return own, tuple(sorted(inputs)), tuple(sorted(outputs))

    def value_bytes(self, inputs: Iterable[int], outputs: Iterable[int]) -> int:
        """Returns the bytes of some inputs and outputs, given by position.

        Args: `inputs` and `outputs` are positions in the layer.
        """
        return sum(self.sizes[i] for i in inputs) + sum(self.output_bytes[i] for i in outputs)


def _held_bytes(specimen: Specimen, outputs: Sequence[Tensor], saved: SavedTensors, sources: _Sources) -> int:
    """Returns an upper limit on what a weight half needs without the runtime's split.

    A split that hands gradients on to the parameters' own operations keeps less.
    """
    roots = roots_of(outputs)
    if not roots or not specimen.trainable:
        return 0
    gradients = gradients_of(roots)
    torch.autograd.grad(roots, specimen.trainable, gradients, retain_graph=True, allow_unused=True)
    own, inputs, made = sources.sort(saved.used.values())
    return own + sources.value_bytes(inputs, made) + sum(x.nbytes for x in gradients)


class Peaks(NamedTuple):
    forward: int  # highest bytes, above those at the start of the pass
    backward: int
    halfway: int | None  # held between the halves of the runtime's own split, inputs among it


def _peaks(specimen: Specimen) -> Peaks:
    forget_gradients(specimen)
    with meter_of(specimen.device) as live:
        roots = roots_of(specimen.outputs())
        forward, after = live.peak, live.now
        live.restart()
        whole_backward(specimen, roots, gradients_of(roots))
        backward = live.peak - after
    del roots
    forget_gradients(specimen)
    if isinstance(specimen.halves, Apart) or not specimen.has_halves:
        return Peaks(forward, backward, None)
    return _with_halves(specimen, Peaks(forward, backward, None))


def _with_halves(specimen: Specimen, peaks: Peaks) -> Peaks:
    """Returns the peaks with those of the halves, whose inputs are gone unless the weight half needs them."""
    with meter_of(specimen.device) as live:
        own = replace(specimen, inputs={name: _copy(x) for name, x in specimen.inputs.items()})
        roots = roots_of(own.outputs(own.halves.forward))
        after = live.now
        live.restart()
        halfway = own.input_half(roots, gradients_of(roots))
        forget_gradients(own)
        del roots, own
        first, held = live.peak - after, live.now
        live.restart()
        specimen.weight_half(halfway)
        second = live.peak - held
    return Peaks(peaks.forward, max(peaks.backward, first, second), held)


def _walked_bytes(specimen: Specimen) -> int:
    """Returns what a walk keeps beside the saved bytes; without inputs to walk to, the gradients of the outputs."""
    if specimen.walked is None or not specimen.trainable:
        return 0
    with meter_of(specimen.device) as live:
        roots = roots_of(specimen.outputs(specimen.walked.forward))
        if not specimen.differentiable_inputs:
            return sum(root.nbytes for root in roots)
        before, inputs = live.now, specimen.differentiable_inputs
        halfway = specimen.walked.input_half(roots, gradients_of(roots), inputs, specimen.trainable)
        forget_gradients(specimen)
        held = live.now - before
        del halfway
    return max(0, held)


def _copy(tensor: Tensor) -> Tensor:
    """Copies the whole storage of a tensor, so that strides stay."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    flat = torch.as_strided(tensor.detach(), (count,), (1,), 0).clone()
    lies = flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return lies.requires_grad_(tensor.requires_grad)


aten = torch.ops.aten

PAGE_BYTES, FLOAT_BYTES, LINE_FLOATS = 4096, 4, 16


def lstm_reserve_bytes(steps: int, samples: int, inputs: int, hidden: int) -> int:
    """Returns the bytes that oneDNN's LSTM reserves in one layer and direction.

    Args: `steps` is the sequence length; `samples`, `inputs` and `hidden` are sizes of the dims.
    """
    states = 2 * (steps + 1) * samples  # of the layer below and of this one, before and after each step
    parts = [
        steps * samples * _row(4 * hidden),
        steps * samples * _row(hidden),
        *[states * _row(max(inputs, hidden))] * 3,
        *[states * hidden] * 2,
    ]
    return sum(-(-FLOAT_BYTES * floats // PAGE_BYTES) * PAGE_BYTES for floats in parts)


def _row(floats: int) -> int:
    """Returns the floats of a row in whole cache lines; one line more for multiples of 256, so that rows share no
    set.
    """
    whole = -(-floats // LINE_FLOATS) * LINE_FLOATS
    return whole + LINE_FLOATS if whole % 256 == 0 else whole


class Reserves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode under a FakeTensorMode that gives recurrent kernels the reserve that they would make.

    A selection by a mask gives all rows, which are the most that it can give: the backward of an embedding with sparse
    gradients leaves its padding out so.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function is aten.index.Tensor and len(args[1]) == 1 and args[1][0].dtype == torch.bool:
            given, mask = args[0], args[1][0]
            return given.new_empty((mask.numel(), *given.shape[mask.ndim :]))
        result = function(*args, **(kwargs or {}))
        if function is not aten.mkldnn_rnn_layer.default:
            return result
        output, hidden, cell, empty = result
        steps, samples, inputs = args[0].shape  # whatever `batch_first` says
        size = lstm_reserve_bytes(steps, samples, inputs, output.shape[2])
        return output, hidden, cell, empty.new_empty((size,))
