"""Operations that move no data between positions: sizes become local, rows come fetched, the rest is torch's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from planner import spatial as halos
from planner.spatial import Layout
from runtime.spatial.operation import Kernel, Local

ATEN = torch.ops.aten


def plain(local: Local) -> object:
    """Runs torch's own operation on the fetched rows.

    Args: `local` has this rank's part.
    """
    return local.run()


def _local_sizes(local: Local, given: object, layout: Layout) -> list[int]:
    """Returns sizes that were asked for, with this rank's rows where a dimension is cut."""
    own = layout.local_shape(local.mesh.coordinates)
    asked = list(given) if isinstance(given, list | tuple) else list(layout.shape)
    return [own[dim] if dim in layout.cut_dims else asked[dim] for dim in range(len(own))]


def view(local: Local) -> Tensor:
    """Views or reshapes this rank's part.

    Sizes that depend on the batch are numbers by now; at most one of them is left to torch.
    Args: `local` has this rank's part and the sizes of the whole.
    Returns: this rank's part of the output.
    """
    x, layout = local.tensor("self"), local.step.output
    given = local.arguments.get("size", local.arguments.get("shape"))
    if given is None:
        return _refolded(local, x, layout)
    made = _local_sizes(local, given, layout)
    return x.view(made) if local.call.operation == "aten.view" else x.reshape(made)


def _refolded(local: Local, x: Tensor, layout: Layout) -> Tensor:
    """Flattens or unflattens this rank's part, whose batch may be larger than the example's that the rule saw."""
    ndim = len(local.call.tensor("self").shape)
    if local.call.operation == "aten.flatten":
        first = local.call.integer("start_dim") % ndim
        last = local.call.integer("end_dim", -1) % ndim
        merged = torch.Size(x.shape[first : last + 1]).numel()
        return x.reshape(*x.shape[:first], merged, *x.shape[last + 1 :])
    dim, given = local.call.integer("dim") % ndim, local.arguments["sizes"]
    assert isinstance(given, list | tuple)
    own = layout.local_shape(local.mesh.coordinates)
    made = [own[dim + i] if dim + i in layout.cut_dims else n for i, n in enumerate(given)]
    return x.reshape(*x.shape[:dim], *made, *x.shape[dim + 1 :])


def expand(local: Local) -> Tensor:
    """Expands this rank's part to its rows of the sizes asked for.

    Args: `local` has this rank's part and the sizes of the whole.
    Returns: a view.
    """
    return local.run(size=_local_sizes(local, local.arguments["size"], local.step.output))


def expand_as(local: Local) -> Tensor:
    """Expands a tensor to the size of another, with all rows where the other is cut and the result is not.

    Args: `local` has this rank's parts of both.
    Returns: a view.
    """
    other, output = local.call.tensor("other"), local.step.output
    sizes = list(local.tensor("other").shape)
    for dim in other.cut_dims:
        low, high = local.rows(output, dim)
        sizes[dim] = high - low
    return local.tensor("self").expand(sizes)


def squeeze(local: Local) -> Tensor:
    """Removes dimensions that have one row in the whole tensor; one row on this rank alone is not enough.

    Args: `local` has this rank's part.
    Returns: a view.
    """
    source = local.call.tensor("self")
    dims = local.call.dims("dim", len(source.shape))
    return local.tensor("self").squeeze([dim for dim in dims if source.shape[dim] == 1])


def picked(local: Local) -> Tensor:
    """Returns slices, padding, flips and rolls: along cut dimensions the rows fetched are the result already.

    Args: `local` has the fetched rows.
    Returns: this rank's part of the output.
    """
    cut = local.call.tensor("self").cut_dims
    x = local.tensor("self")
    ndim = x.dim()
    name = local.call.operation
    if name in ("aten.slice", "aten.narrow", "aten.select"):
        dim = local.call.integer("dim") % ndim
        if name == "aten.select" and dim in cut:
            return x.squeeze(dim)
        return x if dim in cut else local.run()
    if name == "aten.flip":
        return x.flip([dim for dim in local.call.dims("dims", ndim) if dim not in cut])
    if name == "aten.roll":
        dims = local.call.dims("dims", ndim)
        left = [
            (n, d)
            for n, d in zip(local.call.integers("shifts", len(dims)), dims, strict=True)
            if d not in cut
        ]
        return x.roll([n for n, _ in left], [d for _, d in left]) if left else x
    return _padded(local, x, cut)


def _padded(local: Local, x: Tensor, cut: tuple[int, ...]) -> Tensor:
    amounts = list(local.call.integers("pad", 0))
    for i in range(len(amounts) // 2):
        if x.dim() - 1 - i in cut:
            amounts[2 * i] = amounts[2 * i + 1] = 0
    return local.run(pad=amounts) if any(amounts) else x


def dropout(local: Local) -> Tensor:
    """Applies this rank's part of the mask that one process would draw; the numbers of that part alone are made.

    Args: `local` has this rank's part and the share that is dropped.
    Returns: this rank's part of the output.
    """
    x, p, layout = local.tensor("input"), local.arguments["p"], local.step.output
    if local.draw is None or not isinstance(p, float | int):
        return local.run()  # nothing is dropped: what drops is keyed before a stage is rewritten
    cuts = {dim: layout.cuts[dim] for dim in layout.cut_dims}
    parts = {dim: (cut.size, [local.rows(layout, dim)]) for dim, cut in cuts.items() if cut is not None}
    return local.draw.dropped(x, p, parts)


KERNELS: Final[Mapping[str, Kernel]] = (
    dict.fromkeys((*halos.POINTWISE, *halos.RESHAPES, *halos.ROWS), plain)
    | dict.fromkeys(
        ("aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.unflatten"), view
    )
    | dict.fromkeys(
        (
            "aten.slice",
            "aten.narrow",
            "aten.select",
            "aten.flip",
            "aten.roll",
            "aten.pad",
            "aten.constant_pad_nd",
        ),
        picked,
    )
    | {
        "aten.dropout": dropout,
        "aten.expand": expand,
        "aten.expand_as": expand_as,
        "aten.squeeze": squeeze,
    }
)
