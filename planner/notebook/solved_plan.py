"""A plan in the hand of somebody who explores: it shows itself, and can be asked what would be if.

plan.what_if(schedule="chimera", pairs=2).frontier().plot()  # every plan of an answer can be asked further
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from planner import show
from planner.errors import BadInput, ShardwrightError
from planner.explore import Frontier, frontier
from planner.limits import SearchWatch
from planner.milp import Question, solve
from planner.plan import Plan, stage_rows
from planner.shown import CellBar, Shown, frame_of
from planner.terminal import Output
from planner.timeline import Timeline
from planner.units import format_duration

if TYPE_CHECKING:
    from ipywidgets import VBox
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from planner.profile import Profile
    from planner.simulate import RunRecord


class SolvedPlan(Plan):
    """A Plan, with what it was solved from where that is known."""

    _asked: Question | None = PrivateAttr(None)
    _above: str = PrivateAttr("")
    _baseline: dict[str, object] | None = PrivateAttr(None)

    @classmethod
    def of(
        cls,
        plan: Plan,
        asked: Question | None = None,
        above: str = "",
        baseline: dict[str, object] | None = None,
    ) -> SolvedPlan:
        """Returns the plan as one that shows itself, below a text; with `asked` it answers further questions."""
        fields = {name: getattr(plan, name) for name in Plan.model_fields}
        found = cls.model_construct(_fields_set=set(plan.model_fields_set), **fields)
        found._asked, found._above, found._baseline = asked, above, baseline
        return found

    @property
    def asked(self) -> Question | None:
        """Returns what the plan was solved from, None for one of a file."""
        return self._asked

    @property
    def baseline(self) -> dict[str, object] | None:
        """Returns what present settings take that the plan was compared with; None where there were none."""
        return self._baseline

    @property
    def question(self) -> Question:
        """Returns what the plan was solved from; BadInput for a plan of a file."""
        if self._asked is None:
            said = "this plan came from a file: to solve again, its costs and machines are needed"
            allowed = "sw.load_plan(path, costs=..., cluster=...)"
            raise BadInput(said, where=self.model.workload, allowed=allowed)
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
    ) -> SolvedPlan:
        """Solves the question with something changed, and compares the new plan with this one.

        Args: another `batch`, devices with `memory_gib`, at most so many `nodes`, links of `network` times the bandwidth,
        other families; and what `--fix` knows, such as pairs=2 or recompute=False, where None frees what was fixed.
        Raises: BadInput where the plan has no question; Infeasible says what is missing.
        """
        asked = self.question.replace(
            batch=batch, memory_gib=memory_gib, nodes=nodes, network=network, schedule=schedule, fix=fix
        )
        found = searched(asked)
        return SolvedPlan.of(found, asked, above=show.against(self, found))

    def frontier(self) -> SolvedFrontier:
        """Returns the best trades of time against memory and against devices."""
        return front(self.question)

    def explore(self) -> VBox:
        """Returns dials for a notebook: micro-batch, nodes, bandwidth and memory, with the plan that follows from them.

        The plan is solved anew whenever a dial is let go, and shown beside the best trades of time against memory.
        Raises: BadInput where ipywidgets is not installed, or the plan came from a file without its costs.
        """
        return Dials(self).box()

    def timeline(self) -> Timeline:
        """Returns one step, as it will run."""
        from planner.simulate import simulate_plan

        return simulate_plan(self)

    def violations(self) -> list[str]:
        """Returns what is wrong with the plan, judged from the problem statement; empty where nothing is."""
        from planner.verify import violations

        known = (None, None) if self._asked is None else (self._asked.profile, self._asked.cluster)
        return [str(each) for each in violations(self, profile=known[0], cluster=known[1])]

    def report(
        self,
        path: str | Path,
        *,
        run: RunRecord | None = None,
        costs: Profile | None = None,
        against: Plan | RunRecord | None = None,
    ) -> Path:
        """Writes the report for a browser; a file that is there is overwritten.

        Args: `run` adds measured times, `costs` every layer's; `against` is another plan or run, side by side with this.
        Returns: the path.
        """
        from planner import files
        from planner.report import Contents, render

        costs = costs or (self._asked.profile if self._asked is not None else None)
        beside = Contents(plan=against) if isinstance(against, Plan) else None
        if against is not None and not isinstance(against, Plan):
            beside = Contents(plan=against.plan, run=against)
        files.write_whole(Path(path), render(Contents(plan=self, run=run, profile=costs, beside=beside)))
        return Path(path)

    def plot(self) -> Figure:
        """Returns a matplotlib figure of one step."""
        return self.timeline().plot()

    def to_rows(self) -> list[dict[str, object]]:
        """Returns a row for each stage, as data."""
        return stage_rows(self)

    def to_pandas(self) -> DataFrame:
        """Returns a DataFrame with a row for each stage.

        Raises: BadInput where pandas is not installed.
        """
        return frame_of(self)

    def to_dict(self) -> dict[str, object]:
        return self.model_dump(mode="json")

    def __eq__(self, other: object) -> bool:
        """Where it came from is no part of a plan."""
        names = Plan.model_fields
        return isinstance(other, Plan) and all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = Plan.__hash__

    def __repr__(self) -> str:
        return "\n\n".join(filter(None, (self._above, show.text(self))))

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return "".join([*map(show.paragraph, self._above.splitlines()), show.html(self)])


@dataclass(frozen=True, repr=False)
class SolvedFrontier(Shown):
    found: Frontier
    asked: Question

    @property
    def plans(self) -> tuple[SolvedPlan, ...]:
        """Returns the plans from the fastest to the thriftiest."""
        return tuple(SolvedPlan.of(row.plan, self.asked) for row in self.found.rows)

    def __len__(self) -> int:
        return len(self.found.rows)

    def __getitem__(self, at: int) -> SolvedPlan:
        return self.plans[at]

    def __iter__(self) -> Iterator[SolvedPlan]:
        return iter(self.plans)

    def plot(self, *values: object, **options: object) -> Figure:
        return show.figure(self.found)

    def to_rows(self) -> list[dict[str, object]]:
        return [
            {
                "step_ns": row.step_ns,
                "samples_per_s": row.samples_per_s,
                "devices": row.devices,
                "peak_bytes": row.peak_bytes,
                "gap": row.gap,
                "schedule": row.plan.schedule.family,
                "best_in": list(row.best_in),
            }
            for row in self.found.rows
        ]

    def to_dict(self) -> dict[str, object]:
        return {"rows": self.to_rows(), "whole": list(self.found.whole), "resolution": self.found.resolution}

    def __repr__(self) -> str:
        return show.text(self.found)

    def _repr_html_(self) -> str:
        return show.html(self.found)


def searched(asked: Question) -> Plan:
    """Solves a question with a bar in the cell of a notebook; the first Ctrl-C gives the best plan so far."""
    with CellBar(f"planning {asked.profile.workload}") as bar:
        watch = SearchWatch((lambda found: bar.tell(found.spent, show.words(found))) if bar.shown else None)
        with watch.stoppable(say=Output(as_json=False).note):
            return solve(replace(asked, effort=replace(asked.effort, watch=watch)))


def front(asked: Question) -> SolvedFrontier:
    with asked.effort.watch.stoppable(say=Output(as_json=False).note):
        return SolvedFrontier(frontier(asked), asked)


class Dials:
    """What somebody asks by dials, and what is answered."""

    def __init__(self, start: SolvedPlan) -> None:
        self.start, self.answer = start, start
        self._known: dict[tuple[object, ...], SolvedPlan] = {}
        asked, cluster = start.question, start.question.cluster
        self.micros = sorted({key.micro for key in asked.profile.settings if not key.split})
        self.nodes = sum(group.count for group in cluster.nodes)
        self.gib = min(group.capacity_bytes for group in cluster.nodes) / 2**30

    def ask(self, micro: int | None, nodes: int | None, network: float, memory_gib: float | None) -> str:
        """Answers what the dials say.

        Args: None is as it was asked at first; `network` is times the bandwidth.
        Returns: HTML with the plan, or with why there is none.
        """
        key = (micro, nodes, network, memory_gib)
        fix: dict[str, Any] = {} if micro is None else {"micro": micro}  # None would free what was fixed
        try:
            if key not in self._known:
                fix |= {"network": None if network == 1 else network, "memory_gib": memory_gib}
                self._known[key] = self.start.what_if(nodes=nodes, **fix)
            self.answer = self._known[key]
        except ShardwrightError as error:
            return show.paragraph(str(error))
        return self.answer._repr_html_()

    def front(self) -> str:
        """Returns the best trades of time against memory of the last answer, and where that stands, as HTML."""
        own = show.paragraph(f"The plan above: {format_duration(self.answer.prediction.step_ns)} a step.")
        return own + self.answer.frontier()._repr_html_()

    def box(self) -> VBox:
        """Returns the dials as widgets, the answer below them."""
        try:
            import ipywidgets as widgets
        except ImportError:
            allowed = "pip install 'shardwright[notebook]'"
            raise BadInput("ipywidgets is not installed", where="explore", allowed=allowed) from None
        sizes = [("best", None), *((str(each), each) for each in self.micros)]
        micro = widgets.Dropdown(options=sizes, description="micro-batch")
        nodes = widgets.IntSlider(self.nodes, 1, self.nodes, description="nodes")
        network = widgets.SelectionSlider(options=[0.25, 0.5, 1, 2, 4], value=1, description="bandwidth ×")
        least = max(self.gib / 16, 0.1)
        memory = widgets.FloatSlider(self.gib, min=least, max=2 * self.gib, step=least, description="GiB")
        dials = (micro, nodes, network, memory)
        answer, front = widgets.HTML(self.answer._repr_html_()), widgets.HTML()
        button = widgets.Button(description="frontier")

        def turned(change: object) -> None:
            count = None if nodes.value == self.nodes else nodes.value
            gib = None if memory.value == self.gib else memory.value
            answer.value, front.value = self.ask(micro.value, count, network.value, gib), ""

        def pressed(clicked: object) -> None:
            front.value = self.front()

        for dial in dials:
            dial.continuous_update = False  # only when it is let go
            dial.observe(turned, names="value")
        button.on_click(pressed)
        return widgets.VBox([*dials, answer, button, front])
