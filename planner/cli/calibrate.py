"""`shardwright calibrate`: corrections from runs, in a file of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import files, terminal, units
from planner.cli.app import Force, Json

if TYPE_CHECKING:
    from planner.calibrate import Observation
    from planner.cluster import Cluster, Corrections, MemoryCorrection

Observe = Callable[[Path], "Observation"]


def register_calibrate(app: typer.Typer, observe: Observe) -> None:
    app.command("calibrate", epilog="Example: shardwright calibrate runs/gpt2-plan-20260101-120000")(
        _command(observe)
    )


def _command(observe: Observe) -> Callable[..., None]:
    def calibrate(
        runs: Annotated[list[Path], typer.Argument(help="folders of finished runs", metavar="RUN...")],
        output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="where to write")] = Path(
            "calibration.yaml"
        ),
        force: Force = False,
        as_json: Json = False,
    ) -> None:
        """Fit what the costs get wrong to the traces of runs, with the error that is left."""
        from planner import calibrate as lessons
        from planner import cluster as clusters

        files.refuse_overwrite(output, force)
        found = lessons.fit([observe(folder) for folder in runs])
        files.write_whole(output, clusters.dump_corrections(found))
        data = {"calibration": str(output), **found.model_dump(mode="json", exclude_none=True)}
        terminal.Output(as_json=as_json).result(data, lambda: f"{text(found)}\n\nwritten to {output}")

    return calibrate


def text(found: Corrections) -> str:
    from planner.cluster import PARTS

    names = (*dict.fromkeys(PARTS.values()), "hop", "sum")
    rows = [
        (
            name,
            units.format_duration(row.start_s * 1e9),
            f"{row.factor:.4g}",
            f"{row.spread:.1%}",
            str(row.samples),
        )
        for name in names
        if (row := getattr(found, name)) is not None
    ]
    table = terminal.columns(rows, ("time", "starts at", "factor", "spread", "from"))
    memory = "" if found.memory is None else f"\n{_memory(found.memory)}"
    return f"steps are then off by about {found.step_spread:.1%}; by {found.summary}\n\n{table}{memory}"


def _memory(found: MemoryCorrection) -> str:
    start = f"{units.format_bytes(found.start_bytes)} + " if found.start_bytes else ""
    return (
        f"a device's peak is {start}{found.factor:.4g} times the predicted one, up to {found.spread:.1%} more"
    )


def corrected_machines(
    machines: Cluster, calibration: Path | None, run: Path | None, observe: Observe
) -> Cluster:
    """The machines with what runs have shown of them: those of a file, or one run alone."""
    from planner import calibrate as lessons
    from planner import cluster as clusters
    from planner.errors import BadInput

    if calibration is not None and run is not None:
        raise BadInput("--calibration and --replan-from exclude each other")
    if calibration is not None:
        return lessons.with_corrections(machines, clusters.load_corrections(calibration))
    if run is not None:
        return lessons.with_corrections(machines, lessons.fit([observe(run)]))
    return machines
