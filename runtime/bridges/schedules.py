"""Learning rates by the names that transformers gives them, for ranks that have no Trainer."""

from __future__ import annotations

import json

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


class NamedSchedule(LambdaLR):
    """The schedule that `transformers.get_scheduler` makes of a name, as a class that ranks find by its own name."""

    def __init__(self, optimizer: Optimizer, name: str, warmup: int, steps: int, more: str) -> None:
        """Makes the factors of the name.

        Args: `warmup` and `steps` are numbers of steps; `more` are settings of that name alone, as JSON.
        """
        from transformers import get_scheduler

        made = get_scheduler(
            name,
            optimizer,
            num_warmup_steps=warmup,
            num_training_steps=steps,
            scheduler_specific_kwargs=json.loads(more),
        )
        for group in optimizer.param_groups:  # as it was before a schedule touched it
            group["lr"] = group.pop("initial_lr")
        super().__init__(optimizer, made.lr_lambdas)
