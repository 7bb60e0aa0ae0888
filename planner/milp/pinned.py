"""What the user has fixed, one decision at a time: told, let go, and a cut of their own as stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from planner.errors import BadInput
from planner.milp.fixed import NEVER, Pins
from planner.model import ModelGraph

_FIELDS = {
    "schedule": ("schedules",),
    "spatial": ("spatial", "grid", "gather", "regrid"),
}  # where a key is not the field itself


def with_stages(pinned: Pins, graph: ModelGraph) -> Pins:
    """Cuts by name or number, as the layers of each stage."""
    if pinned.cuts is None:
        return pinned
    if pinned.stages is not None:
        raise BadInput("both cuts and stages are fixed", where="fix", allowed="one of them")
    names = [layer.name for layer in graph.layers]
    at = [0, *(_boundary(word, names) for word in pinned.cuts), len(names)]
    if at != sorted(set(at)):
        raise BadInput(
            f"cuts '{','.join(pinned.cuts)}' leave a stage empty or go back",
            where="fix",
            allowed=f"layers 1 to {len(names) - 1}, in the order of the model",
        )
    stages = tuple(tuple(names[i:j]) for i, j in pairwise(at))
    return replace(pinned, cuts=None, stages=stages)


def check_space(pinned: Pins, graph: ModelGraph) -> Pins:
    """BadInput where a gather or a change of the grid names no layer, or one where nothing is cut."""
    turns = [turn.rpartition(":")[0] for turn in (pinned.regrid or "").split(",") if turn]
    named = [("regrid", layer) for layer in turns]
    named += [("gather", pinned.gather)] if pinned.gather not in (None, "", NEVER) else []
    for key, layer in named:
        if layer not in graph.index:
            layers = ", ".join(x.name for x in graph.layers)
            raise BadInput(f"{key}: no layer is called '{layer}'", where="fix", allowed=f"{layers:.400}")
        if graph.index[layer] == 0:
            raise BadInput(f"{key} at '{layer}', the first layer", where="fix", allowed="a layer behind it")
        if pinned.spatial == 1:
            what = f"{key} at '{layer}' needs samples that are cut in space, and spatial is 1"
            raise BadInput(what, where="fix", allowed="a degree such as spatial=2, or none fixed")
    return pinned


def _boundary(word: str, names: Sequence[str]) -> int:
    if word in names:
        return names.index(word)
    if word.isdecimal():
        return int(word)
    raise BadInput(
        f"no layer is called '{word}'",
        where="fix",
        allowed="names or numbers of the layers that open a stage",
    )


def told(pinned: Pins) -> dict[str, str]:
    """Every decision that is fixed, as it would be written, and None for each that is free."""
    families = ",".join(pinned.schedules)
    grid = "x".join(map(str, pinned.grid)) if pinned.grid else pinned.spatial
    stages = None if pinned.stages is None else f"{len(pinned.stages)} given"
    found = {
        "micro": pinned.micro,
        "recompute": pinned.recompute,
        "shard": pinned.shard,
        "schedule": families or None,
        "pairs": pinned.pairs,
        "chunks": pinned.chunks,
        "gather": pinned.gather,
        "regrid": pinned.regrid,
        "spatial": grid,
        "pipeline": pinned.pipeline,
        "data": pinned.data,
        "stages": stages,
        "devices": pinned.devices,
        "out_of_order": pinned.out_of_order,
    }
    return {key: str(value).lower() for key, value in found.items() if value is not None}


def freed(pinned: Pins, key: str) -> Pins:
    """The same pins without one of those `told`."""
    return replace(pinned, **{name: getattr(Pins(), name) for name in _FIELDS.get(key, (key,))})


def each_freed(pinned: Pins) -> Iterator[tuple[str, Pins]]:
    """Each pin that may be in the way, and the pins without it."""
    for key in told(pinned):
        yield key, freed(pinned, key)
