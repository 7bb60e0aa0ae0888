"""Computes one box of a model's output from the rows of the input that it needs, with the kernels of shards.

    run = BoxRunner(forward, tensors)
    y = run(reach.of(box), x)     # x has exactly the rows of `Need.input`, y those of the box

A box is a shard whose halo is there already, so nothing is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from planner.capture import Forward, entered, named_arguments
from planner.spatial import GETITEM, HERE, Fetch, Layout, Need, Placed, call_of, cut_model, local_shape, named
from runtime.same_bits import SameBits, threads
from runtime.spatial.exchange import fetched
from runtime.spatial.group import Message, Operation, SampleGroup, Wire
from runtime.spatial.kernels import resample
from runtime.spatial.kernels.reshapes import plain
from runtime.spatial.kernels.table import KERNELS
from runtime.spatial.operation import Local, moved

ITSELF: Final = frozenset(
    resample.KERNELS
)  # which add up a few rows, one by one, and place matters to none of it
PRODUCTS: Final = ("linear", "mm", "matmul", "attention", "lstm", "gru", "rnn")  # of matrices, in names


@dataclass
class Nobody:
    """The wire of a box: there is nobody to talk to."""

    rank: int
    size: int

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[], None]:
        """Returns at once.

        Raises: AssertionError where rows would have to come from elsewhere.
        """
        assert not sends and not receives, "a box has all the rows that it needs"
        return lambda: None

    def all_to_all(
        self, found: Tensor, sent: Tensor, found_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        raise AssertionError("boxes of a volume send each other nothing")

    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        raise AssertionError("nothing is summed over the boxes of a volume")


class BoxRunner:
    """A captured forward pass that computes boxes of its output."""

    def __init__(self, forward: Forward, tensors: Mapping[str, Tensor]) -> None:
        """Takes the weights.

        Args: `tensors` has the parameters, buffers and constants by the user's names, on the device that computes.
        """
        self._forward, self._values = forward, forward.captured.layout.probes[0].value
        self._states = {forward.nodes[name]: tensors[source.name] for name, source in forward.states.items()}
        self._device = next((x.device for x in tensors.values()), torch.device("cpu"))
        space = len(self._shape(forward.source)) - 2
        grid = (2 * HERE + 1,) * space
        self._mesh = SampleGroup(grid, Nobody(prod(grid) // 2, prod(grid)))

    def _shape(self, name: str) -> tuple[int, ...]:
        value = self._values[self._forward.nodes[name]]
        assert isinstance(value, Tensor)
        return tuple(value.shape)

    @torch.no_grad()
    def __call__(self, need: Need, x: Tensor) -> Tensor:
        """Computes one box.

        Args: `need` is of the box; `x` is one sample, channels first, with the rows of `need.input`.
        Returns: the model's output for the box, one sample.
        """
        return self._cropped(self._through(need.placed, x), need)

    def _through(self, placed: Sequence[Placed], x: Tensor) -> Tensor:
        """Returns what the operations make of an input, and lets go of every tensor after its last use."""
        nodes = self._forward.nodes
        held: dict[fx.Node, object] = {**self._states, nodes[self._forward.source]: x}
        left = Counter(name for done in placed for name in done.operation.reads())
        left[self._forward.result] += 1
        for done in placed:
            node = nodes[done.operation.name]
            with entered(node.meta["context"]):
                held[node] = self._run(done, node, held)
            for name in done.operation.reads():
                left[name] -= 1
                if not left[name]:
                    held.pop(nodes[name], None)  # of which nothing may have been needed
        made = held[nodes[self._forward.result]]
        assert isinstance(made, Tensor)
        return made

    def _run(self, done: Placed, node: fx.Node, held: Mapping[fx.Node, object]) -> object:
        def fill(value: object) -> object:
            if not isinstance(value, fx.Node):
                return value
            found = held.get(value, self._values.get(value))
            if value.name in done.resplits:
                assert isinstance(found, Tensor)
                found = moved(found, done.resplits[value.name], self._mesh.wire)
            for fetch in done.gathers.get(value.name, ()):
                assert isinstance(found, Tensor)
                found = fetched(found, fetch, self._mesh)
            return found

        args, kwargs = (pytree.tree_map(fill, given) for given in (node.args, node.kwargs))
        assert callable(node.target)
        if done.step is None or done.operation.operation == GETITEM:
            return node.target(*args, **kwargs)
        kernel = KERNELS[done.operation.operation]
        with nullcontext() if done.operation.operation in ITSELF else SameBits():
            if kernel is plain and not done.step.fetches:
                return node.target(*args, **kwargs)
            given = named_arguments(node.target, args, kwargs)
            arguments = {name: self._brought(done, name, value) for name, value in given.items()}
            call = call_of(done.operation, done.inputs)
            return kernel(Local(node.target, call, done.step, self._mesh, arguments))

    def _brought(self, done: Placed, name: str, value: object) -> object:
        if isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value):
            return [self._brought(done, f"{name}.{i}", x) for i, x in enumerate(value)]
        if not isinstance(value, Tensor) or done.step is None:
            return value
        return self._rows(
            value, done.step.fetches.get(name, ()), done.inputs[dict(named(done.operation))[name]]
        )

    def _rows(self, x: Tensor, fetches: Sequence[Fetch], layout: Layout) -> Tensor:
        """Returns the rows that an operation wants of a tensor; a view where they follow each other.

        Args: `x` has the rows of `layout`; it may be the whole tensor of the capture where no row is read.
        """
        nothing = next((fetch for fetch in fetches if not fetch.runs[HERE]), None)
        if nothing is not None:
            sizes = dict(enumerate(local_shape(layout))) | {fetch.dim: fetch.sizes[HERE] for fetch in fetches}
            return torch.full(tuple(sizes.values()), nothing.fill, dtype=x.dtype, device=self._device)
        if all(len(fetch.runs[HERE]) == 1 and fetch.runs[HERE][0].step == 1 for fetch in fetches):
            return _padded(x, fetches)
        for fetch in fetches:
            x = fetched(x, fetch, self._mesh)
        return x

    def _cropped(self, made: Tensor, need: Need) -> Tensor:
        """Returns the rows of the box where the rules made some more."""
        layout = need.layouts[self._forward.result][0]
        cuts = sorted((cut.axis, dim, cut.rows(HERE)[0]) for dim, cut in enumerate(layout.cuts) if cut)
        for (_, dim, first), (low, high) in zip(cuts, need.output, strict=True):
            made = made.narrow(dim, low - first, high - low)
        return made


class ShardRunner(BoxRunner):
    """A captured forward pass over a whole sample that ranks share: statistics over space are summed over them."""

    def __init__(
        self, forward: Forward, tensors: Mapping[str, Tensor], grid: Sequence[int], wire: Wire
    ) -> None:
        """Takes the weights, and works out this rank's shards.

        Args: `grid` has the parts along each axis of space; `wire` reaches the other ranks.
        Raises: NoRule, which names the operation that cannot be done on shards.
        """
        super().__init__(forward, tensors)
        self._mesh = SampleGroup(tuple(grid), wire)
        self._segment = cut_model(forward.operations, tuple(grid))

    def rows(self, name: str) -> tuple[tuple[int, int], ...]:
        """Returns the rows of a tensor that this rank holds, along every dimension.

        Args: `name` is an operation's, such as that of the input or of the result.
        """
        return self._segment.layouts[name][0].region(self._mesh.coordinates)

    @torch.no_grad()
    def shard(self, x: Tensor) -> Tensor:
        """Computes this rank's part of the output.

        Args: `x` is one sample, channels first, with the rows of the input that this rank holds.
        """
        return self._through(self._segment.placed, x)

    def _rows(self, x: Tensor, fetches: Sequence[Fetch], layout: Layout) -> Tensor:
        for fetch in fetches:
            x = fetched(x, fetch, self._mesh)
        return x


def _padded(x: Tensor, fetches: Sequence[Fetch]) -> Tensor:
    amounts = [0] * (2 * x.dim())
    for fetch in fetches:
        (run,), base = fetch.runs[HERE], 0 if fetch.points is None else fetch.points[HERE]
        x = x.narrow(fetch.dim, run.start - base, run.length)
        place = 2 * (x.dim() - 1 - fetch.dim)
        amounts[place], amounts[place + 1] = run.at, fetch.sizes[HERE] - run.at - run.length
    return F.pad(x, amounts, value=fetches[0].fill) if any(amounts) else x


def steady(forward: Forward, device: torch.device) -> AbstractContextManager[None]:
    """Returns the block in which a model gives the same bits whatever the number of threads before.

    Several workers share the cores of a machine, so each has fewer threads than one alone. Convolutions and functions
    in single precision give the same bits on any number of threads (`SameBits`). Libraries may share the long sums of
    other matrix products among threads, so a box with such products is computed on one, as those of fp64 are.

    Args: `forward` is the model, `device` computes it.
    """
    names = {x.operation for x in forward.operations}
    products = any(word in name for name in names for word in PRODUCTS)
    one = products or forward.dtype != torch.float32
    return threads(1) if device.type == "cpu" and one else nullcontext()
