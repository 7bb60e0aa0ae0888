"""Evaluates a dataset under a plan: every sample counts once, and all ranks come to the same numbers.

A `Watch` says which evaluation is the best so far, and when there was none better for too long.

A micro-batch gives its loss and a sum and a count for each metric. Sums over micro-batches do not depend on their order,
so that the plan does not matter to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from planner.errors import BadInput, BadPlan
from planner.plan import Plan
from runtime.data import Batches, Pass
from runtime.execute import Pulse
from runtime.rank import Rank
from runtime.runfolder import Evaluated
from runtime.world import World

LOW, HIGH = "min", "max"
Rows = Mapping[int, Mapping[str, float]]  # micro-batch over all replicas -> loss and what comes after it


def told_by_all(world: World, rows: Rows, *, tells: bool, width: int, micros: int) -> list[list[float]]:
    """Returns the numbers of every micro-batch on every rank, the same to the bit.

    Each micro-batch is told by one rank, and is zero on the others, so that a sum over ranks is exact.
    Args: `tells` is whether this rank's `rows` count; each has `width` numbers, of `micros` micro-batches.
    """
    table = torch.zeros(micros, width, dtype=torch.float64)
    for micro, row in rows.items() if tells else ():
        if micro < micros:
            table[micro] = torch.tensor([row[name] for name in sorted(row, key=_place)], dtype=torch.float64)
    if world.group is not None:
        dist.all_reduce(table, group=world.group)
    found: list[list[float]] = table.tolist()
    return found


def _place(name: str) -> int:
    return int(name.rpartition(":")[2])


def evaluate(rank: Rank, batches: Batches, *, step: int, pulse: Pulse) -> Evaluated:
    """Evaluates a dataset. All ranks call this at the same time, and get the same numbers.

    Args: `batches` were opened for the dataset that is evaluated; `pulse` is beaten between passes.
    Raises: BadInput where its last short batch cannot be evaluated, or where the model cannot be.
    """
    counted = rank.graph.loss_kind == "sum_count"
    rows: list[tuple[int, list[float]]] = []
    names: tuple[str, ...] = ()
    for each, batch in batches.once():
        names = _metrics(rank, each)
        found, width = rank.evaluate(batch, each.micro), 1 + counted + 2 * len(names)
        told = told_by_all(rank.world, found, tells=rank.tells, width=width, micros=each.counted)
        rows += [(each.micro, row) for row in told]
        pulse.beat(False)
    losses = [(row[0], row[1]) if counted else (micro * row[0], micro) for micro, row in rows]
    values = {"loss": _mean(losses)}
    for i, name in enumerate(names, 1):
        at = counted + 2 * i - 1
        values[name] = _mean([(row[at], row[at + 1]) for _, row in rows])
    return Evaluated(step=step, samples=sum(micro for micro, _ in rows), values=values)


def _metrics(rank: Rank, each: Pass) -> tuple[str, ...]:
    try:
        return rank.evaluation(each.micro).metrics
    except (BadInput, BadPlan) as error:
        if each.micro == rank.plan.batch.micro:
            raise
        raise unserved(rank.plan, each.micro, error) from error


def unserved(plan: Plan, rest: int, why: Exception) -> BadInput:
    """Returns the refusal of a dataset whose last samples make a micro-batch that cannot be evaluated."""
    micro = plan.batch.micro
    return BadInput(
        f"the last {rest} samples of the dataset make no micro-batch of {micro}: {why}",
        where="evaluation",
        allowed=f"a dataset of a multiple of {micro} samples",
    )


def _mean(pairs: Sequence[tuple[float, float]]) -> float:
    count = math.fsum(count for _, count in pairs)
    return math.fsum(total for total, _ in pairs) / count if count else math.nan


@dataclass
class Watch:
    """A watch over one value of evaluations. It is the same on all ranks, and goes on from a checkpoint."""

    name: str
    high: bool = False  # whether more is better
    patience: int = 0  # evaluations without a better one, after which the training stops; 0: never
    best: float = math.nan
    best_step: int | None = None
    stale: int = 0  # evaluations since the best one

    @classmethod
    def of(cls, words: str, patience: int) -> Watch:
        """Returns a watch from words such as `loss` or `accuracy:max`.

        Raises: BadInput for other words.
        """
        name, _, way = words.partition(":")
        if not name or way not in ("", LOW, HIGH):
            raise BadInput(
                f"'{words}' is no value to watch", where="best_by", allowed="NAME, NAME:min or NAME:max"
            )
        return cls(name, way == HIGH, patience)

    def check(self, names: Iterable[str]) -> None:
        """Raises BadInput where the value that is watched is none of an evaluation's.

        Args: `names` are those of its values.
        """
        if self.name not in (known := tuple(names)):
            raise BadInput(f"no value '{self.name}'", where="best_by", allowed=", ".join(known))

    def see(self, step: int, values: Mapping[str, float]) -> bool:
        """Takes note of an evaluation.

        Returns: whether it is the best so far.
        Raises: BadInput where it lacks the value that is watched.
        """
        self.check(values)
        value = values[self.name]
        better = value > self.best if self.high else value < self.best
        if better or (self.best_step is None and not math.isnan(value)):
            self.best, self.best_step, self.stale = value, step, 0
            return True
        self.stale += 1
        return False

    @property
    def ended(self) -> bool:
        """Returns whether the training is to stop early."""
        return 0 < self.patience <= self.stale

    @property
    def why(self) -> str:
        """Returns in words why the training stops early."""
        return f"no better {self.name} than at step {self.best_step} in {self.stale} evaluations"

    def extra(self) -> dict[str, float]:
        """Returns what goes on from step to step, for a checkpoint."""
        found = {"stale": float(self.stale)}
        return (
            found
            if self.best_step is None
            else found | {"best": self.best, "best_step": float(self.best_step)}
        )

    def resume(self, extra: Mapping[str, float]) -> None:
        """Goes on from a checkpoint.

        Args: `extra` is what its watch gave.
        """
        self.stale = int(extra.get("stale", 0))
        if "best_step" in extra:
            self.best, self.best_step = extra["best"], int(extra["best_step"])
