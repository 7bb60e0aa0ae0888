"""Chooses how the ranks of a group share a model: which layout of every tensor, on which mesh of the machine.

In: the operations of a model with what each takes (`GroupWork`, from a profile by `work_of`), a cluster, and the number
of ranks. Out: a list of `ChosenLayout` that none equals in time and memory, each with the lines of a section `cut`.
Nothing here knows torch. Start with `pareto.py`, which calls the rest in order: `folded.py` folds repeated blocks,
`options.py` lists decisions, `program.py` is the integer program, and `written.py` writes lines. `prices.py` says what
the search takes a layout to cost; `closed_forms.py` has volumes of transformer layers.
"""

from planner.choose.closed_forms import LayerVolume, break_even, least, volumes
from planner.choose.folded import FoldedGraph, folded
from planner.choose.options import Decisions, decisions_of
from planner.choose.pareto import ChosenLayout, explored, layouts
from planner.choose.prices import LayoutPrice, Storing, price
from planner.choose.program import program
from planner.choose.solve import LayoutProgram, Solver
from planner.choose.told import layout_lines, mesh_text, reasons, transformer_size, volume_lines
from planner.choose.work import GroupWork, work_of
from planner.choose.written import cut_text, graph_by, graph_of, rows_of

__all__ = [
    "ChosenLayout",
    "Decisions",
    "FoldedGraph",
    "GroupWork",
    "LayerVolume",
    "LayoutPrice",
    "LayoutProgram",
    "Solver",
    "Storing",
    "break_even",
    "cut_text",
    "decisions_of",
    "explored",
    "folded",
    "graph_by",
    "graph_of",
    "layout_lines",
    "layouts",
    "least",
    "mesh_text",
    "price",
    "program",
    "reasons",
    "rows_of",
    "transformer_size",
    "volume_lines",
    "volumes",
    "work_of",
]
