"""Reads which layers take which factor: patterns of module paths, as a plan's section `cut` has them.

    {"blocks.*.attention": "heads", "blocks.*.feedforward": "hidden", "blocks.*": "sequence", "head": "out"}

A pattern names a module and all that is in it; of two patterns the one that names more of the path goes first, by
fewer stars where both name as much, and the other holds where the first has nothing to say. `heads` and `hidden` stand
for a pair of linear layers: the first ones of the module are cut by `out`, those that no further one follows by `in`.
`ulysses` stands for attention by heads between layers by sequence, and `ring` for attention whose keys and values go
round the ranks between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, NamedTuple

from planner.errors import BadInput
from planner.layout.families import FAMILIES, RING
from planner.layout.lying import Mesh
from planner.layout.moves import TURNING
from planner.layout.propagate import PLACES, STORED, WHOLE, Wishes
from planner.spatial import STATE, Operation, Ref, call_of, whole

PAIRS: Final = ("heads", "hidden")
WEIGHTED: Final = (
    "aten.linear",
    "aten.addmm",
    *(f"aten.{name}{n}d" for name in ("conv", "conv_transpose") for n in (1, 2, 3)),
)
PRODUCTS: Final = ("aten.matmul", "aten.mm")
ULYSSES: Final = "ulysses"
ATTENTION: Final = "aten.scaled_dot_product_attention"
KNOWN: Final = (*PAIRS, ULYSSES, RING, "out", "in", "vocabulary", "classes", WHOLE, *PLACES, STORED)


class Wish(NamedTuple):
    """One line of a plan's section `cut`: the modules it names, and the factor that they take along an axis."""

    pattern: str
    axis: int
    factor: str
    stages: tuple[int, ...] = ()  # of the plan, whose layers it is for; empty: all


def of_path(operation: Operation) -> str:
    """Returns the path of the module that an operation is written in."""
    path = operation.layer if operation.path is None else operation.path
    return path.partition("#")[0]


@lru_cache(maxsize=2**16)
def depth(path: str, pattern: str) -> int:
    """Returns how many names of a path a pattern covers; 0 where it does not name it or a module around it."""
    names = path.split(".")
    for count in range(len(names), 0, -1):
        if fnmatchcase(".".join(names[:count]), pattern) and pattern.count(".") == count - 1:
            return count
    return 0


@dataclass
class _Granted:
    """Answers what an operation is wished to take, with pairs of layers worked out."""

    wishes: Sequence[Wish]
    weighted: Collection[str]  # operations with a weight of two dimensions or more
    ends: Mapping[Wish, Collection[str]] = field(default_factory=dict)  # operations that end a pair
    stage_of: Mapping[str, int] = field(default_factory=dict)  # of each layer
    _known: dict[tuple[str | None, str, int], tuple[Sequence[Wish], Sequence[tuple[str, object]] | None]] = (
        field(default_factory=dict)
    )

    def __call__(self, operation: Operation, axis: int) -> Sequence[tuple[str, object]]:
        key = operation.path, operation.layer, axis
        known = self._known.get(key)
        if known is None:
            own = self._covering(operation, axis)
            depends = any(wish.factor in (*PAIRS, ULYSSES, RING) for wish in own)  # on the operation
            known = self._known[key] = own, None if depends else tuple((x.factor, x) for x in own)
        own, alike = known
        return tuple((self._factor(operation, wish), wish) for wish in own) if alike is None else alike

    def _covering(self, operation: Operation, axis: int) -> Sequence[Wish]:
        """Returns the wishes for an operation, the one that names most of its path first, by fewer stars where as much."""
        found = [(_covered(operation, x, self.stage_of), x) for x in self.wishes if x.axis == axis]
        ranked = sorted((x for x in found if x[0]), key=lambda x: (-x[0], x[1].pattern.count("*")))
        return [wish for _, wish in ranked]

    def _factor(self, operation: Operation, wish: Wish) -> str:
        if wish.factor in PAIRS and operation.name in self.weighted:
            return "in" if operation.name in self.ends[wish] else "out"
        if wish.factor in (ULYSSES, RING) and operation.operation != ATTENTION:
            return "sequence"
        if wish.factor == ULYSSES:
            return "heads"
        return wish.factor


def _covered(operation: Operation, wish: Wish, stage_of: Mapping[str, int]) -> int:
    """Returns how many names of an operation's path a wish covers; 0 where it is not for it."""
    if wish.stages and stage_of.get(operation.layer) not in wish.stages:
        return 0
    return depth(of_path(operation), wish.pattern)


def granted(
    wishes: Sequence[Wish], operations: Sequence[Operation], stage_of: Mapping[str, int] | None = None
) -> Wishes:
    """Returns what each operation is wished to take, for `propagate`.

    Args: `operations` are those of the captured model; `stage_of` has the stage of each layer, where wishes are for
        stages of a plan.
    Raises: BadInput for a factor that there is not, and for a pattern that no module has.
    """
    for wish in wishes:
        if wish.factor not in KNOWN and not wish.factor.removeprefix("dim").isdigit():
            raise BadInput(f"factor '{wish.factor}'", where=f"cut '{wish.pattern}'", allowed=", ".join(KNOWN))
    stages = stage_of or {}
    weighted = _weighted(operations)
    ends = {wish: _ends(wish, operations, stages, weighted) for wish in wishes if wish.factor in PAIRS}
    return _Granted(wishes, weighted, ends, stages)


def _weighted(operations: Sequence[Operation]) -> frozenset[str]:
    """Returns the operations that multiply by a weight, also by one that is turned before."""
    weights = {x.name for x in operations if x.operation == STATE}
    found = set()
    for x in operations:
        second = x.arguments.get("other", x.arguments.get("mat2"))
        if x.operation in WEIGHTED:
            found.add(x.name)
        elif x.operation in TURNING and weights.issuperset(x.reads()):
            weights.add(x.name)
        elif x.operation in PRODUCTS and isinstance(second, Ref) and second.name in weights:
            found.add(x.name)
    return frozenset(found)


def unmet(
    wishes: Sequence[Wish],
    taken: Collection[object],
    operations: Sequence[Operation],
    mesh: Mesh,
    stage_of: Mapping[str, int] | None = None,
) -> None:
    """Refuses wishes that no operation could grant.

    Args: `mesh` has the parts along each axis of the group; `taken` has those that some operation took; `stage_of` is
        that of `granted`.
    Raises: BadInput, which says what the layers of the pattern have instead.
    """
    for wish in wishes:
        if wish in taken:
            continue
        if wish.axis >= len(mesh):
            said = f"the line for '{wish.pattern}' names {wish.axis + 1} axes, and the group has {len(mesh)}"
            raise BadInput(said, where="cut", allowed="a mesh, such as group=2x2, or a factor for each axis")
        inside = [x for x in operations if x.layer and _covered(x, wish, stage_of or {})]
        if not inside:
            paths = dict.fromkeys(of_path(x) for x in operations if x.layer)
            stages = f" in stage {', '.join(map(str, wish.stages))}" if wish.stages else ""
            allowed = f"{', '.join(filter(None, paths)):.400}"
            raise BadInput(f"no module '{wish.pattern}'{stages}", where="cut", allowed=allowed)
        if wish.factor == STORED:
            raise BadInput(
                f"no parameter of '{wish.pattern}' can rest in parts",
                where="cut",
                allowed="modules with trained parameters that are whole along the axis and have a row for each rank",
            )
        raise BadInput(
            f"no operation of '{wish.pattern}' has the factor '{wish.factor}'",
            where="cut",
            allowed=", ".join(_factors(inside, operations)) or "another module: no operation of it has any",
        )


def _factors(inside: Sequence[Operation], operations: Sequence[Operation]) -> list[str]:
    """Returns the names of all factors that some operations have, of all `operations` of their model."""
    shapes = {x.name: whole(x.outputs[0]) for x in operations if x.outputs}
    known = [x for x in inside if x.operation in FAMILIES]
    factors = (factor for x in known for factor in FAMILIES[x.operation](call_of(x, shapes)))
    return sorted({name for factor in factors for name in (factor.name, *factor.also)})


def _ends(
    wish: Wish, operations: Sequence[Operation], stage_of: Mapping[str, int], weighted: Collection[str]
) -> set[str]:
    """Returns the linear layers of each module of a pattern that no other one of it follows."""
    inside: dict[str, str] = {}
    for x in operations:
        covered = _covered(x, wish, stage_of)
        if covered and x.name in weighted:
            visit = x.layer.partition("#")[2]  # a module that is run again is a pair of its own
            inside[x.name] = f"{'.'.join(of_path(x).split('.')[:covered])}#{visit}"
    before: dict[str, set[str]] = {}  # tensor -> linear layers of the pattern that it depends on
    followed: set[str] = set()
    for x in operations:
        reached: set[str] = set().union(*(before.get(name, set()) for name in x.reads()))
        if x.name in inside:
            followed |= {name for name in reached if inside[name] == inside[x.name]}
            reached = {x.name}
        before[x.name] = reached
    return set(inside) - followed
