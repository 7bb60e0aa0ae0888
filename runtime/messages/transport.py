"""Carries messages between the stages of a pipeline group over torch.distributed's point-to-point calls.

A message is identified by its position in its channel (source, target, pipe, direction); the tag given to gloo
names the channel, and NCCL ignores it. Shape, strides and type of what a hop carries are told once, ahead of each
message of the first step, as tensors on the host; from then on both sides know them, and receives are posted with
their final buffers. Tensors travel in the order of their memory, so their strides survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from planner.errors import BadInput
from planner.schedule import Message
from runtime.messages.routes import Routes

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
MOST_DIMS = 8
HEADER = 2 + 2 * MOST_DIMS


class DenseLayout(NamedTuple):
    """A dense tensor as it lies in memory: sizes and dims from the slowest to the fastest.

    Dims that were expanded lie nowhere and come first, so that what is dense in its last dim, as fused
    kernels ask, stays so.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> DenseLayout:
        """Returns the layout of a tensor.

        Args: `tensor` may have any strides.
        """
        strides = tensor.stride()
        order = tuple(sorted(range(tensor.ndim), key=lambda dim: (strides[dim] != 0, -strides[dim])))
        return cls(tensor.dtype, tuple(tensor.shape[dim] for dim in order), order)

    def packed(self, tensor: Tensor) -> Tensor:
        """Returns a tensor in the order of its memory, dense.

        A part of a larger tensor is copied: sent as it is, it would hold all of that until it has arrived.
        Args: `tensor` has this layout.
        """
        dense = tensor.permute(self.order).contiguous()
        return dense if dense.untyped_storage().nbytes() == dense.nbytes else dense.clone()

    def buffer(self, device: torch.device) -> Tensor:
        """Returns a new buffer to receive into.

        Args: `device` is where it lies.
        """
        return torch.empty(self.sizes, dtype=self.dtype, device=device)

    def unpacked(self, buffer: Tensor) -> Tensor:
        """Returns a view of a buffer with the dims of the tensor that was sent.

        Args: `buffer` has this layout.
        """
        back = [0] * len(self.order)
        for position, dim in enumerate(self.order):
            back[dim] = position
        return buffer.permute(back)

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the sizes in the tensor's own order of dims."""
        return tuple(size for _, size in sorted(zip(self.order, self.sizes, strict=True)))

    def header(self) -> list[int]:
        """Returns the layout as a row of `HEADER` numbers, to be sent ahead of the first message."""
        if len(self.sizes) > MOST_DIMS:
            raise BadInput(
                f"a tensor of {len(self.sizes)} dims crosses stages", allowed=f"at most {MOST_DIMS}"
            )
        fill = [0] * (MOST_DIMS - len(self.sizes))
        return [DTYPES.index(self.dtype), len(self.sizes), *self.sizes, *fill, *self.order, *fill]

    @classmethod
    def parse(cls, row: Sequence[int]) -> DenseLayout:
        """Returns the layout of a header.

        Args: `row` is what `header` made.
        """
        dims = row[1]
        order = row[2 + MOST_DIMS : 2 + MOST_DIMS + dims]
        return cls(DTYPES[row[0]], tuple(row[2 : 2 + dims]), tuple(order))


Edge = tuple[str, int, int]  # direction, sender, receiver


class _Hop(NamedTuple):
    direction: str
    sender: int
    receiver: int
    pipe: int

    @classmethod
    def of(cls, message: Message) -> _Hop:
        return cls(message.direction, message.sender, message.receiver, message.pipe)


class _Receive(NamedTuple):
    works: list[dist.Work]
    buffers: list[Tensor]  # payloads, or the one header where the layouts are not known yet


class _Channel(NamedTuple):
    peer: int  # rank
    tag: int  # even: payload, odd: header


class Transport:
    """One rank's side of all messages. `place[pipe][stage]` is a pipeline worker, `peers[worker]` its rank."""

    def __init__(
        self,
        *,
        routes: Routes,
        place: Sequence[Sequence[int]],
        peers: Sequence[int],
        device: torch.device,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._routes, self._place, self._peers = routes, place, peers
        self._device, self._group = device, group
        self._in_order = (
            device.type == "cuda"
        )  # NCCL pairs messages in the order in which both sides issue them
        self._layouts: dict[_Hop, list[DenseLayout]] = {}
        self._learning = True
        self._posted: dict[Message, _Receive] = {}
        self._untold: dict[_Channel, list[Message]] = {}  # posted by their headers only, in order
        self._sent: dict[Message, list[tuple[dist.Work, Tensor]]] = {}
        self._channels: dict[Message, _Channel] = {}

    def post(self, message: Message) -> None:
        """Starts to receive a message.

        Args: `message` goes to a stage of this rank.
        """
        channel = self._channel(message, message.sender)
        if self._learning:
            header = torch.empty((len(self._names(message)), HEADER), dtype=torch.int64)
            self._posted[message] = _Receive([self._irecv(header, channel.peer, channel.tag + 1)], [header])
            self._untold.setdefault(channel, []).append(message)
            if self._in_order:
                self._read_headers(message)
        else:
            self._posted[message] = self._receive(message, channel)

    def wait(self, message: Message) -> dict[str, Tensor]:
        """Waits for a message that was posted.

        Returns: its tensors by the names of their Values.
        """
        if self._learning:
            self._read_headers(message)
        receive = self._posted.pop(message)
        _finish(receive.works)
        pairs = zip(self._layouts[_Hop.of(message)], receive.buffers, strict=True)
        tensors = (layout.unpacked(buffer) for layout, buffer in pairs)
        return dict(zip(self._names(message), tensors, strict=True))

    def send(self, message: Message, tensors: Mapping[str, Tensor]) -> None:
        """Starts to send a message, and holds its tensors until `release`.

        Args: `tensors` by name have at least those of the message.
        Raises: BadInput where a shape or type differs from that of the first message of the hop.
        """
        channel = self._channel(message, message.receiver)
        names = self._names(message)
        if message in self._sent:  # of the step before, and nothing told us of its arrival
            self.release(message)
        works = self._sent[message] = []
        if self._learning:
            layouts = self._layouts.setdefault(
                _Hop.of(message), [DenseLayout.of(tensors[name]) for name in names]
            )
            header = torch.tensor([layout.header() for layout in layouts])
            works.append((self._isend(header, channel.peer, channel.tag + 1), header))
        for name, layout in zip(names, self._layouts[_Hop.of(message)], strict=True):
            tensor = tensors[name]
            if tensor.dtype != layout.dtype or tuple(tensor.shape) != layout.shape:
                raise _changed(name, layout, tensor)
            packed = layout.packed(tensor)
            works.append((self._isend(packed, channel.peer, channel.tag), packed))

    def release(self, message: Message) -> None:
        """Waits for a message that is known to have arrived and lets go of its tensors; nothing happens where
        none was sent.

        Args: `message` may be of the step before.
        """
        _finish(work for work, _ in self._sent.pop(message, ()))

    def know(self, layouts: Mapping[Edge, Sequence[DenseLayout]]) -> None:
        """Takes the layouts of what hops carry from elsewhere, so that no headers are sent.

        Args: `layouts` has one layout a Value for each direction, sender and receiver.
        """
        for pipe in range(len(self._place)):
            for (direction, sender, receiver), rows in layouts.items():
                self._layouts[_Hop(direction, sender, receiver, pipe)] = list(rows)
        self.finish()

    def in_flight(self) -> Iterator[Tensor]:
        """Returns the tensors that were sent and are held until they are known to have arrived."""
        return (tensor for works in self._sent.values() for _, tensor in works)

    def finish(self) -> None:
        """Ends a step: the layouts are known from now on."""
        assert not self._posted, f"never waited for: {list(map(str, self._posted))}"
        self._learning = False

    def drain(self) -> None:
        """Waits until everything sent has left."""
        for message in list(self._sent):
            self.release(message)

    def _names(self, message: Message) -> tuple[str, ...]:
        return self._routes.names(message.direction, message.sender, message.receiver)

    def _receive(self, message: Message, channel: _Channel) -> _Receive:
        buffers = [layout.buffer(self._device) for layout in self._layouts[_Hop.of(message)]]
        return _Receive([self._irecv(b, channel.peer, channel.tag) for b in buffers], buffers)

    def _read_headers(self, message: Message) -> None:
        """Reads the headers up to a message's own, in the order in which messages were sent, and posts
        their receives."""
        channel = self._channel(message, message.sender)
        untold = self._untold[channel]
        while message in untold:
            earlier = untold.pop(0)
            header = self._posted[earlier]
            _finish(header.works)
            layouts = [DenseLayout.parse(row) for row in header.buffers[0].tolist()]
            self._layouts.setdefault(_Hop.of(earlier), layouts)
            self._posted[earlier] = self._receive(earlier, channel)

    def _channel(self, message: Message, other: int) -> _Channel:
        """Returns the rank at the far end and the tag, which is the same at both ends; `other` is the stage there."""
        if message not in self._channels:
            stages, pipe = self._place[message.pipe], message.pipe
            peer = self._peers[stages[other]]
            self._channels[message] = _Channel(peer, 4 * pipe + 2 * (message.direction == "grad"))
        return self._channels[message]

    def _isend(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        work = dist.isend(tensor, peer, group=self._group, tag=tag)
        assert work is not None
        return work

    def _irecv(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        work = dist.irecv(tensor, peer, group=self._group, tag=tag)
        assert work is not None
        return work


def _finish(works: Iterable[dist.Work]) -> None:
    for work in works:
        work.wait()


def _changed(name: str, old: DenseLayout, new: Tensor) -> BadInput:
    return BadInput(
        f"'{name}' crosses stages as {old.dtype}{list(old.shape)} and now as {new.dtype}{list(new.shape)}",
        where="the batch",
        allowed="one shape for all micro-batches of a run",
    )
