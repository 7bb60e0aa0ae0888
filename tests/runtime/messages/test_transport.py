"""Messages: what arrives is what was sent, down to the strides, in any order in which it is asked for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from planner.errors import BadInput
from planner.schedule import Message
from runtime.messages import DenseLayout, Routes, Transport
from tests.pool import Pool


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(2, 3, 4),
        torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        torch.arange(24.0).reshape(2, 3, 4).transpose(1, 2),
        torch.arange(48.0).reshape(2, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.tensor(3),
        torch.ones(0, 4),
        torch.tensor([True, False]),
    ],
)
def test_a_dense_tensor_keeps_its_strides(tensor: Tensor) -> None:
    layout = DenseLayout.parse(DenseLayout.of(tensor).header())
    packed = layout.packed(tensor)
    assert packed.is_contiguous()
    back = layout.unpacked(layout.buffer(torch.device("cpu")).copy_(packed))
    assert (
        torch.equal(back, tensor) and back.stride() == tensor.stride() and layout.shape == tuple(tensor.shape)
    )


@pytest.mark.parametrize("tensor", [torch.ones(1, 3).expand(4, 3), torch.arange(20.0).reshape(4, 5)[:, 1:3]])
def test_a_tensor_with_gaps_or_repeats_arrives_dense(tensor: Tensor) -> None:
    layout = DenseLayout.of(tensor)
    back = layout.unpacked(layout.packed(tensor))
    assert torch.equal(back, tensor)


def test_what_was_expanded_arrives_dense_in_its_last_dim_as_it_was_sent() -> None:
    """As heads of attention that share their keys: a fused kernel asks for it, and takes other memory than the rest."""
    heads = torch.arange(48.0).reshape(2, 1, 3, 8).expand(2, 4, 3, 8)
    layout = DenseLayout.of(heads)
    back = layout.unpacked(layout.packed(heads))
    assert torch.equal(back, heads) and back.stride(-1) == heads.stride(-1) == 1


def test_too_many_dims_are_refused() -> None:
    with pytest.raises(BadInput, match="9 dims"):
        DenseLayout.of(torch.zeros([1] * 9)).header()


def test_messages_may_be_waited_for_in_another_order_than_sent(pool: Pool) -> None:
    assert pool.run("tests.runtime.messages.test_transport:exchange", 2) == [True, True]


def test_over_nccl_a_message_is_received_where_its_turn_is_in_the_first_step_too(pool: Pool) -> None:
    """Both sides have to issue messages in one order, also while the layouts are still being told."""
    assert pool.run("tests.runtime.messages.test_transport:in_order", 2) == [True, True]


def test_a_shape_that_changes_is_refused_with_the_name_of_the_value(pool: Pool) -> None:
    with pytest.raises(
        RuntimeError, match=r"'x' crosses stages as torch.float32\[2, 3\] and now as .*\[4, 3\]"
    ):
        pool.run("tests.runtime.messages.test_transport:changed", 2)


ROUTES = Routes(act={(0, 1): ("x", "n"), (0, 3): ("y",)}, grad={(1, 0): ("x",)})
PLACE = ((0, 1, 0, 1),)


def act(receiver: int, micro: int) -> Message:
    return Message("act", 0, micro, 0, receiver)


def joined(rank: int, ranks: int, rendezvous: object) -> Transport:
    from pathlib import Path

    from runtime.world import world as groups

    assert isinstance(rendezvous, Path)
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"))
    return Transport(routes=ROUTES, place=PLACE, peers=[0, 1], device=world.device, group=world.group)


def values(micro: int) -> dict[str, Tensor]:
    x = torch.full((2, 3), float(micro)).t()
    return {"x": x, "n": torch.tensor([micro, 7]), "y": torch.full((5,), micro + 0.5)}


def exchange(rank: int, ranks: int, rendezvous: object) -> bool:
    """Two steps: in the first the layouts are told, in the second they are known."""
    transport = joined(rank, ranks, rendezvous)
    order = [(1, 0), (3, 0), (1, 1), (3, 1)]  # as sent: (receiver, micro-batch) on one channel
    good = True
    for _ in range(2):
        if rank == 0:
            for receiver, micro in order:
                transport.send(act(receiver, micro), values(micro))
            transport.release(act(1, 0))
        else:
            for receiver, micro in order:
                transport.post(act(receiver, micro))
            for receiver, micro in [(1, 1), (3, 0), (3, 1), (1, 0)]:
                found = transport.wait(act(receiver, micro))
                names = ("x", "n") if receiver == 1 else ("y",)
                good &= tuple(found) == names
                good &= all(torch.equal(found[n], values(micro)[n]) for n in names)
                good &= all(found[n].stride() == values(micro)[n].stride() for n in names)
        transport.finish()
    transport.drain()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return good


def in_order(rank: int, ranks: int, rendezvous: object) -> bool:
    transport = joined(rank, ranks, rendezvous)
    transport._in_order, good = True, True
    for _ in range(2):
        if rank == 0:
            for micro in (0, 1):
                transport.send(act(1, micro), values(micro))
        else:
            for micro in (0, 1):
                transport.post(act(1, micro))
                good &= [x.numel() for x in transport._posted[act(1, micro)].buffers] == [6, 2]
            for micro in (1, 0):
                good &= torch.equal(transport.wait(act(1, micro))["x"], values(micro)["x"])
        transport.finish()
    transport.drain()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return good


def changed(rank: int, ranks: int, rendezvous: object) -> None:
    transport = joined(rank, ranks, rendezvous)
    if rank == 0:
        transport.send(act(1, 0), {"x": torch.zeros(2, 3), "n": torch.zeros(2)})
        transport.send(act(1, 1), {"x": torch.zeros(4, 3), "n": torch.zeros(2)})
    else:
        transport.post(act(1, 0))
        transport.wait(act(1, 0))
