"""Sums up and down a tree: each rank adds the numbers of its children to its own, the root's sum comes back.

Pieces of a part follow each other, so a rank adds up one piece while another is on its way down. It hands down in a turn
what went up as many turns before as the way to the root and back has links. Were that more for those near the root, every
turn would last until a piece had gone up and come down whole. Children are added one after the other in the order of the
tree, so the order of additions is that of ranks and colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from planner.sums import COLOUR_BYTES, ColourTree
from runtime.world import Rail

MOST = 2**22  # elements at a time
_UP, _DOWN = 0, 1  # tags


def add_up_tree(part: Tensor, rail: Rail, tree: ColourTree) -> None:
    """Sums one part of a buffer over a tree in place; collective.

    Args: `part` is dense, of one dim, on the host; `rail` has the ranks of the tree.
    """
    for block in torch.split(part, MOST):
        if block.numel():
            _TreeSum(block, rail, tree).run()


class _TreeSum:
    def __init__(self, part: Tensor, rail: Rail, tree: ColourTree) -> None:
        here = rail.rank()
        self._rail, self._parent, self._children = rail, tree.parent(here), tree.children(here)
        self._pieces = torch.split(part, max(1, COLOUR_BYTES // part.element_size()))
        self._lag = min(2 * tree.level(here), len(self._pieces))  # turns until a piece is back from the root
        self._up: list[dist.Work] = []
        self._back: list[dist.Work] = []

    def run(self) -> None:
        """Takes every piece up, and those that are back from the root further down."""
        down: list[dist.Work] = []
        coming = self._ask(0)
        for turn in range(len(self._pieces) + self._lag):
            if turn < len(self._pieces):
                following = self._ask(turn + 1)
                self._add(turn, coming)
                coming = following
            if turn >= self._lag:
                down += self._hand_down(turn - self._lag)
        _finish(down)

    def _ask(self, number: int) -> list[tuple[Tensor, dist.Work]]:
        """Opens buffers for a piece of each child."""
        if number >= len(self._pieces):
            return []
        rows = [torch.empty_like(self._pieces[number]) for _ in self._children]
        return [
            (row, self._rail.recv([row], child, _UP)) for row, child in zip(rows, self._children, strict=True)
        ]

    def _add(self, number: int, coming: Sequence[tuple[Tensor, dist.Work]]) -> None:
        """Adds the children's numbers to a piece and sends it up; the piece before is then asked back."""
        for row, work in coming:
            work.wait()
            self._pieces[number].add_(row)
        if self._parent is None:
            return
        self._ask_back(number - 1)
        self._up.append(self._rail.send([self._pieces[number]], self._parent, _UP))

    def _ask_back(self, number: int) -> None:
        if number == len(self._back) >= 0 and self._parent is not None:
            self._up[number].wait()
            self._back.append(self._rail.recv([self._pieces[number]], self._parent, _DOWN))

    def _hand_down(self, number: int) -> list[dist.Work]:
        """Waits until a piece is summed, and starts to send it to the children."""
        if self._parent is not None:
            self._ask_back(number)
            self._back[number].wait()
        return [self._rail.send([self._pieces[number]], child, _DOWN) for child in self._children]


def _finish(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()
