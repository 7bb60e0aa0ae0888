"""Judges a user's optimizer before it runs: whether it can be made, and updates each parameter by itself.

A rank calls the optimizer with the parameters of one stage at a time. One that clips by a norm over all of its
parameters inside step(), or finds one step size for all, would train otherwise there.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from planner.errors import BadInput
from planner.model import ModelGraph, Parameter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from planner.workload.workload import Workload

Take = Callable[["Tensor"], "Tensor"]  # some entries of a tensor
MOST = 12  # stand-ins
WIDEST = 4  # of each dimension
# of some stand-ins: there are optimizers that treat matrices of 128 rows and columns or more otherwise
LARGE, MOST_LARGE = 2**16, 4
SCALES = (1.0,) * 5 + (100.0, 0.01, 1.0)  # of the gradients, step by step
STEEP = (1.0, 1e6, 1.0)  # one may clip where gradients are very large
RESUMED = (3, 4, 5)  # steps after which the optimizer is made anew, and goes on with what a checkpoint keeps
TOLERANCE = 1e-3  # of the way that parameters go: less is rounding


def check_optimizer(workload: Workload, graph: ModelGraph) -> str:
    """Makes the user's optimizer and schedule for the whole model, and tells whether they can be made for its parts.

    Parameters have no data; an optimizer that refuses an empty list of them is not judged.
    Args: `graph` has the model's parameters.
    Returns: the name of an optimizer that looks at all parameters together, "" of any other.
    Raises: BadInput where it cannot be made.
    """
    import torch

    named = [
        (row.name, torch.nn.Parameter(torch.empty(row.shape, dtype=getattr(torch, row.dtype), device="meta")))
        for row in graph.parameters
        if row.trainable
    ]
    try:
        workload.lr_schedule(workload.optimizer(named))
    except BadInput as failure:
        if failure.__cause__ is None or of_nothing(failure):
            raise
    check_resumed(workload, graph)
    return joint_optimizer(workload, graph)


def of_nothing(failure: BadInput) -> bool:
    """Returns whether an optimizer could not be made because it was given no parameter that it is for."""
    return isinstance(failure.__cause__, ValueError) and "empty parameter list" in str(failure.__cause__)


def joint_optimizer(workload: Workload, graph: ModelGraph) -> str:
    """Returns the name of the user's optimizer where it looks at all of its parameters together; "" elsewhere.

    It updates stand-ins together, and each alone. They have their parameter's name, rank and type, and a few
    elements. One that cannot step with them is not judged.
    Args: `graph` has the model's parameters.
    """
    rows = [_small(row) for row in _chosen([row for row in graph.parameters if row.trainable])]
    if len(rows) < 2:
        return ""
    start = {row.name: _drawn(row, 0) for row in rows}
    for scales in (SCALES, STEEP):
        try:
            name, together = _trained(workload, rows, scales=scales)
            alone: dict[str, Tensor] = {}
            for row in rows:
                alone |= _trained(workload, [row], scales=scales)[1]
        except Exception:
            return ""
        if any(_apart(start[x], together[x], alone[x]) for x in start):
            return name
    return ""


def check_resumed(workload: Workload, graph: ModelGraph) -> None:
    """Refuses an optimizer that keeps more from step to step than a checkpoint: its state of parameters, and settings.

    It updates stand-ins, and again with an optimizer that is made anew between two steps. One that cannot step with
    them is not judged.
    Args: `graph` has the model's parameters.
    Raises: BadInput with its name.
    """
    rows = [_small(row) for row in _chosen([row for row in graph.parameters if row.trainable])]
    try:
        name, through = _trained(workload, rows)
        again, *others = (_trained(workload, rows, resumed=after)[1] for after in (0, *RESUMED))
    except Exception:
        return
    start = {row.name: _drawn(row, 0) for row in rows}
    if any(_apart(start[x], through[x], again[x]) for x in start):  # no two runs of it are alike
        return
    if any(_apart(start[x], through[x], resumed[x]) for resumed in others for x in start):
        raise BadInput(
            f"{name} keeps more from step to step than its state of parameters and its settings, so that a resumed run "
            "would train otherwise",
            where=workload.where,
            allowed="tensors in self.state[parameter], and numbers in self.param_groups, which checkpoints keep",
        )


def whole_optimizer(workload: Workload, graph: ModelGraph) -> str:
    """Returns the name of the user's optimizer where it needs whole parameters; "" where it updates by element.

    It updates stand-ins whole, and in two parts: of one row, with as many dims. One that factors its state over rows
    and columns, or scales by the norm of a parameter, makes something else of parts. It is made for whole parameters
    each time, as `with_parts` has it, and finds no numbers in them.
    Args: `graph` has the model's parameters.
    """
    every = [_told_apart(row) for row in graph.parameters if row.trainable and math.prod(row.shape) > 1]
    few = [_small(row) for row in _chosen(every)]
    kinds = {(shrunk(row.shape, LARGE), row.dtype): row for row in every}
    large = [replace(row, shape=shape) for (shape, _), row in kinds.items() if max(shape) > WIDEST]
    largest = sorted(large, key=lambda row: -math.prod(row.shape))[:MOST_LARGE]
    return _needs_whole(workload, few) or _needs_whole(workload, largest)


def _needs_whole(workload: Workload, rows: Sequence[Parameter]) -> str:
    if not rows:
        return ""
    try:
        name, whole = _trained(workload, rows)
    except Exception:
        return "the optimizer"
    try:
        first, rest = (_trained(workload, rows, part)[1] for part in (_first_part, _rest))
    except Exception:
        return name
    for row in rows:
        joined = _joined(first[row.name], rest[row.name])
        if _apart(_drawn(row, 0).reshape(-1), whole[row.name].reshape(-1), joined):
            return name
    return ""


def with_parts(optimizer: torch.optim.Optimizer, parts: Mapping[int, tuple[Tensor, Take]]) -> None:
    """Has an optimizer that was made for whole parameters update some of their entries.

    So groups by name, dims or size are those of whole parameters. State that it has already goes along.
    Args: `parts` by the `id` of a parameter has the tensor that takes its place, and what takes that tensor's entries
        out of one as large as the parameter.
    """
    from torch import Tensor

    for group in optimizer.param_groups:
        group["params"][:] = [parts[id(p)][0] if id(p) in parts else p for p in group["params"]]
    for whole in [each for each in optimizer.state if id(each) in parts]:
        part, take = parts[id(whole)]
        optimizer.state[part] = {
            key: take(value) if isinstance(value, Tensor) and value.shape == whole.shape else value
            for key, value in optimizer.state.pop(whole).items()
        }


def without_numbers(shape: Sequence[int], like: Tensor) -> torch.nn.Parameter:
    """Returns a parameter of a shape that takes no memory, for which an optimizer can be made; its numbers are NaN.

    Args: `like` has its type and device.
    """
    import torch

    nothing = torch.full((), torch.nan, dtype=like.dtype, device=like.device)
    return torch.nn.Parameter(nothing.expand(tuple(shape)), requires_grad=like.requires_grad)


def shrunk(shape: Sequence[int], most: int) -> tuple[int, ...]:
    """Returns a shape of at most so many elements: the largest dims are halved.

    >>> shrunk((768, 3072), 2**16), shrunk((64, 16, 3, 3), 64), shrunk((8,), 64)
    ((192, 192), (2, 2, 3, 3), (8,))
    """
    found = list(shape)
    while math.prod(found) > most:
        largest = found.index(max(found))
        found[largest] = -(-found[largest] // 2)
    return tuple(found)


def _small(row: Parameter) -> Parameter:
    return replace(row, shape=tuple(min(size, WIDEST) for size in row.shape))


def _told_apart(row: Parameter) -> Parameter:
    """Returns a parameter in fp32 where it has half of that: updates of few bits round by the place in a tensor."""
    return replace(row, dtype="float32") if row.dtype in ("bfloat16", "float16") else row


def _joined(first: Tensor, rest: Tensor) -> Tensor:
    import torch

    return torch.cat([first.reshape(-1), rest.reshape(-1)])


def _first_part(tensor: Tensor) -> Tensor:
    return _row_of(tensor, slice(0, max(1, tensor.numel() // 3)))


def _rest(tensor: Tensor) -> Tensor:
    return _row_of(tensor, slice(max(1, tensor.numel() // 3), None))


def _row_of(tensor: Tensor, part: slice) -> Tensor:
    own = tensor.reshape(-1)[part].clone()
    return own.view(*[1] * (tensor.ndim - 1), own.numel())


def _chosen(rows: Sequence[Parameter]) -> list[Parameter]:
    """Returns a few parameters from all over a model, and one of each rank and type."""
    spread = rows[:: max(1, math.ceil(len(rows) / MOST))]
    kinds = {(len(row.shape), row.dtype): row for row in rows}
    return list({row.name: row for row in (*spread, *kinds.values())}.values())


def _trained(
    workload: Workload,
    rows: Sequence[Parameter],
    part: Take | None = None,
    *,
    scales: Sequence[float] = SCALES,
    resumed: int = 0,
) -> tuple[str, dict[str, Tensor]]:
    """Returns the name of the optimizer, and what a few steps of it make of stand-ins that it is given together.

    Args: with `part` it updates that part of each. `scales` are those of the gradients, step by step; after `resumed`
        steps the optimizer is made anew.
    """
    import torch
    from torch.nn import Parameter as Trained

    take = part or (lambda tensor: tensor)
    held = {row.name: Trained(take(_drawn(row, 0))) for row in rows}
    named = [(x.name, without_numbers(x.shape, held[x.name]) if part else held[x.name]) for x in rows]
    try:
        optimizer = workload.optimizer(iter(named))
    except BadInput as failure:
        if not of_nothing(failure):
            raise
        return "", {name: parameter.detach() for name, parameter in held.items()}
    with_parts(optimizer, {id(whole): (held[name], take) for name, whole in named} if part else {})
    with torch.random.fork_rng(devices=[]):
        for step, scale in enumerate(scales, 1):
            for row in rows:
                size = min(scale, 1e3) if row.dtype == "float16" else scale
                held[row.name].grad = take(size * (_drawn(row, 1) + 0.1 * _drawn(row, step + 1)))
            torch.default_generator.manual_seed(step)  # stand-ins are on the host
            optimizer.step()
            if step == resumed:
                optimizer = _made_anew(workload, optimizer, held)
    return type(optimizer).__name__, {name: parameter.detach() for name, parameter in held.items()}


def _made_anew(
    workload: Workload, before: torch.optim.Optimizer, held: Mapping[str, Tensor]
) -> torch.optim.Optimizer:
    """Returns an optimizer of the same parameters that has of the one before it what a checkpoint keeps."""
    made = workload.optimizer(iter(held.items()))  # type: ignore[arg-type]
    for old, new in zip(before.param_groups, made.param_groups, strict=True):
        new |= copy.deepcopy({key: value for key, value in old.items() if key != "params"})
    for parameter in held.values():
        if parameter in before.state:
            made.state[parameter] = copy.deepcopy(before.state[parameter])
    return made


def _drawn(row: Parameter, number: int) -> Tensor:
    """Returns the stand-in of a parameter, number 0, or a part of a gradient of it, drawn by its name."""
    return _numbers(row.name, tuple(row.shape), row.dtype, number).clone()


@lru_cache(maxsize=256)
def _numbers(name: str, shape: tuple[int, ...], dtype: str, number: int) -> Tensor:
    import torch

    seed = torch.Generator().manual_seed(zlib.crc32(f"{name}/{number}".encode()))
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(getattr(torch, dtype))


def _apart(start: Tensor, together: Tensor, alone: Tensor) -> bool:
    if not start.numel():
        return False
    way = max(float((together - start).abs().max()), float((alone - start).abs().max()))
    return not float((together - alone).abs().max()) <= TOLERANCE * way
