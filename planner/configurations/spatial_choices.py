"""Lists how samples may be cut in space: the grid, a change to another grid, and where samples are whole again.

From some layer on shards are gathered, or ranks share whole samples. Grids are those that were profiled; where models
are large only some layers are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import permutations
from math import prod

from planner import limits
from planner.configurations.configurations import Configuration
from planner.configurations.pins import NO_GATHER, SAMPLES, Pins
from planner.cost import Grid, GridChoice, Prices, row_of, shown
from planner.errors import BadInput
from planner.model import ModelGraph
from planner.profile import CostKey, Profile
from planner.spatial import NoRule, Price


def choices(
    profile: Profile, setting: CostKey, prices: Prices, named: Collection[str] = ()
) -> tuple[GridChoice, ...]:
    """Returns every profiled grid and every change to another grid, gathered wherever that is exact.

    Args: `setting` has the micro-batch, precision and execution; where only a few layers are looked at, the layers in
    `named` are, too.
    Returns: choices whose layers were all profiled; `prices` remembers why others are refused.
    """
    alike = (key for key in profile.shards if key._replace(split=()) == setting._replace(split=()))
    grids = [key.split for key in alike if prod(key.split) > 1]
    found = [each for grid in grids for each in _of_grid(prices, setting, grid, named)]
    for grid, then in permutations(grids, 2):
        if prod(grid) % prod(then) == 0:
            found += _changing(prices, setting, grid, then, named)
    return tuple(each for each in found if _possible(profile, setting, each, prices(each)))


def _sharing(
    prices: Prices, setting: CostKey, plain: GridChoice, few: int, named: Collection[str]
) -> Iterator[GridChoice]:
    """Yields choices that share samples from some layer behind the first on a grid: every layer, in large models a
    few.

    Each rank has as many samples, and nothing mixes samples that has no rule for it.
    """
    if setting.micro % plain.ranks or not prices.graph.serves(setting.micro // plain.ranks):
        return
    for at in _spread(prices, range(plain.then_from + 1, len(prices.graph.layers)), few, named):
        choice = plain._replace(whole_from=at, shared=True)
        try:
            prices(choice)
        except NoRule as refused:
            prices.unshared[prices.graph.layers[at].name] = refused.why
        else:
            yield choice


def looked_at(layers: int) -> tuple[int | None, int | None]:
    """Returns before how many layers a change of the grid and a gather are considered at most; None is before any."""
    return (
        limits.REGRIDS if layers > limits.REGRIDDED_LAYERS else None,
        limits.GATHERS if layers > limits.GATHERED_LAYERS else None,
    )


def _of_grid(prices: Prices, setting: CostKey, grid: Grid, named: Collection[str]) -> Iterator[GridChoice]:
    """Yields the choices of one grid: shared, gathered as late as possible, or gathered before an earlier layer.

    In large models a few of the earlier layers are considered.
    """
    yield from _sharing(prices, setting, GridChoice(grid), _few(prices), named)
    last = _latest(prices, grid)
    if last is None:
        return
    cut, around = _on_shards(prices, last)[1:], prices(last).around
    yield last
    yield from (GridChoice(grid, i) for i in _spread(prices, cut, _few(prices), {*named, *around}))


def _few(prices: Prices) -> int:
    count = len(prices.graph.layers)
    return limits.GATHERS if count > limits.GATHERED_LAYERS else count


def _changing(
    prices: Prices, setting: CostKey, grid: Grid, then: Grid, named: Collection[str]
) -> Iterator[GridChoice]:
    """Yields the choices that change to another grid before some layer on shards but the first.

    Samples are gathered as late as possible or before any later layer. In larger models a few layers are considered.
    """
    last = _latest(prices, grid)
    cut = _on_shards(prices, last)[1:] if last is not None else []
    few = limits.REGRIDS if len(prices.graph.layers) > limits.REGRIDDED_LAYERS else len(prices.graph.layers)
    for at in _spread(prices, cut, few, named):
        yield from _sharing(prices, setting, GridChoice(grid, 0, then, at), few, named)
        latest = _latest_after(prices, GridChoice(grid, 0, then, at))
        if latest is None:
            continue
        yield latest
        later = [i for i in _on_shards(prices, latest) if i > at]
        yield from (latest._replace(whole_from=i) for i in _spread(prices, later, few, named))


def _spread(prices: Prices, cut: Sequence[int], few: int, named: Collection[str]) -> list[int]:
    """Returns at most so many layers, evenly spread, and the layers that are named."""
    asked_for = (i for i in cut if prices.graph.layers[i].name in named)
    return sorted({*cut[:: max(1, -(-len(cut) // max(1, few)))], *asked_for})


def _on_shards(prices: Prices, choice: GridChoice) -> list[int]:
    """Returns the layers that a choice puts on shards."""
    layers = prices(choice).layers
    names = (layer.name for layer in prices.graph.layers)
    return [i for i, name in enumerate(names) if name in layers and layers[name].on_shards]


def _latest(prices: Prices, grid: Grid) -> GridChoice | None:
    """Returns the choice that gathers latest: where the rules end the shards, else before the first layer without a
    rule.

    Returns None where that is the first layer.
    """
    try:
        prices(GridChoice(grid))
    except NoRule as refused:
        prices.refused[grid] = refused.why
        end = prices.graph.index.get(refused.layer, 0)
        return GridChoice(grid, end) if end else None
    return GridChoice(grid)


def _latest_after(prices: Prices, changing: GridChoice) -> GridChoice | None:
    """Returns the latest gather behind a change of the grid.

    Returns None where nothing is left on the other grid, or where the choice is not possible.
    """
    try:
        prices(changing)
    except NoRule as refused:
        end = prices.graph.index.get(refused.layer, 0)
        if end <= changing.then_from:
            return None
        changing = changing._replace(whole_from=end)
        try:
            prices(changing)
        except NoRule:
            return None
    return changing if any(i >= changing.then_from for i in _on_shards(prices, changing)) else None


def _possible(profile: Profile, setting: CostKey, choice: GridChoice, found: Price) -> bool:
    """Returns whether all layers on shards were profiled, and no parameter is used both on shards and on whole
    samples.
    """
    graph = profile.graph
    on_shards = {name for name, cost in found.layers.items() if cost.on_shards}
    rows = (
        row_of(choice, i, layer, found, setting)
        for i, layer in enumerate(graph.layers)
        if layer.name in on_shards
    )
    if not on_shards or any(row not in profile.costs for row in rows):
        return False
    return not any(0 < len(on_shards.intersection(p.users)) < len(set(p.users)) for p in graph.parameters)


def asked(found: Sequence[GridChoice], prices: Prices, pinned: Pins) -> tuple[GridChoice, ...]:
    """Returns the choices that have the pinned degree, grid, gather and change of the grid.

    Args: `found` are the choices of one micro-batch, `prices` their costs.
    """
    return tuple(
        each
        for each in found
        if pinned.spatial in (None, each.ranks)
        and pinned.grid in (None, each.grid)
        and _gathers(prices, each, pinned.gather)
        and _wanted(prices.graph, each, pinned)
    )


def needs_space(pinned: Pins) -> bool:
    """Returns whether what is pinned excludes whole samples.

    Args: `pinned` may name a change of the grid or a gather.
    """
    return bool(pinned.regrid) or pinned.gather not in (None, "", NO_GATHER)


def _gathers(prices: Prices, choice: GridChoice, asked_for: str | None) -> bool:
    if asked_for is None:
        return True
    if asked_for == NO_GATHER:
        return (choice.shared or not choice.whole_from) and not prices(choice).gathered
    gathers = prices.graph.layers[choice.whole_from].name if choice.whole_from else ""
    return asked_for == gathers and not choice.shared


def none_of(found: Sequence[GridChoice], prices: Prices, pinned: Pins) -> None:
    """Explains that no choice has what is pinned, where samples in space are pinned.

    Args: `found` are the choices that there are; `prices` says why others were refused.
    Raises: BadInput with the degrees and grids that are possible; nothing where the pins allow whole samples.
    """
    if pinned.spatial is None and not needs_space(pinned):
        return
    known = sorted({each.grid for each in found}, key=lambda grid: (prod(grid), grid))
    why = "".join(
        f"; on {shown(grid)}: {text}"
        for grid, text in prices.refused.items()
        if pinned.spatial in (None, prod(grid)) and pinned.grid in (None, grid)
    )
    why += "".join(
        f"; shared from '{layer}' on: {text}"
        for layer, text in prices.unshared.items()
        if f"{layer}:{SAMPLES}" in (pinned.regrid or "").split(",")
    )
    if not found and not why:
        what = "no samples were profiled that are cut in space"
        raise BadInput(
            what, where="fix", allowed="whole samples; others once `profile --spatial` has priced them"
        )
    gathered = "" if pinned.gather is None else " with no gather" if pinned.gather == NO_GATHER else ""
    if pinned.gather is not None and pinned.gather != NO_GATHER:
        gathered = f" with a gather at '{pinned.gather or 'end'}'"
    gathered += f" with regrid {pinned.regrid}" if pinned.regrid else ""
    degree = "any" if pinned.spatial is None else shown(pinned.grid or (pinned.spatial,))
    plain = [] if needs_space(pinned) else ["1"]
    raise BadInput(
        f"spatial is {degree}{gathered}, but no such split can be had of this profile{why}",
        where="fix",
        allowed=", ".join([*plain, *map(shown, known)]) + "; others once `profile --spatial` has priced them",
    )


def _wanted(graph: ModelGraph, choice: GridChoice, pinned: Pins) -> bool:
    """Returns whether a choice has the pinned change of the grid; a pinned grid stays where no change is pinned."""
    if pinned.regrid is None:
        return pinned.grid is None or not choice.then
    return pinned.regrid == _regrid(graph, choice)


def _regrid(graph: ModelGraph, choice: GridChoice) -> str:
    turns = [f"{graph.layers[choice.then_from].name}:{shown(choice.then)}"] if choice.then else []
    turns += [f"{graph.layers[choice.whole_from].name}:{SAMPLES}"] if choice.shared else []
    return ",".join(turns)


def choice_of(shape: Configuration) -> GridChoice:
    """Returns how a configuration cuts samples in space, or tensors over a group.

    Args: `shape` with grid, gather and change of the grid, or with the axes of the group.
    """
    return GridChoice(
        shape.grid, shape.whole_from, shape.then, shape.then_from, shape.shared, shape.mesh, shape.cut
    )


def check_space(pinned: Pins, graph: ModelGraph) -> Pins:
    """Returns the pins unchanged, after it has checked their gather and their changes of the grid.

    Args: `graph` has the layers that may be named.
    Raises: BadInput where a layer is unknown or the first, or where samples are pinned to be whole.
    """
    turns = [turn.rpartition(":")[0] for turn in (pinned.regrid or "").split(",") if turn]
    named = [("regrid", layer) for layer in turns]
    named += [("gather", pinned.gather)] if pinned.gather not in (None, "", NO_GATHER) else []
    for key, layer in named:
        if layer not in graph.index:
            layers = ", ".join(x.name for x in graph.layers)
            raise BadInput(f"{key}: no layer is called '{layer}'", where="fix", allowed=f"{layers:.400}")
        if graph.index[layer] == 0:
            raise BadInput(f"{key} at '{layer}', the first layer", where="fix", allowed="a layer behind it")
        if pinned.spatial == 1:
            what = f"{key} at '{layer}' needs samples that are cut in space, and spatial is 1"
            raise BadInput(what, where="fix", allowed="a degree such as spatial=2, or none fixed")
    return pinned


def grids_of(pinned: Pins) -> tuple[tuple[int, ...], ...]:
    """Returns the grids that a profile needs rows of for what is pinned: its own, and those that samples change to."""
    own = (pinned.grid or (pinned.spatial,)) if pinned.spatial is not None else ()
    turns = [turn.rpartition(":")[2] for turn in (pinned.regrid or "").split(",") if turn]
    others = [tuple(map(int, turn.split("x"))) for turn in turns if turn != SAMPLES]
    return tuple(dict.fromkeys(grid for grid in (own, *others) if prod(grid) > 1))
