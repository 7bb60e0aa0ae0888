"""What a killed run of these tests leaves behind does not reach the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster
from tests.slurm.folders import own

KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from tests.slurm.cluster import Cluster
from tests.slurm.folders import own
with own(Path(sys.argv[1])) as folder:
    (folder / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder / "disk"], check=True)
    with Cluster(folder, nodes=4) as cluster:
        print(folder, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(bool(clusters.missing()), reason="needs a cluster")
def test_a_killed_run_leaves_a_folder_at_most_and_the_next_one_takes_it_away(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env=clusters.clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    left = Path(done.stdout.strip())
    assert done.returncode == -signal.SIGKILL and os.path.ismount(left / "disk")
    with own(tmp_path) as folder, own(tmp_path) as beside:
        assert not left.exists()
        assert folder.exists() and beside.exists()  # one that is in use is left alone
        with Cluster(folder, nodes=4) as cluster:
            assert cluster.run("srun", "-w", "n4", "hostname") == "n4"
    assert list(tmp_path.iterdir()) == []
    assert str(left) not in subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout
