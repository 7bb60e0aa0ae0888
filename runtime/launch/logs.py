"""The logs of a run, read from its folder alone, while it runs and after it has ended.

Whatever wrote a log, its lines come out clean and bounded: without the sequences that steer a terminal, the last ones
only, and each cut where it is too long to be read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from planner.errors import BadInput
from planner.files import open_regular
from planner.shown import printable
from runtime.launch.status import of
from runtime.runfolder import open_run

MOST_LOG_BYTES, LEAST_LOG_BYTES = 4 * 2**20, 2**16  # of each log, the last ones
MOST_BYTES, MOST_LINES = 16 * 2**20, 20_000  # of all logs together
LEAST_LINES = 5  # of each
MOST_LINE_CHARS = 4000
# Colours and moves of the cursor (CSI), titles and links (OSC and its kin, which may never end), and other escapes.
_STEERS = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[ -/]*[0-~]"
)


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
    The beginning of a log above 4 MiB is left out, less where there are many, and so are all but the last lines.
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
        last, paths = not goes_on(), files()
        most = min(MOST_LOG_BYTES, max(LEAST_LOG_BYTES, MOST_BYTES // max(1, len(paths))))
        lines = max(LEAST_LINES, MOST_LINES // max(1, len(paths)))
        for path in paths:
            with open_regular(path) as file:
                size = file.seek(0, 2)
                start = at.setdefault(path, max(0, size - most))
                if size < start:  # it was cut meanwhile
                    start = at[path] = 0
                file.seek(start)
                found = file.read(most)
            whole, newline, rest = found.rpartition(b"\n")
            at[path] += len(whole) + len(newline)
            if last and rest:
                whole, newline = found, b"\n"
            if newline:
                yield from ((path.stem, line) for line in cleaned(whole, lines))
        if last:
            return
        time.sleep(poll_s)


def cleaned(raw: bytes, most: int = MOST_LINES) -> Iterator[str]:
    """Yields the lines of a log as text that is safe to print and short enough to read.

    Args: `raw` is what a process wrote; of its lines the last `most` are given, after one that counts the others.
    """
    lines = raw.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if len(lines) > most:
        yield f"({len(lines) - most} earlier lines are left out)"
    for line in lines[-most:]:
        kept = _STEERS.sub("", line[: 10 * MOST_LINE_CHARS])
        more = (
            len(line) - len(kept[:MOST_LINE_CHARS])
            if max(len(kept), len(line) // 10) > MOST_LINE_CHARS
            else 0
        )
        yield printable(kept[:MOST_LINE_CHARS]) + (f" ... ({more} more characters)" if more else "")
