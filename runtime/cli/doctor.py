"""Checks what is installed here and what is missing, and says what to type."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from planner.errors import ShardwrightError
from planner.units import format_bytes
from runtime import slurm

State = Literal["well", "absent", "wrong"]  # absent: not needed for everything
GB = 10**9
_UNCONFIGURED = re.compile("config(uration)? (source|file)|_config", re.IGNORECASE)  # in what SLURM says


@dataclass(frozen=True)
class Finding:
    """The result of one check: its state, a sentence, and what to type where something is wrong."""

    what: str
    state: State
    detail: str
    remedy: str = ""


def findings(folder: Path) -> list[Finding]:
    """Checks this machine.

    Args: `folder` is where runs would be kept.
    Returns: one finding for each check, in the order to print.
    """
    checks: list[Callable[[], Finding]] = [
        _python,
        *(lambda name=name: _package(name) for name in ("torch", "pulp", "highspy", "safetensors")),
        _devices,
        _machine,
        lambda: _locks(folder),
        lambda: _disk(folder),
        _slurm,
        _site,
    ]
    return [check() for check in checks]


def _python() -> Finding:
    return Finding("python", "well", f"{sys.version.split()[0]} at {sys.executable}")


def _package(name: str) -> Finding:
    try:
        return Finding(name, "well", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "wrong", "is not installed", f"{sys.executable} -m pip install {name}")


def _devices() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding(
            "devices", "wrong", f"torch cannot be imported: {error}", "install torch for this machine"
        )
    if not torch.cuda.is_available():
        return Finding("devices", "absent", "no GPU that torch can use: ranks run on the CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding("devices", "well", f"{len(names)}: {', '.join(sorted(set(names)))}")


def _machine() -> Finding:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding("machine", "well", f"{len(os.sched_getaffinity(0))} cores, {format_bytes(size)}")


def _locks(folder: Path) -> Finding:
    """Checks whether files can be locked, since ranks meet at a file that they lock."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        remedy = "keep run folders on a file system with locks (--run)"
        return Finding("locks", "wrong", f"files in {folder} cannot be locked: {error}", remedy)
    return Finding("locks", "well", f"files in {folder} can be locked")


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    state: State = "well" if free > GB else "wrong"
    return Finding(
        "disk", state, f"{format_bytes(free)} free in {folder}", "" if state == "well" else "make room"
    )


def _slurm() -> Finding:
    if shutil.which("sbatch") is None:
        return Finding("SLURM", "absent", "no sbatch here: --local and --inline run", "run on a login node")
    try:
        nodes = slurm.known()
        version = slurm.ask("sinfo", "-V").split()[-1]
    except ShardwrightError as error:
        if _UNCONFIGURED.search(str(error)):
            here = "its programs are here, but set up for no cluster: --local and --inline run"
            return Finding("SLURM", "absent", here, "SLURM_CONF, where there is a cluster")
        return Finding("SLURM", "wrong", str(error), "scontrol ping")
    names = ", ".join(sorted({node.partition for node in nodes}))
    return Finding("SLURM", "well", f"{version}, partitions {names}")


def _site() -> Finding:
    path = slurm.site_file()
    if not path.exists():
        return Finding("site file", "absent", f"no {path}: jobs are as SLURM has them by default")
    try:
        slurm.load(path)
    except ShardwrightError as error:
        return Finding("site file", "wrong", str(error), f"edit {path}")
    return Finding("site file", "well", str(path))


def well(found: list[Finding]) -> bool:
    """Returns whether no check has found anything wrong.

    Args: things that are absent but not always needed are no fault.
    """
    return all(finding.state != "wrong" for finding in found)
