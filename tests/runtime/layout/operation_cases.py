"""Every operation of `planner.layout` with small tensors, in even and in uneven sizes.

A row is an operation x factor x kind of its first tensor x mesh. Tests draw some hundreds of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch

from planner.layout import FAMILIES, DimCut, GroupLayout, everywhere, parted
from planner.spatial import NoRule, call_of, whole
from tests.runtime.layout.one_operation import EXACT, Case, differences

ATEN = torch.ops.aten
MESHES = ((2,), (3,), (4,), (2, 2))
SIZES = {"even": (4, 8, 12), "uneven": (5, 7, 9), "indivisible": (3, 5, 2)}


def cases(a: int, b: int, c: int) -> dict[str, Case]:
    """Returns the operations by name; `a`, `b` and `c` are sizes of dimensions."""
    x = {"x": (a, b, c)}
    table = {"x": (a, c), "t": (a,)}
    volume = {"x": (a, b, c), "t": (a, c)}
    found = {
        "linear": Case(ATEN.linear.default, ("x", "w", "b"), x, {"w": (b, c), "b": (b,)}),
        "linear without bias": Case(ATEN.linear.default, ("x", "w"), x, {"w": (b, c)}),
        "linear of rows": Case(ATEN.linear.default, ("x", "w", "b"), {"x": (a, c)}, {"w": (b, c), "b": (b,)}),
        "addmm": Case(ATEN.addmm.default, ("b", "x", "w"), {"x": (a, c)}, {"w": (c, b), "b": (b,)}),
        "addmm of a matrix": Case(
            ATEN.addmm.default, ("y", "x", "w"), {"x": (a, c), "y": (a, b)}, {"w": (c, b)}
        ),
        "matmul": Case(ATEN.matmul.default, ("x", "y"), {"x": (a, b, c), "y": (a, c, b)}),
        "matmul by one": Case(ATEN.matmul.default, ("x", "y"), {"x": (a, b, c), "y": (c, b)}),
        "mm": Case(ATEN.mm.default, ("x", "w"), {"x": (a, c)}, {"w": (c, b)}),
        "bmm": Case(ATEN.bmm.default, ("x", "y"), {"x": (a, b, c), "y": (a, c, b)}),
        "baddbmm": Case(
            ATEN.baddbmm.default,
            ("z", "x", "y"),
            {"x": (a, b, c), "y": (a, c, b), "z": (1, b)},
            kwargs={"beta": 0.5, "alpha": 2.0},
        ),
        "embedding": Case(ATEN.embedding.default, ("w", "x"), {"x": (a, b)}, {"w": (2 * c, a)}, {"x": 2 * c}),
        "embedding with padding": Case(
            ATEN.embedding.default, ("w", "x", 1), {"x": (a, b)}, {"w": (c, a)}, {"x": c}
        ),
        "conv2d": Case(
            ATEN.conv2d.default, ("x", "w", "b"), {"x": (a, b, 5, 5)}, {"w": (c, b, 3, 3), "b": (c,)}
        ),
        "conv1d": Case(ATEN.conv1d.default, ("x", "w"), {"x": (a, b, 5)}, {"w": (c, b, 3)}),
        "conv transpose": Case(
            ATEN.conv_transpose2d.input, ("x", "w", "b"), {"x": (a, b, 3, 3)}, {"w": (b, c, 2, 2), "b": (c,)}
        ),
        "instance norm": Case(
            ATEN.instance_norm.default,
            ("x", "w", "b", None, None, True, 0.1, 1e-5, False),
            {"x": (a, b, 3, 3)},
            {"w": (b,), "b": (b,)},
        ),
        "group norm": Case(
            ATEN.group_norm.default, ("x", b, "w", "b"), {"x": (a, 2 * b, 3)}, {"w": (2 * b,), "b": (2 * b,)}
        ),
        "max pool": Case(ATEN.max_pool2d.default, ("x", [2, 2]), {"x": (a, b, 4, 4)}),
        "mean pool": Case(ATEN.avg_pool3d.default, ("x", [2, 2, 2]), {"x": (a, b, 4, 4, 4)}),
        "resize": Case(ATEN.upsample_nearest2d.vec, ("x", None, [2.0, 2.0]), {"x": (a, b, 3, 3)}),
        "attention": Case(
            ATEN.scaled_dot_product_attention.default,
            ("q", "k", "v"),
            {"q": (2, a, b, 4), "k": (2, a, b, 4), "v": (2, a, b, 4)},
            kwargs={"is_causal": True},
        ),
        "attention with a mask": Case(
            ATEN.scaled_dot_product_attention.default,
            ("q", "k", "v", "m"),
            {"q": (2, a, b, 4), "k": (2, a, c, 4), "v": (2, a, c, 4), "m": (1, a, b, c)},
        ),
        "attention with rows of a mask": Case(
            ATEN.scaled_dot_product_attention.default,
            ("q", "k", "v", "m"),
            {"q": (2, a, b, 4), "k": (2, a, b, 4), "v": (2, a, b, 4), "m": (b, b)},
            integers={"m": 0},
        ),
        "attention of padded keys": Case(
            ATEN.scaled_dot_product_attention.default,
            ("q", "k", "v", "m"),
            {"q": (2, 2 * a, b, 4), "k": (2, a, b, 4), "v": (2, a, b, 4), "m": (2, 1, 1, b)},
            integers={"m": 0},
            kwargs={"enable_gqa": True},
        ),
        "attention in groups": Case(
            ATEN.scaled_dot_product_attention.default,
            ("q", "k", "v"),
            {"q": (2, 2 * a, b, 4), "k": (2, a, b, 4), "v": (2, a, b, 4)},
            kwargs={"enable_gqa": True},
        ),
        "layer norm": Case(ATEN.layer_norm.default, ("x", [c], "w", "b"), x, {"w": (c,), "b": (c,)}),
        "softmax": Case(ATEN.softmax.int, ("x", -1), x),
        "log softmax": Case(ATEN.log_softmax.int, ("x", 1), x),
        "cumsum": Case(ATEN.cumsum.default, ("x", 1), x),
        "mean of all": Case(ATEN.mean.default, ("x",), x),
        "mean": Case(ATEN.mean.dim, ("x", [1]), x),
        "mean of two": Case(ATEN.mean.dim, ("x", [0, 2], True), x),
        "sum": Case(ATEN.sum.dim_IntList, ("x", [1]), x),
        "amax": Case(ATEN.amax.default, ("x", [1]), x),
        "var": Case(ATEN.var.correction, ("x", [2]), x),
        "logsumexp": Case(ATEN.logsumexp.default, ("x", [1]), x),
        "gelu": Case(ATEN.gelu.default, ("x",), x),
        "dropout of 0": Case(ATEN.dropout.default, ("x", 0.0, True), x),
        "clone": Case(ATEN.clone.default, ("x",), x),
        "add": Case(ATEN.add.Tensor, ("x", "y"), {"x": (a, b, c), "y": (a, b, c)}),
        "sub of addends": Case(ATEN.sub.Tensor, ("x", "x"), x),
        "add of a bias": Case(ATEN.add.Tensor, ("x", "b"), x, {"b": (c,)}),
        "mul of rows": Case(ATEN.mul.Tensor, ("x", "y"), {"x": (a, b, c), "y": (b, 1)}),
        "mul by itself": Case(ATEN.mul.Tensor, ("x", "x"), x),
        "neg": Case(ATEN.neg.default, ("x",), x),
        "add of a number": Case(ATEN.add.Tensor, ("x", 1.5), x),
        "mul by a number": Case(ATEN.mul.Tensor, ("x", 1.5), x),
        "pow": Case(ATEN.pow.Tensor_Scalar, ("x", 2), x),
        "where": Case(
            ATEN.where.self, ("m", "x", "y"), {"x": (a, b), "y": (a, b), "m": (a, b)}, {}, {"m": 0}
        ),
        "broadcast": Case(ATEN.broadcast_tensors.default, (["x", "y"],), {"x": (a, b, c), "y": (b, 1)}),
        "cat": Case(ATEN.cat.default, (["x", "y"], 1), {"x": (a, b, c), "y": (a, 2, c)}),
        "stack": Case(ATEN.stack.default, (["x", "y"], 1), {"x": (a, b), "y": (a, b)}),
        "mse loss": Case(ATEN.mse_loss.default, ("x", "y"), {"x": (a, b), "y": (a, b)}),
        "mse loss summed": Case(ATEN.mse_loss.default, ("x", "y", 2), {"x": (a, b), "y": (a, b)}),
        "cross entropy": Case(ATEN.cross_entropy_loss.default, ("x", "t"), table, {}, {"t": c}),
        "cross entropy smoothed": Case(
            ATEN.cross_entropy_loss.default, ("x", "t", None, 1, 1, 0.1), table, {}, {"t": c}
        ),
        "cross entropy summed": Case(
            ATEN.cross_entropy_loss.default, ("x", "t", None, 2), table, {}, {"t": c}
        ),
        "cross entropy of each": Case(
            ATEN.cross_entropy_loss.default, ("x", "t", None, 0), table, {}, {"t": c}
        ),
        "cross entropy in space": Case(ATEN.cross_entropy_loss.default, ("x", "t"), volume, {}, {"t": b}),
        "nll loss": Case(ATEN.nll_loss_nd.default, ("x", "t"), table, {}, {"t": c}),
        "flatten of one column": Case(ATEN.flatten.using_ints, ("x", 1, 2), {"x": (a, b, 1)}),
        "view apart": Case(ATEN.view.default, ("x", [a, b, 2, c]), {"x": (a, b, 2 * c)}),
        "view together": Case(ATEN.view.default, ("x", [a * b, c]), x),
        "flatten": Case(ATEN.flatten.using_ints, ("x", 1, 2), x),
        "unflatten": Case(ATEN.unflatten.int, ("x", 1, [b, 3]), {"x": (a, 3 * b, c)}),
        "transpose": Case(ATEN.transpose.int, ("x", 0, 2), x),
        "permute": Case(ATEN.permute.default, ("x", [2, 0, 1]), x),
        "t": Case(ATEN.t.default, ("x",), {"x": (a, b)}),
        "unsqueeze": Case(ATEN.unsqueeze.default, ("x", 1), x),
        "squeeze": Case(ATEN.squeeze.dim, ("x", 1), {"x": (a, 1, b)}),
        "expand": Case(ATEN.expand.default, ("x", [a, 3, c]), {"x": (a, 1, c)}),
        "select": Case(ATEN.select.int, ("x", 1, 0), x),
        "slice": Case(ATEN.slice.Tensor, ("x", 1, 1, 3), x),
        "chunk": Case(ATEN.chunk.default, ("x", 3, -1), {"x": (a, 3 * c)}),
        "split": Case(ATEN.split.Tensor, ("x", c, 1), {"x": (a, 3 * c)}),
        "split unevenly": Case(ATEN.split_with_sizes.default, ("x", [c, 1], 1), {"x": (a, c + 1)}),
        "unbind": Case(ATEN.unbind.int, ("x", 0), {"x": (2, a, b)}),
        "flip": Case(ATEN.flip.default, ("x", [1]), x),
        "roll": Case(ATEN.roll.default, ("x", [1], [-1]), x),
        "contraction": Case(
            ATEN.einsum.default, ("abc,adc->abd", ["x", "y"]), {"x": (a, b, c), "y": (a, 3, c)}
        ),
        "contraction with a weight": Case(ATEN.einsum.default, ("abc,dc->adb", ["x", "w"]), x, {"w": (4, c)}),
        "gather": Case(ATEN.gather.default, ("x", 1, "t"), {"x": (a, b, c), "t": (a, 6, c)}, {}, {"t": b}),
        "scatter": Case(
            ATEN.scatter_add.default,
            ("x", 1, "t", "y"),
            {"x": (a, b, c), "t": (a, 3, c), "y": (a, 3, c)},
            {},
            {"t": b},
        ),
        "scatter in place of rows": Case(
            ATEN.scatter.src,
            ("x", 1, "t", "y"),
            {"x": (a, b, c), "t": (a, 1, c), "y": (a, 1, c)},
            {},
            {"t": b},
        ),
        "upper triangles": Case(ATEN.triu.default, ("x", 1), x),
        "smallest of rows": Case(ATEN.amin.default, ("x", [1]), x),
        "least and where": Case(ATEN.min.dim, ("x", 1), x),
        "middle and where": Case(ATEN.median.dim, ("x", 1), x),
        "rows by index": Case(
            ATEN.index_select.default, ("x", 1, "t"), {"x": (a, b, c), "t": (6,)}, {}, {"t": b}
        ),
        "rows repeated": Case(ATEN.repeat_interleave.self_int, ("x", 3, 1), x),
        "gated": Case(ATEN.glu.default, ("x", 1), {"x": (a, 2 * b, c)}),
        "triangles": Case(ATEN.tril.default, ("x", 1), x),
        "pairs as numbers": Case(ATEN.view_as_complex.default, ("x",), {"x": (a, b, 2)}),
        "cosine similarity": Case(
            ATEN.cosine_similarity.default, ("x", "y", 1), {"x": (a, b, c), "y": (a, b, c)}
        ),
        "largest of two": Case(ATEN.max.other, ("x", "y"), {"x": (a, b, c), "y": (c,)}),
        "length of vectors": Case(ATEN.linalg_vector_norm.default, ("x", 2, [1], True), x),
        "product": Case(ATEN.prod.dim_int, ("x", 1), x),
        "no rule: diff": Case(ATEN.diff.default, ("x", 1, 1), x),
        "no rule: topk": Case(ATEN.sort.default, ("x", 1), x),
        "in place": Case(ATEN.relu_.default, ("x",), x),
    }
    return {name: case for name, case in found.items() if not _floats_only(name)}


@cache
def of(sizes: str) -> dict[str, Case]:
    """Returns the operations by name, in even, uneven or indivisible sizes."""
    return cases(*SIZES[sizes])


def _floats_only(name: str) -> bool:
    return name in ("in place", "no rule: topk")  # a leaf cannot be written; indices have no gradient


class Trial(NamedTuple):
    """One row of the table."""

    sizes: str
    name: str
    mesh: tuple[int, ...]
    factors: tuple[str, ...]
    kinds: tuple[str, ...]  # of the first given tensor along each axis: "I", "R", "P", "S0", "S1", ...


def trials() -> Iterator[Trial]:
    """Yields every row: operation x factor x kind x mesh x sizes."""
    for sizes in SIZES:
        for name, case in of(sizes).items():
            first = next(iter(case.given))
            kinds = ["I", *(f"S{dim}" for dim in range(len(case.given[first])))]
            kinds += [] if first in case.integers else ["R", "P"]
            for mesh in MESHES:
                named = ["", *factors(sizes, name)]
                axes = len(mesh)
                for taken in itertools.product(named, repeat=axes):
                    for lying in itertools.product(kinds, repeat=axes):
                        yield Trial(sizes, name, mesh, taken, lying)


@cache
def factors(sizes: str, name: str) -> list[str]:
    """Returns the names of the factors of an operation of the table."""
    return factors_of(of(sizes)[name])


def factors_of(case: Case) -> list[str]:
    """Returns the names of the factors of a case's operation."""
    operations = case.graph()[2]
    operation = next(x for x in operations if x.layer == "layer")
    shapes = {x.name: x.outputs[0] for x in operations}
    call = call_of(operation, {name: whole(shapes[name]) for name in operation.reads()})
    rule = FAMILIES.get(operation.operation)
    return [factor.name for factor in rule(call)] if rule is not None else []


def given_layout(trial: Trial) -> GroupLayout | None:
    """Returns how the first tensor comes; None where it cannot be cut so."""
    case = of(trial.sizes)[trial.name]
    layout = everywhere(next(iter(case.given.values())))
    for dim in range(len(layout.shape)):
        axes = tuple(axis for axis, kind in enumerate(trial.kinds) if kind == f"S{dim}")
        if axes:
            parts = 1
            for axis in axes:
                parts *= trial.mesh[axis]
            points = parted(layout.shape[dim], parts)
            if points is None:
                return None
            layout = layout.with_dim(dim, DimCut(axes, points))
    addends = frozenset(axis for axis, kind in enumerate(trial.kinds) if kind == "P")
    owed = frozenset(axis for axis, kind in enumerate(trial.kinds) if kind == "R")
    return GroupLayout(layout.shape, layout.cuts, addends, owed)


def outcome(trial: Trial) -> str:
    """Returns "exact", "refused", "impossible" where the tensor cannot come so, or what is wrong."""
    case = of(trial.sizes)[trial.name]
    layout = given_layout(trial)
    if layout is None:
        return "impossible"
    try:
        one, other = differences(case, trial.mesh, trial.factors, {next(iter(case.given)): layout})
    except NoRule:
        return "refused"
    return "exact" if max(one, other) <= EXACT else f"differs by {one:.1e} and {other:.1e}"
