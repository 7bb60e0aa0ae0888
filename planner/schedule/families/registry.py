"""The table of all families of schedules, and `generate`, which makes a schedule of any of them.

The list scheduler is a family too: any placement of one pipeline, any cap and policy, from nominal costs. With
split backwards and stages dealt round this is out-of-order backprop for pipelines:
- `BFW` is the fast-forwarding of gradients;
- `chunks` is the modulo allocation, whose grain is how many layers a stage gets;
- `pending` and `grain` say how long, and in what lots, weight gradients wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from planner.errors import BadInput
from planner.schedule.actions import Schedule
from planner.schedule.build import FamilyRequest, Setting, assemble, dealt, zigzag
from planner.schedule.families.chimera import chimera, chimera_zb
from planner.schedule.families.out_of_order import OPTIONS, Overlap, overlap_of, overlapped
from planner.schedule.families.straight import gpipe, interleaved, interleaved_zb, one_f_one_b, zb_h1, zb_h2
from planner.schedule.families.v_shaped import dualpipe_v, v_half, v_min, wave, zb_v
from planner.schedule.listing.scheduler import best_listed
from planner.schedule.listing.task import TIES, Limits, ListingJob, Policy, nominal


def listed_family(request: FamilyRequest) -> Schedule:
    """Generates the shortest of several listed orders, one for each tie rule of the request.

    Raises: BadInput for an unknown placement, or caps that not even one micro-batch fits.
    """
    place = _place(request)
    cap = request.whole("cap", request.workers * request.chunks)
    job = ListingJob(
        place=place,
        pipe_of=[0] * request.micros,
        costs=nominal(len(place[0]), request.whole("hop", 0)),
        split=request.flag("split", True),
        limits=Limits(memory=(cap,) * request.workers),
    )
    asked = request.settings.get("tie")
    ties = TIES if asked is None else (str(asked),)
    jobs = [replace(job, policy=_policy(request, tie)) for tie in ties]
    return assemble(request, place, job.pipe_of, best_listed(jobs).orders)


def _place(request: FamilyRequest) -> tuple[tuple[int, ...], ...]:
    shape = request.settings.get("placement", "dealt")
    if shape not in ("dealt", "zigzag"):
        raise BadInput(f"placement is {shape!r}", where=request.family, allowed="dealt, zigzag")
    return (dealt if shape == "dealt" else zigzag)(request.workers, request.chunks)


def _policy(request: FamilyRequest, tie: str) -> Policy:
    return Policy(
        order=str(request.settings.get("order", "BFW")),
        tie=tie,
        pending=request.whole("pending", 0) if "pending" in request.settings else None,
        grain=request.whole("grain", 1),
        patience=request.whole("patience", 0),
    )


WARMUP = {"warmup": "forwards of the first worker before its first backward"}
CAP = {"cap": "micro-batches of one stage that a worker holds at most"}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of schedules: the function that makes one, and what it allows."""

    make: Callable[[FamilyRequest], Schedule]
    about: str
    splits: bool = False  # I and W instead of B
    mixes: bool = False  # some backward passes may be I and W, others B
    in_parts: bool = False  # stages of a worker follow each other
    paired: bool = False  # takes `pairs`; every stage has 2 * pairs holders
    chunks: tuple[int, ...] | int = (
        1,
    )  # stages a worker and pipe: those allowed, or the least; the first is the default
    settings: Mapping[str, str] = field(default_factory=dict)  # name: meaning

    @property
    def default_chunks(self) -> int:
        """Returns the number of stages a worker and pipe unless asked otherwise."""
        return self.chunks if isinstance(self.chunks, int) else self.chunks[0]


def _overlap(request: FamilyRequest) -> Schedule:
    whole = one_f_one_b(replace(request, chunks=1))
    made = overlapped(whole, Overlap(parts=request.chunks))
    return replace(made, settings={**whole.settings, "chunks": request.chunks})


FAMILIES: Mapping[str, Family] = {
    "1f1b": Family(
        make=one_f_one_b, about="a backward and a forward in turn after a warm-up", settings=WARMUP
    ),
    "gpipe": Family(make=gpipe, about="all forwards, then all backwards"),
    "overlap": Family(
        make=_overlap,
        about="1F1B in parts: gradients are summed while the backward goes on; for data-parallel replicas",
        mixes=True,
        in_parts=True,
        chunks=(2, 4, 8, 16, 32),
        settings=WARMUP,
    ),
    "interleaved": Family(make=interleaved, about="1F1B with several stages a worker, dealt round", chunks=2),
    "interleaved-zb": Family(
        make=interleaved_zb,
        about="interleaved with weight gradients in its bubbles",
        splits=True,
        chunks=2,
        settings=CAP,
    ),
    "zb-h1": Family(
        make=zb_h1,
        about="1F1B with weight gradients in its bubbles, same memory",
        splits=True,
        settings=WARMUP,
    ),
    "zb-h2": Family(
        make=zb_h2,
        about="no bubble between fill and drain, twice 1F1B's memory",
        splits=True,
        settings=WARMUP,
    ),
    "zb-v": Family(
        make=zb_v, about="two stages a worker in a V, 1F1B's memory", splits=True, chunks=(2,), settings=CAP
    ),
    "v-half": Family(
        make=v_half, about="a V in about half of 1F1B's memory", splits=True, chunks=(2,), settings=CAP
    ),
    "v-min": Family(
        make=v_min, about="a V in about a third of 1F1B's memory", splits=True, chunks=(2,), settings=CAP
    ),
    "dualpipe-v": Family(
        make=dualpipe_v,
        about="a V that pairs forwards and backwards of its two stages",
        splits=True,
        mixes=True,
        chunks=(2,),
        settings={"cap": CAP["cap"] + ", where there are fewer than 2D micro-batches"},
    ),
    "wave": Family(make=wave, about="one pipeline that zig-zags over the workers", chunks=2),
    "chimera": Family(
        make=chimera,
        about="pairs of pipelines in opposite directions over the same workers",
        paired=True,
        settings={
            "concat": "direct, doubling or halving: how more micro-batches than workers follow each other"
        },
    ),
    "chimera-zb": Family(
        make=chimera_zb,
        about="Chimera with weight gradients in its bubbles",
        splits=True,
        paired=True,
        chunks=1,
        settings=CAP,
    ),
    "listed": Family(
        make=listed_family,
        about="list-scheduled: any cap, policy and placement; out-of-order backprop",
        splits=True,
        chunks=1,
        settings=CAP
        | {
            "placement": "dealt (modulo allocation) or zigzag",
            "split": "whether weight gradients are actions of their own",
            "order": "of F, B and W, the most urgent first",
            "tie": "first, deep, shallow or micro; the best of all by default",
            "pending": "weight gradients a stage may owe; any number by default",
            "grain": "weight gradients in a row once too many are owed",
            "patience": "percent of an action's time to wait for a more urgent one",
            "hop": "time of a message, in the time of one forward",
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
    """Generates the schedule of a family.

    Args: `chunks` is stages a worker and pipe, the family's own number by default; `pairs` is for Chimera.
        Settings are the family's own, and those of `families/out_of_order.py` for any.
    Raises: BadInput for an unknown family or setting, or numbers that the family does not allow.
    Example: generate("interleaved", workers=4, micros=8, chunks=2)
    """
    spec = FAMILIES.get(family)
    if spec is None:
        raise BadInput(f"no family '{family}'", allowed=", ".join(FAMILIES))
    _at_least_one(family, workers=workers, micros=micros, pairs=pairs, chunks=1 if chunks is None else chunks)
    if pairs > 1 and not spec.paired:
        raise BadInput(f"{pairs} pairs", where=family, allowed="1; only Chimera has pairs of pipelines")
    for name in settings:
        if name not in spec.settings and name not in OPTIONS:
            raise BadInput(
                f"no setting '{name}'", where=family, allowed=", ".join([*spec.settings, *OPTIONS])
            )
    overlap = overlap_of(settings, family)
    request = FamilyRequest(
        family=family,
        workers=workers,
        micros=micros,
        pairs=pairs,
        chunks=_chunks(family, spec, chunks),
        settings={name: value for name, value in settings.items() if name not in OPTIONS},
    )
    return overlapped(spec.make(request), overlap)


def _at_least_one(family: str, **counts: int) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise BadInput(f"{name} is {count!r}", where=family, allowed="a whole number, 1 or more")


def _chunks(family: str, spec: Family, chunks: int | None) -> int:
    if chunks is None:
        return spec.default_chunks
    if isinstance(spec.chunks, int):
        if chunks < spec.chunks:
            raise BadInput(f"{chunks} stages a worker", where=family, allowed=f"{spec.chunks} or more")
    elif chunks not in spec.chunks:
        raise BadInput(f"{chunks} stages a worker", where=family, allowed=" or ".join(map(str, spec.chunks)))
    return chunks
