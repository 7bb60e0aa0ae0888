"""What the commands read from their options, and how they write files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from planner.cli.app import grids
from planner.errors import BadInput
from planner.files import disk
from planner.terminal import console


def test_parts_of_samples_are_read_in_order_and_whole_ones_left_out() -> None:
    assert grids("1,2,2x2,1x1,2", "--spatial") == ((2,), (2, 2))
    assert grids("1", "--spatial") == ()


@pytest.mark.parametrize("text", ["", "a", "2x", "x2", "0", "2,-1", "1.5", "2,,4"])
def test_what_is_no_list_of_parts_names_its_option(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--spatial: "):
        grids(text, "--spatial")


def test_a_file_that_cannot_be_written_is_a_message_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "x.yaml"
    target.mkdir()
    with pytest.raises(BadInput, match=r"x\.yaml: cannot be written: "):
        disk.write_whole(target, "text")
    with pytest.raises(BadInput, match="cannot be written: No such file"):
        disk.write_whole(tmp_path / "nowhere" / "x.yaml", "text")
    assert list(tmp_path.iterdir()) == [target] and not list(target.iterdir())


def test_a_name_as_long_as_can_be_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".yaml")
    disk.write_whole(path, "text")
    assert path.read_text() == "text" and list(tmp_path.iterdir()) == [path]


def test_a_folder_is_no_place_to_write_even_by_force(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a folder"):
        disk.refuse_overwrite(tmp_path, force=True)


def test_a_folder_that_cannot_be_written_into_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(BadInput, match="cannot write into this folder"):
        disk.refuse_overwrite(tmp_path / "x.yaml", force=False)


def test_what_takes_long_says_so_now_and_then_and_what_is_quick_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with console.patient("counting", first_s=60):
        pass
    assert capsys.readouterr().err == ""
    told = threading.Event()
    with console.patient("counting", first_s=0.001):
        told.wait(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 8 and set(lines) == {"counting: 0 s so far"}
