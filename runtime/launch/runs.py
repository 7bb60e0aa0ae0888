"""The runs of a folder, as a list that shows itself as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from planner.errors import BadInput
from planner.shown import Shown
from planner.simulate import RunRecord
from planner.units import format_duration
from runtime.launch import finished, status
from runtime.runfolder import Paths

_HEADS = ("", "run", "state", "step", "loss", "predicted", "measured")


@dataclass(frozen=True, repr=False)
class Runs(Shown):
    """Several runs, the newest first. `runs[0]` is the record of the newest."""

    folders: tuple[Path, ...]  # the newest first

    def __len__(self) -> int:
        return len(self.folders)

    def __repr__(self) -> str:
        return super().__repr__() if self.folders else "no runs"

    def __getitem__(self, at: int) -> RunRecord:
        return finished.record(self.folders[at])

    def to_rows(self) -> list[dict[str, object]]:
        """Returns the status of each run as a dictionary."""
        return [asdict(status.of(folder)) for folder in self.folders]

    def to_dict(self) -> dict[str, object]:
        return {"runs": self.to_rows()}

    def heads(self) -> tuple[str, ...]:
        return _HEADS

    def lines(self) -> list[tuple[str, ...]]:
        found = [status.of(folder) for folder in self.folders]
        return [
            (
                str(at),
                self.folders[at].name,
                each.state,
                f"{each.step} of {each.steps}",
                "" if each.loss is None else f"{each.loss:.4f}",
                format_duration(each.predicted_step_s * 1e9),
                "" if each.measured_step_s is None else format_duration(each.measured_step_s * 1e9),
            )
            for at, each in enumerate(found)
        ]


def runs(folder: Path) -> Runs:
    """Finds the run folders in a folder.

    Args: `folder` holds run folders directly, or is one itself.
    Raises: BadInput where there is no such folder.
    """
    if not folder.is_dir():
        raise BadInput("no such folder", where=str(folder), allowed="one that holds run folders")
    inside = [folder, *(path for path in folder.iterdir() if path.is_dir())]
    found = [path for path in inside if Paths(path).job.exists()]
    return Runs(tuple(sorted(found, key=lambda path: Paths(path).job.stat().st_mtime_ns, reverse=True)))
