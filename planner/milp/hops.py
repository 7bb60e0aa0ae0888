"""Which messages many cuts have, and how many bytes each carries."""

from __future__ import annotations

import numpy as np

from planner.cost import BoolArray, IntArray, Tables


def hop_bytes(tables: Tables, cuts: IntArray) -> tuple[IntArray, IntArray]:
    """The cells of [act or grad, sender, receiver] that any cut has, and their bytes in each cut: activations
    straight to every later stage that reads them, gradients from each reading stage to the one before it that reads
    or made the Value."""
    edges, depth = tables.edges, cuts.shape[1] - 1
    stage = stage_of(cuts, tables.layers)
    made, before, here = stage[:, edges.made], stage[:, edges.previous], stage[:, edges.consumer]
    row, act = np.nonzero(here > before)
    forward = made[row, act] * depth + here[row, act]
    back = edges.backward[act]
    backward = (depth * depth + here[row, act] * depth + before[row, act])[back]
    cell = np.concatenate([forward, backward])
    owner = np.concatenate([row, row[back]])
    weight = np.concatenate([edges.bytes[act], edges.bytes[act[back]]])
    present: BoolArray = np.zeros(2 * depth * depth, np.bool_)
    present[cell] = True
    cells = np.flatnonzero(present)
    column = np.cumsum(present)[cell] - 1
    flat = np.bincount(owner * len(cells) + column, weights=weight, minlength=len(cuts) * len(cells))
    return cells, flat.astype(np.int64).reshape(len(cuts), len(cells))


def stage_of(cuts: IntArray, layers: int) -> IntArray:
    """[cut, layer]"""
    opens: IntArray = np.zeros((len(cuts), layers + 1), np.int64)
    for p in range(1, cuts.shape[1] - 1):
        opens[np.arange(len(cuts)), cuts[:, p]] += 1
    return opens.cumsum(1)[:, :layers]
