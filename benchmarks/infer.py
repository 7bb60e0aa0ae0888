"""Exact inference box by box beside MONAI's sliding window: voxels a second and the error of both against the whole.

One model, one device, one limit of memory. MONAI takes the largest cube as its window whose forward pass fits, at its
own overlap of 0.25 and at 0.5; ours takes the chunk that `--chunk auto` chooses. Rounds alternate. chunkflow blends the
same windows where it is installed (`pip install chunkflow`); it asks for so much that no extra of ours names it.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, prod
from pathlib import Path
from typing import cast

import numpy as np
import torch
from monai.inferers.utils import sliding_window_inference
from monai.networks.nets import BasicUNet
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.harness import Cell, Result, Table, above, below, main
from planner.arrays import FloatArray
from runtime.infer import InferPlan, InferRequest, prepared
from runtime.infer.box_work import Work
from runtime.infer.chunk import best
from runtime.infer.folder import boxes
from runtime.leases import Tasks

MODEL = """
import torch
from monai.networks.nets import BasicUNet

def build():
    return BasicUNet(3, 1, 2, features=(8, 8, 16, 32, 32, 8), norm="batch")

def batch(n):
    return torch.rand(n, 1, 32, 32, 32), torch.rand(n, 2, 32, 32, 32)

def loss(outputs, targets):
    return (outputs - targets).square().mean()
"""
DEPTH = 16  # the product of the strides
CLAIMS, WORKERS = 1000, 20


def unet() -> nn.Module:
    """Returns a U-Net as those that segment the LiTS volumes, with norms that have seen data."""
    torch.manual_seed(0)
    made = BasicUNet(3, 1, 2, features=(8, 8, 16, 32, 32, 8), norm="batch").eval()
    for part in made.modules():
        if isinstance(part, nn.BatchNorm3d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    return made


def window(plan: InferPlan, memory: float) -> int:
    """Returns the largest cube, in multiples of the strides, whose forward pass alone holds at most so many bytes."""
    work, side = Work(plan.applied), DEPTH

    def held(rows: int) -> float:
        elements = work.other * (work.whole / np.array(work.space) * rows).prod(1)
        return float((work.alive @ elements).max() * work.item)

    while side + DEPTH <= min(work.space) and held(side + DEPTH) <= memory:
        side += DEPTH
    return side


def windows(shape: Sequence[int], side: int, overlap: float) -> float:
    """Returns how often a window of so many voxels along each axis computes each voxel of a volume.

    Args: `overlap` is the share of a window that the next one computes again.
    """
    step = int(side * (1 - overlap))
    counts = [ceil((n - side) / step) + 1 if n > side else 1 for n in shape]
    return prod(count * min(n, side) / n for count, n in zip(counts, shape, strict=True))


def took(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@torch.no_grad()
def beside(
    folder: Path, shape: tuple[int, int, int], rounds: int
) -> tuple[list[tuple[Cell, ...]], list[float], float]:
    """Returns rows of the table, our speed over MONAI's at each of its overlaps, and the seconds of a task of ours."""
    module = unet()
    (folder / "net.py").write_text(MODEL)
    save_file(module.state_dict(), folder / "weights.safetensors")
    volume = np.random.default_rng(0).standard_normal(shape).astype("f4")
    np.save(folder / "in.npy", volume)
    x = torch.from_numpy(volume)[None, None]
    whole = module(x)
    names = {
        name: str(folder / f"{name}{end}")
        for name, end in (("net", ".py"), ("weights", ".safetensors"), ("in", ".npy"))
    }

    def request(output: str, chunk: str) -> InferRequest:
        return InferRequest(
            workload=names["net"], weights=names["weights"], input=names["in"], output=output, chunk=chunk
        )

    first = prepared(request(str(folder / "none.npy"), ",".join(map(str, shape))))
    work = Work(first.applied)
    memory = work.of(shape)[1] / 3  # what the volume would take is three times of what there is
    chosen = best(work, tuple(min(n, DEPTH) for n in shape), memory, None)
    side = window(first, memory)
    times: dict[str, list[float]] = {"ours": [], "0.25": [], "0.5": [], "chunkflow": []}
    made: dict[str, Tensor] = {}
    blended: FloatArray | None = None

    def monai(overlap: float) -> None:
        made[str(overlap)] = sliding_window_inference(
            x, (side,) * 3, 1, module, overlap=overlap, mode="gaussian"
        )

    def ours() -> None:
        applied = first.applied
        applied.job = replace(applied.job, sweep=list(chosen.sweep))
        out = np.empty(applied.output_shape, "f4")
        for box in boxes(shape, chosen.chunk):
            values, _ = applied.compute(box)
            out[(slice(None), *(slice(*rows) for rows in box))] = values
        made["ours"] = torch.from_numpy(out)[None]

    def flow() -> None:
        nonlocal blended
        blended = chunkflow(module, volume, side)

    for _ in range(rounds):
        times["ours"].append(took(ours))
        for overlap in (0.25, 0.5):
            times[str(overlap)].append(took(partial(monai, overlap)))
        times["chunkflow"].append(took(flow))
    if blended is not None:
        made["chunkflow"] = torch.from_numpy(blended)[None]
    seconds = {name: statistics.median(found) for name, found in times.items()}
    scale = float(whole.abs().max())
    over = work.total(*chosen)[0] / work.of(shape)[0]
    how = f", passes of {chosen.sweep[1]} along axis {chosen.sweep[0]}" if chosen.sweep else ""
    said = {
        "ours": f"ours, chunk {' x '.join(map(str, chosen.chunk))}{how}",
        "chunkflow": f"chunkflow, patch {side}, overlap 0.25",
    }
    rows: list[tuple[Cell, ...]] = [
        (
            said.get(name, f"MONAI, window {side}, overlap {name}"),
            np.prod(shape).item() / seconds[name] / 1e6,
            float((made[name] - whole).abs().max()) / scale,
            over if name == "ours" else windows(shape, side, 0.5 if name == "0.5" else 0.25),
        )
        for name in ("ours", "0.25", "0.5", "chunkflow")
        if name in made
    ]
    speeds = [seconds["0.25"] / seconds["ours"], seconds["0.5"] / seconds["ours"]]
    return rows, speeds, seconds["ours"] / work.total(*chosen)[1]


def chunkflow(module: nn.Module, volume: FloatArray, side: int) -> FloatArray | None:
    """Returns what chunkflow's own inferencer makes at an overlap of a quarter; None where it is not installed.

    Args: `module` is run by it on patches of `side` voxels along each axis.
    """
    try:
        from chunkflow.chunk import Chunk
        from chunkflow.flow.divid_conquer.inferencer import Inferencer
        from chunkflow.flow.divid_conquer.patch.base import PatchInferencerBase
    except ImportError:
        return None

    class Patches(PatchInferencerBase):  # type: ignore[misc]
        compute_device = "cpu"

        def __call__(self, patch: FloatArray) -> FloatArray:
            return cast(
                FloatArray, module(torch.from_numpy(patch)).numpy() * np.asarray(self.output_patch_mask_numpy)
            )

    sizes = ((side,) * 3, (side,) * 3, (side // 4,) * 3)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found = Inferencer(
            Patches(*sizes, 2),
            "",
            sizes[0],
            sizes[1],
            output_patch_overlap=sizes[2],
            num_output_channels=2,
            framework="prebuilt",
        )(Chunk(volume))
    return np.asarray(found.array)


def claims(folder: Path) -> float:
    """Returns the seconds of processor time that a task's claim and its end take, of a thousand by twenty workers."""
    names = [f"{i}" for i in range(CLAIMS)]

    def work() -> None:
        for lease in Tasks(folder, names).work():
            with lease:
                lease.done({"checksum": ""})

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(Tasks(folder, names).finished()) == CLAIMS
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / CLAIMS


def run(quick: bool) -> Result:
    shape = (80, 96, 64) if quick else (128, 160, 112)
    with tempfile.TemporaryDirectory() as name:
        rows, speeds, task_s = beside(Path(name), shape, 1 if quick else 3)
        took_s = claims(Path(name) / "tasks")
    tables = [
        Table(
            title=f"A U-Net of four levels with batch norms over {' x '.join(map(str, shape))} voxels, in a third of the memory",
            columns=("how", "million voxels a second", "error of the whole's largest number", "overcompute"),
            rows=rows,
            notes=(
                f"Over MONAI at overlap 0.25: {speeds[0]:.2f} times as fast; at 0.5: {speeds[1]:.2f} times.",
                f"Of {CLAIMS} tasks by {WORKERS} workers, each takes {took_s * 1e3:.1f} ms of processor time to claim and end, "
                f"which is {took_s / task_s:.2%} of a task of this U-Net.",
            ),
        )
    ]
    wasted = cast(float, rows[0][3]) / cast(float, rows[2][3])
    missed = (
        *below("The speed over MONAI's at overlap 0.25", [("U-Net", speeds[0])], 1.0),
        *above("Our error against the whole", [("U-Net", rows[0][2])], 1e-6),
        *above("What a claim takes of a task", [("U-Net", took_s / task_s)], 0.01),
        *above("Our overcompute over that of windows at an overlap of a half", [("U-Net", wasted)], 0.7),
    )
    claim = "At least as many voxels a second as MONAI's sliding window at overlap 0.25, with the whole volume's numbers."
    return Result(name="infer", claim=claim, tables=tables, missed=missed)


if __name__ == "__main__":
    main(run)
