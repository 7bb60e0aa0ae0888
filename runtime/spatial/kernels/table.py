"""Kernels by operation, under the same keys as the rules of `planner.spatial`.

Kernels of operations on whole samples of which each rank has its share; all others are torch's own on the share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from planner.spatial import Layout, Step
from runtime.spatial.kernels import convolution, norm, pooling, reduce, resample, reshapes
from runtime.spatial.kernels.reshapes import plain, squeeze
from runtime.spatial.operation import Kernel, Local

KERNELS: Final[Mapping[str, Kernel]] = {
    **reshapes.KERNELS,
    **convolution.KERNELS,
    **pooling.KERNELS,
    **norm.KERNELS,
    **resample.KERNELS,
    **reduce.KERNELS,
    **reduce.LOSS_KERNELS,
}


def _sizes(local: Local, given: object, layout: Layout) -> list[int]:
    """Returns sizes for this rank's share of the samples, from sizes that were asked for all samples."""
    assert isinstance(given, list | tuple)
    (dim,) = layout.cut_dims or (None,)
    size = local.mesh.wire.size
    return [n // size if i == dim and n > 0 else n for i, n in enumerate(given)]


def view(local: Local) -> Tensor:
    """Views or reshapes this rank's share of the samples.

    Args: `local` has the share and the sizes for all samples.
    Returns: this rank's share of the output.
    """
    x, given = local.tensor("self"), local.arguments.get("size", local.arguments.get("shape"))
    made = _sizes(local, given, local.step.output)
    return x.view(made) if local.call.operation == "aten.view" else x.reshape(made)


def expand(local: Local) -> Tensor:
    """Expands this rank's share of the samples.

    Args: `local` has the share and the sizes for all samples.
    Returns: a view.
    """
    return local.run(size=_sizes(local, local.arguments["size"], local.step.output))


def dropout(local: Local) -> Tensor:
    """Applies this rank's samples of the mask that one process would draw; the numbers of these alone are made.

    Args: `local` has the share of the samples and the share that is dropped.
    Returns: this rank's share of the output.
    """
    x, p = local.tensor("input"), local.arguments["p"]
    if local.draw is None or not isinstance(p, float | int):
        return local.run()  # nothing is dropped: what drops is keyed before a stage is rewritten
    (dim,), ranks, rank = local.step.output.cut_dims, local.mesh.wire.size, local.mesh.wire.rank
    own = x.shape[dim]
    return local.draw.dropped(x, p, {dim: (own * ranks, [(rank * own, rank * own + own)])})


SHARE_KERNELS: Final[Mapping[str, Kernel]] = {
    **{name: kernel for name, kernel in reduce.KERNELS.items() if kernel is not Local.run},
    **reduce.LOSS_KERNELS,
    **dict.fromkeys(("aten.view", "aten.reshape", "aten._unsafe_view"), view),
    "aten.expand": expand,
    "aten.squeeze": squeeze,
    "aten.dropout": dropout,
    "aten.feature_dropout": dropout,
    "aten.batch_norm": norm.batch_norm,
}


def kernel_of(operation: str, step: Step) -> Kernel:
    """Returns the kernel of an operation on a share of the samples.

    Args: `step` tells whether the operation reduces over samples or within each.
    Returns: torch's own operation where each sample is taken for itself.
    """
    within = operation in reduce.KERNELS and step.output.axes == step.axes  # of each sample for itself
    return plain if within else SHARE_KERNELS.get(operation, plain)
