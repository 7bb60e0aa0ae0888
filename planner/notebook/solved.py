"""A plan in the hand of somebody who explores: it shows itself, and can be asked what would be if.

plan = sw.plan(costs, cluster, batch=64)
plan.what_if(memory_gib=24)
plan.what_if(schedule="chimera", pairs=2)
plan.frontier().plot()
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PrivateAttr

from planner.errors import BadInput
from planner.notebook.question import Question
from planner.plan import Plan
from planner.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.notebook.front import Front
    from planner.profile import Profile
    from planner.run_record import RunRecord


class Solved(Plan):
    """A Plan, with what it was solved from where that is known."""

    _asked: Question | None = PrivateAttr(None)
    _before: Plan | None = PrivateAttr(None)

    @classmethod
    def of(cls, plan: Plan, asked: Question | None = None, before: Plan | None = None) -> Solved:
        fields = {name: getattr(plan, name) for name in Plan.model_fields}
        found = cls.model_construct(_fields_set=set(plan.model_fields_set), **fields)
        found._asked, found._before = asked, before
        return found

    @property
    def asked(self) -> Question | None:
        return self._asked

    @property
    def question(self) -> Question:
        if self._asked is None:
            raise BadInput(
                "this plan came from a file: to solve again, its costs and machines are needed",
                where=self.model.workload,
                allowed="sw.load_plan(path, costs=..., cluster=...)",
            )
        return self._asked

    def what_if(
        self,
        *,
        batch: int | None = None,
        memory_gib: float | None = None,
        nodes: int | None = None,
        network: float | None = None,
        schedule: str | Sequence[str] | None = None,
        **fix: object,
    ) -> Solved:
        """The same question with something changed: another batch, devices with so much memory, so many nodes, links
        of so many times the bandwidth, other schedules; or what `--fix` knows, such as pairs=2, data=4 or
        recompute=False, where None frees what was fixed. Infeasible says what is missing."""
        asked = self.question.changed(
            batch=batch, memory_gib=memory_gib, nodes=nodes, network=network, schedule=schedule, fix=fix
        )
        return Solved.of(asked.solve(), asked, before=self)

    def frontier(self) -> Front:
        """The best trades of time against memory and against devices."""
        from planner.notebook.front import front

        return front(self.question)

    def timeline(self) -> Timeline:
        """One step, as it will run."""
        from planner.simulate import simulate_plan

        return simulate_plan(self)

    def violations(self) -> list[str]:
        """What is wrong with it, judged from the problem statement; empty where nothing is."""
        from planner.verify import violations

        asked = self._asked
        found = violations(
            self, profile=asked.costs if asked else None, cluster=asked.cluster if asked else None
        )
        return [str(each) for each in found]

    def report(self, path: str | Path, *, run: RunRecord | None = None, costs: Profile | None = None) -> Path:
        """Writes the report for a browser; what is there is overwritten."""
        from planner import console
        from planner.report.contents import Contents
        from planner.report.page import render

        costs = costs or (self._asked.costs if self._asked is not None else None)
        console.write_whole(Path(path), render(Contents(plan=self, run=run, profile=costs)))
        return Path(path)

    def plot(self) -> Figure:
        return self.timeline().plot()

    def to_rows(self) -> list[dict[str, object]]:
        """A stage a row."""
        from planner.notebook import shows

        return shows.plan_rows(self)

    def to_dict(self) -> dict[str, object]:
        return self.model_dump(mode="json")

    def __eq__(self, other: object) -> bool:
        """Where it came from is no part of a plan."""
        return isinstance(other, Plan) and all(
            getattr(self, name) == getattr(other, name) for name in Plan.model_fields
        )

    __hash__ = Plan.__hash__

    def __repr__(self) -> str:
        from planner import summary

        return "\n\n".join([*self._instead(), summary.of_plan(self)])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from planner.notebook import shows
        from planner.notebook.html import paragraph

        return "".join([*(paragraph(line) for line in self._instead()), shows.plan_html(self)])

    def _instead(self) -> list[str]:
        from planner.notebook.versus import against

        return [against(self._before, self)] if self._before is not None else []
