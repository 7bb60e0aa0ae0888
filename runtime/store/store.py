"""The samples of a dataset in the memory of the nodes, as one rank reads them.

While ranks train on a window of steps, a thread of each node's first rank exchanges the samples of the next window
with the other nodes. The ranks of a node read both where they lie, and every sample comes to the step that would have
read it from the dataset.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.utils.data import get_worker_info

from planner.workload import has_raw
from runtime.data import ByPosition
from runtime.store.exchange import exchange
from runtime.store.layout import Routed, SamplePlaces
from runtime.store.memory import SharedMemory
from runtime.store.samples import restored
from runtime.sums import Line

PAUSE_S = 0.0005
TIMEOUT_S = 120.0  # without any sample of other nodes
ENDED = 2**62  # in the place of a window
READY = 0  # place in the head of the last window that has come; the ranks of the node follow
MOVES = -1  # place in the head of a count that grows whenever samples of other nodes have come
Beat = Callable[[bool], None]
Tell = Callable[[dict[str, int]], None]


@dataclass
class StoreCounts:
    """Counts what a node has read and received for its store."""

    read_samples: int = 0
    read_bytes: int = 0
    window_steps: int = 0
    windows: int = 0
    received_samples: int = 0  # from other nodes
    received_bytes: int = 0


class Exchanges:
    """The exchanges of a node's first rank with the other nodes, one window after the other, beside the training."""

    def __init__(
        self,
        layout: SamplePlaces,
        memory: SharedMemory,
        group: dist.ProcessGroup,
        ranks: int,
        counts: StoreCounts,
        tell: Tell,
    ) -> None:
        """Takes what has been read; `ranks` of the node say in the head of the memory which window they train on."""
        self._layout, self._memory, self._group, self._ranks = layout, memory, group, ranks
        self._counts, self._tell, self._line = counts, tell, Line()
        self._launched: list[Future[None]] = []

    def until(self, window: int) -> None:
        """Launches the exchanges up to a window; what one needs is reckoned here, in the thread that trains.

        Args: `window` is the last one to launch.
        Raises: whatever an exchange has raised.
        """
        while len(self._launched) <= window:
            number = len(self._launched)
            self._launched.append(self._line.launch(partial(self._run, number, self._layout.routed(number))))
        self.check()

    def _run(self, number: int, routed: Routed) -> None:
        while self._behind(number - 1):
            time.sleep(PAUSE_S)
        target = self._memory.window(number)
        came = exchange(
            self._memory.part,
            target,
            routed.sends,
            routed.receives,
            routed.rounds,
            self._group,
            self._has_moved,
        )
        self._counts.windows += 1
        self._counts.received_samples += routed.samples
        self._counts.received_bytes += came
        self._memory.head[READY] = number
        self._tell(asdict(self._counts))

    def _has_moved(self) -> None:
        self._memory.head[MOVES] += 1

    def _behind(self, window: int) -> bool:
        """Returns whether some rank of the node still reads the window whose place another would take."""
        return window > 0 and int(self._memory.head[1 : 1 + self._ranks].min()) < window

    def check(self) -> None:
        """Looks at the last exchanges.

        Raises: whatever one of them has raised.
        """
        for done in self._launched[-3:]:
            if done.done():
                done.result()


class Store(ByPosition):
    """The dataset of a rank: samples out of the memory of its node."""

    def __init__(
        self,
        data: Any,
        layout: SamplePlaces,
        memory: SharedMemory,
        number: int,
        exchanges: Exchanges | None,
        beat: Beat,
        ends: int,
    ) -> None:
        """Takes the user's dataset for its `finish`; `number` is that of this rank among those of its node.

        The training is to end at position `ends` of the stream.
        """
        self.regions, self._ends = bool(layout.routes.readers[0].region), ends
        self._data, self._layout, self._memory, self._number = data, layout, memory, number
        self._exchanges, self._beat = exchanges, beat

    def reach(self, position: int) -> None:
        """Says that a step begins, so that the samples of the next window are fetched.

        Args: `position` is that of the step in the stream.
        Raises: whatever an exchange has raised.
        """
        if len(self._layout.routes.nodes) == 1:
            return
        window = self._layout.window_of(position)
        self._memory.head[1 + self._number] = window
        if self._exchanges is not None:
            more = self._layout.start_of(window + 1) < self._ends
            self._exchanges.until(window + more)

    def leave(self) -> None:
        """Says that no more steps come, so that processes that read ahead for this rank end."""
        self._memory.head[1 + self._number] = ENDED

    def at(self, position: int, index: int) -> object:
        """Returns the sample at a position of the stream, whose index that is, drawn under the seed that is set."""
        if index in self._layout.own:
            raw = restored(self._memory.part[self._layout.in_part(index)])
        else:
            window = self._layout.window_of(position)
            place = self._layout.in_window(window, index)
            self._await(window)
            raw = restored(self._memory.window(window)[place])
        return self._data.finish(raw) if has_raw(self._data) else raw

    def _await(self, window: int) -> None:
        """Waits for a window. A rank beats only while samples come, so that one that others wait for is told apart."""
        seen, until = None, 0.0
        while self._memory.head[READY] < window:
            if self._memory.head[1 + self._number] == ENDED:
                raise RuntimeError("the training has ended")
            is_reader = get_worker_info() is not None  # of a rank, which has a pulse in its stead
            if not is_reader and self._exchanges is not None:
                self._exchanges.check()
            moves, now = int(self._memory.head[MOVES]), time.monotonic()
            if moves != seen:
                seen, until = moves, now + TIMEOUT_S
                if not is_reader:
                    self._beat(True)
            if now > until:
                raise RuntimeError("Timed out waiting for the samples of other nodes")
            time.sleep(PAUSE_S)
