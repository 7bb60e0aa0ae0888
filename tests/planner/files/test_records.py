"""Records of a run folder, which others write and remove while they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.files import disk, find_record


@dataclass(frozen=True, kw_only=True)
class Row:
    step: int


def test_a_record_that_is_written_while_it_is_looked_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "row.json", disk.read_bytes

    def late(given: Path, *, max_bytes: int) -> bytes:
        try:
            return read(given, max_bytes=max_bytes)
        finally:
            path.write_text('{"step": 3}')

    monkeypatch.setattr(disk, "read_bytes", late)
    assert find_record(Row, path) == Row(step=3)


def test_a_record_that_is_not_there_is_none_and_one_that_is_wrong_is_refused(tmp_path: Path) -> None:
    assert find_record(Row, tmp_path / "row.json") is None
    (tmp_path / "row.json").write_text("{")
    with pytest.raises(BadInput):
        find_record(Row, tmp_path / "row.json")
