"""Torch's own samples of its operators, each between two convolutions: what any network may do in the middle.

An operator is taken where it has a gradient in float64 and samples of three to five dimensions. One that has smaller
samples only, and results of their shape, gets them repeated to four dimensions. The sample is the input of the
operator but for a little that the first convolution adds; other tensors of the sample are parameters.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from planner.errors import BadInput
from tests.runtime.spatial import threads
from tests.runtime.spatial.equality import Reference, analysed, differences, on_shards, reference

GRIDS = ((2,), (3,), (2, 2))
CONV = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
LITTLE = 1 / 64  # of what the convolution adds to the sample, which keeps it where the operator is defined
SAMPLES = 3  # of each operator at most
EXACT = 1e-12
SHARDS, AROUND = "on shards", "gathered around"
# What they make has no numbers of its own.
IMPOSSIBLE = (
    RuntimeError,
    StopIteration,
    ValueError,
    IndexError,
    TypeError,
)  # an operator of integers alone, or none of such a sample
Sample = tuple[list[object], pytree.TreeSpec]
NOT_A_NETWORK = ("empty_like", "new_empty", "new_empty_strided", "empty", "empty_strided", "empty_permuted")


class Between(nn.Module):
    """A convolution, the operator, and another convolution where the result has space."""

    def __init__(
        self, operator: Callable[..., object], leaves: Sequence[object], spec: pytree.TreeSpec
    ) -> None:
        super().__init__()
        self.operator, self.spec = operator, spec
        tensors = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
        self.first, self.rest = tensors[0], tensors[1:]
        self.plain = [None if isinstance(x, Tensor) else x for x in leaves]
        self.base: Tensor
        self.register_buffer("base", leaves[self.first].detach().clone())
        for i in self.rest:
            self._hold(f"given{i}", leaves[i].detach().clone())
        channels = self.base.shape[1]
        self.before = CONV[self.base.dim()](channels, channels, 3, padding=1)
        made = self._made(self.base)
        if made.dtype != torch.float64:
            raise ValueError("its result is of another precision, in which roundings are no longer small")
        if not torch.equal(made.nan_to_num(), self._made(self.base).nan_to_num()):
            raise ValueError("its numbers are drawn, which has tests of its own")
        self.behind = None
        if made.dim() in CONV and made.shape[0] == self.base.shape[0] and prod(made.shape):
            self.behind = CONV[made.dim()](made.shape[1], 3, 3, padding=1)

    def _hold(self, name: str, x: Tensor) -> None:
        if x.is_floating_point():
            self.register_parameter(name, nn.Parameter(x))
        else:
            self.register_buffer(name, x)

    def _made(self, x: Tensor) -> Tensor:
        leaves = list(self.plain)
        leaves[self.first] = x
        for i in self.rest:
            leaves[i] = getattr(self, f"given{i}")
        given, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        made = pytree.tree_leaves(self.operator(given, *args, **kwargs))
        result = next(y for y in made if isinstance(y, Tensor) and (y.is_floating_point() or y.is_complex()))
        return result.real if result.is_complex() else result

    def forward(self, x: Tensor) -> Tensor:
        made = self._made(self.base + LITTLE * self.before(x))
        return made if self.behind is None else self.behind(made)


@cache
def database() -> Mapping[str, object]:
    """Torch's operators with a gradient in float64, by name."""
    from torch.testing._internal import common_methods_invocations as invocations

    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {
        f"{op.name}{'.' * bool(op.variant_test_name)}{op.variant_test_name}": op
        for op in invocations.op_db
        if op.supports_autograd and torch.float64 in op.dtypes and op.name not in NOT_A_NETWORK
    }


@cache
def modules(operator: str) -> Sequence[nn.Module]:
    """The samples of an operator between convolutions: of distinct shapes or settings, and alike in two runs."""
    torch.manual_seed(0)
    op = database()[operator]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(op.sample_inputs("cpu", torch.float64, requires_grad=False))  # type: ignore[attr-defined]
        return _built(op, map(_leaves, samples)) or _built(op, filter(None, map(_repeated, samples)))


def _leaves(sample: object) -> Sample:
    return pytree.tree_flatten((sample.input, sample.args, sample.kwargs))  # type: ignore[attr-defined]


def _repeated(sample: object) -> Sample | None:
    """A sample of one or two dimensions with four, where all of its tensors have one shape."""
    leaves, spec = _leaves(sample)
    if any(isinstance(x, Tensor) and x.layout != torch.strided for x in leaves):
        return None
    shapes = {x.shape for x in leaves if isinstance(x, Tensor) and x.dim()}
    if (
        not leaves
        or not isinstance(leaves[0], Tensor)
        or len(shapes) != 1
        or not 1 <= len(shape := shapes.pop()) <= 2
        or not prod(shape)
    ):
        return None
    wide = (2, 3, 6)[: 4 - len(shape)] + shape
    return [x.expand(wide).clone() if isinstance(x, Tensor) and x.dim() else x for x in leaves], spec


def _built(op: object, samples: Iterable[Sample]) -> list[nn.Module]:
    found: dict[str, nn.Module] = {}
    for leaves, spec in samples:
        first = leaves[0] if leaves else None
        kind = str([tuple(x.shape) if isinstance(x, Tensor) else x for x in leaves])
        if kind in found or not _fits(first) or len(found) == SAMPLES:
            continue
        with contextlib.suppress(*IMPOSSIBLE):
            found[kind] = Between(op.op, leaves, spec).double()  # type: ignore[attr-defined]
    return list(found.values())


def _fits(x: object) -> bool:
    return (
        isinstance(x, Tensor)
        and x.dtype == torch.float64
        and x.layout == torch.strided
        and x.dim() in CONV
        and min(x.shape) > 0
    )


@dataclass(frozen=True)
class Judged:
    """One sample of an operator over a grid: how it ended."""

    operator: str
    sample: int
    grid: tuple[int, ...]
    ended: str  # SHARDS, AROUND, or what refuses it

    @property
    def refused(self) -> bool:
        return self.ended not in (SHARDS, AROUND)


def judged(operator: str) -> Iterator[Judged]:
    """Every sample of an operator on every grid; a result that is not the single process's is an AssertionError."""
    for number, module in enumerate(modules(operator)):
        shape = tuple(module.base.shape)
        try:
            ref = reference(module, shape, micro=shape[0])
        except BadInput as refused:
            yield Judged(operator, number, (), str(refused))
            continue
        for grid in GRIDS:
            space = shape[2 : 2 + len(grid)]
            if len(space) == len(grid) and all(a >= b for a, b in zip(space, grid, strict=True)):
                yield Judged(operator, number, grid, _ended(ref, grid, f"{operator} {number} over {grid}"))


def _ended(ref: Reference, grid: tuple[int, ...], what: str) -> str:
    try:
        how = analysed(ref, grid)
    except BadInput as refused:
        return str(refused)
    made = threads.run(prod(grid), lambda wire: on_shards(ref, grid, how, wire))
    found = differences(ref, how, made, grid)
    assert max(found.values()) < EXACT, (what, found)
    return AROUND if any(x.around for x in how.segment.placed) else SHARDS
