"""Finds what reaches each layer where samples are cut in space, by a walk through the model for each grid."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from planner.capture import Captured, layer_module
from planner.errors import BadInput
from planner.measure.specimens import Situation, TensorShape, Way, outputs_of, value_shapes
from planner.model import Layer
from planner.spatial import Layout, NoRule, check_grid

SHEET = 2  # dimensions of what has no space: samples and channels
Made = tuple[tuple[TensorShape, Layout], ...]  # of each output: the shard and how it lies


def cut_situations(
    captured: Captured, batch: Mapping[str, Tensor], way: Way, grid: tuple[int, ...]
) -> list[Situation]:
    """Returns the first layer of each signature that can be computed on shards, with the shards that reach it.

    Layers that are missing see whole samples.

    Args: `batch` are the tensors of one micro-batch; `grid` has the parts along the dims from 2 on.
    Raises: BadInput where no layer can be computed on shards, with the reason.
    """
    for value in captured.graph.values:
        if value.role == "input" and len(value.shape) > SHEET:
            check_grid(value.shape, grid, f"'{value.name}'")
    walk = _Walk(captured, value_shapes(captured, batch, way), way, grid)
    found = walk.run()
    if not found:
        raise BadInput(
            f"no layer can be computed on shards {list(grid)}: {walk.refused or _no_space(captured)}",
            allowed="whole samples",
        )
    return found


def _no_space(captured: Captured) -> str:
    """Returns why nothing is cut although no operation is refused: the first layer reads nothing that has space."""
    first, values = captured.graph.layers[0], captured.graph.value
    shapes = ", ".join(f"'{name}' of shape {list(values[name].shape)}" for name in first.inputs)
    reads = (
        f"layer '{first.name}' ({', '.join(first.operations[:1])}) reads {shapes or 'nothing of the batch'}"
    )
    return f"{reads}, and only what lies behind samples and channels is cut"


class _Walk:
    """One walk through the model's layers in order; it follows which Values are cut, and how."""

    def __init__(
        self, captured: Captured, whole: Mapping[str, TensorShape], way: Way, grid: tuple[int, ...]
    ) -> None:
        self.captured, self.whole, self.way, self.grid = captured, whole, way, grid
        self.cut: dict[str, tuple[TensorShape, Layout]] = {}  # Values that lie in shards
        self.known: dict[object, Made | None] = {}
        self.found: dict[str, Situation] = {}
        self.refused = ""  # why the first layer without a rule has none

    def run(self) -> list[Situation]:
        for layer in self.captured.graph.layers:
            situation = self._situation(layer)
            made = self._made(situation)
            if made is None:
                continue
            outputs = tuple(shape for shape, _ in made)
            self.cut |= {
                name: (shape, layout)
                for name, (shape, layout) in zip(layer.outputs, made, strict=True)
                if not layout.whole
            }
            self.found.setdefault(
                layer.signature,
                Situation(
                    layer=layer,
                    inputs=situation.inputs,
                    outputs=outputs,
                    grid=self.grid,
                    delivered=situation.delivered,
                ),
            )
        return list(self.found.values())

    def _situation(self, layer: Layer) -> Situation:
        delivered = {name: self.cut[name][1] for name in layer.inputs if name in self.cut}
        inputs = tuple(self.cut[x][0] if x in self.cut else self.whole[x] for x in layer.inputs)
        return Situation(layer=layer, inputs=inputs, grid=self.grid, delivered=delivered)

    def _made(self, situation: Situation) -> Made | None:
        layouts = tuple(situation.delivered.get(name) for name in situation.layer.inputs)
        key = (situation.layer.signature, situation.inputs, layouts)
        if key not in self.known:
            self.known[key] = self._run(situation)
        return self.known[key]

    def _run(self, situation: Situation) -> Made | None:
        """Returns the shards of the outputs and how they are cut, or None where the layer has no rule or nothing is
        cut.
        """
        assert self.way.spatial is not None
        layer = situation.layer
        try:
            module = layer_module(self.captured, layer.name)
            layouts = self.way.spatial.layouts(module, self.grid, situation.delivered)
        except NoRule as refused:
            self.refused = self.refused or f"{refused.where}: {refused.what}"
            return None
        if not situation.delivered and all(layout.whole for layout in layouts.values()):
            return None
        shapes = outputs_of(self.captured, situation, self.way)
        return tuple((shape, layouts[name]) for name, shape in zip(layer.outputs, shapes, strict=True))
