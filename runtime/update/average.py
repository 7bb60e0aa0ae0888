"""The exponential moving average of trained parameters, kept by every rank for the buckets that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from runtime.update.flats import AnyFlat, Bucket, Flat


class Averages:
    """The averages of this rank's parameters: `average += (1 - decay) * (parameter - average)` after every step.

    They begin with the parameters that the training begins with. All holders of a bucket come to the same values.
    """

    def __init__(self, flats: Sequence[AnyFlat], decay: float) -> None:
        self.decay = decay
        self._flats = tuple(
            flat for flat in flats if isinstance(flat, Flat)
        )  # the only ones: `prepare` refuses others
        self._values: dict[Bucket, Tensor] = {x.bucket: x.values.detach().clone() for x in self._flats}

    def update(self, flat: AnyFlat) -> None:
        """Takes in the parameters of a bucket after its update."""
        assert isinstance(flat, Flat)
        with torch.no_grad():
            self._values[flat.bucket].lerp_(flat.values, 1.0 - self.decay)

    def named(self) -> dict[str, Tensor]:
        """Returns the averages by parameter name, as views."""
        return {
            name: self._values[flat.bucket][start:end].view(flat.parameters[name].shape)
            for flat in self._flats
            for name, (start, end) in flat.ranges.items()
        }

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Goes on from a checkpoint.

        Args: `saved` has averages by name; those that it lacks begin at the parameters as they are.
        """
        for name, average in self.named().items():
            if name in saved:
                average.copy_(saved[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the averages in the place of the parameters, while it is entered."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        with torch.no_grad():
            for flat in self._flats:
                kept = flat.values.clone()
                flat.values.copy_(self._values[flat.bucket])
                self._values[flat.bucket].copy_(kept)
