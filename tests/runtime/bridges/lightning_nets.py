"""Modules of Lightning for tests of its Strategy: apart, since Lightning takes seconds to import."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn


class Net(pl.LightningModule):  # type: ignore[misc]
    """A module as tutorials have it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        outputs = self.body(inputs)
        loss = nn.functional.cross_entropy(outputs, targets)
        self.log("train_loss", loss)
        self.log("accuracy", (outputs.argmax(1) == targets).float().mean())
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("valid_loss", nn.functional.cross_entropy(self.body(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Seen(pl.Callback):  # type: ignore[misc]
    """What a callback is told of."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.logged: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        self.losses.append(float(outputs["loss"]))
        self.logged.append(float(trainer.callback_metrics["train_loss"]))


class Scheduled(Net):
    def configure_optimizers(self) -> Any:
        made = super().configure_optimizers()
        return [made], [torch.optim.lr_scheduler.StepLR(made, 2)]


class Clipped(Net):
    def on_after_backward(self) -> None:
        """Would look at gradients."""


class Counting(Net):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (1 + self.global_step)
