"""Makes layers, and stage modules that run, out of any exportable module.

In: a workload, or a module with an example batch and a loss (`capture`). Out: a `Captured` with its `ModelGraph`,
which is plain data, and by `cut` or `layer_module` the modules that ranks and the profiler run.
`check_training`, in `self_check.py`, trains the user's own module beside the graph and refuses what the graph would lose;
`functional.py` knows which operations write into state (`states_written`), `state_use.py` what holders of it must do;
`left_behind.py` finds the state that a step leaves behind, and `live_bytes.py` sees when it changes.
Start with `capture.py`, which calls the rest in order: `trace.py` exports, `flatten.py` and `functional.py` make one
flat graph without writes, `layers.py` groups operations into layers, `describe.py` writes the ModelGraph,
`stage_modules.py` cuts the graph. `evaluation.py` captures the model once more, as it is evaluated.
"""

from planner.capture.batch import growing_dim
from planner.capture.beside import mixes_samples
from planner.capture.capture import capture, origin_of
from planner.capture.captured import Captured
from planner.capture.evaluation import evaluation_of
from planner.capture.export_workarounds import average_batch_norm, share_of_latest
from planner.capture.fake_run import entered
from planner.capture.functional import drawing_order, random
from planner.capture.inference import Forward, converted, forward_of, sample_of, tensor_digest
from planner.capture.live import LiveLoop, initial, write_model
from planner.capture.live_bytes import LiveBytes, counted_here, meter_of, settle_memory, storage_of
from planner.capture.opaque import OpaqueLayer, opaque_layers
from planner.capture.operations import (
    Target,
    check_sizes,
    named_arguments,
    operation_of,
    operations_of,
    samples_of,
    with_names,
)
from planner.capture.self_check import check_training
from planner.capture.stage_modules import CONTEXTS, StageModule, cut, layer_module, materialise, name_of
from planner.capture.state_use import Decay, StateUse, decays, use_of_states
from planner.capture.traced_graph import LAYER, SYNCHRONISED
from planner.capture.travel import from_data, to_data

__all__ = [
    "CONTEXTS",
    "LAYER",
    "SYNCHRONISED",
    "Captured",
    "Decay",
    "Forward",
    "LiveBytes",
    "LiveLoop",
    "OpaqueLayer",
    "StageModule",
    "StateUse",
    "Target",
    "average_batch_norm",
    "capture",
    "check_sizes",
    "check_training",
    "converted",
    "counted_here",
    "cut",
    "decays",
    "drawing_order",
    "entered",
    "evaluation_of",
    "forward_of",
    "from_data",
    "growing_dim",
    "initial",
    "layer_module",
    "materialise",
    "meter_of",
    "mixes_samples",
    "name_of",
    "named_arguments",
    "opaque_layers",
    "operation_of",
    "operations_of",
    "origin_of",
    "random",
    "sample_of",
    "samples_of",
    "settle_memory",
    "share_of_latest",
    "storage_of",
    "tensor_digest",
    "to_data",
    "use_of_states",
    "with_names",
    "write_model",
]
