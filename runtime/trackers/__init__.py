"""Runs for the trackers that people keep: TensorBoard, Weights & Biases and MLflow.

In: the metrics that all ranks record. Out: the same steps in a tracker's own store, with the predicted step beside the
measured one. One rank writes for TensorBoard as it trains; any process sends a run folder to the others, or serves
its page to this machine (`watch.py`). Start reading in `send.py`.
"""

from runtime.trackers.send import TRACKERS, send
from runtime.trackers.tensorboard import Board, board
from runtime.trackers.watch import watch

__all__ = ["TRACKERS", "Board", "board", "send", "watch"]
