"""Sums whose numbers are added up in the order of ranks, wherever they lie in their buffer.

A ring adds the numbers of a buffer in an order that depends on which part of the buffer they lie in. The same
gradient in another buffer, as when a stage is cut into parts, then has another sum in its last bits. Here every rank
adds up one part of the buffer, the first rank's numbers first, and hands it to the others: as many bytes as a ring.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

PIECE = 2**24  # elements at a time; what the others send of them is held meanwhile
END_S = 2.0  # for a sum that others have left
Ended = Callable[[], None]


def add_up(buffer: Tensor, group: dist.ProcessGroup) -> None:
    """In place, by all of the group; for a dense buffer of one dim on the host."""
    ranks, here = dist.get_process_group_ranks(group), dist.get_rank(group)
    for piece in torch.split(buffer, PIECE):
        parts = torch.tensor_split(piece, len(ranks))
        own = parts[here]
        shares = [own if i == here else torch.empty_like(own) for i in range(len(ranks))]
        _exchange(parts, shares, group, ranks, here)
        total = shares[0]
        for share in shares[1:]:
            total.add_(share)
        own.copy_(total)
        _exchange([own] * len(ranks), parts, group, ranks, here)


def _exchange(
    sent: Sequence[Tensor], taken: Sequence[Tensor], group: dist.ProcessGroup, ranks: Sequence[int], here: int
) -> None:
    """`sent[i]` goes to the i-th rank, `taken[i]` comes from it; each begins with its neighbour."""
    count = len(ranks)
    works = [dist.irecv(taken[i], ranks[i], group=group) for i in _others(here, -1, count)]
    works += [dist.isend(sent[i], ranks[i], group=group) for i in _others(here, 1, count)]
    for work in works:
        assert work is not None
        work.wait()


def _others(here: int, direction: int, count: int) -> list[int]:
    return [(here + direction * away) % count for away in range(1, count)]


class _Job(NamedTuple):
    buffer: Tensor
    ended: Ended | None
    done: Future[None]


class OrderedSums:
    """Sums over one communicator, one after the other in the order of launches, beside what their callers do."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        thread = Thread(target=_serve, args=(self._jobs, group), daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._jobs, thread)

    def launch(self, buffer: Tensor, ended: Ended | None = None) -> Future[None]:
        """`ended` is called from the thread that adds, before anybody who waits goes on."""
        job = _Job(buffer, ended, Future())
        self._jobs.put(job)
        return job.done


def _end(jobs: SimpleQueue[_Job | None], thread: Thread) -> None:
    """A thread that lets go of its communicator while Python ends would take the process down."""
    jobs.put(None)
    if thread is not current_thread():
        thread.join(END_S)


def _serve(jobs: SimpleQueue[_Job | None], group: dist.ProcessGroup) -> None:
    """Until nobody can launch any more; a sum that fails tells whoever waits for it."""
    while (job := jobs.get()) is not None:
        try:
            add_up(job.buffer, group)
            if job.ended is not None:
                job.ended()
        except Exception as error:
            job.done.set_exception(error)
        else:
            job.done.set_result(None)
