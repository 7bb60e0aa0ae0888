"""One stage of a model, ready to run micro-batches: forward, recomputation, backward whole or in halves.

In comes a `StageModule` cut from the captured model; its graph is edited once (deferred weight gradients,
compilation), after `runtime.draws` has keyed its random numbers. Out comes what the interpreter of `runtime.execute` asks of a stage.
Start at `torch_stage.py`; `backward.py` and `deferred_weights.py` are the two ways to split a backward.
"""

from runtime.stage.compiled import compile_stage
from runtime.stage.deferred_weights import WeightStore, on_gradient
from runtime.stage.graph_edits import (
    ATEN,
    could_owe,
    graph_of,
    share_buffers,
    share_parameters,
    states_of,
    store_weights,
)
from runtime.stage.halves import Split
from runtime.stage.parted_stage import AnyStage, PartedStage, first_bad_layer, in_two
from runtime.stage.shared_states import SharedState, observed, shared_states
from runtime.stage.torch_stage import BackwardPart, LossScale, Scaler, SplitWay, TorchStage

__all__ = [
    "ATEN",
    "AnyStage",
    "BackwardPart",
    "LossScale",
    "PartedStage",
    "Scaler",
    "SharedState",
    "Split",
    "SplitWay",
    "TorchStage",
    "WeightStore",
    "compile_stage",
    "could_owe",
    "first_bad_layer",
    "graph_of",
    "in_two",
    "observed",
    "on_gradient",
    "share_buffers",
    "share_parameters",
    "shared_states",
    "states_of",
    "store_weights",
]
