"""A sample comes back from bytes as it was, and what cannot be kept is refused with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from planner.errors import BadInput
from runtime.store import refuse_unstorable
from runtime.store.samples import flattened, restored

SAMPLES: list[Any] = [
    torch.arange(6).reshape(2, 3).t(),
    torch.tensor(3.5, dtype=torch.bfloat16),
    torch.zeros(0, 4, dtype=torch.bool),
    torch.tensor([1 + 2j]),
    np.arange(6, dtype=">i2").reshape(3, 2)[:, ::2],
    np.array("text"),
    np.float32(0.1),
    np.datetime64("2026-01-01"),
    {"a": [1, (2.5, None, True)], "b": b"\x00bytes", "text": "ü" * 17},
    (),
    float("inf"),
    -(2**70),
]


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("sample", [*SAMPLES, SAMPLES], ids=lambda sample: type(sample).__name__)
def test_a_sample_comes_back_from_its_bytes(sample: object) -> None:
    assert same(restored(memoryview(flattened(sample))), sample)


def test_what_comes_back_may_be_written_to_and_leaves_the_store_as_it_was() -> None:
    kept = flattened((torch.ones(3), np.ones(3)))
    one: Any = restored(memoryview(kept))
    one[0].zero_()
    one[1][:] = 0
    assert same(restored(memoryview(kept)), (torch.ones(3), np.ones(3)))


class Point:
    """Something of the user's own."""


@pytest.mark.parametrize(
    "sample", [Point(), {1: 2}, np.array([Point()], object), torch.ones(2, requires_grad=True), {"a": {3}}]
)
def test_anything_but_numbers_and_texts_is_refused(sample: object) -> None:
    with pytest.raises(BadInput, match="a sample holds"):
        flattened(sample)


class Rows:
    """A dataset of one function; `finish` may be there."""

    def __init__(self, read: Callable[[int], object], finish: Callable[[Any], object] | None = None) -> None:
        self._read = read
        if finish is not None:
            self.raw, self.finish = read, finish

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> object:
        return self._read(index) if not hasattr(self, "raw") else self.finish(self.raw(index))


def test_a_dataset_that_draws_is_refused_without_two_halves() -> None:
    draws: list[Callable[[int], object]] = [
        lambda _: torch.rand(2),
        lambda _: np.random.rand(2),
        lambda _: np.random.default_rng().normal(),
    ]
    for draw in draws:
        with pytest.raises(BadInput, match=r"sample 0 draws random numbers.*raw\(index\).*finish\(raw\)"):
            refuse_unstorable(Rows(draw))
        with pytest.raises(BadInput, match="draws random numbers"):
            refuse_unstorable(Rows(draw, finish=lambda raw: raw))
    refuse_unstorable(Rows(lambda i: torch.ones(2) * i))
    refuse_unstorable(Rows(lambda i: torch.ones(2) * i, finish=lambda raw: raw + torch.rand(2)))


def test_halves_that_make_another_sample_are_refused() -> None:
    class Wrong(Rows):
        def __getitem__(self, index: int) -> object:
            return torch.zeros(2)

    with pytest.raises(BadInput, match=r"another one by finish\(raw\(0\)\)"):
        refuse_unstorable(Wrong(lambda i: torch.ones(2), finish=lambda raw: raw))


class Flow(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize("data", [None, {1, 2}, Flow()])
def test_what_has_no_indices_cannot_be_kept(data: object) -> None:
    with pytest.raises(BadInput, match="no dataset with indices"):
        refuse_unstorable(data)
