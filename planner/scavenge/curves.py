"""A job that can train on several numbers of nodes: the rate of each size, and what a change of size costs.

A curve is read from a folder that `shardwright plan --devices 8,16,32` wrote, or from a table of measured rates.
A size that has no plan has no rate, and a job never gets it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from planner import files
from planner import plan as plans
from planner.arrays import NS_PER_S, FloatArray, IntArray
from planner.errors import BadInput
from planner.plan import Plan
from planner.scavenge.logs import MOST_NODES

UP_S, DOWN_S = 18.0, 12.0  # published: 17.0 to 18.7 s to grow, 11.0 to 12.6 s to shrink
TABLE = "curve.csv"
_HEADS = ["nodes", "samples_per_s"]
Unit = Literal["speed-up", "samples"]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Samples a second for every number of nodes that a job can train on, least first."""

    rates: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.rates or min(self.rates) < 1 or min(self.rates.values()) <= 0:
            raise BadInput("a curve has no size, or a size or rate that is not above 0", where="curve")
        object.__setattr__(self, "rates", dict(sorted(self.rates.items())))

    @cached_property
    def arrays(self) -> tuple[IntArray, FloatArray]:
        """Returns the sizes and their rates, 0 nodes first."""
        return np.array([0, *self.rates]), np.array([0.0, *self.rates.values()])

    def rate(self, nodes: int) -> float:
        """Returns samples a second.

        Args: `nodes` without a plan have the rate 0.
        """
        return self.rates.get(nodes, 0.0)

    def fitting(self, nodes: int) -> int:
        """Returns the largest size that needs at most these nodes.

        Args: `nodes` may be fewer than the least size, and then 0 is returned.
        """
        return max((size for size in self.rates if size <= nodes), default=0)

    def in_units(self, unit: Unit) -> Curve:
        """Returns the curve as the decision weighs it.

        Args: `unit` is "samples" for the rates themselves. With "speed-up" one node of the least size is 1, so that
          jobs whose samples differ can be compared.
        """
        if unit == "samples":
            return self
        least, rate = next(iter(self.rates.items()))
        return Curve(rates={size: found * least / rate for size, found in self.rates.items()})


@dataclass(frozen=True, kw_only=True)
class ElasticJob:
    """One training that takes idle nodes: its curve, its weight, and the seconds without training after a change."""

    name: str
    curve: Curve
    weight: float = 1.0
    up_s: float = UP_S
    down_s: float = DOWN_S
    of_pool: Mapping[str, Curve] | None = None  # a rack or kind of node -> its own curve

    def worth(self, nodes: int, pool: str = "") -> float:
        """Returns what a second on so many nodes is worth.

        Args: `pool` is the rack or kind of node that all of the job's nodes are in.
        """
        curve = self.curve if self.of_pool is None else self.of_pool.get(pool, self.curve)
        return self.weight * curve.rate(nodes)


def fastest_of_sizes(found: Mapping[Path, Plan]) -> dict[int, Path]:
    """Returns the file of the fastest plan for every number of nodes that plans use, least first.

    Args: `found` are plans of one training, by their files.
    Raises: BadInput where they differ in model or global batch: a change of size would change the training.
    """
    first, best = next(iter(found.items())), dict[int, Path]()
    for path, plan in found.items():
        for what, own, other in (
            ("model", plan.model.fingerprint, first[1].model.fingerprint),
            ("global batch", plan.batch.samples, first[1].batch.samples),
        ):
            if own != other:
                said = f"has the {what} {own}, and {first[0].name} has {other}"
                raise BadInput(said, where=str(path), allowed="plans of one training in a folder")
        nodes = len({place.node for place in plan.places})
        if nodes not in best or _rate(plan) > _rate(found[best[nodes]]):
            best[nodes] = path
    return dict(sorted(best.items()))


def curve_of_plans(found: Mapping[Path, Plan]) -> Curve:
    """Returns the rate of every number of nodes that plans use, of the fastest plan where several use as many.

    Args: `found` are plans of one training, by their files.
    Raises: BadInput where they differ in model or global batch.
    """
    return Curve(rates={nodes: _rate(found[path]) for nodes, path in fastest_of_sizes(found).items()})


def jobs_in(folder: Path) -> list[ElasticJob]:
    """Returns the jobs of a folder, in order of their names.

    Args: `folder` has a folder for every job, or is itself that of the only one. A job's folder has the plans that
      `plan --devices` writes, or a table `curve.csv` with the columns nodes and samples_per_s.
    Raises: BadInput where there is no job, or where a file is neither.
    """
    return [ElasticJob(name=path.name, curve=_curve(path)) for path in _folders(folder)]


def repeated(jobs: Sequence[ElasticJob], count: int) -> list[ElasticJob]:
    """Returns so many jobs at a time, one copy after the other where there are fewer.

    Args: `jobs` must hold at least one.
    """
    copies = [(jobs[i % len(jobs)], i // len(jobs)) for i in range(count)]
    return [replace(job, name=f"{job.name}#{copy}") if copy else job for job, copy in copies]


def plans_in(folder: Path) -> dict[str, dict[int, Path]]:
    """Returns the plan of every size of every job of a folder: job -> nodes -> file.

    Args: `folder` is one that `jobs_in` takes.
    Raises: BadInput where a job has a table of rates: without plans nothing can be launched.
    """
    found = dict[str, dict[int, Path]]()
    for inner in _folders(folder):
        files_of = _files(inner)
        if files_of[0].name == TABLE:
            allowed = f"plans of all sizes: shardwright plan --devices 8,16 -o {inner}"
            raise BadInput("has rates and no plans", where=str(files_of[0]), allowed=allowed)
        found[inner.name] = fastest_of_sizes({path: plans.load(path) for path in files_of})
    return found


def _rate(plan: Plan) -> float:
    """Returns the samples a second that a plan predicts."""
    return plan.batch.samples * NS_PER_S / plan.prediction.step_ns


def _folders(folder: Path) -> list[Path]:
    """Returns the folder of every job."""
    if not folder.is_dir():
        raise BadInput("no such folder", where=str(folder), allowed="a folder that `plan --devices` wrote")
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir() and _files(path)]
    found = [folder] if _files(folder) else inner
    if not found:
        allowed = "a folder that `shardwright plan --devices 8,16,32 -o FOLDER` wrote, or folders of such"
        raise BadInput("holds no plans", where=str(folder), allowed=allowed)
    return found


def _files(folder: Path) -> list[Path]:
    table = folder / TABLE
    return [table] if table.is_file() else sorted(folder.glob("*.yaml"))


def _curve(folder: Path) -> Curve:
    found = _files(folder)
    if found[0].name == TABLE:
        return _table(found[0])
    return curve_of_plans({path: plans.load(path) for path in found})


def _table(path: Path) -> Curve:
    rates = dict[int, float]()
    try:
        rows = list(csv.reader(files.read_text(path).splitlines()))
    except csv.Error as error:
        raise BadInput(f"is no table: {error}", where=str(path), allowed=",".join(_HEADS)) from None
    if not rows or [cell.strip() for cell in rows[0]] != _HEADS:
        raise BadInput("has no heads", where=f"{path}:1", allowed=",".join(_HEADS))
    for line, row in enumerate(rows[1:], 2):
        try:
            nodes, rate = int(row[0]), float(row[1])
        except (ValueError, IndexError):
            nodes, rate = 0, 0.0
        if not 1 <= nodes <= MOST_NODES or not 0 < rate < float("inf") or nodes in rates:
            raise BadInput(
                f"'{','.join(row):.80}' is no row of a curve",
                where=f"{path}:{line}",
                allowed=f"a new number of nodes, at most {MOST_NODES}, and a rate above 0",
            )
        rates[nodes] = rate
    if not rates:
        raise BadInput("has no row", where=str(path), allowed="a row for every size")
    return Curve(rates=rates)
