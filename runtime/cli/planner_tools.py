"""The tools of the runtime that the planner's commands use. They are handed over as values, and imported when used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.calibrate import Observation
    from planner.cli import Tools
    from planner.measure import BackwardSplit, SpatialSplit
    from planner.simulate import RunRecord


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
