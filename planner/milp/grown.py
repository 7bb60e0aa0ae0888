"""Arrays that grow without being copied each time. What was put in never changes, so that views of it stay true."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


class Grown(Generic[Number]):
    """Along the first axis."""

    def __init__(self, shape: tuple[int, ...], dtype: type[Number]) -> None:
        """Of entries of this shape."""
        self._count = 0
        self._room: NDArray[Number] = np.zeros((8, *shape), dtype)

    @property
    def array(self) -> NDArray[Number]:
        return self._room[: self._count]

    def extend(self, entries: NDArray[Any]) -> None:
        most = self._count + len(entries)
        if most > len(self._room):
            room: NDArray[Number] = np.zeros(
                (max(most, 2 * len(self._room)), *self._room.shape[1:]), self._room.dtype
            )
            room[: self._count] = self.array
            self._room = room
        self._room[self._count : most] = entries
        self._count = most


class Table:
    """Of doubles, by rows and by columns."""

    def __init__(self, rows: int = 0) -> None:
        self._shape = (rows, 0)
        self._room: NDArray[np.float64] = np.zeros((max(8, rows), 8))

    @property
    def array(self) -> NDArray[np.float64]:
        return self._room[: self._shape[0], : self._shape[1]]

    def add_row(self, values: NDArray[np.float64]) -> None:
        self._grow(self._shape[0] + 1, self._shape[1])
        self.array[-1] = values

    def add_column(self, values: NDArray[np.float64]) -> None:
        self._grow(self._shape[0], self._shape[1] + 1)
        self.array[:, -1] = values

    def _grow(self, rows: int, columns: int) -> None:
        tall, wide = self._room.shape
        if rows > tall or columns > wide:
            room = np.zeros((2 * tall if rows > tall else tall, 2 * wide if columns > wide else wide))
            room[: self._shape[0], : self._shape[1]] = self.array
            self._room = room
        self._shape = rows, columns
