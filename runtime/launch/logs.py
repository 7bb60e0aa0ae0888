"""The logs of a run, read from its folder alone, while it runs and after it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from planner.errors import BadInput
from planner.files import open_regular
from runtime.launch.status import of
from runtime.runfolder import open_run

MOST_LOG_BYTES = 4 * 2**20  # of each log, the last ones


def log_files(folder: Path, rank: int | None) -> list[Path]:
    """Returns the log files of a run.

    Args: `rank` asks for the log of that rank alone; None for those of the supervisor or job and of all
      ranks.
    Raises: BadInput where the rank has no log.
    """
    paths = open_run(folder)
    if rank is not None:
        if not paths.log(rank).exists():
            raise BadInput(f"there is no log of rank {rank}", where=str(folder))
        return [paths.log(rank)]
    return sorted((paths.root / "logs").glob("*"))


def lines_of(
    folder: Path, rank: int | None, *, follow: bool, poll_s: float = 0.5
) -> Iterator[tuple[str, str]]:
    """Yields the lines of a run's logs.

    Args: with `follow`, lines that are added later are yielded too, until the run has ended; `rank` is as in
      `log_files`.
    The beginning of a log above 4 MiB is left out.
    Yields: the name of the log without its suffix, and a line without its newline.
    """
    yield from followed(
        lambda: log_files(folder, rank),
        lambda: follow and of(folder).state in ("queued", "running"),
        poll_s,
    )


def followed(
    files: Callable[[], Sequence[Path]], goes_on: Callable[[], bool], poll_s: float = 0.5
) -> Iterator[tuple[str, str]]:
    """Yields the lines of log files, and those that are added while something goes on.

    Args: `files` gives the logs that there are by now.
    Yields: as `lines_of` does.
    """
    at: dict[Path, int] = {}
    while True:
        last = not goes_on()
        for path in files():
            with open_regular(path) as file:
                size = file.seek(0, 2)
                start = at.setdefault(path, max(0, size - MOST_LOG_BYTES))
                if size < start:  # it was cut meanwhile
                    start = at[path] = 0
                file.seek(start)
                found = file.read(MOST_LOG_BYTES)
            whole, newline, rest = found.rpartition(b"\n")
            at[path] += len(whole) + len(newline)
            if last and rest:
                whole, newline = found, b"\n"
            if newline:
                yield from ((path.stem, line) for line in whole.decode(errors="replace").split("\n"))
        if last:
            return
        time.sleep(poll_s)
