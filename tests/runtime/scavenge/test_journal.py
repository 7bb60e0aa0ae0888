"""The journal of a scavenger: a process that dies inside a write leaves a torn line, which harms no other."""

from __future__ import annotations

from pathlib import Path

from runtime.scavenge import Asked, IdleJournal, Note

ASKED = Asked(jobs="jobs", partition="spot", steps=10)


def opened(root: Path) -> IdleJournal:
    journal = IdleJournal(root)
    journal.open(ASKED)
    return journal


def test_a_line_that_was_torn_anywhere_harms_no_line_before_or_after_it(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    first = journal.write(Note(time_s=1.0, job="a", what="asked", nodes=4))
    begin = journal.file.stat().st_size
    journal.write(Note(time_s=2.0, job="a", what="queued", nodes=4, why="größer"))
    whole = journal.file.read_bytes()
    for size in range(begin, len(whole)):
        journal.file.write_bytes(whole[:size])
        again = opened(tmp_path)
        assert again.of("a") == [first], size
        last = again.write(Note(time_s=3.0, job="a", what="stopped"))
        kept = opened(tmp_path).of("a")
        assert (kept[0], kept[-1]) == (first, last), size
        assert len(kept) == (3 if size == len(whole) - 1 else 2), size  # only the end of the line was lacking
