"""Near pictures are found as by comparing all with all, planted copies among them, and one of a group is kept."""

from __future__ import annotations

import numpy as np
import pytest

from planner.errors import BadInput
from runtime.dedup import HASHES, find, kept_of, near_pairs
from runtime.dedup import near as nears
from runtime.dedup.hashes import bits_of

Sample = tuple[np.ndarray, int]


def drawn(count: int, seed: int) -> np.ndarray:
    """Bits of which many differ in few."""
    draw = np.random.default_rng(seed)
    bits = draw.integers(0, 2**64, count, dtype=np.uint64)
    for i in range(count // 2, count):
        flips = draw.integers(0, 64, draw.integers(0, 7))
        bits[i] = bits[draw.integers(0, max(1, count // 2))] ^ np.bitwise_xor.reduce(
            np.uint64(1) << flips.astype(np.uint64), initial=np.uint64(0)
        )
    return bits


def ones(bits: np.ndarray) -> np.ndarray:
    """The ones in each number, counted another way than the code does."""
    return sum((bits >> np.uint64(k)) & np.uint64(1) for k in range(64))


@pytest.mark.parametrize(("count", "threshold"), [(0, 2), (1, 0), (300, 0), (600, 1), (600, 4), (300, 10)])
def test_the_pairs_are_those_of_comparing_all_with_all(count: int, threshold: int) -> None:
    bits = drawn(count, threshold)
    near = ones(bits[:, None] ^ bits[None, :]) <= threshold
    assert np.array_equal(near_pairs(bits, threshold), np.argwhere(np.triu(near, 1)))


def test_the_pairs_of_20_000_are_those_of_comparing_all_with_all() -> None:
    bits, found = drawn(20_000, 7), list[np.ndarray]()
    for i in range(0, len(bits), 500):
        near = np.bitwise_count(bits[i : i + 500, None] ^ bits[None, i:]) <= 4
        found.append(np.argwhere(np.triu(near, 1)) + i)
    pairs = np.concatenate(found)
    assert len(pairs) > 1000 and np.array_equal(near_pairs(bits, 4), pairs)


def pictures(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Smooth pictures, as photographs are."""
    draw = np.random.default_rng(seed)
    axes = tuple(range(1, len(shape) + 1))
    waves = np.fft.fftn(draw.normal(size=(count, *shape)), axes=axes)
    far = sum(x**2 for x in np.meshgrid(*map(np.fft.fftfreq, shape), indexing="ij"))
    found = np.fft.ifftn(waves / (0.02 + far) ** (0.5 + len(shape) / 4), axes=axes).real
    low, high = found.min(axes, keepdims=True), found.max(axes, keepdims=True)
    return 255 * (found - low) / (high - low)


def planted(count: int, shape: tuple[int, ...]) -> tuple[list[Sample], set[tuple[int, int]]]:
    """Returns pictures of which 30 % are others moved, with noise, or darker; and the pairs of these."""
    own, draw = pictures(count, shape), np.random.default_rng(1)
    source = draw.choice(count, round(count * 3 / 7), replace=False)
    copies = own[source]
    copies[0::3] = np.roll(copies[0::3], 1, axis=1)
    copies[1::3] += draw.normal(size=copies[1::3].shape) * 4
    copies[2::3] = copies[2::3] * 0.8 + 20
    every = np.concatenate([own, copies]).clip(0, 255).astype(np.uint8)
    return [(x, 0) for x in every], {(int(i), count + k) for k, i in enumerate(source)}


@pytest.mark.parametrize("shape", [(64, 64), (16, 32, 32)])
def test_planted_copies_are_found_and_nothing_else(shape: tuple[int, ...]) -> None:
    samples, pairs = planted(210, shape)
    bits = np.array([bits_of(x, "phash") for x, _ in samples], np.uint64)
    found = {(a, b) for a, b in near_pairs(bits, 10).tolist()}
    assert len(found & pairs) >= 0.95 * len(pairs) and len(found & pairs) >= 0.95 * len(found)


@pytest.mark.parametrize("name", HASHES)
def test_a_hash_takes_any_size_channels_first_or_last_and_no_brightness(name: str) -> None:
    picture = pictures(1, (24, 40))[0]
    bits = bits_of(picture, name)
    colour = np.stack([picture] * 3)
    for same in (colour, np.moveaxis(colour, 0, -1), picture[None], 2 * picture + 3):
        assert bits_of(same, name) == bits
    with pytest.raises(BadInput, match="a picture or a volume"):
        bits_of(np.arange(5), name)


def test_ones_are_counted_without_numpys_own_function_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = drawn(300, 3)
    expected = near_pairs(bits, 4)
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert len(expected) > 10 and np.array_equal(near_pairs(bits, 4), expected)


def labelled() -> list[Sample]:
    own = pictures(5, (32, 32))
    return [(own[0], 0), (own[1], 0), (own[0].copy(), 0), (own[1] + 0.01, 0), (own[2], 1), (own[2], 0)]


def test_one_of_a_group_within_a_label_is_kept_and_other_labels_are_told() -> None:
    found = find(labelled(), "phash", 4)
    assert found.kept.tolist() == [0, 1, 4, 5]
    assert (found.copies, found.near) == (1, 1)
    assert found.other_labels.tolist() == [[4, 5]]


def test_a_chain_of_near_samples_is_one_group_and_keeps_its_first() -> None:
    draw = np.random.default_rng(0)
    steps = draw.permutation(64)[:40].astype(np.uint64)
    chain = np.bitwise_xor.accumulate(np.uint64(1) << steps)  # each differs from the one before in one bit
    order = draw.permutation(40)
    found = kept_of(np.arange(40, dtype=np.uint64), chain[order], np.zeros(40, np.int64), 1)
    assert found.kept.tolist() == [0] and found.near == 39
    assert len(kept_of(np.arange(40, dtype=np.uint64), chain[order], np.zeros(40, np.int64), 0).kept) == 40


def test_many_samples_of_one_hash_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    before = nears.near_pairs
    monkeypatch.setattr(nears, "near_pairs", lambda bits, at: asked.append(len(bits)) or before(bits, at))
    contents = np.arange(100_000, dtype=np.uint64)  # all differ, and all look alike
    found = kept_of(contents, np.zeros_like(contents), np.arange(100_000) % 2, 10)
    assert asked == [2] and found.kept.tolist() == [0, 1] and found.other_labels.tolist() == [[0, 1]]


def test_a_dataset_that_draws_is_refused_unless_it_has_a_raw_half() -> None:
    class Draws(list[int]):
        def __getitem__(self, index: object) -> object:
            return np.random.default_rng().normal(size=(9, 9)), 0

    class Halves(Draws):
        def raw(self, index: int) -> object:
            return pictures(2, (9, 9))[index], 0

        def finish(self, raw: object) -> object:
            return raw

    with pytest.raises(BadInput, match=r"sample 0 is another one.*raw\(index\)"):
        find(Draws([1, 2]), "ahash", 1)
    assert find(Halves([1, 2]), "ahash", 1).kept.tolist() == [0, 1]


@pytest.mark.parametrize(("threshold", "allowed"), [(-1, "0 to 16"), (17, "0 to 16")])
def test_a_threshold_that_rules_nothing_out_is_refused(threshold: int, allowed: str) -> None:
    with pytest.raises(BadInput, match=allowed):
        near_pairs(drawn(4, 0), threshold)
