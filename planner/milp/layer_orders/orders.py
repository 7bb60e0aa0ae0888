"""Searches other orders of the layers, where a graph is no chain, and says what the proof then covers.

A cut of one order is a chain of downward-closed sets, and so is every plan. Where a model is small and has few
orders, each is searched, which is the whole lattice. Otherwise the orders of the best balanced stages are searched
(`lattice.py`), for the depths of the best plans; the certificate names how many. Samples stay whole in other orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from planner import limits
from planner.configurations import NO_GATHER, SEARCHED, Pins, layouts_looked_at, looked_at, needs_space, told
from planner.limits import Effort
from planner.milp import explain
from planner.milp.instance import Instance, changed
from planner.milp.layer_orders.elements import ElementWork, Sent
from planner.milp.layer_orders.lattice import TooManyIdeals, best_stages
from planner.milp.search.candidates import Candidates
from planner.milp.search.search import search
from planner.milp.search.state import SearchState
from planner.model import ONE_HOLDER, ONE_STAGE, ModelGraph, alone, dependences, misplaced, one_holder
from planner.plan import Certificate, LayerOrders, SearchSpace, with_bounds
from planner.profile import Profile
from planner.proof import UNFIT_NS, order_free_bound_ns
from planner.schedule import FAMILIES, Kind
from planner.spatial import slides

Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Searched:
    """The search that found the best plan, and what was learnt in all of them."""

    best: SearchState
    bound_ns: int = UNFIT_NS  # of the other orders that the proof is about
    own_order_ns: int = UNFIT_NS  # of them, where no schedule is listed anew
    orders: LayerOrders = field(default_factory=lambda: LayerOrders())

    def certificate(self) -> Certificate:
        """Returns the certificate of the best plan, with the bound of all orders that the proof is about."""
        proof = _certificate(self.best)
        assert proof.space is not None
        space = proof.space.model_copy(update={"layer_orders": self.orders})
        own = min(_least(self.best, listed=False), self.own_order_ns)
        told = proof.model_copy(update={"space": space})
        return with_bounds(told, min(proof.bound_ns, self.bound_ns), own)


def _certificate(state: SearchState) -> Certificate:
    """Returns the certificate of the best plan of a search, which has one."""
    best = state.best
    assert best is not None and best.answer is not None
    objective = best.answer.ns
    return Certificate(
        stage=state.stage,
        objective_ns=objective,
        bound_ns=min(objective, _least(state)),
        order_free_bound_ns=order_free_bound_ns(best.problem, best.answer.cut),
        searched=explain.counts(
            state.considered,
            left=sum(ns < objective for ns in (*state.left, *state.left_listed)),
            taken_up=sum(tried.closing is not None for tried in state.tried.values()),
            unfinished=len({tried.shape for tried in state.open if tried.bound_ns < objective}),
            rescheduled=state.listed,
        ),
        space=searched_space(state.instance),
        chosen=explain.priced("chosen", best),
        rivals=tuple(explain.rivals(state.instance, best.problem, list(state.tried.values()))),
    )


def searched(instance: Instance, effort: Effort) -> Searched:
    """Searches the model's own order first, then other orders, which have to beat its best plan.

    Args: other orders together get a share of the work that `effort` allows.
    Returns: the search with the best plan, and what was learnt in all searches.
    Raises: Infeasible where the model's own order has no configuration.
    """
    first = search(instance, effort)
    if first.stopped:
        return Searched(best=first)
    if not _free(instance.pins) or alone(instance.profile.graph):
        return Searched(best=first)
    every = _every(instance.profile.graph) if instance.layers <= limits.ORDERED_LAYERS else None
    found, chosen = [first], every or []
    try:
        chosen = list(_balanced(first)) if every is None else every
        for other in _others(first, chosen, effort):
            found.append(other)
            if other.stopped:
                every = None
                break
    except TooManyIdeals:
        return Searched(best=first, orders=LayerOrders(searched="too_many"))
    except KeyboardInterrupt:  # before another order had a better plan
        if first.best is None:
            raise
        every = None
    best = min(found, key=lambda each: (each.limit, found.index(each)))
    closed = [each for each in found if each is not best and (each is first or _least(each) >= best.limit)]
    proved = found if every is not None else closed
    return Searched(
        best=best,
        bound_ns=min(map(_least, proved), default=UNFIT_NS),
        own_order_ns=min((_least(each, listed=False) for each in proved), default=UNFIT_NS),
        orders=LayerOrders(
            searched="balanced" if every is None else "all",
            others=len(chosen),
            proved=len(chosen) if every is not None else sum(each is not first for each in closed),
        ),
    )


def _free(pins: Pins) -> bool:
    """Returns whether stages of whole samples are left to be chosen: other orders have no samples cut in space."""
    whole = pins.spatial in (None, 1) and not needs_space(pins) and pins.cut is None
    return pins.stages is None and pins.pipeline != 1 and whole


def _others(first: SearchState, orders: Sequence[Names], effort: Effort) -> Iterator[SearchState]:
    """Yields the searches of other orders; each has to beat the best plan before it."""
    limit, share = (
        first.limit,
        replace(effort, work_ns=limits.ORDERS_SHARE * effort.work_ns / max(1, len(orders))),
    )
    for names in orders:
        asked = in_order(first.instance, names)
        if Candidates(asked):
            found = search(asked, share, below=limit, rows=first.rows)
            limit = min(limit, found.limit)
            yield found


def in_order(instance: Instance, names: Sequence[str]) -> Instance:
    """Returns the question with its layers in another order, and with whole samples.

    Args: `names` are the layers, each after what it depends on.
    """
    return changed(
        instance,
        profile=replace(instance.profile, graph=instance.profile.graph.ordered(names)),
        pins=replace(instance.pins, spatial=1, grid=None, gather=None, regrid=None),
    )


def _least(found: SearchState, *, listed: bool = True) -> int:
    """Returns the lower bound of everything that a search left open, with orders that were listed anew or without."""
    own = (tried.bound_ns for tried in found.open if listed or not tried.shape.listed)
    return min([*own, *found.left, *(found.left_listed if listed else ())], default=UNFIT_NS)


def _every(graph: ModelGraph) -> list[Names] | None:
    """Returns all orders but the graph's own; None where there are too many."""
    before = _before(graph)
    names = [layer.name for layer in graph.layers]
    found: list[Names] = []
    open_: list[Names] = [()]
    while open_:
        begun = open_.pop()
        if len(begun) == len(names):
            found.append(begun)
            if len(found) > limits.ORDERS + 1:
                return None
        done = set(begun)
        ready = [name for name in names if name not in done and before[name] <= done]
        open_ += [(*begun, name) for name in reversed(ready)]
    return [order for order in found if order != tuple(names)]


def _before(graph: ModelGraph) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {layer.name: set() for layer in graph.layers}
    for early, late in dependences(graph):
        found[late].add(early)
    return found


def _balanced(first: SearchState) -> Iterator[Names]:
    """Yields the orders of the best balanced stages, for the depths of the best plans."""
    names = [layer.name for layer in first.instance.profile.graph.layers]
    known = {tuple(names)}
    met = [tried for tried in first.tried.values() if tried.answer is not None and tried.shape.stages > 1]
    met.sort(key=lambda tried: (tried.answer.ns if tried.answer else UNFIT_NS, tried.shape))
    depths = {tried.shape.stages: tried.shape.micro for tried in reversed(met)}
    for depth in list(dict.fromkeys(tried.shape.stages for tried in met))[: limits.ORDER_DEPTHS]:
        best = best_stages(_work(first.instance, depths[depth]), depth, ideals=limits.IDEALS)
        assert best is not None, "any stages fit where sizes do not count"
        order = tuple(names[k] for stage in best.elements for k in stage)
        if order not in known:
            known.add(order)
            yield order


def _work(instance: Instance, micro: int) -> ElementWork:
    """Returns the nanoseconds of layers, and of messages over the longest distance, which both ends take part in."""
    tables, graph = instance.whole(micro), instance.profile.graph
    times = tables.time_ns[Kind.F] + tables.time_ns[Kind.B]
    needed = _before(graph)
    size_of = dict(zip(tables.edges.value.tolist(), tables.edges.bytes.tolist(), strict=True))
    sent = [
        Sent(
            source=graph.index[value.producer],
            readers=tuple(sorted({graph.index[name] for name in value.consumers})),
            cost=instance.cluster_link_ns(size_of[number]) * (2 if value.needs_grad else 1),
        )
        for number, value in enumerate(graph.values)
        if value.producer and number in size_of
    ]
    return ElementWork(
        cost=tuple(float(each) for each in (times[1:] - times[:-1]).tolist()),
        size=(0.0,) * instance.layers,
        before=tuple(
            tuple(sorted(graph.index[name] for name in needed[layer.name])) for layer in graph.layers
        ),
        sent=tuple(sent),
    )


def as_pinned(profile: Profile, pinned: Pins) -> tuple[Profile, Pins]:
    """Returns the question in the order of the user's own stages, where that is an order of the model.

    Args: `pinned.stages` lists the layers of each stage.
    Returns: profile and pins; both unchanged where the order is the model's own, invalid, or pins cut samples in
    space.
    """
    names = [name for stage in pinned.stages or () for name in stage]
    graph = profile.graph
    if sorted(names) != sorted(graph.index) or next(misplaced(graph, names), None):
        return profile, pinned
    turned = bool(pinned.regrid) or pinned.cut is not None
    in_space = pinned.spatial not in (None, 1) or pinned.gather not in (None, NO_GATHER) or turned
    if names == [layer.name for layer in graph.layers] or in_space:
        return profile, pinned
    return replace(profile, graph=graph.ordered(names)), replace(
        pinned, spatial=1, grid=None, gather=None, regrid=None
    )


def searched_space(space: Instance) -> SearchSpace:
    """Returns what a bound of the instance is about."""
    pins = space.pins
    grids = sorted({choice.grid for micro in space.micros() for choice in space.splits(micro) if choice.grid})
    names = pins.schedules or SEARCHED
    free = pins.shard is None and pins.held is None and space.execution == "eager" and not space.joint
    several = any(isinstance(FAMILIES[name].chunks, int) for name in names)
    changes, gathers = looked_at(space.layers) if grids else (None, None)
    forwards = limits.MOST_FORWARDS if not pins.schedules and pins.out_of_order is not False else None
    return SearchSpace(
        families=names,
        fixed=told(pins),
        most_workers=pins.pipeline or limits.DEEPEST,
        most_actions=limits.MOST_ACTIONS,
        free_chunks=limits.FREE_CHUNKS if several and pins.chunks is None else None,
        parts="any" if pins.schedules else "none" if pins.out_of_order is False else "one_worker",
        most_forwards=forwards,
        equal_parts=pins.update == "rolling" and pins.out_of_order is not False,
        cuts="all",
        recompute=_recomputation(space),
        shard=(pins.shard,) if pins.shard is not None else (False,) if space.joint else (False, True),
        held=("gradients", "parameters") if free and space.profile.by_element else (),
        grids=tuple(grids),
        layouts=layouts_looked_at(space.splits, space.micros(), pins),
        grid_changes=changes,
        gathers=gathers,
        limits=tuple(_of_the_model(space)),
    )


def _of_the_model(space: Instance) -> Iterator[str]:
    """Yields what the model itself does not allow of a plan, each with its cause in one line."""
    graph = space.profile.graph
    if found := one_holder(graph):
        yield f"{ONE_HOLDER}, because {found[0]}"
    if space.joint:
        yield f"{ONE_STAGE}, because {space.joint} looks at all parameters together"
    if graph.synchronised and (space.execution == "compiled" or slides(graph)):
        name = graph.synchronised[0]
        yield f"replicas on whole samples in eager stages only, because '{name}' has a SyncBatchNorm"


def _recomputation(space: Instance) -> Literal["none", "all", "whole_stages", "first_layers"]:
    if space.pins.recompute is not None:
        return "all" if space.pins.recompute else "none"
    return "first_layers" if space.parts_recompute else "whole_stages"
