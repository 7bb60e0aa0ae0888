"""Counts what the passes of a layer ask of a device, operation by operation; fake tensors are enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from planner.capture import storage_of
from planner.profile import OperationWork

aten = torch.ops.aten

_PRECISION = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_FREE = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.detach}
# These read the rows that they are asked for, not the whole table.
_GATHERS = {aten.embedding, aten.gather, aten.index, aten.index_select}


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: object) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object) -> int:
    shapes = grad.shape, query.shape, key.shape, value.shape
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _recurrence(frames: Tensor, input_weight: Tensor, hidden_weight: Tensor, *_: object) -> int:
    steps = prod(frames.shape[:-1])
    return 2 * steps * (input_weight.numel() + hidden_weight.numel())


# Kernels of the CPU that torch's own table does not know.
_FORMULAS: dict[object, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.mkldnn_rnn_layer: _recurrence,
    aten.mkldnn_rnn_layer_backward: lambda *args: 2 * _recurrence(*args[:3]),
}


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that records the work of every operation executed under it; views cost nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: list[OperationWork] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        work = _work(function, args, kwargs, result)
        if work is not None:
            self.work.append(work)
        return result


def _work(
    function: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object], result: object
) -> OperationWork | None:
    packet = function._overloadpacket
    read, written = _tensors((args, kwargs)), _tensors(result)
    if packet in _FREE or not written or _is_view(function, read, written):
        return None
    if packet in _GATHERS:
        read = written + read[1:]
    return OperationWork(
        flops=_flops(packet, args, kwargs, result),
        traffic_bytes=sum(x.nbytes for x in (*read, *written)),
        precision=_PRECISION.get(written[0].dtype, "fp32"),
    )


def _tensors(tree: object) -> list[Tensor]:
    """Returns the tensors of a tree; indices and values stand for a sparse one."""
    found = [x for x in tree_leaves(tree) if isinstance(x, Tensor)]
    return [y for x in found for y in ((x._indices(), x._values()) if x.layout == torch.sparse_coo else (x,))]


def _flops(packet: object, args: tuple[object, ...], kwargs: Mapping[str, object], result: object) -> int:
    if packet in _FORMULAS:
        return _FORMULAS[packet](*args)
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=result)) if formula else 0


def _is_view(function: torch._ops.OpOverload, read: list[Tensor], written: list[Tensor]) -> bool:
    sources = {storage_of(x) for x in read}
    return not function._schema.is_mutable and all(storage_of(x) in sources for x in written)
