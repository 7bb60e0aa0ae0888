"""What each layer keeps and needs of memory on one rank of a group, operation by operation.

A layer is walked forward and backward once as the rank computes it. Every tensor is there from its making to its last
use, and what the backward pass reads stays until then. A conversion is an operation of its own: what it sends and
receives is there beside what it makes. The same walk of the whole layer tells how much of the measured bytes it
explains. A rank has the measured ones in that proportion (`own_profile.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Final, NamedTuple

from planner.layout import (
    MOVES,
    STATE_PREFIX,
    GroupLayout,
    LocalGraph,
    LocalOperation,
    Passage,
    everywhere,
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
# Of operations that compute: those whose backward pass reads neither what they read nor what they make.
FORGETFUL: Final = frozenset(
    f"aten.{x}" for x in ["add", "sub", "neg", "mean", "sum", "cat", "stack", "to", "type_as"]
)
_PASSING: Final = frozenset(f"aten.{x}" for x in ["add", "sub", "sum", "mean", "to", "type_as", "expand"])
_RESULTS: Final = frozenset(
    f"aten.{x}" for x in ["softmax", "log_softmax", "relu", "tanh", "sigmoid", "exp", "rsqrt", "sqrt"]
)
_WEIGHTED: Final = frozenset(
    f"aten.{x}" for x in ["linear", "addmm", "embedding", "conv1d", "conv2d", "conv3d"]
)
_NORMS: Final = frozenset(f"aten.{x}" for x in ["layer_norm", "rms_norm", "instance_norm", "group_norm"])


class LayerBytes(NamedTuple):
    """The bytes of one layer, with the meaning that a profile gives them."""

    kept: int = 0  # made by the layer and kept until its backward, Values excluded
    held: int = 0  # between the halves of a backward, Values included
    working: int = 0  # highest beside what stays, in any pass


Storage = tuple[str, GroupLayout | None]  # a tensor, or what a conversion to a layout has made of it


@dataclass
class _Step:
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
class _Layer:
    steps: list[_Step] = field(default_factory=list)
    entering: set[Storage] = field(default_factory=set)
    leaving: set[Storage] = field(default_factory=set)


def whole(found: LocalGraph) -> LocalGraph:
    """Returns the same model as one process computes it."""
    layouts = {name: tuple(everywhere(x.shape) for x in own) for name, own in found.layouts.items()}
    placed = tuple(
        replace(
            each,
            inputs={name: everywhere(x.shape) for name, x in each.inputs.items()},
            outputs=tuple(everywhere(x.shape) for x in each.outputs),
            kernels={},
        )
        for each in found.placed
    )
    return replace(found, placed=placed, layouts=layouts, made={})


def footprints(found: LocalGraph, element_bytes: int) -> Mapping[str, LayerBytes]:
    """Returns the bytes of each layer on the rank of a group with most to do.

    Args: `element_bytes` are of what layers make.
    """
    walk = _Walk(found, element_bytes)
    return {name: walk.bytes_of(layer) for name, layer in walk.layers().items()}


class _Walk:
    """The storages of a model; `root` is the one that a tensor is a view of, `bytes` has the size of each."""

    def __init__(self, found: LocalGraph, element_bytes: int) -> None:
        self.found, self.element = found, element_bytes
        self.root: dict[Storage, Storage] = {}
        self.grad: dict[Storage, Storage] = {}  # the storage whose gradient that of a tensor is a view of
        self.bytes: dict[Storage, int] = {}
        self.numbers = {name for x in found.placed for argument, name in x.reads() if argument in _NUMBERS}
        self.owner = {x.operation.name: x.operation.layer for x in found.placed}

    def layers(self) -> Mapping[str, _Layer]:
        layers: dict[str, _Layer] = defaultdict(_Layer)
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

    def _steps(self, done: LocalOperation, own: _Layer) -> Iterator[_Step]:
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

    def _resolved(self, name: str, before: GroupLayout, after: GroupLayout) -> Iterator[_Step]:
        """Yields the sum of addends that takes the place of what it sums."""
        steps = path(before, after, self.found.mesh, trained=name in self.found.trained)
        if any(step.forward != "none" for step in steps):
            made = self.bytes[self.root[name, None]]
            yield _Step(forward=made + max(self._passing(x, x.forward, self.element) for x in steps))

    def _conversion(
        self, source: Storage, target: Storage, have: GroupLayout, want: GroupLayout
    ) -> Iterator[_Step]:
        trained = source[0] in self.found.trained
        steps = path(have, want, self.found.mesh, trained=trained)
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
            yield _Step(
                reads=[self.root[source]],
                makes=made,
                result=self.grad[target],
                grads=[self.grad[source]] if trained and made is not None else [],
                forward=forward,
                backward=backward,
            )

    def _passing(self, step: Passage, what: str, size: int) -> int:
        """Returns the bytes that a collective has beside what it reads and what it makes."""
        ranks, others = (
            self.found.mesh[step.axis],
            [a for cut in step.source.cuts if cut is not None for a in cut.axes if a != step.axis],
        )
        n = size * prod(step.source.shape) // prod(self.found.mesh[a] for a in others)
        away = n - n // ranks
        return {
            "gather": away + n // ranks,
            "scatter": 2 * away,
            "reduce": n,
            "exchange": 2 * away // ranks,
            "pad": away,
        }.get(what, 0)

    def _computed(self, done: LocalOperation, read: Mapping[str, Storage]) -> _Step:
        kind, name = done.operation.operation, done.operation.name
        key = (name, None)
        tensors = {x: self.root[y] for x, y in read.items() if not _is_state(y)}
        step = _Step(reads=list(tensors.values()))
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
        step.weights = sum(self._state_bytes(done, x) for x in states)
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
        if kind == ATTENTION:
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

    def _with_kernel(self, kernel: str, done: LocalOperation, step: _Step) -> None:
        """Adds what an operation on parts has besides torch's own."""
        name = done.operation.name
        if kernel == "dropped":
            step.forward += 3 * self.element * prod(done.operation.outputs[0])
        elif kernel == "classes":
            rows = self._share(done, "target")
            step.keeps.add(self._extra(name, "rows", _ROW * rows))
        elif kernel == "vocabulary":
            step.keeps.add(self._extra(name, "mask", self._share(done, "indices")))
        elif kernel == "causal":
            step.keeps.add(
                self._extra(name, "mask", self._share(done, "query") // done.operation.outputs[0][-1])
            )

    def _share(self, done: LocalOperation, argument: str) -> int:
        layout = done.inputs[argument]
        return ceil(prod(layout.shape) * share_of(layout))

    def bytes_of(self, layer: _Layer) -> LayerBytes:
        """Returns the bytes of one layer."""
        values = layer.entering | layer.leaving
        kept = {x for step in layer.steps for x in step.keeps}
        own = sum(self.bytes[x] for x in kept - values)
        held: dict[object, int] = {}
        for step in layer.steps:
            held |= step.held
        entering = sum(self.bytes[x] for x in layer.entering)
        staying = own + sum(self.bytes[x] for x in kept & values)
        forward = entering + self._forward(layer, kept) - staying
        return LayerBytes(own, sum(held.values()), max(0, forward, self._backward(layer, kept - values)))

    def _forward(self, layer: _Layer, kept: set[Storage]) -> int:
        """Returns the most bytes that a layer has made and not given up, at any time of its forward pass."""
        last = {x: i for i, step in enumerate(layer.steps) for x in step.reads}
        live = peak = 0
        there = set[Storage]()
        for i, step in enumerate(layer.steps):
            new = {*([step.makes] if step.makes else []), *step.keeps} - layer.entering - there
            there |= new
            live += sum(self.bytes[x] for x in new)
            peak = max(peak, live + step.forward)
            gone = {x for x in there if last.get(x, -1) <= i} - kept - layer.leaving
            there -= gone
            live -= sum(self.bytes[x] for x in gone)
        return peak

    def _backward(self, layer: _Layer, kept: set[Storage]) -> int:
        """Returns the most bytes that a layer has made and not given up, at any time of its backward pass."""
        there = {x: self.bytes[x] for x in layer.leaving if x[0] in self.found.trained}
        live = peak = sum(there.values())
        keepers: dict[Storage, int] = defaultdict(int)
        for step in layer.steps:
            for x in step.keeps & kept:
                keepers[x] += 1
        for step in reversed(layer.steps):
            if step.result not in there:
                continue
            came = there[step.result]
            live += step.weights
            live, highest = self._graded(step, there, live)
            peak = max(peak, highest, live + step.backward)
            if step.makes is not None and step.result in there and not (step.passing and step.grads):
                live -= there.pop(step.result, came)
            for x in step.keeps & kept:
                keepers[x] -= 1
                live -= self.bytes[x] if not keepers[x] else 0
        return peak

    def _graded(self, step: _Step, there: dict[Storage, int], live: int) -> tuple[int, int]:
        """Returns the bytes there once an operation has made its gradients, and the most meanwhile."""
        highest = live
        came = there[step.result]
        for x in dict.fromkeys(step.grads):
            if x == step.result:
                continue
            size = 0 if step.passing and self.bytes[x] == came else self.bytes[x]
            live += size
            highest = max(highest, live)
            if x in there:
                live -= size
            else:
                there[x] = size
        return live, highest


def _is_state(key: Storage) -> bool:
    return key[0].startswith(STATE_PREFIX)


def _bytes(layout: GroupLayout, size: int) -> int:
    return ceil(share_of(layout) * prod(layout.shape)) * size


def in_proportion(measured: int, own: int, of_whole: int) -> int:
    """Returns measured bytes of a whole layer as a rank has them.

    What the walk does not explain of them shrinks as what it explains.
    Args: `own` is what the walk says of the rank, and `of_whole` of the whole layer.
    """
    if measured <= of_whole:
        return ceil(measured * own / of_whole) if of_whole else own
    return own + ceil((measured - of_whole) * (min(1.0, own / of_whole) if of_whole else 1.0))
