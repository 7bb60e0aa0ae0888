"""The folder of an output may come from anywhere: its status is told, or refused with one message."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from planner.errors import BadInput
from runtime.infer.folder import InferFolder, status_of

JOB = {
    "workload": "m.py",
    "settings": {},
    "directory": "/",
    "weights": "w",
    "weights_digest": "",
    "input": "in.npy",
    "output": "out.npy",
    "chunk": [4, 4],
}
DONE = {"checksum": "ab", "odd": 0, "odd_made": 0, "seconds": 1.5, "host": "h"}


@pytest.fixture
def folder(tmp_path: Path) -> InferFolder:
    made = InferFolder(tmp_path / "out.npy.tasks")
    (made.root / "done").mkdir(parents=True)
    made.job.write_text(json.dumps(JOB))
    (made.root / "space.json").write_text("[8, 4]")
    (made.root / "done" / "0-4_0-4.json").write_text(json.dumps(DONE))
    return made


def test_what_is_done_is_counted(folder: InferFolder) -> None:
    found = status_of(folder)
    assert (found.done, found.total, found.seconds, found.state) == (1, 2, 1.5, "unfinished")


@pytest.mark.parametrize(
    "text", ["[]", '{"checksum": "a"', "", "[" * 100_000, "9" * 5000, '{"odd": "x"}', "7"]
)
@pytest.mark.parametrize("name", ["done/0-4_0-4.json", "space.json", "infer.json"])
def test_a_file_that_says_nothing_right_is_refused_by_its_name(
    name: str, text: str, folder: InferFolder
) -> None:
    (folder.root / name).write_text(text)
    with pytest.raises(BadInput, match=Path(name).name.replace(".", r"\.")):
        status_of(folder)


@pytest.mark.parametrize("name", ["done/0-4_0-4.json", "space.json", "infer.json"])
def test_only_regular_files_of_a_size_are_read(name: str, folder: InferFolder) -> None:
    path = folder.root / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadInput):
        status_of(folder)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(BadInput):
        status_of(folder)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(BadInput):
        status_of(folder)


@pytest.mark.parametrize(
    ("space", "chunk"), [([8, 4], [0, 0]), ([8, 4], [4]), ([8000, 8000], [1, 1]), ([-8, 4], [4, 4])]
)
def test_boxes_without_end_are_refused(space: list[int], chunk: list[int], folder: InferFolder) -> None:
    (folder.root / "space.json").write_text(json.dumps(space))
    folder.job.write_text(json.dumps(JOB | {"chunk": chunk}))
    with pytest.raises(BadInput):
        status_of(folder)
