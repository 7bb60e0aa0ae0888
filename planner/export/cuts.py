"""Cuts of a model into stages, in the words of trainers: lists of modules, numbers of blocks, or equal parts.

Each way of saying a cut is a pair of functions, there and back, on the names of layers. The last layer is the loss,
which trainers do not name: it goes with the last stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

from planner.errors import BadInput
from planner.plan import unit_names

Stages = tuple[tuple[str, ...], ...]


def parts_of(layer: str) -> tuple[str, ...]:
    """Returns the parts of a layer's module path, without the number of its visit."""
    return tuple(layer.partition("#")[0].split("."))


# Equal parts


def even_stages(layers: Sequence[str], stages: int) -> Stages:
    """Cuts a model into stages of equally many units, where a repeated block is one; the first ones have one more.

    Args: `layers` end with the loss.
    Raises: BadInput where there are fewer units than stages.
    """
    units = _units(layers)
    if stages > len(units):
        allowed = f"at most {len(units)}, one a block or layer outside of blocks"
        raise BadInput(f"{stages} stages", allowed=allowed)
    size, more = divmod(len(units), stages)
    counts = [size + (index < more) for index in range(stages)]
    return _grouped(units, counts, layers[-1])


def _units(layers: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the layers of every unit, without the loss. What stands before blocks and after them is two units."""
    names = list(layers[:-1])
    runs = groupby(zip(unit_names(names), names, strict=True), lambda named: named[0])
    return [tuple(name for _, name in run) for _, run in runs]


def _grouped(units: Sequence[tuple[str, ...]], counts: Sequence[int], loss: str) -> Stages:
    ends = [0, *accumulate(counts)]
    stages = [tuple(name for unit in units[a:b] for name in unit) for a, b in pairwise(ends)]
    return (*stages[:-1], (*stages[-1], loss))


# Modules by name


def modules_of(stages: Stages, deepest: int) -> tuple[tuple[str, ...], ...]:
    """Returns the modules of each stage, each name as short as it can be, as torchtitan lists them.

    Modules with a number that hold no layer, such as activations, go with the layer before them.

    Args: `deepest` is the most parts of a name that the trainer takes apart.
    Raises: BadInput, without a place, where a cut goes through such a module.
    """
    owner: dict[tuple[str, ...], set[int]] = {}
    for index, layers in enumerate(_without_loss(stages)):
        for path in map(parts_of, layers):
            for length in range(1, len(path) + 1):
                owner.setdefault(path[:length], set()).add(index)
    found: list[tuple[str, ...]] = []
    for layers in _without_loss(stages):
        names: dict[str, None] = {}
        for path in map(parts_of, layers):
            whole = next((path[:n] for n in range(1, len(path) + 1) if len(owner[path[:n]]) == 1), path)
            if len(owner[whole]) > 1 or len(whole) > deepest:
                raise BadInput(f"a cut through module '{'.'.join(path[:deepest])}'")
            names[".".join(whole)] = None
        found.append(tuple(names))
    return _with_gaps(found)


def _without_loss(stages: Stages) -> Stages:
    return (*stages[:-1], stages[-1][:-1])


def _with_gaps(stages: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Names the modules of a sequence that hold no layer, after the one before them."""
    flat = [name for names in stages for name in names]
    after = dict(pairwise(flat))
    return tuple(
        tuple(each for name in names for each in (name, *_between(name, after.get(name, ""))))
        for names in stages
    )


def _between(name: str, after: str) -> list[str]:
    parent, _, number = name.rpartition(".")
    other, _, next_number = after.rpartition(".")
    if parent != other or not (number.isdecimal() and next_number.isdecimal()):
        return []
    path = f"{parent}." if parent else ""
    return [f"{path}{index}" for index in range(int(number) + 1, int(next_number))]


def stages_of_modules(modules: Sequence[Sequence[str]], layers: Sequence[str], where: str) -> Stages:
    """Returns the stages whose modules a configuration names.

    Args: `layers` are those of the model, the loss last; `where` names the file.
    Raises: BadInput names a layer that no stage has, or two have.
    """
    stage_of = {name: index for index, names in enumerate(modules) for name in names}
    found: list[list[str]] = [[] for _ in modules]
    for layer in layers[:-1]:
        path = parts_of(layer)
        holders = {
            stage_of[name]
            for length in range(1, len(path) + 1)
            if (name := ".".join(path[:length])) in stage_of
        }
        if len(holders) != 1:
            said = "no stage" if not holders else f"stages {', '.join(map(str, sorted(holders)))}"
            raise BadInput(f"'{layer}' is in {said}", where=where, allowed="modules of this model, each once")
        found[holders.pop()].append(layer)
    return (*map(tuple, found[:-1]), (*found[-1], layers[-1]))


# Numbers of repeated blocks


def blocks_of(stages: Stages) -> tuple[int, ...]:
    """Returns the number of repeated blocks in each stage, as Megatron counts transformer layers.

    Raises: BadInput, without a place, where a model has no such blocks, where they are unlike each other, or where a
        cut goes elsewhere than between them.
    """
    layers = [name for names in stages for name in names]
    before, blocks, after = _blocks(layers)
    stage_of = {name: index for index, names in enumerate(stages) for name in names}
    first = blocks[0]
    if other := next((x for x in blocks if _inside(x) != _inside(first)), None):
        unlike = [".".join(_block(block[0])) for block in (first, other)]
        raise BadInput(f"blocks '{unlike[0]}' and '{unlike[1]}' of unlike layers")
    for block in blocks:
        if len({stage_of[name] for name in block}) > 1:
            raise BadInput(f"a cut through block '{'.'.join(_block(block[0]))}'")
    if any(stage_of[name] != 0 for name in before):
        raise BadInput("a cut before the first block")
    if any(stage_of[name] != len(stages) - 1 for name in after):
        raise BadInput("a cut after the last block")
    held = Counter(stage_of[block[0]] for block in blocks)
    return tuple(held[index] for index in range(len(stages)))


def stages_of_blocks(counts: Sequence[int], layers: Sequence[str], where: str) -> Stages:
    """Returns the stages that hold so many repeated blocks each.

    Raises: BadInput where the model has no blocks, or another number of them.
    """
    try:
        before, blocks, after = _blocks(layers)
    except BadInput as error:
        raise BadInput(str(error), where=where, allowed="a model of repeated blocks") from None
    if sum(counts) != len(blocks):
        said = f"its layout has {sum(counts)} transformer layers"
        raise BadInput(said, where=where, allowed=f"the {len(blocks)} blocks of the model")
    ends = [0, *accumulate(counts)]
    inner = [[name for block in blocks[a:b] for name in block] for a, b in pairwise(ends)]
    inner[0] = [*before, *inner[0]]
    inner[-1] = [*inner[-1], *after]
    return tuple(map(tuple, inner))


def _block(layer: str) -> tuple[str, ...]:
    """Returns the path of the repeated block that a layer is in; empty for a layer outside of blocks."""
    path = parts_of(layer)
    first = next((index for index, part in enumerate(path[:-1]) if part.isdecimal()), None)
    return () if first is None else path[: first + 1]


def _inside(block: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the names of a block's layers below the block."""
    return [parts_of(layer)[len(_block(layer)) :] for layer in block]


def _blocks(layers: Sequence[str], where: str = "") -> tuple[list[str], list[list[str]], list[str]]:
    """Returns what stands before the repeated blocks, the layers of each block, and what stands after."""
    parents = Counter(_block(layer)[:-1] for layer in layers if _block(layer))
    most = max(parents, key=lambda parent: parents[parent], default=None)
    inside = [index for index, layer in enumerate(layers) if _block(layer) and _block(layer)[:-1] == most]
    if not inside or len({_block(layers[index]) for index in inside}) < 2:
        raise BadInput("a model without repeated blocks", where=where)
    first, last = inside[0], inside[-1]
    if len(inside) != last - first + 1:
        other = next(layers[index] for index in range(first, last) if index not in inside)
        raise BadInput(f"layer '{other}' between repeated blocks", where=where)
    blocks: dict[tuple[str, ...], list[str]] = {}
    for index in inside:
        blocks.setdefault(_block(layers[index]), []).append(layers[index])
    return list(layers[:first]), list(blocks.values()), list(layers[last + 1 :])
