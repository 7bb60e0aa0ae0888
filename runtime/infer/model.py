"""A model applied to a volume: the numbers of any box of the output, exact or blended."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from planner.capture import Forward, converted, forward_of, sample_of, tensor_digest
from planner.errors import BadInput
from planner.spatial import Box, Reach
from planner.workload import Workload, load
from runtime.infer.blend import Blend, within
from runtime.infer.folder import InferJob
from runtime.infer.storage import Numbers, Volume, opened, written
from runtime.infer.sweep import SweepRunner, sweep
from runtime.infer.weights import load_weights
from runtime.same_bits import SameBits
from runtime.spatial import GroupWire, ShardRunner, steady

Mode = Literal["exact", "blend"]
DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}


class Applied:
    """A model with its weights and the volume that it is applied to."""

    def __init__(self, job: InferJob) -> None:
        """Opens the volume, and captures the model for its shape.

        Args: `job` may lack the chunk still.
        Raises: BadInput where model, weights and volume do not go together, or the model needs all of space.
        """
        self.job = job
        self.workload = load(job.workload, job.settings)
        self.volume = opened(job.input)
        self.dtype: torch.dtype = DTYPES[job.dtype]
        self.device = torch.device(job.device)
        self.shape = (1, *_with_channels(self.volume, self.workload, job.input))

    @property
    def space(self) -> tuple[int, ...]:
        """Returns the rows of the input volume along each axis of space."""
        return self.shape[2:]

    @cached_property
    def forward(self) -> Forward:
        """Returns the model, captured for the whole volume, or for one patch of a blended one."""
        space = self.space if self.job.mode == "exact" else self.blend.patch
        return forward_of(self.workload, (*self.shape[:2], *space), self.dtype)

    @cached_property
    def reach(self) -> Reach:
        """Returns what boxes of the output need.

        Raises: BadInput, which names what needs all of space.
        """
        try:
            return Reach(self.forward.operations, self.forward.source, self.forward.result)
        except BadInput as error:
            raise self.forward.line(error) from None

    @cached_property
    def module(self) -> nn.Module:
        """Returns the user's module with the weights of the job, in evaluation mode."""
        module = converted(self.workload.build(), self.dtype).eval().requires_grad_(False)
        load_weights(module, Path(self.job.weights), self.forward)
        return module.to(self.device)

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Returns what the captured operations read, by name."""
        found = dict(self.forward.captured.initial(self.module))
        constants = self.forward.captured.layout.traced.constants
        found |= {name: tensor for name, tensor in constants.items() if name not in found}
        return {name: tensor.to(self.device) for name, tensor in found.items()}

    @cached_property
    def digest(self) -> str:
        """Returns a hash of everything that computes and is not in the weights: operations, and what `build` makes."""
        kept = self.module.state_dict().keys()
        made = {x.name for x in self.forward.states.values()} & self.tensors.keys() - kept
        rows = [f"{name} {tensor_digest(self.tensors[name])}" for name in sorted(made)]
        return hashlib.sha256("\n".join([self.forward.digest, *rows]).encode()).hexdigest()

    @cached_property
    def runner(self) -> SweepRunner:
        return SweepRunner(self.forward, self.tensors)

    @property
    def grid(self) -> tuple[int, ...]:
        """Returns the parts of a whole volume that several devices share: all along the longest axis."""
        longest = self.space.index(max(self.space))
        return tuple(self.job.devices if axis == longest else 1 for axis in range(len(self.space)))

    @cached_property
    def blend(self) -> Blend:
        """Returns the patches of a blended output."""
        return Blend(self.space, tuple(self.job.patch), tuple(self.job.overlap))

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        """Returns the shape of the output volume: the model's without the sample."""
        shapes = {x.name: x.outputs[0] for x in self.forward.operations}
        made = shapes[self.forward.result]
        if self.job.mode == "blend":
            if made[2:] != self.blend.patch:
                raise BadInput(
                    f"the model makes {made[2:]} of a patch of {self.blend.patch}",
                    where="--mode blend",
                    allowed="a model whose output has the size of its input; --mode exact takes others",
                )
            made = (*made[:2], *self.space)
        if made[0] != 1:
            raise BadInput(f"the model makes {made[0]} samples of one", where=self.job.workload)
        return made[1:]

    @property
    def output_dtype(self) -> np.dtype[np.generic]:
        """Returns the type of the numbers in the output volume; numpy has no bfloat16, which becomes float32."""
        kind = self.forward.dtype
        made = torch.float32 if kind == torch.bfloat16 else kind
        return np.dtype(torch.empty(0, dtype=made).numpy().dtype)

    @property
    def output_space(self) -> tuple[int, ...]:
        """Returns the rows of the output along each axis of space."""
        if self.job.devices:
            return self.output_shape[1:]
        return self.reach.output_space if self.job.mode == "exact" else self.space

    def output_box(self, box: Box) -> Box:
        """Returns a box of space as rows along every dimension of the output volume."""
        boxed = self.job.mode == "exact" and not self.job.devices
        dims = self.reach.output_dims if boxed else range(2, len(self.output_shape) + 1)
        rows = dict(zip(dims, box, strict=True))
        return tuple(rows.get(dim + 1, (0, n)) for dim, n in enumerate(self.output_shape))

    def read(self, box: Box) -> tuple[Tensor, int]:
        """Returns the input in a box as one sample, and how many of its numbers are not finite."""
        inner = box if len(self.volume.shape) == len(box) else ((0, self.volume.shape[0]), *box)
        values = self.volume.read(inner)
        odd = int(values.size - np.isfinite(values).sum()) if values.dtype.kind in "fc" else 0
        numbers = torch.from_numpy(np.ascontiguousarray(values.astype(_plain(values.dtype), copy=False)))
        return numbers.to(self.device, self.dtype).reshape(1, self.shape[1], *numbers.shape[-len(box) :]), odd

    @torch.no_grad()
    def compute(self, box: Box) -> tuple[Numbers, int]:
        """Computes a box of the output.

        Args: `box` has rows along each axis of space.
        Returns: the numbers, with the dimensions of the output volume, and how many numbers read are not finite.
        """
        with steady(self.forward, self.device):
            made, odd = (
                self._exact(box) if self.job.mode == "exact" else self.blend.box(box, self.read, self._patch)
            )
        found = made[0].float() if made.dtype == torch.bfloat16 else made[0]
        return found.cpu().contiguous().numpy().astype(self.output_dtype, copy=False), odd

    def _exact(self, box: Box) -> tuple[Tensor, int]:
        if not self.job.sweep:
            need = self.reach.of(box)
            x, odd = self.read(need.input)
            return self.runner(need, x), odd
        odds: list[int] = []

        def read(rows: Box) -> Tensor:
            x, odd = self.read(rows)
            odds.append(odd)
            return x

        return self.swept(box, read), sum(odds)

    def swept(self, box: Box, read: Callable[[Box], Tensor]) -> Tensor:
        """Returns a box of the output, computed pass by pass.

        Args: `read` returns the input in a box as one sample, channels first.
        """
        place, step = self.job.sweep
        shape = (1, *(high - low for low, high in self.output_box(box)))
        made = torch.empty(shape, dtype=self.forward.dtype)
        dim, first = self.reach.output_dims[place], box[place][0]
        for (low, high), part in self.runner.run(self.reach, sweep(self.reach, box, place, step), read):
            made.narrow(dim, low - first, high - low).copy_(part)
        return made

    def _patch(self, x: Tensor) -> Tensor:
        """Returns the module's output for one patch, averaged over all flips where that is asked for."""
        if not self.job.flips:
            return self._whole(x)
        dims = range(2, x.dim())
        total = torch.zeros((), device=x.device)
        for number in range(2 ** len(dims)):
            turned = [dim for i, dim in enumerate(dims) if number >> i & 1]
            made = self._whole(x.flip(turned)).flip(turned)
            total = made if number == 0 else total + made
        mean: Tensor = total / 2 ** len(dims)
        return mean

    def _whole(self, x: Tensor) -> Tensor:
        with SameBits():
            made: Tensor = self.module(x)
        return made

    @torch.no_grad()
    def blend_error(self, box: Box) -> float:
        """Returns how far a blended box is from the same box computed whole, relative to its largest number.

        Args: `box` is small enough to be computed whole.
        """
        x, _ = self.read(box)
        whole = self._patch(x)
        inner = Blend(tuple(x.shape[2:]), tuple(self.job.patch), tuple(self.job.overlap))

        sizes = tuple((0, n) for n in x.shape[2:])

        def part(rows: Box) -> tuple[Tensor, int]:
            return within(x, rows, sizes), 0

        made, _ = inner.box(sizes, part, self._patch)
        return float((made - whole).abs().max() / whole.abs().max().clamp(min=1e-30))


def share(job: InferJob, rank: int, meet: str) -> int:
    """Computes one rank's part of a whole volume and writes it.

    Args: `meet` is a folder in which the ranks of this try find each other.
    Returns: how many numbers read are not finite.
    """
    cuda = job.device != "cpu"
    if cuda:
        torch.cuda.set_device(rank)
    applied = Applied(replace(job, device=f"cuda:{rank}") if cuda and job.devices > 1 else job)
    dist.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"file://{meet}/file", rank=rank, world_size=job.devices
    )
    group = dist.group.WORLD
    assert group is not None
    runner = ShardRunner(applied.forward, applied.tensors, applied.grid, GroupWire(group))
    x, odd = applied.read(runner.rows(applied.forward.source)[2:])
    made = runner.shard(x)[0]
    rows = runner.rows(applied.forward.result)[1:]
    values = (made.float() if made.dtype == torch.bfloat16 else made).cpu().contiguous().numpy()
    whole = all(pair == (0, n) for pair, n in zip(rows, applied.output_shape, strict=True))
    for turn in range(job.devices):  # one after the other, since parts may lie in one chunk of the storage
        if turn == rank and (rank == 0 or not whole):
            written(Path(job.output)).write(rows, values.astype(applied.output_dtype, copy=False))
        dist.barrier()
    dist.destroy_process_group()
    return odd


def _plain(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Returns a type that torch has for the numbers of a volume, in this machine's order of bytes."""
    wider = {"uint16": "int32", "uint32": "int64", "uint64": "float64", "bool": "uint8"}
    return np.dtype(wider.get(dtype.name, dtype.newbyteorder("=").name))


def _with_channels(volume: Volume, workload: Workload, name: str) -> tuple[int, ...]:
    """Returns the shape of a volume with its channels first.

    Raises: BadInput where the model takes other channels, or has another number of axes, or numbers are none.
    """
    if volume.dtype.kind not in "biuf" or volume.dtype.itemsize > 8:
        raise BadInput(f"holds {volume.dtype}", where=name, allowed="real numbers of at most 64 bits")
    if not all(volume.shape):
        raise BadInput(
            f"has the shape {volume.shape}", where=name, allowed="at least one row along each axis"
        )
    example = sample_of(workload)
    channels, axes = example[1], len(example) - 2
    found = volume.shape if len(volume.shape) == axes + 1 else (1, *volume.shape)
    if len(found) != axes + 1 or found[0] != channels:
        wanted = f"{channels} channels, then {axes} axes of space"
        plain = f"; or {axes} axes alone" if channels == 1 else ""
        raise BadInput(f"has the shape {volume.shape}", where=name, allowed=wanted + plain)
    return found
