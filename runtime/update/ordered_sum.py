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

PIECE = 2**22  # elements at a time; as many are held meanwhile
END_S = 2.0  # for a sum that others have left
Ended = Callable[[], None]


def add_up(buffer: Tensor, group: dist.ProcessGroup) -> None:
    """Sums a buffer over a group in place, each element in the order of ranks; collective.

    Args: `buffer` is dense, of one dim, on the host.
    """
    ranks, here = dist.get_world_size(group), dist.get_rank(group)
    for piece in torch.split(buffer, PIECE):
        sizes = [len(part) for part in torch.tensor_split(piece, ranks)]
        mine = [sizes[here]] * ranks
        shares = piece.new_empty(sum(mine))
        dist.all_to_all_single(shares, piece, mine, sizes, group=group)
        total, *others = shares.view(ranks, sizes[here])
        for share in others:
            total.add_(share)
        for share in others:
            share.copy_(total)
        dist.all_to_all_single(piece, shares, sizes, mine, group=group)


def add_up_parts(buffer: Tensor, parts: Sequence[tuple[int, int]], group: dist.ProcessGroup) -> None:
    """Sums each part of a buffer on one rank, each element in the order of ranks; collective.

    Half as many bytes as `add_up` are sent. The other parts of the buffer stay addends.
    Args: `buffer` is dense, of one dim, on the host; `parts` has start and end of the part of each rank.
    """
    ranks, here = dist.get_world_size(group), dist.get_rank(group)
    step = PIECE // ranks
    for first in range(0, max(end - start for start, end in parts), step):
        spans = [(min(start + first, end), min(start + first + step, end)) for start, end in parts]
        sizes = [end - start for start, end in spans]
        shares = buffer.new_empty(ranks * sizes[here])
        sent = torch.cat([buffer[start:end] for start, end in spans])
        dist.all_to_all_single(shares, sent, [sizes[here]] * ranks, sizes, group=group)
        total, *others = shares.view(ranks, sizes[here])
        for share in others:
            total.add_(share)
        buffer[slice(*spans[here])].copy_(total)


class _Job(NamedTuple):
    run: Callable[[], object]
    ended: Ended | None
    done: Future[None]


class Line:
    """The queue of one communicator: work is done one after the other in the order of launches, beside the training.

    All ranks of the communicator launch in the same order.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        thread = Thread(target=_serve, args=(self._jobs,), daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._jobs, thread)

    def launch(self, run: Callable[[], object], ended: Ended | None = None) -> Future[None]:
        """Queues work for the line's thread.

        Args: `run` does it; `ended` is called after it from that thread, before anybody who waits goes on.
        Returns: a future that is done then, or has the error.
        """
        job = _Job(run, ended, Future())
        self._jobs.put(job)
        return job.done


def _end(jobs: SimpleQueue[_Job | None], thread: Thread) -> None:
    """Ends a line's thread: one that lets go of a communicator while Python ends would take the process down."""
    jobs.put(None)
    if thread is not current_thread():
        thread.join(END_S)


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    """Runs jobs until nobody can launch any more; what fails tells whoever waits for it."""
    while (job := jobs.get()) is not None:
        done = job.done
        try:
            job.run()
            if job.ended is not None:
                job.ended()
        except Exception as error:
            done.set_exception(error)
        else:
            del job  # its tensors are gone before whoever waits makes others
            done.set_result(None)
