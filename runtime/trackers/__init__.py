"""Follows a run for the trackers that people keep: TensorBoard so far.

In: the metrics that all ranks record. Out: the same steps in the tracker's own files, written by one rank. Start reading
in `tensorboard.py`.
"""

from runtime.trackers.tensorboard import Board, board

__all__ = ["Board", "board"]
