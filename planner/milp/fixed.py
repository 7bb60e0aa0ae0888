"""What a user has fixed of a plan, as keys and values that mean something or are refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from planner.errors import BadInput
from planner.schedule.families import FAMILIES

Update = Literal["rolling", "barrier"]
SAMPLES: Final = "samples"  # in the place of a grid: from the layer on ranks share whole samples
NEVER: Final = "none"  # in the place of the layer before which shards are gathered

PINS = (
    "data",
    "pipeline",
    "spatial",
    "gather",
    "regrid",
    "micro",
    "schedule",
    "pairs",
    "chunks",
    "recompute",
    "shard",
    "update",
    "cuts",
    "stages",
    "devices",
    "out_of_order",
)


@dataclass(frozen=True, kw_only=True)
class Pins:
    """What the user has fixed; None is free."""

    data: int | None = None
    pipeline: int | None = None
    spatial: int | None = None  # ranks that share a sample
    grid: tuple[int, ...] | None = None
    gather: str | None = (
        None  # the layer before which shards are gathered; "" is where their rules end, NEVER nowhere
    )
    regrid: str | None = (
        None  # LAYER:GRID, from which layer on samples lie on which other grid, or LAYER:samples; "" is nowhere
    )
    micro: int | None = None
    schedules: tuple[str, ...] = ()
    pairs: int | None = None
    chunks: int | None = None
    recompute: bool | None = None
    shard: bool | None = None
    update: Update = "barrier"
    stages: tuple[tuple[str, ...], ...] | None = None  # layers of each stage
    devices: int | None = None  # at most
    cuts: tuple[str, ...] | None = None  # layers that open a stage, until the model is known
    out_of_order: bool | None = None  # parts of replicas whose sums overlap; searched unless it is False


def pins(fix: Mapping[str, object], schedules: Sequence[str] | None) -> Pins:
    """BadInput names the key or value that means nothing."""
    for key in fix:
        if key not in PINS:
            raise BadInput(f"nothing to fix is called '{key}'", where="fix", allowed=", ".join(PINS))
    chosen = (str(fix["schedule"]),) if "schedule" in fix else tuple(schedules or ())
    for name in chosen:
        if name not in FAMILIES:
            raise BadInput(f"no family '{name}'", where="schedule", allowed=", ".join(FAMILIES))
    return Pins(
        data=_whole(fix, "data"),
        pipeline=_whole(fix, "pipeline"),
        spatial=None if (grid := _grid(fix)) is None else prod(grid),
        grid=grid if grid is not None and len(grid) > 1 else None,
        gather=None if (gather := fix.get("gather")) is None else "" if gather == "end" else str(gather),
        regrid=_regrid(fix),
        micro=_whole(fix, "micro"),
        schedules=chosen,
        pairs=_whole(fix, "pairs"),
        chunks=_whole(fix, "chunks"),
        recompute=_flag(fix, "recompute"),
        shard=_flag(fix, "shard"),
        update=_update(fix),
        stages=_stages(fix),
        devices=_whole(fix, "devices"),
        cuts=_cuts(fix),
        out_of_order=_flag(fix, "out_of_order"),
    )


def _whole(fix: Mapping[str, object], key: str) -> int | None:
    value = fix.get(key)
    if value is None:
        return None
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or int(text) < 1:
        raise BadInput(f"{key} is {value!r}", where="fix", allowed="a whole number, 1 or more")
    return int(text)


def _grid(fix: Mapping[str, object]) -> tuple[int, ...] | None:
    """One number is a degree, whatever its grid."""
    value = fix.get("spatial")
    if value is None:
        return None
    text = "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    parts = text.split("x")
    if isinstance(value, bool) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise BadInput(
            f"spatial is {value!r}", where="fix", allowed="a degree such as 2, or a grid such as 2x2"
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


def _flag(fix: Mapping[str, object], key: str) -> bool | None:
    value = fix.get(key)
    if value is None:
        return None
    known = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    if (text := str(value).lower()) not in known:
        raise BadInput(f"{key} is {value!r}", where="fix", allowed="true or false")
    return known[text]


def _update(fix: Mapping[str, object]) -> Update:
    value = fix.get("update", "barrier")
    if value == "rolling":
        return "rolling"
    if value == "barrier":
        return "barrier"
    raise BadInput(f"update is {value!r}", where="fix", allowed="rolling or barrier")


def _stages(fix: Mapping[str, object]) -> tuple[tuple[str, ...], ...] | None:
    value = fix.get("stages")
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(stage, list | tuple) for stage in value):
        raise BadInput("stages", where="fix", allowed="a list of lists of layer names")
    return tuple(tuple(str(name) for name in stage) for stage in value)


def _cuts(fix: Mapping[str, object]) -> tuple[str, ...] | None:
    """Names or numbers of layers, one after the other; none at all is one stage."""
    value = fix.get("cuts")
    if value is None:
        return None
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple):
        raise BadInput(f"cuts is {value!r}", where="fix", allowed="layers that open a stage, such as h.4,h.8")
    return tuple(str(word).strip() for word in words if str(word).strip())
