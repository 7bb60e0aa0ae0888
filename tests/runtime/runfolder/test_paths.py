"""What a run leaves behind is bounded: files of earlier starts, logs, and tries that count."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.runfolder import Attempt, Paths, in_vain
from runtime.runfolder import paths as names


def test_files_of_earlier_starts_are_removed_and_no_others(tmp_path: Path) -> None:
    paths = Paths(tmp_path).make()
    for start in range(3):
        for path in (paths.rendezvous(start), paths.votes(start), paths.failed(start)):
            path.touch()
    others = [paths.plan, paths.root / "votes-of-mine", paths.root / "failed-1x"]
    for path in others:
        path.touch()
    paths.clear_marks(2)
    left = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert left == {"rendezvous-2", "votes-2", "failed-2", *(path.name for path in others)}


def test_a_log_that_grows_is_cut_and_its_last_part_stays_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "MOST_LOG_BYTES", 100)
    monkeypatch.setattr(names, "KEPT_LOG_BYTES", 10)
    paths = Paths(tmp_path).make()
    with paths.log(0).open("ab", buffering=0) as log:  # as a rank holds it open
        for number in range(30):
            log.write(f"line {number:4}\n".encode())
            paths.bound_logs()
        log.write(b"after\n")
    assert paths.log(0).stat().st_size <= 106
    assert paths.log(0).read_bytes().endswith(b"after\n")
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {
        "rank-00000.log",
        "before-rank-00000.log",
    }
    assert (tmp_path / "logs" / "before-rank-00000.log").stat().st_size == 10


def test_only_the_last_tries_without_a_new_checkpoint_count() -> None:
    tries = [Attempt(generation=n, nodes=[], begin_s=0.0, checkpoint=at) for n, at in enumerate((0, 2, 4, 4))]
    assert in_vain(tries, 4) == tries[2:]
    assert in_vain(tries, 6) == []
    assert in_vain([], 0) == []
