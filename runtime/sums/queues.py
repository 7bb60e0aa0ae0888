"""Queues of sums: what a communicator does one after the other, beside the training, and sums that are cut into parts.

A part has a communicator and a queue of its own, so that all parts of a buffer are on their way at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from traceback import clear_frames
from typing import NamedTuple

import torch
from torch import Tensor

END_S = 2.0  # for a sum that others have left
Ended = Callable[[], None]


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
        done, failed = job.done, _failure(job)
        del job  # its tensors and its communicator are gone before whoever waits goes on
        if failed is None:
            done.set_result(None)
        else:
            clear_frames(failed.__traceback__)  # they would keep a communicator on which others wait
            done.set_exception(failed)


def _failure(job: _Job) -> Exception | None:
    """Does a job, and returns the error that ended it."""
    try:
        job.run()
        if job.ended is not None:
            job.ended()
    except Exception as error:
        return error
    return None


class NamedSum:
    """A sum that a plan names, over one group of ranks: all of them launch in one order."""

    def __init__(self, runs: Sequence[Callable[[Tensor], object]]) -> None:
        """Opens a queue for each part.

        Args: each of `runs` sums one part of a buffer over the group, in place.
        """
        self._runs = tuple((Line(), run) for run in runs)

    def launch(self, buffer: Tensor, ended: Ended | None = None) -> Callable[[], None]:
        """Starts the sum of a buffer, and returns what waits for it.

        Args: `buffer` is dense, of one dim, on the host; `ended` is called once, when its last part is summed.
        """
        told = _Last(len(self._runs), ended) if ended is not None else None
        parts = torch.tensor_split(buffer, len(self._runs))
        under_way = [
            line.launch(partial(run, part), told) for (line, run), part in zip(self._runs, parts, strict=True)
        ]

        def ended_all() -> None:
            for each in wait(under_way, return_when=FIRST_EXCEPTION).done:
                each.result()

        return ended_all


class _Last:
    """Calls a function when it is called for the last of several times."""

    def __init__(self, count: int, call: Ended) -> None:
        self._left, self._call, self._lock = count, call, Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._call()
