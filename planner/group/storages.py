"""A model on a rank of a group as storages: what every operation and conversion reads, makes and keeps.

A view has the storage of what it is a view of, and so has a conversion that only says how a tensor lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Final

from planner.group.amounts import ring_elements
from planner.layout import (
    FORGETFUL,
    MOVES,
    RING,
    STATE_PREFIX,
    GroupLayout,
    LocalGraph,
    LocalOperation,
    Passage,
    gathers_parameter,
    keeps,
    path,
    share_of,
)
from planner.spatial import GETITEM

ATTENTION: Final = "aten.scaled_dot_product_attention"
_NUMBER: Final = 8  # bytes of a class, a position or a place in a table
_STATISTIC: Final = 4  # bytes of a mean, a deviation, or the sum of a row of attention
_ROW: Final = 40  # bytes that a cross entropy over classes in parts keeps of a row besides its logits
_NUMBERS: Final = ("indices", "target", "index")
_PIECES: Final = frozenset(
    f"aten.{x}" for x in ["chunk", "split", "split_with_sizes", "select", "unbind", "slice", "narrow"]
)
_COPIES: Final = frozenset(f"aten.{x}" for x in ["clone", "contiguous"])
_PASSING: Final = frozenset(f"aten.{x}" for x in ["add", "sub", "sum", "mean", "to", "type_as", "expand"])
_RESULTS: Final = frozenset(
    f"aten.{x}" for x in ["softmax", "log_softmax", "relu", "tanh", "sigmoid", "exp", "rsqrt", "sqrt"]
)
_WEIGHTED: Final = frozenset(
    f"aten.{x}" for x in ["linear", "addmm", "embedding", "conv1d", "conv2d", "conv3d"]
)
_NORMS: Final = frozenset(f"aten.{x}" for x in ["layer_norm", "rms_norm", "instance_norm", "group_norm"])


Storage = tuple[str, GroupLayout | None]  # a tensor, or what a conversion to a layout has made of it


@dataclass
class LayerStep:
    """An operation or a conversion of a layer: what it reads, makes and keeps, as storages."""

    reads: list[Storage] = field(default_factory=list)
    makes: Storage | None = None  # None where it makes a view
    keeps: set[Storage] = field(default_factory=set)
    result: Storage = ("", None)  # whose gradient comes
    grads: list[Storage] = field(default_factory=list)  # whose gradients it makes
    passing: bool = False  # they are the one that came
    weights: int = 0  # bytes of gradients of parameters
    held: dict[object, int] = field(default_factory=dict)  # bytes by storage that those need
    forward: int = 0  # bytes that are there besides while it runs
    backward: int = 0


@dataclass
class LayerSteps:
    steps: list[LayerStep] = field(default_factory=list)
    entering: set[Storage] = field(default_factory=set)
    leaving: set[Storage] = field(default_factory=set)


class StorageWalk:
    """The storages of a model; `root` is the one that a tensor is a view of, `bytes` has the size of each."""

    def __init__(self, found: LocalGraph, element_bytes: int, weight_bytes: int) -> None:
        self.found, self.element, self.weight = found, element_bytes, weight_bytes
        self.root: dict[Storage, Storage] = {}
        self.grad: dict[Storage, Storage] = {}  # the storage whose gradient that of a tensor is a view of
        self.bytes: dict[Storage, int] = {}
        self.gathered: dict[
            Storage, int
        ] = {}  # parameters that rest in parts: bytes that summing the gradient of one sends and receives
        self.numbers = {name for x in found.placed for argument, name in x.reads() if argument in _NUMBERS}
        self.owner = {x.operation.name: x.operation.layer for x in found.placed}

    def layers(self) -> Mapping[str, LayerSteps]:
        layers: dict[str, LayerSteps] = defaultdict(LayerSteps)
        for name in self.found.layouts.keys() - self.owner.keys():
            self._new((name, None), self.found.layouts[name])
        read_by_some = {name for done in self.found.placed for name in done.operation.reads()}
        for done in self.found.placed:
            own, name = layers[done.operation.layer], done.operation.name
            own.steps += self._steps(done, own)
            for read in done.operation.reads():
                if self.owner.get(read, "") != done.operation.layer and not read.startswith(STATE_PREFIX):
                    own.entering.add(self.root[read, None])
                    layers[self.owner.get(read, "")].leaving.add(self.root[read, None])
            if name not in read_by_some:
                own.leaving.add(self.root[name, None])
        return layers

    def _new(self, key: Storage, layouts: Iterable[GroupLayout]) -> Storage:
        size = _NUMBER if key[0] in self.numbers else self.element
        self.root[key] = self.grad[key] = key
        self.bytes[key] = sum(_bytes(x, size) for x in layouts)
        return key

    def _steps(self, done: LocalOperation, own: LayerSteps) -> Iterator[LayerStep]:
        """Yields what happens for an operation: the conversions of what it reads, itself, and a sum of addends."""
        kind, name = done.operation.operation, done.operation.name
        read: dict[str, Storage] = {}
        for argument, tensor in done.reads():
            want, have = done.inputs[argument], self.found.layouts[tensor][0]
            read[argument] = (tensor, None)
            if kind != GETITEM and want != have:
                read[argument] = (tensor, want)
                if read[argument] not in self.root:
                    yield from self._conversion((tensor, None), (tensor, want), have, want)
        yield self._computed(done, read)
        for before, after in zip(self.found.made.get(name, ()), self.found.layouts[name], strict=False):
            yield from self._resolved(name, before, after)

    def _resolved(self, name: str, before: GroupLayout, after: GroupLayout) -> Iterator[LayerStep]:
        """Yields the sum of addends that takes the place of what it sums."""
        steps = path(before, after, self.found.mesh, trained=name in self.found.trained)
        if any(step.forward != "none" for step in steps):
            made = self.bytes[self.root[name, None]]
            yield LayerStep(forward=made + max(self._passing(x, x.forward, self.element) for x in steps))

    def _conversion(
        self, source: Storage, target: Storage, have: GroupLayout, want: GroupLayout
    ) -> Iterator[LayerStep]:
        trained = source[0] in self.found.trained
        steps = path(have, want, self.found.mesh, trained=trained)
        if gathers_parameter(source[0], steps):
            yield self._gathered(target, want, steps)
            return
        held = source[0].startswith(STATE_PREFIX) and trained  # as a part, which is what is read
        if held or all(step.forward == "none" for step in steps):
            self.root[target], self.grad[target] = self.root[source], self.grad[source]
            made = None
        else:
            made = self._new(target, (want,))
        size = _NUMBER if source[0] in self.numbers else self.element
        forward = max((self._passing(x, x.forward, size) for x in steps), default=0)
        backward = max((self._passing(x, x.backward, size) for x in steps), default=0) if trained else 0
        if not held:
            yield LayerStep(
                reads=[self.root[source]],
                makes=made,
                result=self.grad[target],
                grads=[self.grad[source]] if trained and made is not None else [],
                forward=forward,
                backward=backward,
            )

    def _gathered(self, target: Storage, want: GroupLayout, steps: Sequence[Passage]) -> LayerStep:
        """Returns the gather of a parameter that rests in parts; nothing of it is kept."""
        made = self._new(target, ())
        self.bytes[made] = _bytes(want, self.weight)
        forward, backward = (
            max(self._passing(x, what, self.weight) for x, what in zip(steps, ways, strict=True))
            for ways in ([x.forward for x in steps], [x.backward for x in steps])
        )
        self.gathered[target] = backward
        return LayerStep(makes=made, forward=forward)

    def _passing(self, step: Passage, what: str, size: int) -> int:
        """Returns the bytes that a collective has beside what it reads and what it makes."""
        ranks, others = (
            self.found.mesh[step.axis],
            [a for cut in step.source.cuts if cut is not None for a in cut.axes if a != step.axis],
        )
        n = size * prod(step.source.shape) // prod(self.found.mesh[a] for a in others)
        away = n - n // ranks
        return {
            "gather": n if ranks == 2 else 2 * away,  # of more ranks, a copy for each other one is sent
            "scatter": 2 * away,
            "reduce": n,
            "exchange": 2 * away // ranks,
            "pad": away,
        }.get(what, 0)

    def _computed(self, done: LocalOperation, read: Mapping[str, Storage]) -> LayerStep:
        kind, name = done.operation.operation, done.operation.name
        key = (name, None)
        tensors = {x: self.root[y] for x, y in read.items() if not _is_state(y)}
        resting = [y for y in read.values() if y in self.gathered]
        step = LayerStep(reads=[*tensors.values(), *resting])
        source = read.get("self", read.get("input"))
        view = kind == GETITEM or (kind in MOVES and kind not in _COPIES and source is not None)
        if view:
            assert source is not None
            self.root[key], self.grad[key] = self.root[source], self.grad[source]
            if kind in _PIECES:
                self.grad[key] = key
                self.bytes[key] = sum(_bytes(x, self.element) for x in done.outputs)
                step.grads = [self.grad[source]] if source[0] in self.found.trained else []
            step.result = self.grad[key]
            return step
        step.makes = step.result = self._new(key, done.outputs)
        trained = name in self.found.trained
        if not trained:
            return step
        step.grads = [self.grad[x] for x in read.values() if x[0] in self.found.trained and not _is_state(x)]
        step.passing = kind in _PASSING
        step.keeps = self._kept(done, tensors, step.makes)
        if kind == "aten.cross_entropy_loss" and "classes" not in done.kernels.values():
            step.backward = self.bytes[tensors["self"]]  # the gradient of its logarithms
        states = [x for x in read.values() if _is_state(x) and x[0] in self.found.trained]
        step.weights = sum(self._state_bytes(done, x) for x in states if x not in self.gathered)
        for argument, x in read.items():
            if (
                x in self.gathered
            ):  # its gradient is there beside it, and then beside what the sum of that sends
                again = self.bytes[x] if keeps(done.operation, argument) else 0
                step.backward += self.bytes[x] + max(again, self.gathered[x])
        if states and kind in _WEIGHTED:
            step.held = {x: self.bytes[x] for x in tensors.values()} | {("of", key): self.bytes[key]}
        for kernel in set(done.kernels.values()):
            self._with_kernel(kernel, done, step)
        return step

    def _state_bytes(self, done: LocalOperation, state: Storage) -> int:
        layouts = [done.inputs[argument] for argument, name in done.reads() if name == state[0]]
        return max(_bytes(x, self.element) for x in layouts)

    def _kept(self, done: LocalOperation, tensors: Mapping[str, Storage], made: Storage) -> set[Storage]:
        """Returns what the backward pass of an operation reads, statistics and masks among it."""
        kind, own = done.operation.operation, done.operation.name
        kept, extra = set[Storage](), 0
        if kind in FORGETFUL:
            return kept
        if kind in ("aten.mul", "aten.div") and len(tensors) < 2:
            return kept  # by a number
        if kind in _RESULTS:
            return {made}
        if kind == "aten.dropout":
            extra = self.bytes[made] if done.operation.arguments.get("p") else 0
        else:
            kept = {x for argument, x in tensors.items() if argument != "bias"}
        if RING in done.kernels.values():
            kept = {x for argument, x in tensors.items() if argument == "attn_mask"}
            extra = self.element * ring_elements(done, self.found.mesh).kept
        elif kind == ATTENTION:
            kept |= {made}
            extra = _STATISTIC * self.bytes[made] // self.element // done.operation.outputs[0][-1]
        elif kind in _NORMS:
            extra = 2 * _STATISTIC * self._rows(done)
        elif kind == "aten.cross_entropy_loss":
            kept, extra = {tensors["target"]}, self.bytes[tensors["self"]] + _STATISTIC
        if extra:
            kept.add(self._extra(own, "kept", extra))
        return kept

    def _rows(self, done: LocalOperation) -> int:
        shape = done.operation.outputs[0]
        sizes = done.operation.arguments.get("normalized_shape")
        behind = prod(shape[len(shape) - len(sizes) :]) if isinstance(sizes, tuple) else prod(shape[2:])
        return ceil(prod(shape) * share_of(done.outputs[0]) / max(1, behind))

    def _extra(self, name: str, what: str, size: int) -> Storage:
        key: Storage = (f"{name} {what}", None)
        self.root[key], self.bytes[key] = key, size
        return key

    def _with_kernel(self, kernel: str, done: LocalOperation, step: LayerStep) -> None:
        """Adds what an operation on parts has besides torch's own."""
        name = done.operation.name
        if kernel == "classes":
            rows = self._share(done, "target")
            step.keeps.add(self._extra(name, "rows", _ROW * rows))
        elif kernel == "vocabulary":
            step.keeps.add(self._extra(name, "mask", self._share(done, "indices")))
        elif kernel == RING:
            ring = ring_elements(done, self.found.mesh)
            step.forward += self.element * ring.forward
            step.backward += self.element * ring.backward
        elif kernel == "causal":
            step.keeps.add(
                self._extra(name, "mask", self._share(done, "query") // done.operation.outputs[0][-1])
            )

    def _share(self, done: LocalOperation, argument: str) -> int:
        layout = done.inputs[argument]
        return ceil(prod(layout.shape) * share_of(layout))


def _is_state(key: Storage) -> bool:
    return key[0].startswith(STATE_PREFIX)


def _bytes(layout: GroupLayout, size: int) -> int:
    return ceil(share_of(layout) * prod(layout.shape)) * size
