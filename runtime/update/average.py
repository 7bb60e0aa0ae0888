"""The exponential moving average of trained parameters: each rank averages the elements that it keeps up to date."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from runtime.update.flats import AnyFlat, Bucket


class Averages:
    """The averages of this rank's parameters: `average += (1 - decay) * (parameter - average)` after every step.

    They begin with the parameters that the training begins with. All holders of an element come to the same value.
    """

    def __init__(self, flats: Sequence[AnyFlat], decay: float) -> None:
        self.decay = decay
        self._flats = tuple(flats)
        self._values: dict[Bucket, dict[str, Tensor]] = {
            flat.bucket: {name: x.clone() for name, x in flat.own_values().items()} for flat in self._flats
        }

    def update(self, flat: AnyFlat) -> None:
        """Takes in the parameters of a bucket after its update."""
        with torch.no_grad():
            for average, value in self._pairs(flat):
                average.lerp_(value, 1.0 - self.decay)

    def named(self) -> dict[str, Tensor]:
        """Returns the averages of this rank's elements, by the names of the parameters that they are of."""
        return {name: average for own in self._values.values() for name, average in own.items()}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Goes on from a checkpoint.

        Args: `saved` has averages by name; those that it lacks begin at the parameters as they are.
        """
        for name, average in self.named().items():
            if name in saved:
                average.copy_(saved[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the averages in the place of the parameters while it is entered; all ranks enter it at one time."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        with torch.no_grad():
            for flat in self._flats:
                for average, value in self._pairs(flat):
                    kept = value.clone()
                    value.copy_(average)
                    average.copy_(kept)
                flat.publish()

    def _pairs(self, flat: AnyFlat) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self._values[flat.bucket].values(), flat.own_values().values(), strict=True)
