"""Any exportable module becomes layers, and stage modules."""

from planner.capture.capture import Captured, capture
from planner.capture.export_workarounds import average_batch_norm, share_of_latest
from planner.capture.functional import random
from planner.capture.live_bytes import LiveBytes, meter_of, storage_of
from planner.capture.opaque import OpaqueLayer, opaque_layers
from planner.capture.operations import (
    Target,
    argument_names,
    check_sizes,
    named_arguments,
    operation_of,
    samples_of,
)
from planner.capture.stage_modules import StageModule, cut, layer_module, materialise, name_of
from planner.capture.state_use import StateUse, use_of_states
from planner.capture.traced_graph import LAYER, SYNCHRONISED

__all__ = [
    "LAYER",
    "SYNCHRONISED",
    "Captured",
    "LiveBytes",
    "OpaqueLayer",
    "StageModule",
    "StateUse",
    "Target",
    "argument_names",
    "average_batch_norm",
    "capture",
    "check_sizes",
    "cut",
    "layer_module",
    "materialise",
    "meter_of",
    "name_of",
    "named_arguments",
    "opaque_layers",
    "operation_of",
    "random",
    "samples_of",
    "share_of_latest",
    "storage_of",
    "use_of_states",
]
