"""Surrounds the steps of a training with evaluations of a dataset, a watch over the best, and the user's callbacks.

In: a rank that can evaluate, and what a user asked for in `Job`. Out: `Around`, which evaluates with numbers that are
the same on all ranks, keeps a watch over what is best, and calls the user; and trials of all this before a run starts.
Start reading in `around.py`, then `evaluate.py` and `trial.py`.
"""

from runtime.loop.around import Around
from runtime.loop.trial import check_averages, described, try_evaluation, try_samples

__all__ = ["Around", "check_averages", "described", "try_evaluation", "try_samples"]
