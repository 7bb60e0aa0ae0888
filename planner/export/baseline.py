"""Somebody's present settings, completed by what is asked: the pins that price them, and how they compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.errors import BadInput
from planner.export.cuts import even_stages, stages_of_blocks, stages_of_modules
from planner.export.settings import DATA_OUTSIDE, Order, Settings
from planner.units import format_bytes, format_duration


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Settings that leave nothing open, as pins of a question."""

    where: str
    settings: Settings
    fix: dict[str, object]
    order: Order
    batch: int

    @property
    def devices(self) -> int:
        """Returns how many devices the settings use."""
        return (self.settings.data or 1) * self.settings.pipeline

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns what the price does not know of the settings, one sentence each."""
        return self.settings.notes


def completed(settings: Settings, *, batch: int, devices: int, layers: Sequence[str], where: str) -> Baseline:
    """Returns settings with everything that they leave open.

    Args: `batch` is asked for and `devices` are there; `layers` are those of the model, the loss last; `where` names
      the file.
    Raises: BadInput where the numbers do not fit together, the batch, the devices or the model.
    """
    data = _data(settings, devices)
    if data * settings.pipeline > devices:
        said = f"needs {data * settings.pipeline} devices"
        raise BadInput(said, where=where, allowed=f"at most the {devices} of the cluster")
    micro = settings.micro or max(1, (settings.batch or batch) // (data * (settings.accumulation or 1)))
    own = settings.batch or micro * data * (settings.accumulation or 1)
    if own != batch:
        raise BadInput(
            f"trains {own} samples a step, {batch} are asked for", where=where, allowed=f"--batch {own}"
        )
    if batch % (micro * data):
        said = f"{data} replicas with micro-batches of {micro} do not make {batch} samples"
        raise BadInput(said, where=where, allowed="a multiple of both")
    if settings.accumulation not in (None, batch // (micro * data)):
        said = (
            f"{settings.accumulation} micro-batches of {micro} on {data} replicas do not make {batch} samples"
        )
        raise BadInput(said, where=where, allowed="batch = micro-batch x replicas x accumulation")
    accumulation, notes = batch // (micro * data), settings.notes
    if settings.flush is not None and settings.flush < accumulation:
        notes = (*notes, f"the pipeline drains every {settings.flush} micro-batches: priced as once a step")
    whole = replace(settings, batch=batch, micro=micro, data=data, accumulation=accumulation, notes=notes)
    return Baseline(
        where=where,
        settings=whole,
        fix={
            "data": data,
            "pipeline": settings.pipeline,
            "spatial": 1,
            "micro": micro,
            "schedule": settings.family,
            "chunks": settings.chunks,
            "recompute": settings.recompute,
            "shard": _shard(settings, data),
            "stages": _stages(settings, layers, where),
        },
        order=settings.order or DATA_OUTSIDE,
        batch=batch,
    )


def _data(settings: Settings, devices: int) -> int:
    if settings.data is not None:
        return settings.data
    if settings.devices is not None:
        return max(1, settings.devices // settings.pipeline)
    if settings.batch and settings.micro and settings.accumulation:
        return max(1, settings.batch // (settings.micro * settings.accumulation))
    return max(1, devices // settings.pipeline)


def _shard(settings: Settings, data: int) -> str:
    if not settings.share or data == 1:
        return "none"
    ranks = settings.ranks or data // settings.copies
    return settings.share if settings.share == "state" else f"{settings.share}:{ranks}"


def _stages(settings: Settings, layers: Sequence[str], where: str) -> tuple[tuple[str, ...], ...]:
    count = settings.pipeline * settings.chunks
    if settings.stages:
        return stages_of_modules(settings.stages, layers, where)
    if settings.blocks and count > 1:
        return stages_of_blocks(settings.blocks, layers, where)
    try:
        return even_stages(layers, count)
    except BadInput as error:
        raise BadInput(str(error), where=where) from None


def comparison(
    *, present_ns: int | None, missing_bytes: int | None, planned_ns: int, devices: tuple[int, int]
) -> str:
    """Writes how a plan compares with present settings.

    Args: `present_ns` is None where these do not fit, and `missing_bytes` says by how much; `devices` are theirs and
      the plan's.
    """
    plan = f"this plan: {format_duration(planned_ns)}"
    if present_ns is None:
        lack = f", {format_bytes(missing_bytes)} too many on a device" if missing_bytes else ""
        return f"Your present settings do not fit in memory{lack}; {plan} a step."
    less = 1 - planned_ns / max(1, present_ns)
    share = f"{100 * abs(less):.3g} % {'less' if less > 0 else 'more'}"
    how = share if abs(less) >= 5e-4 else "the same"
    used = f" on {devices[1]} devices in the place of {devices[0]}" if devices[0] != devices[1] else ""
    return f"Your present settings: {format_duration(present_ns)} a step; {plan}, {how}{used}."
