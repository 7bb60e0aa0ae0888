"""Every family of schedules by name: what each allows, and the one entry that makes a schedule of any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner.errors import BadInput
from planner.schedule.action import Schedule
from planner.schedule.assemble import Request, Setting
from planner.schedule.chimera import chimera
from planner.schedule.gpipe import gpipe
from planner.schedule.one_f_one_b import one_f_one_b


@dataclass(frozen=True, kw_only=True)
class Family:
    make: Callable[[Request], Schedule]
    about: str
    splits: bool = False  # I and W instead of B
    paired: bool = False  # takes `pairs`; every stage has 2 * pairs holders
    chunks: tuple[int, ...] | int = (
        1,
    )  # stages a worker and pipe: those allowed, or the least; the first is the default
    settings: Mapping[str, str] = field(default_factory=dict)  # name: meaning

    @property
    def default_chunks(self) -> int:
        return self.chunks if isinstance(self.chunks, int) else self.chunks[0]


FAMILIES: Mapping[str, Family] = {
    "gpipe": Family(make=gpipe, about="all forwards, then all backwards"),
    "1f1b": Family(
        make=one_f_one_b,
        about="a backward and a forward in turn after a warm-up",
        settings={"warmup": "forwards of the first worker before its first backward; workers by default"},
    ),
    "chimera": Family(
        make=chimera,
        about="pairs of pipelines in opposite directions over the same workers",
        paired=True,
        settings={
            "concat": "direct, doubling or halving: how more micro-batches than workers follow each other"
        },
    ),
}


def generate(
    family: str,
    *,
    workers: int,
    micros: int,
    pairs: int = 1,
    chunks: int | None = None,
    **settings: Setting,
) -> Schedule:
    """The schedule of a family: `chunks` stages a worker (the family's own number by default), `pairs` for Chimera."""
    spec = FAMILIES.get(family)
    if spec is None:
        raise BadInput(f"no family '{family}'", allowed=", ".join(FAMILIES))
    _at_least_one(family, workers=workers, micros=micros, pairs=pairs)
    if pairs > 1 and not spec.paired:
        raise BadInput(f"{pairs} pairs", where=family, allowed="1; only Chimera has pairs of pipelines")
    request = Request(
        family=family,
        workers=workers,
        micros=micros,
        pairs=pairs,
        chunks=_chunks(family, spec, chunks),
        settings=settings,
    )
    for name in settings:
        if name not in spec.settings:
            allowed = ", ".join(spec.settings) or "no settings"
            raise BadInput(f"no setting '{name}'", where=family, allowed=allowed)
    return spec.make(request)


def _at_least_one(family: str, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise BadInput(f"{name} is {count}", where=family, allowed="1 or more")


def _chunks(family: str, spec: Family, chunks: int | None) -> int:
    if chunks is None:
        return spec.default_chunks
    if isinstance(spec.chunks, int):
        if chunks < spec.chunks:
            raise BadInput(f"{chunks} stages a worker", where=family, allowed=f"{spec.chunks} or more")
    elif chunks not in spec.chunks:
        raise BadInput(f"{chunks} stages a worker", where=family, allowed=" or ".join(map(str, spec.chunks)))
    return chunks
