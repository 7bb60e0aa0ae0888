"""Functions of single numbers, and sums over channels, that do not depend on what stands around a number.

torch computes functions such as `exp` several numbers at a time, and the last ones of a thread's part by other code. Its
sums over channels take several columns at a time, and the last ones otherwise. So tensors are padded, until every number
is among several. Whether its place among them matters is tried once for each function; where it does, slower ways are taken
that have no places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

ATEN = torch.ops.aten
WIDE: Final = 256  # numbers, a multiple of what a loop takes at once on any processor
GRAIN: Final = 32768  # numbers for each thread, from which on torch takes as many threads as it has
COLUMNS: Final = 4096  # of a sum at a time, where few numbers are added up
BLOCK: Final = 2**22  # numbers of a sum at a time, where many are
ROUND: Final = 64  # bytes, of which the address of a tensor is a multiple
UNTAGGED: Final = ("hardswish", "log_sigmoid_forward")  # which torch does not call pointwise
_EXACT: Final = """abs add alias bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil
    clamp clamp_max clamp_min clone conj_physical copysign div eq equal floor fmax fmin ge gt hardtanh isfinite isinf
    isnan le leaky_relu logical_and logical_not logical_or logical_xor lt masked_fill maximum minimum mul nan_to_num ne
    neg positive relu relu6 round sgn sign signbit sqrt square sub threshold trunc where"""
EXACT: Final = frozenset(_EXACT.split())  # which are rounded once, or not at all
SUMS: Final = (
    ATEN.sum.dim_IntList,
    ATEN.mean.dim,
    ATEN.var.correction,
    ATEN.std.correction,
    ATEN.linalg_vector_norm.default,
    ATEN.logsumexp.default,
    ATEN.prod.dim_int,
    ATEN._softmax.default,
    ATEN._log_softmax.default,
)
_tried: dict[object, bool] = {}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Lets torch use so many threads of the host, while the `with` block lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rounds(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Returns whether an operation takes each number for itself, and may round it as its place has it."""
    return _of_numbers(func) or ("alpha" in kwargs and kwargs["alpha"] != 1)  # added up once it is multiplied


@cache
def _of_numbers(func: Any) -> bool:
    name = func._schema.name.removeprefix("aten::").rstrip("_")
    return name not in EXACT and (torch.Tag.pointwise in func.tags or name in UNTAGGED)


def each_alone(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns what a function of single numbers gives.

    Args: `args` has at least one tensor that has dimensions.
    """
    tensors = [x for x in args if isinstance(x, Tensor) and x.dim()]
    shape: torch.Size = torch.broadcast_shapes(*(x.shape for x in tensors))  # type: ignore[no-untyped-call]
    like = next(x for x in tensors if x.shape == shape) if any(x.shape == shape for x in tensors) else None
    writes = func._schema.is_mutable
    count = torch.get_num_threads()
    count = count if shape.numel() >= GRAIN * count else 1
    flat = [_flat(x.expand(shape), WIDE * count, own=writes) if _has_dims(x) else x for x in args]
    key = (func, *_rest(args, kwargs))
    if key not in _tried:
        _tried[key] = _places_alike(func, args, kwargs)
    with threads(count):
        made = func(*(flat if _tried[key] else [_apart(x) if _has_dims(x) else x for x in flat]), **kwargs)
    if isinstance(made, tuple):  # with something for the gradient
        return (_shaped(made[0], shape, like), *made[1:])
    found = _shaped(made, shape, like)
    return args[0].copy_(found) if writes else found


def _has_dims(x: object) -> bool:
    return isinstance(x, Tensor) and x.dim() > 0


def _rest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[object]:
    """Yields what makes one use of a function another: all that is no tensor, and the types of those."""
    for name, x in (*enumerate(args), *sorted(kwargs.items())):
        yield name, x.dtype if isinstance(x, Tensor) else repr(x)


def _flat(x: Tensor, unit: int, *, own: bool) -> Tensor:
    """Returns a tensor's numbers in one row that has no odd ones at its end, and begins at a round address."""
    flat, missing = x.reshape(-1), -x.numel() % unit
    if missing:
        return F.pad(flat, (0, missing))
    return flat.clone() if own or flat.data_ptr() % ROUND else flat


def _apart(x: Tensor) -> Tensor:
    """Returns a row of numbers with room between them, so that torch takes one at a time."""
    room = x.new_empty(x.numel(), 2)
    return room[:, 0].copy_(x)


def _shaped(made: Tensor, shape: Sequence[int], like: Tensor | None) -> Tensor:
    """Returns numbers in one row in their shape, in the order of memory that torch would have given them."""
    found = made[: prod(shape)].view(shape)
    if like is None or like.is_contiguous():
        return found
    return torch.empty_like(like, dtype=made.dtype).copy_(found)


def _places_alike(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a function gives the same bits for a number at another place, and beside other numbers."""
    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(4 * WIDE, generator=draw)

    def drawn(x: Tensor) -> Tensor:
        sizes = 10 ** torch.empty(len(order), dtype=torch.float64).uniform_(-8, 4, generator=draw)
        numbers = torch.randn(len(order), generator=draw, dtype=torch.float64) * sizes
        return numbers.to(x.dtype)

    given = [drawn(x) if _has_dims(x) else x for x in args]
    mixed = [x[order] if _has_dims(x) else x for x in given]
    made, other = (func(*x, **kwargs) for x in ([x.clone() if _has_dims(x) else x for x in given], mixed))
    if isinstance(made, tuple):
        made, other = made[0], other[0]
    return _same_bits(made[order], other)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def sums_alone(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns what an operation over some dimensions gives, for each place of the others as if it were alone.

    Torch is to have one thread.

    Args: `func` is one of SUMS, whose first argument is a tensor.
    """
    names = [x.name for x in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    x, asked = args[0], given.get("dim")
    dims = [d % x.dim() for d in ([asked] if isinstance(asked, int) else asked or range(x.dim()))]
    places = [d for d in range(x.dim()) if d not in dims]
    if not places:
        return func(*args, **kwargs)
    keeps = "keepdim" in names
    one: dict[str, Any] = {"dim": 0 if isinstance(asked, int) else [0]}
    rest = {k: v for k, v in given.items() if k not in ("dim", names[0])} | (
        {"keepdim": True} if keeps else {}
    )

    def column(block: Tensor) -> Tensor:
        found: Tensor = func(**(one | rest | {names[0]: block}))
        return found

    summed = prod(x.shape[d] for d in dims)
    if summed > BLOCK // WIDE:  # over space, which no box is summed over
        return func(*args, **kwargs)
    moved = x.permute(*dims, *places)
    columns = moved.reshape(prod(moved.shape[: len(dims)]), -1)
    key = (func, len(columns), *_rest((), rest), x.dtype)
    if key not in _tried:
        _tried[key] = _columns_alike(column, columns)
    width = min(COLUMNS, BLOCK // max(1, summed) // WIDE * WIDE) if _tried[key] else 1
    wide = F.pad(columns, (0, -columns.shape[1] % width))
    made = torch.cat([column(block.contiguous()) for block in torch.split(wide, width, 1)], 1)
    made = made[:, : columns.shape[1]]
    if not keeps:  # as many numbers as there were
        back = [(*dims, *places).index(d) for d in range(x.dim())]
        return made.reshape(moved.shape).permute(back).contiguous()
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
    found = made.reshape(shape)
    return found if given.get("keepdim", False) else found.squeeze(dims)


def _columns_alike(column: Callable[[Tensor], Tensor], columns: Tensor) -> bool:
    """Returns whether a sum gives the same bits for a column at another place, and beside other columns."""
    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(WIDE, generator=draw)
    given = torch.randn(len(columns), WIDE, generator=draw, dtype=torch.float64).to(columns.dtype)
    return _same_bits(column(given)[:, order], column(given[:, order].contiguous()))
