"""Which kinds of devices there are, and the script of a job that measures on one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runtime.slurm import Options
from runtime.slurm.measure_jobs import Measurement, NodeKind, kinds, text
from runtime.slurm.options import Container
from tests.runtime.slurm.golden import MEASURED, MEASURED_CASES

WORDS = ("--micro=1,2", "it's mine.py", "--device=cuda")


def test_gpus_are_of_the_types_that_slurm_knows() -> None:
    rows = [
        ["main*", "gpu:a100:4(S:0-1)", "64", "(null)", "n[1-8]"],
        ["main*", "gpu:h100:8,gpu:a100:1,tmpdisk:100", "128", "(null)", "n9"],
        ["main*", "(null)", "16", "(null)", "n10"],
    ]
    assert kinds(rows, cuda=True) == [NodeKind("a100", "gpu:a100:1"), NodeKind("h100", "gpu:h100:1")]


def test_gpus_without_a_type_are_of_one() -> None:
    assert kinds([["main*", "gpu:4", "64", "(null)", "n1"]], cuda=True) == [NodeKind("gpu", "gpu:1")]
    assert kinds([["main*", "(null)", "64", "(null)", "n1"]], cuda=True) == []


def test_a_slice_of_a_gpu_is_a_type() -> None:
    rows = [["main*", "gpu:a100_3g.20gb:2", "64", "(null)", "n1"]]
    assert kinds(rows, cuda=True) == [NodeKind("a100_3g.20gb", "gpu:a100_3g.20gb:1")]


def test_nodes_without_gpus_differ_by_cores_and_features() -> None:
    one = [["main*", "(null)", "64+", "(null)", "n[1-3]"], ["big", "(null)", "64", "(null)", "n[1-3]"]]
    assert kinds(one, cuda=False) == [NodeKind("cpu")]
    two = [*one, ["main*", "(null)", "64", "new,fast", "n[4-5]"], ["main*", "(null)", "32", "(null)", "n6"]]
    assert kinds(two, cuda=False) == [
        NodeKind("cpu-32", others="n[1-3],n[4-5]"),
        NodeKind("cpu-64", others="n6,n[4-5]"),
        NodeKind("cpu-64-new-fast", others="n6,n[1-3]"),
    ]


@pytest.mark.parametrize("name", MEASURED_CASES)
def test_a_measurement_gives_the_script_that_is_committed(name: str) -> None:
    assert text(*MEASURED_CASES[name]) == (MEASURED / f"{name}.sbatch").read_text(), (
        "renew with `python -m tests.runtime.slurm.golden` where the change is meant"
    )
    subprocess.run(["bash", "-n", str(MEASURED / f"{name}.sbatch")], check=True)


def test_nodes_that_a_user_excludes_stay_excluded() -> None:
    job = Measurement(
        kind=NodeKind("cpu-4", others="n[2-3]"),
        words=WORDS,
        folder=Path("/a"),
        directory=Path("/b"),
        python="python3",
    )
    assert '#SBATCH --exclude="n7,n[2-3]"' in text(job, Options(exclude="n7"))
    mounted = text(job, Options(container=Container(runtime="pyxis", image="x")))
    assert "--container-mounts=/a:/a" in mounted
