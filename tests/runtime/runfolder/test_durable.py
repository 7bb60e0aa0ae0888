"""What a run says of itself is whole or not there, and finds room where the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from runtime.runfolder import Paths
from runtime.runfolder import durable as words


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path).make()
    words.keep_room(made, 2)
    return made


def full(monkeypatch: pytest.MonkeyPatch, paths: Paths, number: int = errno.ENOSPC) -> None:
    """The disk takes nothing while the reserve is there."""
    real = Path.write_text

    def write(path: Path, text: str) -> int:
        if paths.reserve.exists():
            real(path, text[: len(text) // 2])
            raise OSError(number, os.strerror(number))
        return real(path, text)

    monkeypatch.setattr(Path, "write_text", write)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_the_room_that_was_kept_is_given_up(
    number: int, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(monkeypatch, paths, number)
    words.write_durably(paths, paths.outcome, "full")
    assert paths.outcome.read_text() == "full"
    assert not paths.reserve.exists()


def test_another_error_is_raised_and_nothing_half_written_is_left(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(monkeypatch, paths, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        words.write_durably(paths, paths.outcome, "full")
    assert paths.reserve.exists()
    assert not list(paths.root.glob("outcome*"))


def test_what_is_kept_is_room_for_every_rank(paths: Paths) -> None:
    assert paths.reserve.stat().st_size >= 2 * words.BLOCKS_A_RANK * words.BLOCK_BYTES


def test_a_torn_line_is_closed_before_the_next(paths: Paths) -> None:
    words.append_durably(paths, paths.attempts, "one")
    with paths.attempts.open("a") as file:
        file.write("tw")
    words.append_durably(paths, paths.attempts, "three")
    assert paths.attempts.read_text() == "one\ntw\nthree\n"


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(paths: Paths) -> None:
    """By a limit on the size of files, at which a write is cut short as on a full disk."""
    path = paths.attempts
    words.append(path, "x" * 4000)
    pid = os.fork()
    if pid == 0:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            words.append(path, "y" * 500)
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert path.read_text() == "x" * 4000 + "\n"
