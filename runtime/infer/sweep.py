"""Computes a box of the output pass by pass along one axis, and keeps of every tensor what later passes read.

A box alone computes its margins anew. A sweep computes each row of each tensor once: a convolution over three rows
keeps two of its input, and a skip connection keeps what the deep path has not come to yet. So a task may be as long
as the volume, at the memory of a few rows.

    plan = sweep(reach, box, 0, 16)          # passes of 16 rows of the output along the first axis
    for rows, y in SweepRunner(forward, tensors).run(reach, plan, read):
        ...                                  # y has these rows of the output
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import torch
from torch import Tensor

from planner.capture import entered
from planner.spatial import GETITEM, HERE, Box, Layout, Operation, Placed, Reach, Rows, laid, whole
from runtime.spatial import BoxRunner


@dataclass(frozen=True)
class SweepPass:
    """What one pass makes and reads: rows of tensors along the axis of the sweep."""

    made: Mapping[str, Rows]  # new rows; empty ones are not here
    reads: Mapping[tuple[str, str], Rows]  # by operation and tensor
    keep: Mapping[str, int]  # the first row that later passes read; a tensor that is not here is let go of


@dataclass(frozen=True)
class SweepPlan:
    """A box of the output as passes along one axis."""

    box: Box
    axis: int
    rows: Mapping[str, Mapping[int, Rows]]  # of every tensor, along every axis, that the box needs
    passes: tuple[SweepPass, ...]

    def ends(self, name: str) -> list[int]:
        """Returns the row behind the last one of a tensor that is there, after each pass."""
        found = [self.rows[name][self.axis][0]]
        for one in self.passes:
            found.append(one.made.get(name, (0, found[-1]))[1])
        return found[1:]

    def kept(self, name: str) -> int:
        """Returns the most rows of a tensor that are kept between two passes."""
        pairs = zip(self.passes, self.ends(name), strict=True)
        return max((end - one.keep.get(name, end) for one, end in pairs), default=0)


def sweep(reach: Reach, box: Box, place: int, step: int) -> SweepPlan:
    """Returns the passes that make a box.

    Args: `place` is that of the axis in the box; `step` has the rows of the output that a pass makes.
    """
    axis, (low, high) = reach.axes[place], box[place]

    def needed(rows: Rows) -> dict[str, dict[int, Rows]]:
        found = reach.rows(dict(zip(reach.axes, (*box[:place], rows, *box[place + 1 :]), strict=True)))
        for operation in reach.operations:  # all results of an operation have the same rows
            if operation.operation == GETITEM and operation.name in found:
                found[operation.name] = found[operation.reads()[0]]
        return found

    rows, first = needed((low, high)), needed((low, min(low + step, high)))
    starts = {name: found[axis][0] for name, found in rows.items() if axis in found}
    ends = {name: first[name][axis][1] if name in first else start for name, start in starts.items()}
    size = reach.spaces(reach.result)[axis]
    grows = {name: step * reach.spaces(name)[axis] / size for name in starts}
    before = max(ceil((ends[name] - starts[name]) / grows[name]) for name in starts)
    aims = [{name: ends[name] - ceil(i * grows[name]) for name in starts} for i in range(before - 1, 0, -1)]
    aims += [{reach.result: min(end, high)} for end in range(low + step, high + step, step)]
    return SweepPlan(box, axis, rows, _passes(reach, axis, rows, aims))


def _passes(
    reach: Reach,
    axis: int,
    rows: Mapping[str, Mapping[int, Rows]],
    aims: Sequence[Mapping[str, int]],
) -> tuple[SweepPass, ...]:
    """Returns passes that bring tensors at least as far as each aim, and everything that these rows are made of."""
    now = {name: found[axis][0] for name, found in rows.items() if axis in found}
    made: list[dict[str, Rows]] = []
    read: list[dict[tuple[str, str], Rows]] = []
    for aim in aims:
        ends = {name: max(end, aim.get(name, end)) for name, end in now.items()}
        reads: dict[tuple[str, str], Rows] = {}
        for operation in reversed(reach.operations):
            if operation.name not in rows:
                continue
            own = dict(rows[operation.name])
            if axis in own:
                own[axis] = now[operation.name], ends[operation.name]
                if own[axis][0] == own[axis][1]:
                    continue
            elif made:
                continue  # made once, by the first pass
            for name, needed in reach.needs(operation, own):
                if axis in needed:
                    start, end = needed[axis]
                    ends[name] = max(ends[name], end)
                    low, high = reads.get((operation.name, name), (start, end))
                    reads[operation.name, name] = min(low, start), max(high, end)
        for operation in reach.operations:
            if operation.operation == GETITEM and operation.name in ends:
                ends[operation.name] = ends[operation.reads()[0]]
        made.append({name: (now[name], end) for name, end in ends.items() if end > now[name]})
        read.append(reads)
        now = ends
    keep: dict[str, int] = {}
    found = []
    for new, reads in zip(reversed(made), reversed(read), strict=True):
        found.append(SweepPass(new, reads, dict(keep)))
        for (_, name), (start, _) in reads.items():
            keep[name] = min(start, keep.get(name, start))
    return tuple(reversed(found))


@dataclass
class _Held:
    """The tensors that are there: rows in the pieces in which they were made, and what is made only once."""

    axis: int
    whole: dict[str, tuple[object, tuple[Layout, ...]]]
    pieces: dict[str, list[tuple[int, Tensor]]] = field(default_factory=dict)  # with their first rows
    layouts: dict[str, Layout] = field(default_factory=dict)  # of which the rows along the axis do not count

    def add(self, name: str, x: Tensor, layout: Layout, first: int) -> None:
        """Puts new rows of a tensor behind those that are there."""
        self.layouts[name] = layout
        self.pieces.setdefault(name, []).append((first, x))

    def take(self, name: str, rows: Rows) -> tuple[Tensor, Layout]:
        """Returns rows of a tensor, a view where they lie in one piece, and how they lie."""
        layout = self.layouts[name]
        dim, _ = _rows(layout, self.axis)
        found = []
        for first, x in self.pieces[name]:
            low, high = max(rows[0], first), min(rows[1], first + x.shape[dim])
            if low < high:
                found.append(x.narrow(dim, low - first, high - low))
        cut = layout.cuts[dim]
        assert cut is not None
        return (found[0] if len(found) == 1 else torch.cat(found, dim)), layout.with_cut(
            dim, cut._replace(points=(0, *rows, cut.size))
        )

    def drop(self, name: str, keep: int | None) -> None:
        """Lets go of the rows of a tensor before the first one that is still read; None lets go of all."""
        if keep is None or name not in self.pieces:
            self.pieces.pop(name, None)
            return
        dim, _ = _rows(self.layouts[name], self.axis)
        left = []
        for first, x in self.pieces[name]:
            rows = first + x.shape[dim] - max(first, keep)
            if 0 < rows <= x.shape[dim] // 2:  # a copy, so that the rest is let go of
                x, first = x.narrow(dim, x.shape[dim] - rows, rows).clone(), first + x.shape[dim] - rows
            left += [(first, x)] if rows > 0 else []
        self.pieces[name] = left


class SweepRunner(BoxRunner):
    """A captured forward pass that computes a box of its output pass by pass."""

    @torch.no_grad()
    def run(
        self, reach: Reach, plan: SweepPlan, read: Callable[[Box], Tensor]
    ) -> Iterator[tuple[Rows, Tensor]]:
        """Yields rows of the output along the axis of the sweep, in order, and the output there.

        Args: `read` returns the input in a box as one sample, channels first.
        """
        states = {name: (self._states[self._forward.nodes[name]], name) for name in self._forward.states}
        held = _Held(plan.axis, {name: (x, (whole(self._shape(at)),)) for name, (x, at) in states.items()})
        source, result = self._forward.source, self._forward.result
        for number, one in enumerate(plan.passes):
            due = [x for x in reach.operations if _due(plan, number, x)]
            left = Counter(name for operation in due for name in operation.reads())
            if source in one.made:
                own = dict(plan.rows[source]) | {plan.axis: one.made[source]}
                x = read(tuple(own[axis] for axis in sorted(own)))
                held.add(source, x, laid(reach.layouts[source][0], own), one.made[source][0])
            for operation in due:
                name = operation.name
                self._do(reach, plan, one, operation, held)
                if name == result and result in one.made:
                    yield one.made[result], _of_box(plan, result, *held.take(result, one.made[result]))
                left.subtract(operation.reads())
                for done in (*operation.reads(), name):
                    if left[done] <= 0 and plan.axis in plan.rows.get(done, {}):
                        held.whole.pop(done, None)  # several results, which others have taken
                        held.drop(done, one.keep.get(done))

    def _do(self, reach: Reach, plan: SweepPlan, one: SweepPass, operation: Operation, held: _Held) -> None:
        """Runs an operation for its new rows, and holds them."""
        name, nodes = operation.name, self._forward.nodes
        given: dict[str, tuple[object, tuple[Layout, ...]]] = {}
        for read in operation.reads():
            if read in held.whole:
                given[read] = held.whole[read]
            elif (name, read) in one.reads:
                value, layout = held.take(read, one.reads[name, read])
                given[read] = value, (layout,)
        rows = dict(plan.rows[name])
        if plan.axis in rows:
            rows[plan.axis] = one.made[name]
        known = {read: layouts[0] for read, (_, layouts) in given.items()}
        reads = reach.given(operation, known, rows)
        step = None
        if operation.operation == GETITEM:
            index = operation.arguments["index"]
            assert isinstance(index, int)
            layouts: tuple[Layout, ...] = (given[operation.reads()[0]][1][index],)
        elif all(layout.whole for layout in reads.values()):
            layouts = tuple(map(whole, operation.outputs))
        else:
            step = reach.step(operation, reads, rows)
            layouts = step.outputs
        node = nodes[name]
        with entered(node.meta["context"]):
            made = self._run(
                Placed(operation, step, reads), node, {nodes[read]: x for read, (x, _) in given.items()}
            )
        if isinstance(made, Tensor) and plan.axis in plan.rows[name]:
            new = one.made[name]
            held.add(name, _cut(made, layouts[0], plan.axis, new), layouts[0], new[0])
        else:
            held.whole[name] = made, layouts


def _due(plan: SweepPlan, number: int, operation: Operation) -> bool:
    """Returns whether a pass runs an operation: where it makes rows, or else in the first pass."""
    if plan.axis in plan.rows.get(operation.name, {}):
        return operation.name in plan.passes[number].made
    return number == 0 and operation.name in plan.rows


def _of_box(plan: SweepPlan, name: str, x: Tensor, layout: Layout) -> Tensor:
    """Returns the rows of the box along the other axes, where the rules made some more."""
    for axis, rows in plan.rows[name].items():
        x = _cut(x, layout, axis, rows) if axis != plan.axis else x
    return x


def _rows(layout: Layout, axis: int) -> tuple[int, Rows]:
    """Returns the dimension along an axis, and the rows of it that are there."""
    for dim, cut in enumerate(layout.cuts):
        if cut is not None and cut.axis == axis:
            return dim, cut.rows(HERE)
    raise AssertionError(f"no axis {axis} in {layout}")


def _cut(x: Tensor, layout: Layout, axis: int, rows: Rows) -> Tensor:
    """Returns some rows of a tensor that lies as a layout says, and may have more."""
    dim, (low, high) = _rows(layout, axis)
    assert low <= rows[0] and rows[1] <= high, (layout, rows)
    return x.narrow(dim, rows[0] - low, rows[1] - rows[0])
