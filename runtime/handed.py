"""What the planner's commands need of the runtime, handed to them as values; each imports what it needs when used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.calibrate import Observation
    from planner.cli import Tools
    from planner.measure_passes import BackwardSplit, SpatialSplit
    from planner.run_record import RunRecord


def tools() -> Tools:
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
    from runtime.split import Split

    return Split()


def spatial_split() -> SpatialSplit:
    from runtime.spatial.alone import Alone

    return Alone()


def _observe(folder: Path) -> Observation:
    from runtime.observe import observation

    return observation(folder)


def _record(folder: Path) -> RunRecord:
    from runtime import record

    return record.record(folder)


def _show_run(folder: Path) -> tuple[dict[str, object], str]:
    from runtime import report_run

    found = report_run.comparison(folder)
    return report_run.as_dict(found), report_run.text(found, report_run.drift(folder, found))


def _profile_by_slurm(
    words: Sequence[str],
    output: Path,
    *,
    cuda: bool,
    force: bool,
    sbatch: Sequence[str],
    note: Callable[[str], None],
) -> list[Path]:
    from runtime.slurm import cli, measure

    options = cli.chosen(None, sbatch=list(sbatch), time=None)
    return measure.run(words, output, options, cuda=cuda, force=force, note=note)
