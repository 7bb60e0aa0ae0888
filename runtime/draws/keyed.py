"""Random numbers of a stage by key, so that a sample meets the same ones under every plan.

Dropout takes the number of an element from a hash of the run's seed, the step, the operation, the sample's place in
the batch of the step, and the element's place in the sample. Such a number can be had for any part of a tensor alone.
Other operations run once for each sample, with a generator that is seeded for it. What has no samples draws once for
the step. Where the capture does not tell which dimension holds the samples, a generator is seeded for the micro-batch.
Nothing is kept for a recomputed forward, which draws the same again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from planner.capture import LAYER, StageModule, random, samples_of
from planner.model import ModelGraph
from planner.spatial import NONE, OTHERWISE
from runtime.draws.dropout import DropoutNumbers, Parts, dropped

ATEN = torch.ops.aten
HASHED: Final = (ATEN.dropout.default, ATEN.feature_dropout.default)
FEATURES: Final = 2  # dimensions of a tensor of channels before those of space
UNKNOWN: Final = (NONE, 0)


@dataclass
class Keys:
    """The position in the run that seeds random operations; set before each forward."""

    seed: int
    device: torch.device
    step: int = 0
    micro: int = 0  # numbered over all replicas
    first: int = 0  # number over all shards of the stream of this run's micro-batch 0

    def streams(self, operation: int) -> tuple[int, int]:
        """Returns 64 bits for the samples of one random operation of the current step, and 64 for their elements."""
        found = self._bits(f"by sample/{operation}", 16)
        return found >> 64, found & (1 << 64) - 1

    def _bits(self, what: str, size: int) -> int:
        text = f"{self.seed}/{self.step}/{what}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=size).digest(), "little")

    @contextlib.contextmanager
    def of_update(self, bucket: str, number: int) -> Iterator[None]:
        """Seeds what an optimizer draws in one update, so that all holders and a resumed run draw the same.

        Args: `bucket` names what is updated, for the `number`th time of the run.
        """
        generators = [torch.default_generator]
        if self.device.type == "cuda":
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        before = [each.get_state() for each in generators]
        text = f"{self.seed}/update {number}/{bucket}".encode()
        key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
        try:
            for each in generators:
                each.manual_seed(key)
            yield
        finally:
            for each, state in zip(generators, before, strict=True):
                each.set_state(state)

    def reseed(self, operation: int, sample: str) -> None:
        """Seeds the device's generator for one random operation.

        Args: `operation` is its number in the whole model; `sample` says what of the batch it is for.
        """
        key = self._bits(f"{sample}/{operation}", 8) >> 1
        if self.device.type == "cuda":
            torch.cuda.manual_seed(key)
        else:
            torch.default_generator.manual_seed(key)


@dataclass(frozen=True)
class Draw:
    """One random operation of a stage, of whose tensors it is known where their samples lie."""

    keys: Keys
    number: int  # in the whole model
    target: OpOverload
    dim: int  # of the samples in what it makes, NONE where there are none, OTHERWISE where that is not known
    rows: int  # of each sample along it
    # Of the samples in each argument, where it has any: the dimension and how many rows are a sample's. A number that
    # is so many times the samples has no dimension.
    shares: tuple[tuple[int, int] | None, ...] = ()

    def __call__(self, *args: object, **kwargs: object) -> Tensor:
        if self.target not in HASHED:
            return self._by_sample(args, kwargs)
        x, p = args[0], args[1]
        assert isinstance(x, Tensor) and isinstance(p, int | float)
        return self.dropped(x, p)

    def dropped(self, x: Tensor, p: float, parts: Parts | None = None) -> Tensor:
        """Returns a dropout of a tensor, or of this rank's part of one.

        Args: `parts` has the whole length and this rank's rows of each dimension that is cut.
        """
        if _empty(x) or not x.numel():
            result: Tensor = self.target(x, p, True)
            return result
        if p >= 1:
            return x * 0.0
        feature = self.target is not HASHED[0]  # whole channels: one number for all that lies behind
        own = {dim: part for dim, part in (parts or {}).items() if dim < FEATURES or not feature}
        micro, streams = self.keys.first + self.keys.micro, self.keys.streams(self.number)
        return dropped(
            x, p, DropoutNumbers(self.dim, self.rows, own, streams, micro), FEATURES if feature else None
        )

    def _first(self, samples: int) -> int:
        """Returns the place in the batch of the step of the first sample of a micro-batch of so many."""
        return samples * (self.keys.first + self.keys.micro)

    def _by_sample(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Tensor:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        batch = next((_length(x, share) for x, share in zip(leaves, self.shares, strict=True) if share), 0)
        if not batch or any(isinstance(x, Tensor) and _empty(x) for x in leaves):
            result: Tensor = self.target(*args, **kwargs)
            return result
        found = []
        for sample in range(batch):
            own = [_of_sample(x, share, sample) for x, share in zip(leaves, self.shares, strict=True)]
            given, named = pytree.tree_unflatten(own, spec)
            self.keys.reseed(self.number, f"sample {self._first(batch) + sample}")
            found.append(self.target(*given, **named))
        return torch.cat(found, self.dim) if batch > 1 else found[0]


def _empty(x: Tensor) -> bool:
    return isinstance(x, FakeTensor) or x.is_meta


def _length(leaf: object, share: tuple[int, int]) -> int:
    dim, rows = share
    size = leaf.shape[dim] if isinstance(leaf, Tensor) else leaf
    assert isinstance(size, int)
    return size // rows


def _of_sample(leaf: object, share: tuple[int, int] | None, sample: int) -> object:
    if share is None:
        return leaf
    dim, rows = share
    return leaf.narrow(dim, sample * rows, rows) if isinstance(leaf, Tensor) else rows


def random_operations(module: StageModule) -> list[fx.Node]:
    """Returns the nodes of a stage that draw random numbers, in the order of its graph, before they are keyed."""
    return [node for node in module._run.graph.nodes if random(node)]


def numbered(modules: Iterable[StageModule], graph: ModelGraph) -> list[list[int]]:
    """Returns the number in the whole model of each random operation of each stage, in the order of the capture.

    Args: `modules` are all stages of the model, in order.
    Returns: one list a stage, in the order of its graph.
    """
    names = [layer.name for layer in graph.layers]
    rows = [[names[node.meta[LAYER]] for node in random_operations(module)] for module in modules]
    counts = Counter(name for row in rows for name in row)
    order = graph.captured_order or names
    following = dict(zip(order, accumulate((counts[name] for name in order), initial=0), strict=False))
    found: list[list[int]] = []
    for row in rows:
        found.append([])
        for name in row:
            found[-1].append(following[name])
            following[name] += 1
    return found


def key_random_operations(module: StageModule, keys: Keys, numbers: Sequence[int]) -> None:
    """Makes each random operation of a stage draw by key; edits the graph in place.

    Args: `numbers` are those of the module's own random operations in the whole model, as `numbered` gives
        them.
    """
    run, found = module._run, random_operations(module)
    if not found:
        return
    run.keys = keys  # type: ignore[assignment]
    sources = [node for node in module._slice.nodes if random(node)]
    for number, node, source in zip(numbers, found, sources, strict=True):
        draw = _draw(module, keys, number, source)
        with run.graph.inserting_before(node):
            if draw is None:
                shared = samples_of(module._layout, source) == (NONE,)
                run.graph.call_function(reseed, (_attribute(run, "keys"), number, shared))
                continue
            setattr(run, f"draw_{number}", draw)
            new = run.graph.call_function(drawn, (_attribute(run, f"draw_{number}"), *node.args), node.kwargs)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        run.graph.erase_node(node)
    run.recompile()


def _draw(module: StageModule, keys: Keys, number: int, source: fx.Node) -> Draw | None:
    """Returns how an operation draws by sample; None where a generator is seeded for all that it draws.

    That is so where it is not known which dimension holds the samples, where an operation may have samples meet, and
    where it has no samples. Dropout takes its numbers from a hash there, too.
    """
    layout, target = module._layout, source.target
    if not isinstance(target, OpOverload):
        return None
    found, made = samples_of(layout, source), layout.probes[0].tensor(source)
    dim = found[0] if len(found) == 1 else OTHERWISE
    if target in HASHED:
        dim = OTHERWISE if target is not HASHED[0] and dim >= FEATURES else dim
        rows = made.shape[dim] // layout.probes[0].n if made is not None and dim >= 0 else 1
        return Draw(keys, number, target, dim, rows)
    recurrent = any(name in target._schema.name for name in ("lstm", "gru", "rnn"))
    if dim < 0 or made is None or recurrent:
        return None
    shares = [_share(module, leaf) for leaf in pytree.tree_leaves((source.args, dict(source.kwargs)))]
    known = [share for share in shares if share != UNKNOWN]
    if len(known) < len(shares) or not any(known):
        return None
    return Draw(keys, number, target, dim, made.shape[dim] // layout.probes[0].n, tuple(known))


def _share(module: StageModule, leaf: object) -> tuple[int, int] | None:
    """Returns where an argument has its samples; UNKNOWN where that is not known."""
    layout = module._layout
    if not isinstance(leaf, fx.Node):
        return None
    if layout.is_size(leaf):
        size = layout.size(leaf)
        return None if not size.slope else UNKNOWN if size.fixed else (NONE, size.slope)
    found, tensor = samples_of(layout, leaf), layout.probes[0].tensor(leaf)
    if len(found) != 1 or found[0] < NONE or tensor is None:
        return UNKNOWN
    (dim,) = found
    return None if dim == NONE else (dim, tensor.shape[dim] // layout.probes[0].n)


def drawn(draw: Draw, *args: object, **kwargs: object) -> Tensor:
    """Runs a random operation by key; called from a stage's graph."""
    return draw(*args, **kwargs)


def draw_of(run: fx.GraphModule, node: fx.Node) -> Draw | None:
    """Returns how a node of a stage's graph draws; None for what draws nothing, or not by sample."""
    if node.target is not drawn:
        return None
    assert isinstance(node.args[0], fx.Node)
    found: Draw = getattr(run, str(node.args[0].target))
    return found


def reseed(keys: Keys, operation: int, shared: bool) -> None:
    """Seeds the generator for one random operation; called from a stage's graph.

    Args: `operation` is its number in the whole model; all samples of a step have the numbers in common where they
        are `shared`, and else those of a micro-batch.
    """
    keys.reseed(operation, "shared" if shared else f"{keys.first + keys.micro}")


def _attribute(run: fx.GraphModule, name: str) -> fx.Node:
    """Returns a node for a plain object of ours; `get_attr()` would warn that it is neither module nor tensor."""
    return run.graph.create_node("get_attr", name)
