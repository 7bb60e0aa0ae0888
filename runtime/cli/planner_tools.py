"""What the two sides hand each other: tools of the runtime for the planner's commands, imported when used; and commands
that follow a run and need the planner's report, `track` and `watch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import terminal, units
from planner.cli import Json, RunFolder
from planner.errors import BadInput

if TYPE_CHECKING:
    from planner.calibrate import Observation
    from planner.cli import Tools
    from planner.measure import BackwardSplit, SpatialSplit
    from planner.simulate import RunRecord

GOING = ("queued", "starting", "running", "restarting")


def tools() -> Tools:
    """Returns the tools that the planner's commands need of the runtime."""
    from planner.cli import Tools

    return Tools(
        backward_split=backward_split,
        spatial_split=spatial_split,
        observe=_observe,
        show_run=_show_run,
        record=_record,
        profile_by_slurm=_profile_by_slurm,
    )


def backward_split() -> BackwardSplit:
    """Returns the way to time the halves of a backward pass."""
    from runtime.stage import Split

    return Split()


def spatial_split() -> SpatialSplit:
    """Returns the way to time one shard of a layer alone."""
    from runtime.spatial import AloneShard

    return AloneShard()


def _observe(folder: Path) -> Observation:
    from runtime.launch import observation

    return observation(folder)


def _record(folder: Path) -> RunRecord:
    from runtime import launch as launching

    return launching.record(folder)


def _show_run(folder: Path) -> tuple[dict[str, object], str]:
    from runtime import launch as launching

    found = launching.comparison(folder)
    return launching.as_dict(found), launching.comparison_text(found, launching.notes(folder, found))


def _profile_by_slurm(
    words: Sequence[str],
    output: Path,
    *,
    cuda: bool,
    force: bool,
    sbatch: Sequence[str],
    note: Callable[[str], None],
) -> list[Path]:
    from runtime import slurm
    from runtime.cli import slurm as slurm_options

    options = slurm_options.JobOptions(sbatch=list(sbatch)).over_site()
    return slurm.run(words, output, options, cuda=cuda, force=force, note=note)


def register_track(app: typer.Typer, report: Callable[[Path], Path]) -> None:
    """Adds track to the command line.

    Args: `app` gets the command; `report` writes the report of a run folder and returns its path.
    """

    def track(
        run: RunFolder,
        to: Annotated[str, typer.Option(metavar="TRACKER", help="wandb or mlflow")],
        project: Annotated[str, typer.Option(help="of the tracker; MLflow's experiment")] = "shardwright",
        follow: Annotated[bool, typer.Option("-f", "--follow", help="go on until the run has ended")] = False,
        as_json: Json = False,
    ) -> None:
        """Send a run to Weights & Biases or MLflow: its steps beside the predicted one, plan and report."""
        from runtime import launch as launching
        from runtime import trackers

        out = terminal.Output(as_json=as_json)

        def files() -> list[Path]:
            try:
                return [report(run)]
            except BadInput as error:
                out.note(f"no report yet: {error}")
                return []

        steps, where = trackers.send(
            run,
            to,
            project=project,
            files=files,
            going=lambda: follow and launching.of(run).state in GOING,
        )
        data = {"run": str(run), "to": to, "steps": steps, "where": where}
        out.result(data, lambda: f"{units.plural(steps, 'step')} sent to {where}")

    app.command("track", epilog="Example: shardwright track runs/gpt2-plan-20260101-120000 --to wandb")(track)


def register_watch(app: typer.Typer, report: Callable[[Path], Path]) -> None:
    """Adds watch to the command line.

    Args: `app` gets the command; `report` writes the report of a run folder and returns its path.
    """

    def watch(
        run: RunFolder,
        port: Annotated[int, typer.Option(min=0, max=65535, help="of the loopback; 0 is any free one")] = 0,
        as_json: Json = False,
    ) -> None:
        """Show a run on a page of this machine while it trains; its report follows at the end."""
        from runtime import launch as launching
        from runtime import trackers

        out = terminal.Output(as_json=as_json)

        def page() -> str | None:
            try:
                return report(run).read_text(encoding="utf-8")
            except BadInput as error:
                out.note(f"no report: {error}")
                return None

        steps = trackers.watch(
            run,
            state=lambda: launching.of(run).state,
            going=lambda: launching.of(run).state in GOING,
            report=page,
            tell=lambda address: out.note(f"open {address} in a browser; Ctrl-C ends the page, not the run"),
            port=port,
        )
        state = launching.of(run).state
        data = {"run": str(run), "state": state, "steps": steps}
        out.result(data, lambda: f"{run} is {state}: {units.plural(steps, 'step')}")

    app.command("watch", epilog="Example: shardwright watch runs/gpt2-plan-20260101-120000")(watch)
