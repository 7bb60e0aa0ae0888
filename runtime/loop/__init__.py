"""Surrounds the steps of a training with evaluations of a dataset, a watch over the best, and the user's callbacks.

In: a rank that can evaluate, and what a user asked for in `Job`. Out: `Around`, which evaluates with numbers that are
the same on all ranks, keeps a watch over what is best, and calls the user.
Start reading in `around.py`, then `evaluate.py`.
"""

from runtime.loop.around import Around

__all__ = ["Around"]
