"""The loss scale of fp16: grown while gradients stay finite, halved when they do not, and that step is left out."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SCALE = 65536.0
GROWTH_INTERVAL = 2000  # steps


@dataclass
class Scaler:
    scale: float = FIRST_SCALE
    good_steps: int = 0  # since the last change

    def update(self, finite: bool) -> None:
        if not finite:
            self.scale, self.good_steps = self.scale / 2, 0
            return
        self.good_steps += 1
        if self.good_steps == GROWTH_INTERVAL:
            self.scale, self.good_steps = self.scale * 2, 0


@dataclass
class LossScale:
    """Gradient of the step's loss with respect to the loss of one micro-batch."""

    base: float = 1.0
    scaler: Scaler | None = None

    @property
    def weight(self) -> float:
        return self.base if self.scaler is None else self.base * self.scaler.scale
