"""Plans of a space to be run: all or a sample of them, those that promise most, and what others would do."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import comb

import numpy as np

from planner.arrays import IntArray
from planner.calibrate import Observation
from planner.configurations.configurations import Configuration
from planner.cuts.problem import CutProblem
from planner.milp import Instance, explain
from planner.milp.search.candidates import ranked
from planner.milp.write_plan import plan_of
from planner.plan import Certificate, Plan
from planner.proof.descent import UNFIT_NS, Answer, judge

RANKS = 8
UNTOLD = Certificate(objective_ns=0, bound_ns=0)  # not solved: one of the plans that are run


@dataclass(kw_only=True)
class Candidate:
    name: str
    plan: Plan
    runs: list[Observation] = field(default_factory=list)

    @property
    def measured_ns(self) -> float:
        """Of the best run: where stages sleep, the machine can only add."""
        return min(run.step_ns for run in self.runs)


def blocks(asked: Instance, posed: CutProblem) -> list[int]:
    """Boundaries between modules of the first two levels, of those where the model may be cut."""
    tops = [".".join(layer.name.partition("#")[0].split(".")[:2]) for layer in asked.profile.graph.layers]
    return [i for i in range(1, len(tops)) if tops[i] != tops[i - 1] and posed.allowed[i]]


def posed_shapes(asked: Instance) -> list[tuple[Configuration, CutProblem, list[int]]]:
    """Every shape that keeps all ranks busy and can be cut at block level."""
    found = []
    for shape in ranked(asked):
        posed = asked.problem(shape) if shape.devices == RANKS else None
        if posed is not None and len(where := blocks(asked, posed)) >= shape.stages - 1:
            found.append((shape, posed, where))
    return found


def plan_at(asked: Instance, posed: CutProblem, cut: IntArray) -> Plan | None:
    ns = int(judge(posed, cut[None, :])[0])
    return None if ns >= UNFIT_NS else plan_of(asked, posed, Answer(cut=cut, ns=ns), UNTOLD)


def sampled(asked: Instance, most: int, seed: int) -> tuple[list[Candidate], int]:
    """At most so many plans, evenly over the shapes, and how many there are in all."""
    shapes = posed_shapes(asked)
    total = sum(comb(len(where), shape.stages - 1) for shape, _, where in shapes)
    rng, found = random.Random(seed), []
    if total <= most:
        every = [
            (shape, posed, inner)
            for shape, posed, where in shapes
            for inner in itertools.combinations(where, shape.stages - 1)
        ]
    else:
        every = []
        for shape, posed, where in rng.sample(shapes, len(shapes)) * (1 + most // len(shapes)):
            every.append((shape, posed, tuple(sorted(rng.sample(where, shape.stages - 1)))))
    for shape, posed, inner in every[:most]:
        plan = plan_at(asked, posed, np.array([0, *inner, posed.layers], np.int64))
        if plan is not None:
            found.append(Candidate(name=str(shape), plan=plan))
    return found, total


def likeliest(asked: Instance, most: int) -> Iterator[Candidate]:
    """The best block-level cut of the shapes that promise most: those that could refute the claims."""
    priced = []
    for shape, posed, where in posed_shapes(asked):
        inner = list(itertools.islice(itertools.combinations(where, shape.stages - 1), 2000))
        cuts = np.array([[0, *cut, posed.layers] for cut in inner], np.int64)
        times = judge(posed, cuts)
        priced.append((int(times.min()), shape, posed, cuts[int(times.argmin())]))
    for _, shape, posed, cut in sorted(priced, key=lambda row: (row[0], row[1]))[:most]:
        if (plan := plan_at(asked, posed, cut)) is not None:
            yield Candidate(name=f"{shape} (likely)", plan=plan)


def rules(asked: Instance) -> Iterator[Candidate]:
    """What others would do, cut into equally many layers."""
    named: list[tuple[str, list[Configuration]]] = []
    named += [(kind.replace("_", " "), each) for kind, each in explain.trivial(asked)]
    named.append(("most replicas, largest micro-batch", [s for s in ranked(asked) if s.family == "1f1b"]))
    for name, shapes in named:
        for shape in sorted(shapes, key=lambda s: (-s.devices, -s.data, -s.micro)):
            posed = asked.problem(shape)
            plan = None if posed is None else plan_at(asked, posed, explain.equal_cut(posed))
            if plan is not None:
                yield Candidate(name=name, plan=plan)
                break
