"""Says which rows of its input a model needs for a box of its output: the walk back through the rules.

A box is computed as the shard of an imaginary rank in the middle of others, whose halo is already there. So the same
rules, and the same kernels, that split a sample over ranks compute a volume box by box.

    reach = Reach(operations, "x", "y")     # BadInput names what needs all of space
    need = reach.of(((0, 64), (64, 128)))   # rows of the output along each axis
    need.input                              # rows of the input along each axis, with the true borders
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

from planner.errors import BadInput
from planner.spatial.layout import Cut, Layout, whole
from planner.spatial.operation import GETITEM, INPUT, STATE, TARGET, Operation
from planner.spatial.rule import BOXES, HERE, Box, NoRule, Rows, Step, asked, axis_of, here, laid, named, span
from planner.spatial.rules.table import RULES, rule
from planner.spatial.segment import Placed, check_write

GIVEN = (INPUT, TARGET, STATE)
LARGEST = 2**27  # elements of a tensor that every box would make whole
ATTENTION: Final = "aten.scaled_dot_product_attention"
WAYS_OUT: Final = (
    "--mode blend, which comes near it, or --devices N, which computes whole samples on several devices"
)


@dataclass(frozen=True, slots=True)
class Need:
    """One box of the output: the rows of the input that it takes, and how each operation computes its part."""

    output: Box
    input: Box
    placed: tuple[
        Placed, ...
    ]  # those that it needs, in order; those without a Step compute what every box does
    layouts: Mapping[str, tuple[Layout, ...]]  # of every tensor; the box is at coordinate HERE of each axis


def local_shape(layout: Layout) -> tuple[int, ...]:
    """Returns the shape of the part of a tensor that a box holds.

    Args: `layout` is of a `Need`.
    """
    return tuple(
        n if cut is None else cut.points[HERE + 1] - cut.points[HERE]
        for n, cut in zip(layout.shape, layout.cuts, strict=True)
    )


class Reach:
    """The reach of a model over space; refuses a model of which some part needs all of space at once."""

    def __init__(self, operations: Sequence[Operation], source: str, result: str) -> None:
        """Walks forward once, to see where each tensor has its space.

        Args: `operations` are those of a model in evaluation mode, in order; `source` is the input, samples and
            channels first; `result` is the output.
        Raises: BadInput, which names the module and its operation, where it cannot be computed box by box.
        """
        self.source, self.result = source, result
        self.made = {x.name: x for x in operations}
        needed = _needed(operations, result)
        self.operations = tuple(x for x in needed if x.operation not in GIVEN)
        self._states = {x.name: (whole(x.outputs[0]),) for x in needed if x.operation in GIVEN}
        shape = self.made[source].outputs[0]
        cuts = (None, None, *(Cut(axis, (0, n)) for axis, n in enumerate(shape[2:])))
        _, self.layouts = self._walk(Layout(shape, cuts), self._checked)
        if self.layouts[result][0].whole:
            raise BadInput(
                f"the model's output of shape {self.made[result].outputs[0]} has no space",
                where=self.made[result].place,
                allowed="a model that gives numbers for every place",
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Returns the shape of the whole input, samples and channels first."""
        return self.layouts[self.source][0].shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Returns the shape of the whole output."""
        return self.layouts[self.result][0].shape

    @cached_property
    def output_dims(self) -> tuple[int, ...]:
        """Returns the dimension of the output that belongs to each axis of space, in the order of axes."""
        layout = self.layouts[self.result][0]
        return tuple(sorted(layout.cut_dims, key=lambda dim: axis_of(layout, dim)))

    @property
    def axes(self) -> tuple[int, ...]:
        """Returns the axes of space of the output, in the order of a box."""
        return tuple(sorted(self.spaces(self.result)))

    @property
    def output_space(self) -> tuple[int, ...]:
        """Returns the rows of the whole output along each axis of space."""
        return tuple(self.output_shape[dim] for dim in self.output_dims)

    def of(self, box: Box) -> Need:
        """Returns what a box of the output needs, and how each operation computes its part of it.

        Args: `box` has rows of the output along each axis of space, in the order of `output_dims`.
        """
        rows = self.rows(dict(zip(self.axes, box, strict=True)))
        found = rows.get(self.source) or dict.fromkeys(self.spaces(self.source), (0, 1))  # one row for none
        placed, layouts = self._walk(
            laid(self.layouts[self.source][0], found),
            lambda operation, reads: self.step(operation, reads, rows[operation.name]),
            rows,
        )
        return Need(box, tuple(found[axis] for axis in sorted(found)), placed, layouts)

    def step(self, operation: Operation, reads: Mapping[str, Layout], rows: Mapping[int, Rows]) -> Step:
        """Returns how an operation makes the given rows of its result, by axis, of tensors that lie so."""
        return here(rule(asked(operation, reads, self._points(operation, rows))))

    def _points(self, operation: Operation, rows: Mapping[int, Rows]) -> dict[int, tuple[int, ...]]:
        return {axis: (0, *rows.get(axis, (0, 1)), n) for axis, n in self.spaces(operation.name).items()}

    def given(
        self, operation: Operation, known: Mapping[str, Layout], rows: Mapping[int, Rows]
    ) -> dict[str, Layout]:
        """Returns how every tensor lies that an operation reads for the given rows of its result.

        Args: `known` are layouts by name; a tensor that it lacks lies in proportion to the result.
        """
        points, sizes = self._points(operation, rows), self.spaces(operation.name)
        return {name: known.get(name) or self.proportional(name, points, sizes) for name in operation.reads()}

    def rows(self, result: Mapping[int, Rows]) -> dict[str, dict[int, Rows]]:
        """Returns the rows of every tensor that the given rows of the result need, along each axis.

        Returns: no entry for a tensor that is not needed at all; the first and the last row of any other are read by
            a row that is computed. Rows between are computed even where nothing reads them: a box has no holes.
        """
        rows: dict[str, dict[int, Rows]] = {self.result: dict(result)}
        for operation in reversed(self.operations):
            if operation.name not in rows:
                continue
            for name, needed in self.needs(operation, rows[operation.name]):
                known = rows.setdefault(name, {})
                for axis, (first, last) in needed.items():
                    low, high = known.get(axis, (first, last))
                    known[axis] = min(low, first), max(high, last)
        return rows

    def needs(self, operation: Operation, rows: Mapping[int, Rows]) -> Iterator[tuple[str, dict[int, Rows]]]:
        """Yields each tensor of which an operation reads some rows for those of its result, and which, by axis."""
        if operation.operation == GETITEM:
            yield operation.reads()[0], dict(rows)
            return
        reads = self.given(operation, {}, rows)
        alike = all(layout.whole for layout in reads.values())
        step = None if alike else rule(asked(operation, reads, self._points(operation, rows)))
        for argument, name in named(operation):
            needed: dict[int, Rows | None] = {}
            for dim in reads[name].cut_dims:
                cut, fetch = reads[name].cuts[dim], None if step is None else step.fetch(argument, dim)
                assert cut is not None
                needed[cut.axis] = cut.rows(HERE) if fetch is None else span(fetch.runs[HERE])
            found = {axis: own for axis, own in needed.items() if own is not None}
            if len(found) == len(needed):  # else all that is read of it is fill
                yield name, found

    def proportional(
        self, name: str, points: Mapping[int, Sequence[int]], sizes: Mapping[int, int]
    ) -> Layout:
        """Returns a tensor's layout in the proportions of points of another, which cover what they stand for.

        Args: `points` are of a tensor of the given `sizes`, by axis.
        """
        layout = self.layouts[name][0]
        for dim in layout.cut_dims:
            axis, n = axis_of(layout, dim), layout.shape[dim]
            made = sizes.get(axis, n)
            low, *inner, high = points.get(axis, (0, 0, n, n))
            ends = [p * n // made for p in inner[:-1]] + [-(-p * n // made) for p in inner[-1:]]
            layout = layout.with_cut(dim, Cut(axis, (low, *ends, high * n // made)))
        return layout

    def _walk(
        self,
        given: Layout,
        step_of: Callable[[Operation, Mapping[str, Layout]], Step],
        rows: Mapping[str, Mapping[int, Rows]] | None = None,
    ) -> tuple[tuple[Placed, ...], dict[str, tuple[Layout, ...]]]:
        """Returns every operation that is needed with its Step, and the layouts of all tensors that are."""
        layouts: dict[str, tuple[Layout, ...]] = {**self._states, self.source: (given,)}
        placed = []
        for operation in self.operations:
            if rows is None:
                reads = {name: layouts[name][0] for name in operation.reads()}
            elif operation.name in rows:
                known = {name: layouts[name][0] for name in operation.reads() if name in rows}
                reads = self.given(operation, known, rows[operation.name])
            else:
                continue
            step = None
            if operation.operation == GETITEM:
                index = operation.arguments["index"]
                assert isinstance(index, int)
                layouts[operation.name] = (layouts[operation.reads()[0]][index],)
            elif all(layout.whole for layout in reads.values()):
                layouts[operation.name] = tuple(map(whole, operation.outputs))
            else:
                step = step_of(operation, reads)
                layouts[operation.name] = step.outputs
            placed.append(Placed(operation, step, reads))
        for done in placed:
            _check_size(done.operation, layouts[done.operation.name])
        return tuple(placed), layouts

    def _checked(self, operation: Operation, reads: Mapping[str, Layout]) -> Step:
        """Returns the Step of an operation for all of space as one box.

        Raises: BadInput where it sums over space, or where its rule cannot cut it.
        """
        try:
            check_write(operation, self.made, reads, BOXES)
            step = rule(asked(operation, reads, {}))
        except NoRule as error:
            known = operation.operation in RULES or operation.operation == ATTENTION
            why = "it needs all of space" if known else "what part of space it needs is not known"
            raise BadInput(f"{error.what}: {why}", where=error.where, allowed=WAYS_OUT) from error
        if step.reduced or "adaptive" in operation.operation:
            raise BadInput(
                f"{operation.operation} needs all of space", where=operation.place, allowed=WAYS_OUT
            )
        return step

    def spaces(self, name: str) -> dict[int, int]:
        """Returns the rows of a whole tensor along each axis of space that it has, by axis.

        Args: `name` is of the tensor, or of the operation that makes several.
        """
        layout = next((x for x in self.layouts[name] if not x.whole), self.layouts[name][0])
        return {axis_of(layout, dim): layout.shape[dim] for dim in layout.cut_dims}


def _needed(operations: Sequence[Operation], result: str) -> list[Operation]:
    """Returns the operations that the result depends on, in their order."""
    wanted = {result}
    found = []
    for operation in reversed(operations):
        if operation.name in wanted:
            wanted.update(operation.reads())
            found.append(operation)
    return found[::-1]


def _check_size(operation: Operation, layouts: Sequence[Layout]) -> None:
    """Refuses a tensor that every box would make as large as the volume."""
    for layout in layouts:
        if layout.whole and prod(layout.shape) > LARGEST:
            raise BadInput(
                f"{operation.operation} makes {prod(layout.shape):,} numbers for all of space at once",
                where=operation.place,
                allowed="what is made from the input, which is cut with it",
            )
