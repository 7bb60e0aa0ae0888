"""Commands that ask again what a plan answers, with something changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import join

from planner.cluster import cluster_names
from planner.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The files that somebody has given, as far as they are known."""

    plan: Path = Path("plan.yaml")
    run: Path | None = None
    profile: Path | None = None
    cluster: Path | None = None

    def again(self, plan: Plan, *changed: str, batch: int | None = None, profile: str = "") -> str:
        """Returns the command that plans the same training with something changed.

        Args: `changed` are words of the command line; `batch` and `profile` replace what the plan has.
        """
        asked = ["--cluster", self.machines(plan), "--batch", str(batch or plan.batch.samples)]
        told = [
            "--precision",
            plan.precision,
            *(["--execution", plan.execution] * (plan.execution != "eager")),
        ]
        words = ["shardwright", "plan", *self._model(plan, profile), *asked, *told, *changed]
        return join([*words, "-o", f"{self.plan.stem}-next.yaml"])

    def report(self, *changed: str) -> str:
        """Returns the command that writes the report again.

        Args: `changed` are more words of the command line.
        """
        run = [] if self.run is None else [str(self.run)]
        costs = [] if self.profile is None else ["--profile", str(self.profile)]
        return join(["shardwright", "report", str(self.plan), *run, *costs, *changed, "--force"])

    def machines(self, plan: Plan) -> str:
        """Returns the cluster as `--cluster` takes it: the file given, or the name of one that comes along."""
        if self.cluster is not None:
            return str(self.cluster)
        known = plan.provenance.cluster
        return known if known in cluster_names() else f"{known}.yaml"

    def measure(self, plan: Plan, *words: str, output: str) -> str:
        """Returns the command that measures the plan's model.

        Args: `words` are more of the command line; `output` is the file to write.
        """
        told = ["--precision", plan.precision]
        return join(
            ["shardwright", "profile", plan.model.workload, *_settings(plan), *told, *words, "-o", output]
        )

    def _model(self, plan: Plan, profile: str) -> list[str]:
        if profile or self.profile is not None:
            return ["--profile", profile or str(self.profile)]
        return [plan.model.workload, *_settings(plan)]


def _settings(plan: Plan) -> list[str]:
    return [word for name, value in plan.model.arguments.items() for word in ("--set", f"{name}={value}")]
