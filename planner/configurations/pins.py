"""Checks what a user has fixed of a plan: keys and values that have a meaning, all others refused by name.

Also writes pins out again, drops one of them, and turns a cut given by the user into stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Final, Literal, TypedDict, TypeVar

from planner.errors import BadInput
from planner.layout import Mesh, Wish
from planner.model import ModelGraph
from planner.plan import ANY_CUT, cut_on
from planner.schedule import FAMILIES
from planner.sums import parse

Update = Literal["rolling", "barrier"]
Weights = Literal["same", "bf16"]
Word = TypeVar("Word", bound=str)
Held = Literal["", "gradients", "parameters"]  # what replicas share by element
SAMPLES: Final = "samples"  # written in place of a grid: from the layer on, ranks share whole samples
NO_GATHER: Final = "none"  # written in place of the layer before which shards are gathered

PINS: Final = (
    *("data", "pipeline", "spatial", "gather", "regrid", "group", "cut", "micro", "schedule", "pairs"),
    *("chunks", "recompute", "shard", "ema", "update", "cuts", "stages", "devices", "out_of_order"),
    *("sums", "weights"),
)


@dataclass(frozen=True, kw_only=True)
class Pins:
    """The decisions that the user has fixed; None is free."""

    data: int | None = None
    pipeline: int | None = None
    spatial: int | None = None  # ranks that share a sample
    grid: tuple[int, ...] | None = None
    gather: str | None = None  # before which shards are gathered; "": where rules end; NO_GATHER: nowhere
    regrid: str | None = (
        None  # from which layer on samples lie on which other grid, or LAYER:samples; "": nowhere
    )
    group: Mesh | None = None  # ranks that have tensors in parts, along each of their axes
    cut: tuple[Wish, ...] | None = None  # which tensors; empty: layouts are looked for
    micro: int | None = None
    schedules: tuple[str, ...] = ()
    pairs: int | None = None
    chunks: int | None = None
    recompute: bool | None = None
    shard: bool | None = None
    held: Held | None = None
    ranks: int | None = None  # replicas that share it
    ema: bool = False  # whether there is room for averages of the parameters
    update: Update = "barrier"
    stages: tuple[tuple[str, ...], ...] | None = None  # layers of each stage
    devices: int | None = None  # at most
    cuts: tuple[str, ...] | None = None  # layers that open a stage, until the model is known
    out_of_order: bool | None = None  # False leaves the family `overlap` out unless it is asked for
    weights: Weights = (
        "same"  # the type that weights are held in, where only products and convolutions read them
    )
    sums: str = ""  # the name of the sums of gradients; what replicas share is summed by parts and has none


def pins(fix: Mapping[str, object], schedules: Sequence[str] | None) -> Pins:
    """Reads what the user has fixed.

    Args: `fix` has keys of `PINS` and values as text or as Python values; `fix["schedule"]` overrides `schedules`.
    Returns: the pins; cuts stay names until `with_stages` sees the model.
    Raises: BadInput names the key or value that has no meaning, and what is allowed.
    Example: `pins({"pipeline": 2, "spatial": "2x2"}, None)`
    """
    for key in fix:
        if key not in PINS:
            raise BadInput(f"nothing to fix is called '{key}'", where="fix", allowed=", ".join(PINS))
    chosen = (str(fix["schedule"]),) if "schedule" in fix else tuple(schedules or ())
    for name in chosen:
        if name not in FAMILIES:
            raise BadInput(f"no family '{name}'", where="schedule", allowed=", ".join(FAMILIES))
    group, cut = cut_on(fix.get("cut"), _grid(fix, "group"))
    return Pins(
        data=_whole(fix, "data"),
        pipeline=_whole(fix, "pipeline"),
        spatial=None if (grid := _grid(fix)) is None else prod(grid),
        grid=grid if grid is not None and len(grid) > 1 else None,
        gather=None if (gather := fix.get("gather")) is None else "" if gather == "end" else str(gather),
        regrid=_regrid(fix),
        group=group,
        cut=cut,
        micro=_whole(fix, "micro"),
        schedules=chosen,
        pairs=_whole(fix, "pairs"),
        chunks=_whole(fix, "chunks"),
        recompute=_flag(fix, "recompute"),
        **_shard(fix),
        ema=bool(_flag(fix, "ema")),
        update=_one_of(fix, "update", ("rolling", "barrier"), "barrier"),
        stages=_stages(fix),
        devices=_whole(fix, "devices"),
        cuts=_cuts(fix),
        out_of_order=_flag(fix, "out_of_order"),
        weights=_one_of(fix, "weights", ("same", "bf16"), "same"),
        sums=str(parse(str(fix["sums"]), where="fix")) if "sums" in fix else "",
    )


def _whole(fix: Mapping[str, object], key: str) -> int | None:
    value = fix.get(key)
    if value is None:
        return None
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or int(text) < 1:
        raise BadInput(f"{key} is {value!r}", where="fix", allowed="a whole number, 1 or more")
    return int(text)


def _grid(fix: Mapping[str, object], key: str = "spatial") -> tuple[int, ...] | None:
    """Returns the grid as given; a single number is a degree and allows any grid of so many shards."""
    value = fix.get(key)
    if value is None:
        return None
    text = "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    parts = text.split("x")
    if isinstance(value, bool) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise BadInput(
            f"{key} is {value!r}", where="fix", allowed="a degree such as 2, or a grid such as 2x2"
        )
    return tuple(map(int, parts))


def _regrid(fix: Mapping[str, object]) -> str | None:
    value = fix.get("regrid")
    if value is None or value == "none":
        return None if value is None else ""
    for turn in str(value).split(","):
        layer, _, grid = turn.rpartition(":")
        right = grid == SAMPLES or all(part.isdecimal() and int(part) > 0 for part in grid.split("x"))
        if not layer or not right:
            raise BadInput(
                f"regrid is {value!r}",
                where="fix",
                allowed=f"none, or a layer and a grid such as conv3:2x2, or fc:{SAMPLES}",
            )
    return str(value)


_FLAGS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
_WHOLE_SHARDS = {**_FLAGS, "none": False, "state": True}  # what replicas share of whole parameters


def _flag(fix: Mapping[str, object], key: str) -> bool | None:
    value = fix.get(key)
    if value is None:
        return None
    if (text := str(value).lower()) not in _FLAGS:
        raise BadInput(f"{key} is {value!r}", where="fix", allowed="true or false")
    return _FLAGS[text]


class _Shard(TypedDict, total=False):
    shard: bool | None
    held: Held
    ranks: int | None


def _shard(fix: Mapping[str, object]) -> _Shard:
    """Returns what replicas share: by whole parameters as a flag, by element with the number of ranks."""
    if fix.get("shard") is None:
        return {"shard": False, "held": ""} if "sums" in fix else {}
    if "sums" in fix and _WHOLE_SHARDS.get(str(fix["shard"]).lower(), True):
        allowed = "sums with shard=none: shared parts have one way to be summed"
        raise BadInput("both sums and shard are fixed", where="fix", allowed=allowed)
    what, _, ranks = str(fix["shard"]).lower().partition(":")
    if what in _WHOLE_SHARDS and not ranks:
        return {"shard": _WHOLE_SHARDS[what], "held": ""}
    if what not in ("gradients", "parameters") or (ranks and (not ranks.isdecimal() or int(ranks) < 2)):
        allowed = "none, state, gradients or parameters, the last two perhaps with ranks such as parameters:8"
        raise BadInput(f"shard is {fix['shard']!r}", where="fix", allowed=allowed)
    held: Held = "gradients" if what == "gradients" else "parameters"
    return {"shard": False, "held": held, "ranks": int(ranks) if ranks else None}


def _one_of(fix: Mapping[str, object], key: str, allowed: Sequence[Word], usual: Word) -> Word:
    value = fix.get(key, usual)
    for word in allowed:
        if value == word:
            return word
    raise BadInput(f"{key} is {value!r}", where="fix", allowed=" or ".join(allowed))


def _stages(fix: Mapping[str, object]) -> tuple[tuple[str, ...], ...] | None:
    value = fix.get("stages")
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(stage, list | tuple) for stage in value):
        raise BadInput("stages", where="fix", allowed="a list of lists of layer names")
    return tuple(tuple(str(name) for name in stage) for stage in value)


def _cuts(fix: Mapping[str, object]) -> tuple[str, ...] | None:
    """Returns the names or numbers of the layers that open a stage; an empty value is one stage."""
    value = fix.get("cuts")
    if value is None:
        return None
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple):
        raise BadInput(f"cuts is {value!r}", where="fix", allowed="layers that open a stage, such as h.4,h.8")
    return tuple(str(word).strip() for word in words if str(word).strip())


_FIELDS = {
    "schedule": ("schedules",),
    "spatial": ("spatial", "grid", "gather", "regrid"),
    "shard": ("shard", "held", "ranks"),
    "sums": ("sums", "shard", "held", "ranks"),
}  # where a key is not the field itself


def with_stages(pinned: Pins, graph: ModelGraph) -> Pins:
    """Returns the pins with the user's cut as the layers of each stage.

    Args: `pinned.cuts` names or numbers layers of `graph`; pins without a cut stay as they are.
    Raises: BadInput where a layer is unknown, the cut leaves a stage empty, or stages are pinned as well.
    """
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
    """Returns every pin as text, by key.

    Args: free decisions of `pinned` and `update` are left out.
    """
    families = ",".join(pinned.schedules)
    grid = "x".join(map(str, pinned.grid)) if pinned.grid else pinned.spatial
    stages = None if pinned.stages is None else f"{len(pinned.stages)} given"
    found = {
        "micro": pinned.micro,
        "recompute": pinned.recompute,
        "shard": (f"{pinned.held}:{pinned.ranks}" if pinned.ranks else pinned.held)
        if pinned.held
        else None
        if pinned.sums
        else pinned.shard,
        "sums": pinned.sums or None,
        "schedule": families or None,
        "pairs": pinned.pairs,
        "chunks": pinned.chunks,
        "gather": pinned.gather,
        "regrid": pinned.regrid,
        "spatial": grid,
        "group": None if pinned.group is None else "x".join(map(str, pinned.group)),
        "cut": pinned.cut and ",".join(f"{x.pattern}:{x.factor}" for x in pinned.cut),
        "pipeline": pinned.pipeline,
        "data": pinned.data,
        "stages": stages,
        "devices": pinned.devices,
        "out_of_order": pinned.out_of_order,
    }
    found |= {"cut": ANY_CUT} if pinned.cut == () else {}
    return {key: str(value).lower() for key, value in found.items() if value is not None}


def freed(pinned: Pins, key: str) -> Pins:
    """Returns the pins without one, by its key in `told`; `spatial` takes grid, gather and changes of the grid along."""
    return replace(pinned, **{name: getattr(Pins(), name) for name in _FIELDS.get(key, (key,))})
