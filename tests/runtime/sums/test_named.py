"""Every sum has the numbers of the ordered one, the same bits twice, and ends where a rank goes."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from planner.sums import ColourTree, SumName, names_for, parse
from runtime.sums import NamedSum, named_sum
from runtime.sums import colours as trees
from runtime.world import Rail, rail_of
from runtime.world import world as groups
from tests.draws import part
from tests.pool import Pool

HERE = "tests.runtime.sums.test_named"


def made(store: dist.Store, name: SumName, rank: int, ranks: int, cards: int = 1) -> NamedSum:
    """A sum among threads of this process; cards are all the same here."""

    def rail(order: Sequence[int], part: int) -> Rail:
        return rail_of(dist.PrefixStore(f"{name} {part}/", store), order.index(rank), ranks)

    return named_sum(name, ranks, rail_of(dist.PrefixStore(f"{name} group/", store), rank, ranks), rail)


def summed(name: SumName, rows: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """What every rank has of buffers, one row a rank, after they are summed by name, one after the other."""
    store, ranks = dist.HashStore(), len(rows)
    found = [[tensor.clone() for tensor in row] for row in rows]
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            own = made(store, name, rank, ranks)
            for wait in [own.launch(tensor) for tensor in found[rank]]:
                wait()
        except BaseException as error:  # told by the test
            failed.append(error)

    threads = [Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed, failed
    return found


def lengths(ranks: int) -> list[int]:
    return [0, 1, ranks - 1, ranks, 1001]


def numbers(rank: int, size: int) -> Tensor:
    made = torch.Generator().manual_seed(rank)
    return torch.randn(size, generator=made) + 3.0


@pytest.mark.parametrize("ranks", range(2, 10))
def test_every_name_equals_the_ordered_sum_and_is_exact_on_integers(ranks: int) -> None:
    sizes = lengths(ranks)
    rows = [
        [numbers(rank, size) for size in sizes]
        + [torch.arange(size, dtype=torch.int64) * (rank + 1) for size in sizes]
        for rank in range(ranks)
    ]
    want = [reduce(torch.add, column) for column in zip(*rows, strict=True)]
    for name in names_for(ranks):
        found = summed(name, rows)
        for row in found:
            for have, right, first in zip(row, want, found[0], strict=True):
                assert torch.equal(have, first), f"{name}: ranks have other bits"
                torch.testing.assert_close(have, right, rtol=1e-6, atol=0.0)
        if name.kind == "direct":
            assert all(torch.equal(a, b) for a, b in zip(found[0], want, strict=True))


@pytest.mark.parametrize("ranks", part(range(2, 10), 3))
def test_a_sum_has_the_same_bits_twice(ranks: int) -> None:
    rows = [[numbers(rank, 5000)] for rank in range(ranks)]
    for name in names_for(ranks):
        first, second = (summed(name, rows)[0][0] for _ in range(2))
        assert torch.equal(first, second), name


@pytest.mark.parametrize(("ranks", "colours"), [(2, 2), (5, 4), (7, 2), (9, 3)])
@pytest.mark.parametrize(("size", "most"), [(12_000, 10_000), (4000, 10_000), (100, 100), (16, 10_000)])
def test_trees_add_up_the_same_in_pieces_of_any_size(ranks: int, colours: int, size: int, most: int) -> None:
    rows = [[numbers(rank, 3001)] for rank in range(ranks)]
    name = SumName("colours", colours)
    whole = summed(name, rows)
    with patch.object(trees, "COLOUR_BYTES", size), patch.object(trees, "MOST", most):
        again = summed(name, rows)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole, again, strict=True))


def test_a_tree_adds_its_children_in_their_order_to_the_parent() -> None:
    rows = [[numbers(rank, 1)] for rank in range(5)]
    (a, b, c, d, e) = (row[0] for row in rows)
    part = summed(SumName("colours", 2), rows)[0][0]
    assert torch.equal(part, a + ((b + d) + e) + c)


class CountedRail:
    """The communicator of one rank of several threads. A link takes one turn for a message, and all else takes none."""

    def __init__(self, here: int, wires: dict[tuple[int, int, int], Queue[tuple[int, Tensor]]]) -> None:
        self._here, self._wires, self.turns = here, wires, 0
        self._sent: dict[tuple[int, int], int] = {}  # when the last message over a link is there

    def rank(self) -> int:
        return self._here

    def send(self, rows: Sequence[Tensor], other: int, tag: int) -> SimpleNamespace:
        there = max(self.turns, self._sent.get((other, tag), 0)) + 1
        self._sent[other, tag] = there
        self._wires[self._here, other, tag].put((there, rows[0].clone()))
        return SimpleNamespace(wait=lambda: None)

    def recv(self, rows: Sequence[Tensor], other: int, tag: int) -> SimpleNamespace:
        def wait() -> None:
            arrives, sent = self._wires[other, self._here, tag].get(timeout=60)
            self.turns = max(self.turns, arrives)
            rows[0].copy_(sent)

        return SimpleNamespace(wait=wait)


@pytest.mark.parametrize(
    ("ranks", "colours", "pieces"), [(4, 2, 9), (8, 2, 1), (8, 2, 3), (8, 2, 20), (9, 3, 12)]
)
def test_pieces_follow_each_other_through_a_tree_one_a_turn(ranks: int, colours: int, pieces: int) -> None:
    tree = ColourTree(ranks, colours, 0)
    wires: dict[tuple[int, int, int], Queue[tuple[int, Tensor]]] = defaultdict(Queue)
    for low, high in tree.links():
        for tag in (0, 1):
            wires[low, high, tag], wires[high, low, tag] = Queue(), Queue()
    rails = [CountedRail(rank, wires) for rank in range(ranks)]
    rows = [torch.full((pieces,), float(rank)) for rank in range(ranks)]
    with patch.object(trees, "COLOUR_BYTES", 4):
        threads = [
            Thread(target=trees.add_up_tree, args=(row, rail, tree), daemon=True)
            for row, rail in zip(rows, rails, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert all(row.tolist() == [sum(range(ranks))] * pieces for row in rows)
    assert max(rail.turns for rail in rails) == 2 * tree.depth + pieces - 1


def lost(rank: int, ranks: int, rendezvous: Path, *, name: str) -> str:
    """What the others are told when the last rank goes in the middle of a large sum."""
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"))
    group = world.new_group(range(ranks))
    assert group is not None
    own = named_sum(parse(name), ranks, group, lambda order, part: world.rail(order, f"{name} {part}"))
    own.launch(torch.ones(8))()
    said = ""
    if rank < ranks - 1:
        try:
            own.launch(torch.ones(2**20))()
        except RuntimeError as error:
            said = type(error).__name__
    del own
    world.close()
    return said


@pytest.mark.parametrize("name", ["ring", "direct", "rings 2", "colours 2"])
def test_a_rank_that_goes_ends_the_sums_of_the_others(name: str, pool: Pool) -> None:
    assert pool.run(f"{HERE}:lost", 3, name=name)[:2] == ["RuntimeError"] * 2


@pytest.mark.parametrize("broken", [0, 1])
def test_a_part_that_fails_ends_the_sum_at_once_and_its_error_keeps_no_communicator(broken: int) -> None:
    class Communicator: ...

    made, lasts = Communicator(), Event()
    gone = weakref.ref(made)

    def fails(part: Tensor, rail: Communicator) -> None:
        raise RuntimeError("a rank has gone")

    runs = [partial(fails, rail=made), lambda part: lasts.wait(60)]
    own = NamedSum(runs if broken == 0 else runs[::-1])
    del made, runs
    gc.disable()  # nobody looks for garbage while others wait
    try:
        with pytest.raises(RuntimeError, match="a rank has gone") as told:
            own.launch(torch.zeros(10))()
        lasts.set()
        del own
        assert gone() is None
    finally:
        gc.enable()
    assert told.value


def test_who_waits_for_a_sum_of_several_parts_is_told_of_its_end_once() -> None:
    ends: list[int] = []
    own = NamedSum([lambda part: part.add_(1)] * 4)
    buffer = torch.zeros(10)
    own.launch(buffer, lambda: ends.append(1))()
    assert ends == [1]
    assert buffer.tolist() == [1.0] * 10
