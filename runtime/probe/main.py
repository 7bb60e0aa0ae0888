"""Starts the processes of a probe: forked on this machine, or by srun: `-m runtime.probe.main REPEATS FOLDER
[CARD ...]`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from planner.errors import BadInput, ShardwrightError
from planner.files import absolute
from planner.terminal import Report
from runtime import slurm
from runtime.local import supervise
from runtime.probe import probe
from runtime.probe.measurements import REPEATS
from runtime.probe.probe import Found
from runtime.runfolder import Paths
from runtime.world import join

PATIENCE_S = 300.0
LOOK_S = 0.2


class ProbeFailed(ShardwrightError):
    """A process of the probe did not do well; says which."""


def local(folder: Path, ranks: int) -> Found:
    """Probes this machine with processes that talk to each other.

    Args: `folder` is private to the probe; `ranks` is the number of processes, each with a GPU where there are any.
    Raises: BadInput where there are fewer GPUs; ProbeFailed where a process fails.
    """
    if 0 < gpus() < ranks:
        raise BadInput(f"{ranks} ranks", where="--ranks", allowed=f"at most {gpus()}, one for each GPU here")
    paths = Paths(folder).make()
    torch.set_num_threads(1)  # a process that has run threads cannot be forked
    with Report("probe") as report:
        look = partial(_look, paths, report, "processes start")
        outcome = supervise(paths, ranks, PATIENCE_S, lambda rank: _rank(paths, ranks, rank, rank), look)
    if outcome.state != "done":
        raise ProbeFailed(outcome.cause)
    return probe.read(paths.probed)


def gpus() -> int:
    """Returns how many GPUs are here. Asked so, processes may still be forked."""
    return torch.cuda.device_count()


def _look(paths: Paths, report: Report, before: str) -> None:
    report.at(*(probe.now(paths.probed) or (0.0, before)))


def _rank(
    paths: Paths,
    ranks: int,
    rank: int,
    slot: int = 0,
    repeats: int = REPEATS,
    cards: Sequence[str] = (),
) -> None:
    torch.set_num_threads(1)
    cuda = torch.cuda.is_available() and torch.cuda.device_count() > slot
    device = torch.device("cuda", slot) if cuda else torch.device("cpu")
    world = join(paths.rendezvous(0), rank, ranks, device, cards=cards)
    probe.probe(world, paths.probed, repeats, cards)
    world.barrier()
    world.close()


def by_srun(
    folder: Path,
    nodes: int,
    ranks_a_node: int,
    words: Sequence[str],
    python: str = sys.executable,
    repeats: int = REPEATS,
    cards: Sequence[str] = (),
) -> Found:
    """Probes nodes of SLURM, after waiting for them as srun does.

    Args: `words` are further options of srun; `folder` is seen by all nodes; `python` runs on them; `cards` are
        interfaces of network cards of every node.
    Raises: ProbeFailed where srun fails.
    """
    paths = Paths(absolute(folder)).make()
    command = [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes * ranks_a_node}",
        f"--ntasks-per-node={ranks_a_node}",
    ]
    command += ["--distribution=block", "--kill-on-bad-exit=1", *words]
    command += [python, "-P", "-m", "runtime.probe.main", str(repeats), str(paths.root), *cards]
    status, said = _watched(command, paths)
    if status:
        raise ProbeFailed(f"{shlex.join(command)} ended with {status}: {said.strip()[-500:]}")
    end = time.monotonic() + 30  # for file systems that show a file late
    while not paths.probed.exists() and time.monotonic() < end:
        time.sleep(0.2)
    return probe.read(paths.probed)


def _watched(command: Sequence[str], paths: Paths) -> tuple[int, str]:
    """Runs a command and reports the probe's progress meanwhile.

    Returns: its exit status, and its standard error.
    """
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as process,
        Report("probe") as report,
    ):
        try:
            while True:
                try:
                    _, said = process.communicate(timeout=LOOK_S)
                    return process.returncode, said
                except subprocess.TimeoutExpired:
                    _look(paths, report, "srun waits for nodes")
        except BaseException:
            process.kill()
            raise


def main(repeats: str, folder: str, *cards: str) -> None:
    """Runs one process of a probe that srun has started.

    Args: all are words of the command line; `cards` are interfaces.
    """
    here = slurm.read(os.environ)
    _rank(Paths(Path(folder)), here.ranks, here.rank, here.local, int(repeats), cards)


if __name__ == "__main__":
    main(*sys.argv[1:])
