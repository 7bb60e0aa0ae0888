"""The order of samples: stated, the same under every plan, and gone on with where a run stands."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
from torch.utils.data import IterableDataset

from planner.errors import BadInput
from runtime.data.stream import Flowing, Stream, passes


class Counting(IterableDataset[object]):
    def __init__(self, length: int, yields: int) -> None:
        self.length, self.yields, self.epoch, self.read = length, yields, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for i in range(self.yields):
            self.read += 1
            yield self.epoch, i


def indices(stream: Stream, first: int, count: int) -> list[int]:
    return [index for _, index in stream.span(first, first + count)]


def test_a_sampler_gives_the_order_of_every_epoch_and_a_resumed_run_reads_on_in_the_middle() -> None:
    asked: list[tuple[int, int]] = []

    def sampler(seed: int, epoch: int) -> list[int]:
        asked.append((seed, epoch))
        return [(seed + epoch + i) % 5 for i in range(4)]

    stream = Stream(seed=7, length=5, sampler=sampler)
    whole = indices(stream, 0, 10)
    assert whole == [2, 3, 4, 0, 3, 4, 0, 1, 4, 0]
    assert asked == [(7, 0), (7, 1), (7, 2)]
    assert indices(Stream(seed=7, length=5, sampler=sampler), 6, 4) == whole[6:]


@pytest.mark.parametrize(
    ("made", "words"), [([5], "gives index 5"), ([], "no index"), (3, "gives int"), (["x"], "gives list")]
)
def test_what_a_sampler_must_not_give_is_refused(made: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Stream(seed=0, length=5, sampler=lambda seed, epoch: made).span(0, 1)


def test_a_sampler_of_another_length_in_a_later_epoch_is_refused() -> None:
    stream = Stream(seed=0, length=5, sampler=lambda seed, epoch: range(3 - epoch))
    with pytest.raises(BadInput, match="gives 2 indices for epoch 1 and 3 for epoch 0"):
        indices(stream, 0, 4)


def test_an_epoch_ends_with_its_last_whole_step_under_drop_last() -> None:
    stream = Stream(seed=1, length=7, dropped_by=3)
    assert stream.epoch_samples == 6
    assert len(set(indices(stream, 0, 6))) == len(set(indices(stream, 6, 6))) == 6
    whole = Stream(seed=1, length=7)
    assert indices(stream, 0, 6) == indices(whole, 0, 6) and indices(stream, 6, 6) == indices(whole, 7, 6)
    with pytest.raises(BadInput, match="no whole step of 8"):
        Stream(seed=1, length=7, dropped_by=8).span(0, 1)


def test_an_iterable_dataset_is_read_in_its_own_order_and_from_the_start_of_the_epoch_that_a_run_stands_in() -> (
    None
):
    data = Counting(4, 4)
    stream = Stream(seed=0, length=4, in_order=True)
    flowing = Flowing(data, stream)
    assert [flowing.at(i, i % 4) for i in (0, 1, 3, 4, 6)] == [(0, 0), (0, 1), (0, 3), (1, 0), (1, 2)]
    assert data.read == 7
    again = Flowing(data, stream)
    assert again.at(6, 2) == (1, 2) and data.read == 10


def test_an_iterable_dataset_that_ends_before_its_length_is_refused() -> None:
    flowing = Flowing(Counting(4, 2), Stream(seed=0, length=4, in_order=True))
    with pytest.raises(BadInput, match="ends after 2 samples, and its length is 4"):
        flowing.at(3, 3)


@pytest.mark.parametrize("length", [1, 5, 8, 13, 16, 23])
@pytest.mark.parametrize(("micro", "slots"), [(1, 1), (2, 4), (3, 2), (5, 1)])
def test_an_evaluation_counts_every_sample_once(length: int, micro: int, slots: int) -> None:
    found = passes(length, micro, slots)
    counted = [i for each in found for slot in range(each.counted) for i in each.samples(slot)]
    assert counted == list(range(length))
    assert all(len(each.samples(slot)) == each.micro for each in found for slot in range(slots))
    assert all(0 <= i < length for each in found for slot in range(slots) for i in each.samples(slot))
    assert {each.micro for each in islice(found, len(found) - 1)} <= {micro}
