"""The model as data. From here on nobody needs torch."""

from planner.model.check import graph_from_dict, inconsistency
from planner.model.graph import (
    Buffer,
    Crossing,
    Layer,
    ModelGraph,
    Parameter,
    Value,
    alone,
    crossings,
    dependences,
    misplaced,
    stage_of_layers,
)

__all__ = [
    "Buffer",
    "Crossing",
    "Layer",
    "ModelGraph",
    "Parameter",
    "Value",
    "alone",
    "crossings",
    "dependences",
    "graph_from_dict",
    "inconsistency",
    "misplaced",
    "stage_of_layers",
]
