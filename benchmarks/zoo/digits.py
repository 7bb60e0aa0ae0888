"""Handwritten digits of 8 x 8 dots: those that scikit-learn brings, or drawn ones where it is not installed.

A workload file: 1,297 samples to train with and 500 to judge by. Drawn digits are seven strokes, moved and noisy.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

TRAINED, JUDGED = 1297, 500
STROKES = {
    "top": (slice(0, 1), slice(1, 5)),
    "middle": (slice(3, 4), slice(1, 5)),
    "bottom": (slice(6, 7), slice(1, 5)),
    "left above": (slice(0, 4), slice(0, 1)),
    "left below": (slice(3, 7), slice(0, 1)),
    "right above": (slice(0, 4), slice(5, 6)),
    "right below": (slice(3, 7), slice(5, 6)),
}
MISSING = (  # strokes that each digit lacks
    ("middle",),
    ("top", "middle", "bottom", "left above", "left below"),
    ("left above", "right below"),
    ("left above", "left below"),
    ("top", "bottom", "left below"),
    ("left below", "right above"),
    ("right above",),
    ("middle", "bottom", "left above", "left below"),
    (),
    ("left below",),
)


def source() -> str:
    """Returns where the digits come from."""
    try:
        import sklearn
    except ImportError:
        return "drawn (scikit-learn is not installed)"
    return f"scikit-learn {sklearn.__version__}"


def digits() -> tuple[Tensor, Tensor]:
    """Returns pictures [sample, 64] between 0 and 1, and their digits, in an order of their own."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        pictures, labels = _drawn(TRAINED + JUDGED)
    else:
        found = load_digits()
        pictures = torch.from_numpy(found.data).float() / 16
        labels = torch.from_numpy(found.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return pictures[order], labels[order]


def _drawn(count: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (count,), generator=draw)
    pictures = torch.zeros(count, 8, 8)
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        down, right = (int(torch.randint(most, (), generator=draw)) for most in (2, 3))
        for name, (rows, columns) in STROKES.items():
            if name not in MISSING[label]:
                picture[down:, right:][rows, columns] = 0.4 + 0.6 * torch.rand((), generator=draw)
    noise = 0.25 * torch.randn(pictures.shape, generator=draw)
    return (pictures + noise).clamp(0, 1).flatten(1), labels


def build(width: int = 256) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def batch(n: int) -> tuple[Tensor, Tensor]:
    pictures, labels = digits()
    return pictures[:n], labels[:n]


def dataset() -> TensorDataset:
    pictures, labels = digits()
    return TensorDataset(pictures[:TRAINED], labels[:TRAINED])


def judged() -> tuple[Tensor, Tensor]:
    """Returns pictures and labels that nothing is trained with."""
    pictures, labels = digits()
    return pictures[TRAINED : TRAINED + JUDGED], labels[TRAINED : TRAINED + JUDGED]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([parameter for _, parameter in named_parameters], lr=1e-3)
