"""A wheel, installed where nothing of this folder is in reach, beside a user's own `models/` and `runtime.py`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests", "benchmarks")
CLUSTER = """\
version: 1
name: two
nodes: [{count: 1, device: cpu, devices_per_node: 2, memory_bytes: 2147483648}]
links: {node: {latency_s: 0.0003, bandwidth_bytes_per_s: 2.0e9}}
"""
NET = """\
from torch import nn

def net(width): return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))
"""
TRAIN = """\
import torch
from models.net import net
from runtime import WIDTH

def build(width=WIDTH): return net(width)
def batch(n): return torch.randn(n, 8), torch.randint(2, (n,))
def loss(outputs, targets): return torch.nn.functional.cross_entropy(outputs, targets)
"""
FACADE = """\
import shardwright as sw
costs = sw.profile("train.py", device="roofline:V100-16GB", micro=(1, 2))
plan = sw.plan(costs, "two.yaml", batch=8, fix={"pipeline": 2, "data": 1})
assert sw.verify(plan, costs=costs) == []
with sw.Run.open(plan, "facade") as run:
    print(run.step(next(run.batches())))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel; what it depends on is lent by the one that runs the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "source", ignore=LEFT_OUT)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    alone = ["--quiet", "--no-deps", "--no-index"]
    build = ["wheel", *alone, "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run([*pip, *build], check=True)
    venv.create(folder / "env", with_pip=False)
    (wheel,) = folder.glob("*.whl")
    made = folder / "env" / "bin" / "python"
    subprocess.run([*pip, "--python", str(made), "install", *alone, str(wheel)], check=True)
    shutil.rmtree(folder / "source")
    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    for name, text in (
        ("models/net.py", NET),
        ("runtime.py", "WIDTH = 16\n"),
        ("train.py", TRAIN),
        ("two.yaml", CLUSTER),
        ("facade.py", FACADE),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(python: Path, project: Path, *command: str) -> str:
    lent = {"PYTHONPATH": sysconfig.get_path("purelib"), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=project, env={**os.environ, **lent}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_installed_commands_plan_and_launch_a_users_file(python: Path, project: Path) -> None:
    where = run(python, project, str(python), "-P", "-c", "import shardwright; print(shardwright.__file__)")
    assert "/env/" in where
    planned = "plan train.py --cluster two.yaml --batch 8 --fix pipeline=2 --fix data=1 -o plan.yaml --json"
    run(python, project, *planned.split())
    launched = "launch plan.yaml --local --steps 2 --wait --json"
    ended = json.loads(run(python, project, *launched.split()))
    assert ended["state"] == "done"
    assert len(ended["steps"]) == 2


def test_the_installed_demo_trains_two_models_and_reports_on_them(python: Path, project: Path) -> None:
    runs = json.loads(run(python, project, "shardwright", "demo", "--json"))["runs"]
    assert [row["workload"] for row in runs] == ["gpt2", "unet3d"]
    for row in runs:
        assert len(row["losses"]) == 10
        assert (Path(row["run"]) / "report.html").is_file() or (
            Path(row["run"]).parent / "report.html"
        ).is_file()


def test_the_facade_works_beside_folders_of_the_same_names(python: Path, project: Path) -> None:
    assert float(run(python, project, str(python), "facade.py")) > 0


def test_everything_that_is_no_code_is_in_the_wheel(python: Path, project: Path) -> None:
    code = "import shardwright; print(shardwright.__file__)"
    installed = Path(run(python, project, str(python), "-P", "-c", code).strip()).parent
    for room in ("planner", "runtime", "models", "plans"):
        for path in (ROOT / room).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                assert (installed / path.relative_to(ROOT)).is_file(), f"{path} is missing"
