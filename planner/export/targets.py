"""One trainer that plans are exported to and configurations read from, as a value, and what all of them refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from planner.export.settings import DATA_OUTSIDE, Order, Settings, Share


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """What one trainer can state, how it writes that, and how its files are read."""

    name: str
    about: str  # the form of what is written
    write: Callable[[Settings, str], str]  # settings and a line about the plan, as text
    read: Callable[[str, str], Settings]  # text and its name
    families: Mapping[str, str] = field(
        default_factory=dict
    )  # ours: theirs; empty where there are no pipelines
    shares: tuple[Share, ...] = ("",)
    orders: tuple[Order, ...] = (DATA_OUTSIDE,)  # of the axes, that it can number ranks in
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    compiles: bool = True
    refuses: Callable[[Settings], Iterator[str]] = lambda settings: iter(())  # what else it cannot state

    def unsayable(self, settings: Settings) -> Iterator[str]:
        """Yields what this trainer has no word for, with what it has."""
        if settings.pipeline > 1 and not self.families:
            yield f"pipeline {settings.pipeline} (it has data-parallel replicas alone)"
        elif settings.family not in (self.families or {"1f1b": ""}):
            has = ", ".join(self.families) or "forwards and backwards in turn"
            yield f"schedule {settings.family} (it has {has})"
        elif settings.family.startswith("interleaved") and (settings.accumulation or 0) % settings.pipeline:
            yield f"{settings.accumulation} micro-batches interleaved over {settings.pipeline} workers (it has multiples)"
        if settings.share not in self.shares:
            has = ", ".join(share or "nothing" for share in self.shares)
            yield f"shard: {settings.share or 'nothing shared'} (it has {has})"
        if settings.precision not in self.precisions:
            yield f"precision {settings.precision} (it has {', '.join(self.precisions)})"
        if settings.execution == "compiled" and not self.compiles:
            yield "execution: compiled"
        yield from self.refuses(settings)
