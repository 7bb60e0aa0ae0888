"""What autograd keeps of one layer and how much its passes allocate, from tensors that need not be real.

Everything here is bookkeeping over storages: it gives the same answer on fake tensors, where nothing is computed, as
on real ones. Fake tensors claim to be on the CPU, so that attention takes a fused kernel as it does on a GPU.
Masks and positions that a stage computes for itself count in every layer that keeps them: an overestimate.

What kernels keep for their backward that fake tensors do not show: the reserve of a recurrent layer.

oneDNN's LSTM leaves its gates and states in one tensor, page after page; torch makes that tensor empty where nothing
is computed. Its size is known from the shapes, to the byte in fp32. Other precisions take no more, and other
devices keep gates and states as well: there it is an estimate. GRUs and plain recurrent layers run as ordinary
operations, whose tensors are seen.
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
    own_saved_bytes: int
    kept_inputs: tuple[int, ...]
    kept_outputs: tuple[int, ...]
    output_bytes: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...]
    slack_bytes: int  # of outputs that are a part of what they keep alive; not among the bytes above
    held_bytes: int
    workspace_bytes: int
    walks: bool
    walked_bytes: int
    owing_bytes: int


class SavedTensors:
    """Every tensor that autograd keeps while this watches, and which of them a backward asked for."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}
        self.used: dict[int, Tensor] = {}

    def watching(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Tensor:
        self.kept[storage_of(tensor)] = tensor
        return tensor

    def _unpack(self, tensor: Tensor) -> Tensor:
        self.used[storage_of(tensor)] = tensor
        return tensor


def footprint(specimen: Specimen) -> Footprint:
    saved = SavedTensors()
    with saved.watching():
        outputs = specimen.outputs()
        sources = _Sources(specimen, outputs)
        own, kept_inputs, kept_outputs = sources.sort(saved.kept.values())
        own += sum(sources.slack.pop(i, 0) for i in kept_outputs)
        kept_bytes = own + sources.value_bytes(kept_inputs, kept_outputs)
        held = _held_bytes(specimen, outputs, saved, sources)
    owing = max(0, _owing_bytes(specimen, kept_inputs, kept_outputs) - own)
    saved.kept.clear()
    saved.used.clear()
    del outputs
    peaks = _peaks(specimen)
    if peaks.halfway is not None:
        held = peaks.halfway
    return Footprint(
        own_saved_bytes=own,
        kept_inputs=kept_inputs,
        kept_outputs=kept_outputs,
        output_bytes=sources.output_bytes,
        aliases=sources.aliases,
        slack_bytes=sum(sources.slack.values()),
        held_bytes=held,
        workspace_bytes=max(0, sum(sources.sizes) + peaks.forward - kept_bytes, peaks.backward),
        walks=specimen.halves.walks,
        walked_bytes=_walked_bytes(specimen),
        owing_bytes=owing,
    )


def _owing_bytes(specimen: Specimen, kept_inputs: Iterable[int], kept_outputs: Iterable[int]) -> int:
    """Saved on shards where the stage owes weight gradients: there what neighbours send is joined to a copy. Beside
    the Values that are kept anyway."""
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
    """Whose storage a tensor has: a parameter's, an input's, an output's, or the layer's own."""

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
        """By the first output of each new storage: bytes of it that no output shows."""
        found = {}
        for first, *others in self._outputs.values():
            if first not in views:
                shown = sum(self.output_bytes[i] for i in (first, *others))
                found[first] = max(0, outputs[first].untyped_storage().nbytes() - shown)
        return found

    def sort(self, tensors: Iterable[Tensor]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Own bytes, positions of the inputs, positions of the outputs."""
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
        return sum(self.sizes[i] for i in inputs) + sum(self.output_bytes[i] for i in outputs)


def _held_bytes(specimen: Specimen, outputs: Sequence[Tensor], saved: SavedTensors, sources: _Sources) -> int:
    """Without the runtime's split: what the weight half asks for, and the gradients that it starts from.

    From above, since a split that hands gradients on to the parameters' own operations keeps less.
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
    """With inputs of its own, that are gone unless the first half leaves them to the second; a gradient of an input
    may be one of an output too, which the second half needs."""
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
    """On top of what the forward has saved, which a walk keeps. Without inputs to walk to, gradients wait as they
    come."""
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
    """Of the storage, so that strides stay, also of what is expanded."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    flat = torch.as_strided(tensor.detach(), (count,), (1,), 0).clone()
    lies = flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return lies.requires_grad_(tensor.requires_grad)


aten = torch.ops.aten

PAGE_BYTES, FLOAT_BYTES, LINE_FLOATS = 4096, 4, 16


def lstm_reserve_bytes(steps: int, samples: int, inputs: int, hidden: int) -> int:
    """Of one layer in one direction."""
    states = 2 * (steps + 1) * samples  # of the layer below and of this one, before and after each step
    parts = [
        steps * samples * _row(4 * hidden),
        steps * samples * _row(hidden),
        *[states * _row(max(inputs, hidden))] * 3,
        *[states * hidden] * 2,
    ]
    return sum(_pages(FLOAT_BYTES * floats) for floats in parts)


def _row(floats: int) -> int:
    """In whole cache lines, of which rows of a power of two take one more, so that they do not share a set."""
    whole = -(-floats // LINE_FLOATS) * LINE_FLOATS
    return whole + LINE_FLOATS if whole % 256 == 0 else whole


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


class Reserves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Under a FakeTensorMode, gives recurrent kernels the reserve that they would make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if function is not aten.mkldnn_rnn_layer.default:
            return result
        output, hidden, cell, empty = result
        steps, samples, inputs = args[0].shape  # whatever `batch_first` says
        size = lstm_reserve_bytes(steps, samples, inputs, output.shape[2])
        return output, hidden, cell, empty.new_empty((size,))
