"""The public log of Summit's idle nodes and the published jobs, read from the repository of BFTrainer's authors.

That repository has no licence, so neither the log nor its jobs are shipped: the benchmark fetches them, or reads a
copy. They are pickles of data frames. The unpickler here makes arrays of numbers and inert objects, and nothing else.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import BadInput
from planner.scavenge import Curve, ElasticJob, IdleLog, Spell, log_of_spells

URL = "https://raw.githubusercontent.com/BFTrainer/Replayer/main/dataset"
LOG, IMAGENET = "ndstat-10sdn6-evt.tar.gz", "ImageNet-spdup-JNPs-1001J.pkl"
SHUFFLENET = "hps-shufflenet-JNPs-10J.pkl"
FIRST_EVENT = 1000  # where the authors' replayer begins
_ARRAYS = {"_reconstruct", "scalar", "_frombuffer", "ndarray", "dtype"}


class _Inert:
    """An object of a library that is not loaded: what it was made of, and nothing that runs."""

    def __init__(self, *made_of: object) -> None:
        self.made_of = made_of

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and name == "slice":
            return slice
        if module.partition(".")[0] == "numpy" and name in _ARRAYS:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        return type(name, (_Inert,), {})


def part(folder: Path | None, name: str) -> bytes:
    """Returns a file of the repository, from a copy of its folder `dataset` or from the network.

    Raises: BadInput where it cannot be had.
    """
    try:
        if folder is not None:
            return (folder / name).read_bytes()
        with urllib.request.urlopen(f"{URL}/{name}", timeout=60) as answer:
            return bytes(answer.read())
    except OSError as error:
        raise BadInput(f"cannot be had: {error}", where=name) from None


def log(folder: Path | None, nodes: int) -> IdleLog:
    """Returns the log of the first nodes, from the event on at which the authors begin."""
    with tarfile.open(fileobj=io.BytesIO(part(folder, LOG))) as packed:
        member = packed.extractfile(packed.getmembers()[0])
        assert member is not None
        axes, (states,), *_ = _Unpickler(member).load().state["_mgr"].state
    names, moments = axes[0].made_of[1]["data"], axes[1].made_of[1]["data"].state["_data"]
    seconds = (moments[FIRST_EVENT:] - moments[FIRST_EVENT]).astype("timedelta64[s]").astype(float)
    idle = states[:nodes, FIRST_EVENT:].astype(np.int8)
    spells = [spell for node, row in enumerate(idle) for spell in _spells(node, row, seconds)]
    return log_of_spells([str(name) for name in names[:nodes]], spells, 0.0, float(seconds[-1]))


def _spells(node: int, row: np.ndarray, seconds: np.ndarray) -> Iterator[Spell]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row, [0]])))
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        yield Spell(node, float(seconds[begin]), float(seconds[min(end, len(seconds) - 1)]))


def jobs(folder: Path | None, name: str) -> list[ElasticJob]:
    """Returns the distinct jobs of a published set, with rates between the published sizes interpolated."""
    blocks = _Unpickler(io.BytesIO(part(folder, name))).load().state["_mgr"].state
    labels, (sizes, rates, _) = blocks[0][1].made_of[1]["data"], blocks[1][0]
    found: dict[str, ElasticJob] = {}
    for label, own_sizes, own_rates in zip(labels, sizes, rates, strict=True):
        kind = str(label).partition("-")[2] or "shufflenet"
        steps = range(1, int(own_sizes[-1]) + 1)
        curve = Curve(rates={n: float(np.interp(n, own_sizes, own_rates)) for n in steps})
        found.setdefault(kind, ElasticJob(name=kind, curve=curve.in_units("speed-up")))
    return list(found.values())
