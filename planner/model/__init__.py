"""The model as data: layers, the values that pass between them, and their parameters. From here on nobody needs torch.

In goes what `planner.capture` found in a module, or the mapping in a profile file (`graph_from_dict`). Out comes a
`ModelGraph`, and what crosses the boundaries between stages (`crossings`).
Start reading in `graph.py`; `check.py` refuses files whose tables do not agree, and says what a model does not
allow of a plan.
"""

from planner.model.check import (
    ONE_HOLDER,
    ONE_STAGE,
    alone,
    dependences,
    graph_from_dict,
    inconsistency,
    misplaced,
    one_holder,
    own_states,
    refusals,
    served,
)
from planner.model.graph import (
    Buffer,
    BufferUpdate,
    Layer,
    ModelGraph,
    Parameter,
    Value,
    crossings,
    stage_of_layers,
)

__all__ = [
    "ONE_HOLDER",
    "ONE_STAGE",
    "Buffer",
    "BufferUpdate",
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
    "one_holder",
    "own_states",
    "refusals",
    "served",
    "stage_of_layers",
]
