"""DualPipe-V: two stages a worker in a V, forwards of one paired with backwards of the other.

The paired F and B stand next to each other, for an executor that overlaps them. Weight gradients are split off only
where they fill the start and the end. With fewer than 2D micro-batches there is no steady phase to pair; the order
is then listed under the same memory.
"""

from __future__ import annotations

from collections import deque

from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import FamilyRequest, assemble, zigzag
from planner.schedule.families.v_shaped import listed_v


def dualpipe_v(request: FamilyRequest) -> Schedule:
    """Generates the DualPipe-V schedule, listed instead where there are fewer than 2D micro-batches.

    Args: `request` may set `cap` for the listed order.
    """
    workers, micros = request.workers, request.micros
    if micros < 2 * workers:
        return listed_v(request, 2 * workers + 2)
    orders = [_Worker(worker, workers).order(micros) for worker in range(workers)]
    return assemble(request, zigzag(workers, 2), [0] * micros, orders)


class _Worker:
    def __init__(self, worker: int, workers: int) -> None:
        self.after = workers - 1 - worker  # workers behind this one on the way down
        self.through = worker + 1
        self.workers = workers
        self.stage = (worker, 2 * workers - 1 - worker)
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.waiting: deque[Action] = deque()
        self.done: list[Action] = []

    def order(self, micros: int) -> list[Action]:
        self._fill()
        for _ in range(micros - 2 * self.workers + self.through):
            self._f(0)
            self._b(1)
            self._f(1)
            self._b(0)
        for _ in range(self.after):
            self._b(1)
            self._f(1)
            self._b(0)
        self._drain()
        return self.done

    def _fill(self) -> None:
        for _ in range(2 * self.after):
            self._f(0)
        for _ in range(self.through):
            self._f(0)
            self._f(1)
        for _ in range(self.after):
            self._i(1)
            self._w()
            self._f(1)

    def _drain(self) -> None:
        """Sends the first half of what is left back whole, and of the second half only its input half."""
        for turn in range(2 * self.through):
            chunk = 1 - turn % 2
            if turn < self.through:
                self._b(chunk)
            else:
                self._i(chunk)
        for _ in range(self.after):
            self._w()
            self._i(0)
        while self.waiting:
            self._w()

    def _f(self, chunk: int) -> None:
        self.done.append(Action(Kind.F, self.stage[chunk], self.forwards[chunk]))
        self.forwards[chunk] += 1

    def _b(self, chunk: int) -> None:
        self.done.append(Action(Kind.B, self.stage[chunk], self.backwards[chunk]))
        self.backwards[chunk] += 1

    def _i(self, chunk: int) -> None:
        action = Action(Kind.I, self.stage[chunk], self.backwards[chunk])
        self.done.append(action)
        self.waiting.append(action)
        self.backwards[chunk] += 1

    def _w(self) -> None:
        self.done.append(self.waiting.popleft()._replace(kind=Kind.W))
