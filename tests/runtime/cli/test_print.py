"""`launch --print torchrun` is run as it stands, and trains what one process trains."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import shardwright as sw
from runtime.launch import launch_inline, of
from runtime.runfolder import Paths, losses_of

pytestmark = pytest.mark.usefixtures("warm_starts")

ROOT = Path(__file__).parents[3]
PLAN = ROOT / "plans" / "mlp-two-stages.yaml"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_torchrun_trains_what_is_printed_and_says_that_it_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert sw.run(["launch", str(PLAN), "--print", "torchrun", f"--run={run}", "--steps=3", "--seed=5"]) == 0
    text = capsys.readouterr().out.replace("29500", str(_free_port()))
    here = shlex.quote(sys.executable)
    text = text.replace("\nshardwright ", f"\n{here} -m shardwright ")
    text = text.replace("\ntorchrun ", f"\n{here} -m torch.distributed.run ")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert of(run).state == "done"
    one = launch_inline(sw.load_plan(PLAN), tmp_path / "one", steps=3, seed=5)
    assert losses_of(Paths(run)) == one.losses
