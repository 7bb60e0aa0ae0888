"""Inference as an array of workers: an element that is cancelled, and one queued later, change no byte."""

from __future__ import annotations

from pathlib import Path

from runtime.infer import prepared, queue, run, status_of
from runtime.slurm import Options
from tests.runtime.infer.conftest import Place, place
from tests.runtime.infer.test_infer import inferred, request
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PATIENCE_S, until
from tests.slurm.warm import Warm

__all__ = ["place"]


def test_an_array_of_which_an_element_is_cancelled_makes_the_bytes_of_one_worker(
    cluster: Cluster, warm: Warm, place: Place, tmp_path: Path
) -> None:
    expected = inferred(place[0], tmp_path / "alone.npy", chunk="3")
    plan = prepared(request(place[0], tmp_path / "out.npy", chunk="3"))
    folder, job = queue(plan, 3, Options(python=str(warm.python)), test=False)
    until(lambda: folder.tasks().finished(), "a task that is done")
    cluster.run("scancel", f"{job}_0")
    until(lambda: status_of(folder).state == "done", "the last task", PATIENCE_S)
    assert len(list(folder.logs.glob(f"{job}_*.out"))) > 1, "several elements have worked"
    assert status_of(folder).checksum == expected.checksum
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()
    assert run(plan, lambda line: None).checksum == expected.checksum, "the same command finds it done"
