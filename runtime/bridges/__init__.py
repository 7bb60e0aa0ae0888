"""Trainings that start from what another library's loop has in hand: a module, its optimizer and its loader.

In: a planned live model. Out: an iterator over its steps, while the ranks of the plan train it here. Start reading in
`prepared.py`.
"""

from runtime.bridges.prepared import Prepared, TrainedStep

__all__ = ["Prepared", "TrainedStep"]
