"""One cluster and one process with torch loaded, for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.plan import Plan
from runtime.slurm import job, measure_jobs
from runtime.train import Model
from tests.captures import captured_of
from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster
from tests.slurm.folders import own
from tests.slurm.jobs import Gate, paced_plan
from tests.slurm.warm import Warm


@pytest.fixture(scope="package")
def state() -> Iterator[Path]:
    if reason := clusters.missing():
        pytest.skip(reason)
    with own() as folder:
        yield folder


@pytest.fixture(scope="package")
def _disk(state: Path) -> Iterator[Path]:
    """Of two megabytes; made before the nodes, so that all see it."""
    folder = state / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    yield folder


@pytest.fixture
def small_disk(_disk: Path) -> Iterator[Path]:
    yield _disk
    for left in _disk.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


@pytest.fixture(scope="package")
def up(state: Path, _disk: Path) -> Iterator[Cluster]:
    """Twelve nodes; this process and what it starts are their clients while it is up."""
    with Cluster(state, nodes=12) as made, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH_", "SRUN_"))]:
            patch.delenv(name)
        for name, value in made.variables.items():
            patch.setenv(name, value)
        patch.setattr(job, "ASK_S", (1.0, 5.0))  # here SLURM has nobody else to answer
        patch.setattr(measure_jobs, "LOOK_S", 0.2)
        yield made


@pytest.fixture
def cluster(small_disk: Path, up: Cluster) -> Iterator[Cluster]:
    """Every test begins with all nodes up and nothing queued, whatever became of the one before."""
    yield up
    up.clear()


@pytest.fixture(scope="package")
def warm(state: Path) -> Iterator[Warm]:
    made = Warm(state)
    yield made
    made.close()


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate")
    monkeypatch.setenv("PACED_GATE", str(made.path))
    monkeypatch.setenv("PACED_GATE_AT", str(6 * paced_plan().batch.samples))
    yield made
    made.open()


@pytest.fixture(autouse=True, scope="module")
def _capture_once() -> Iterator[None]:
    """This process launches the same few models again and again."""

    def of(plan: Plan, workload: object = None) -> Model:
        return Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "of", of)
        yield
