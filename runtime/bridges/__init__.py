"""Trainings that start from what another library's loop has in hand: a module, its optimizer and its loader.

In: a planned live model. Out: an iterator over its steps, while the ranks of the plan train it here; a Trainer of
transformers and a Strategy of Lightning, which are loaded when they are asked for. Start reading in `prepared.py`.
"""

from typing import TYPE_CHECKING

from planner.doors import later
from runtime.bridges.prepared import Prepare, Prepared, TrainedStep

if TYPE_CHECKING:
    from runtime.bridges.lightning_strategy import StrategyByPlan, loss_of, step_of
    from runtime.bridges.transformers_trainer import TrainerByPlan

__all__ = ["Prepare", "Prepared", "StrategyByPlan", "TrainedStep", "TrainerByPlan", "loss_of", "step_of"]

__getattr__ = later(
    __name__,
    {
        "lightning_strategy": ("StrategyByPlan", "loss_of", "step_of"),
        "transformers_trainer": ("TrainerByPlan",),
    },
)
