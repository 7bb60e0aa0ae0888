"""Near samples: what finding them among hashes of 64 bits takes, beside comparing all with all and beside imagededup.

imagededup wants torchvision, which it needs for its networks alone. So it is looked for in the Python that
`SHARDWRIGHT_IMAGEDEDUP` names, else in this one, and is imported without torch.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Cell, Table
from planner.arrays import IntArray
from runtime.dedup import near_pairs

Bits = NDArray[np.uint64]
THRESHOLD = 4
PEER_S = 300.0  # that imagededup has
HONEST = (
    "What leaving such samples out is worth depends on the data. Published savings of 23 % and 75 % of training time "
    "(CE-Dedup) are of data with planted copies or full of them, such as SVHN; `dedup --curve` says it of yours, beside "
    "random removal of as many samples."
)
PEER = """
import json, resource, sys, time, types
from importlib.machinery import ModuleSpec
class Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {"__init__": lambda self, *given, **named: None})
class Absent(types.ModuleType):
    __getattr__ = Anything.__getattr__
class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ("torch", "torchvision") else None
    def create_module(self, spec):
        return Absent(spec.name)
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Finder())
import numpy as np
from imagededup import __version__
from imagededup.methods import PHash
if __name__ == "__main__":
    source, target, threshold = sys.argv[1], sys.argv[2], int(sys.argv[3])
    encodings = {str(number): f"{bits:016x}" for number, bits in enumerate(np.load(source).tolist())}
    hasher, start = PHash(verbose=False), time.perf_counter()
    near = hasher.find_duplicates(encoding_map=encodings, max_distance_threshold=threshold, num_dist_workers=0)
    took_s = time.perf_counter() - start
    pairs = sorted({(min(int(a), int(b)), max(int(a), int(b))) for a, found in near.items() for b in found})
    np.save(target, np.array(pairs, np.int64).reshape(-1, 2))
    kib = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps([__version__, took_s, kib / 2**20]))
"""


def near(count: int, compared: int) -> tuple[Table, float, float]:
    """Returns what finding near samples takes, in a process of its own, and whether the pairs are brute force's."""
    code = f"from benchmarks.near_samples import found; found({count}, {compared})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, gib, pairs, same = json.loads(done.stdout.splitlines()[-1])
    table = Table(
        title="Near samples among hashes of 64 bits, at most 4 apart, one core",
        columns=(
            "hashes",
            "seconds",
            "most memory of the process, GiB",
            "pairs",
            f"brute force's among {compared:,}",
        ),
        rows=[(count, seconds, gib, pairs, same)],
        notes=(
            "Half of the hashes are drawn at random, and each of the others differs from one of these in 0 to 6 bits.",
            HONEST,
        ),
    )
    return table, seconds, gib


def beside_imagededup(folder: Path, count: int) -> Table:
    """Returns what finding near samples takes here and by imagededup, of the same hashes, each in its own process."""
    source, ours, theirs = (folder / f"{name}.npy" for name in ("hashes", "ours", "theirs"))
    np.save(source, hashes(count))
    code = f"from benchmarks.near_samples import alone; alone({str(source)!r}, {str(ours)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows: list[tuple[Cell, ...]] = [
        ("shardwright", *json.loads(done.stdout.splitlines()[-1]), len(np.load(ours)), None)
    ]
    script = folder / "peer.py"
    script.write_text(PEER)
    python = os.environ.get("SHARDWRIGHT_IMAGEDEDUP", sys.executable)
    words = [python, str(script), str(source), str(theirs), str(THRESHOLD)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PEER_S)
    except subprocess.TimeoutExpired:
        rows.append(("imagededup", f"not done in {PEER_S:g}", None, None, None))
        return _beside(count, rows, ["imagededup compares all with all, in C, in one process."])
    notes = [
        "Both find exactly the pairs that are near. imagededup compares all with all, in C, in one process."
    ]
    if done.returncode:
        last = (done.stderr.splitlines() or [""])[-1]
        notes = [f"imagededup is not beside it, since it is not installed here: {last}"]
    else:
        version, seconds, gib = json.loads(done.stdout.splitlines()[-1])
        pairs, same = np.load(theirs), np.array_equal(np.load(theirs), _sorted(np.load(ours)))
        rows.append((f"imagededup {version}", seconds, gib, len(pairs), same))
    return _beside(count, rows, notes)


def _beside(count: int, rows: list[tuple[Cell, ...]], notes: list[str]) -> Table:
    return Table(
        title=f"The same {count:,} hashes by imagededup, at most {THRESHOLD} apart",
        columns=("by", "seconds", "most memory of the process, GiB", "pairs", "pairs are ours"),
        rows=rows,
        notes=(*notes, "The process of shardwright has torch in memory, that of imagededup has not."),
    )


def alone(source: str, target: str) -> None:
    """Prints what finding the pairs of hashes in a file takes, and writes them."""
    bits = np.load(source)
    start = time.perf_counter()
    pairs = near_pairs(bits, THRESHOLD)
    took_s = time.perf_counter() - start
    np.save(target, pairs)
    print(json.dumps([took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]))


def _sorted(pairs: IntArray) -> IntArray:
    """Returns pairs in the order of their numbers, the smaller one first."""
    low = np.sort(pairs, axis=1)
    return low[np.lexsort((low[:, 1], low[:, 0]))]


def found(count: int, compared: int) -> None:
    """Prints what finding pairs takes, and whether they are those of comparing all with all."""
    bits = hashes(count)
    start = time.perf_counter()
    pairs = near_pairs(bits, THRESHOLD)
    took_s = time.perf_counter() - start
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    few = hashes(compared)
    same = np.array_equal(near_pairs(few, THRESHOLD), brute(few, THRESHOLD))
    print(json.dumps([took_s, gib, len(pairs), bool(same)]))


def hashes(count: int) -> Bits:
    draw = np.random.default_rng(count)
    bits = draw.integers(0, 2**64, count, dtype=np.uint64)
    half = count // 2
    flips = np.zeros(count - half, np.uint64)
    for _ in range(6):
        flips |= np.uint64(1) << draw.integers(0, 64, count - half, dtype=np.uint64)
    bits[half:] = bits[draw.integers(0, half, count - half)] ^ (
        flips * draw.integers(0, 2, count - half, dtype=np.uint64)
    )
    return bits


def brute(bits: Bits, threshold: int) -> IntArray:
    """Returns the near pairs by comparing all with all."""
    rows = []
    for first in range(0, len(bits), 256):
        differ = bits[first : first + 256, None] ^ bits[None, :]
        ones = np.unpackbits(differ.view(np.uint8).reshape(*differ.shape, 8), axis=2).sum(axis=2)
        near = np.argwhere(ones <= threshold) + np.array([first, 0])
        rows.append(near[near[:, 0] < near[:, 1]])
    return np.concatenate(rows)
