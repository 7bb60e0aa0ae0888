"""The best plan by exhaustion: every shape, every cut, judged by the simulator.

Written from the problem statement; it shares no code with `planner.cost` or `planner.milp`. For clusters of one
device a node and one distance, where every placement is alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise, product
from math import ceil, prod

from planner.cluster import Cluster, Slot, limit_bytes, spread, sum_s, transfer_s
from planner.cost import copies_of_statistics, losses_held, stage_bytes, step_bytes
from planner.errors import BadInput
from planner.model import Layer, crossings, stage_of_layers
from planner.plan import Hop, StageShard, StageTimes, owners
from planner.profile import CostKey, Profile
from planner.schedule import FAMILIES, Kind, Schedule, generate, with_recompute
from planner.simulate import Spans, StageBytes, compile, duration_vector, lifetimes, period
from planner.simulate.peaks import bytes_in_use, weights
from planner.sums import SumLoad, line_of, offered, parse

NS = 1e9


@dataclass(frozen=True)
class Shared:
    """What replicas hold among them: nothing, optimizer state by whole parameters, gradients or parameters by element."""

    what: str = ""
    ranks: int = 1  # that hold one copy, or one state

    @property
    def by_element(self) -> StageShard | None:
        held = self.what in ("gradients", "parameters")
        return StageShard(what=self.what) if held else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class Best:
    ns: int
    family: str
    data: int
    boundaries: tuple[int, ...]
    judged: int


@dataclass
class Known:
    """What many cuts share, looked up once; a question is asked of one profile."""

    profile: Profile
    stages: dict[tuple[object, ...], StageBytes] = field(default_factory=dict)
    states: dict[tuple[object, ...], int] = field(default_factory=dict)
    orders: dict[int, tuple[Schedule, tuple[Spans, ...]]] = field(default_factory=dict)

    def bytes(self, layers: Sequence[str], key: CostKey, done: int, shared: Shared) -> StageBytes:
        shard = shared.by_element
        asked = (tuple(layers), key, done, shard)
        if asked not in self.stages:
            before = layers[done] if 0 < done < len(layers) else ""
            self.stages[asked] = stage_bytes(
                self.profile, layers, key, recompute=done > 0, before=before, shard=shard
            )
        return self.stages[asked]

    def state(self, layers: Sequence[str], key: CostKey, shared: Shared, losses: int, copies: int) -> int:
        asked = (tuple(layers), key, shared, losses, copies)
        if asked not in self.states:
            self.states[asked] = _state(self.profile, key, layers, shared, losses, copies)
        return self.states[asked]

    def spans(self, schedule: Schedule) -> tuple[Spans, ...]:
        if id(schedule) not in self.orders:
            self.orders[id(schedule)] = schedule, lifetimes(schedule)
        return self.orders[id(schedule)][1]


def best(
    profile: Profile,
    cluster: Cluster,
    batch: int,
    families: Sequence[str],
    *,
    update: str = "barrier",
    launch_ns: int = 0,
    ranks: int = 1,
    until: int | None = None,
    deepest: int | None = None,
) -> Best | None:
    """`launch_ns` is what every action takes besides its layers; `ranks` share each sample, at the costs given. The last
    stage begins at layer `until` at the latest; a pipeline has `deepest` workers at most."""
    found, judged, known = None, 0, Known(profile)
    shapes = _shapes(profile, cluster, batch, families, ranks, deepest, update)
    for micro, data, family, schedule, shared in shapes:
        layers = len(profile.graph.layers)
        subsets = {again: with_recompute(schedule, again) for again in _recomputing(schedule)}
        for boundaries in combinations(range(1, (until or layers - 1) + 1), schedule.stages - 1):
            fitting: list[set[int]] = []
            for again, order in subsets.items():
                if any(fewer <= set(again) for fewer in fitting):
                    continue  # recomputing more is never faster
                judged += 1
                ns = _judge(
                    known,
                    cluster,
                    micro,
                    data * ranks,
                    order,
                    boundaries,
                    shared,
                    update,
                    launch_ns,
                    ranks,
                )
                if ns is not None:
                    fitting.append(set(again))
                    if found is None or ns < found[0]:
                        found = (ns, family, data, boundaries)
    return None if found is None else Best(*found, judged)


def orders(profile: Profile, most: int) -> list[Profile] | None:
    """The model with its layers in every order in which none stands before one whose values it reads, the loss last;
    None where there are more."""
    graph, last = profile.graph, profile.graph.layers[-1]
    reads = {layer.name: {graph.value[v].producer for v in layer.inputs} - {""} for layer in graph.layers}
    found: list[tuple[Layer, ...]] = [()]
    for _ in graph.layers:
        found = [
            (*begun, layer)
            for begun in found
            for layer in graph.layers
            if layer not in begun
            and reads[layer.name] <= {each.name for each in begun}
            and (layer is not last or len(begun) == len(graph.layers) - 1)
        ]
        if len(found) > 1000:
            return None
    return None if len(found) > most else [_in_order(profile, layers) for layers in found]


def _in_order(profile: Profile, layers: tuple[Layer, ...]) -> Profile:
    names = [layer.name for layer in layers]
    values = tuple(
        replace(value, consumers=tuple(name for name in names if name in value.consumers))
        for value in profile.graph.values
    )
    return replace(profile, graph=replace(profile.graph, layers=layers, values=values))


def _shapes(
    profile: Profile,
    cluster: Cluster,
    batch: int,
    families: Sequence[str],
    ranks: int,
    deepest: int | None,
    update: str,
) -> Iterator[tuple[int, int, str, Schedule, Shared]]:
    devices = len(cluster.groups) // ranks
    for micro in sorted({key.micro for key in profile.costs}):
        for data, workers, family in product(
            range(1, devices + 1), range(1, (deepest or devices) + 1), families
        ):
            if batch % (micro * data) or data * workers > devices:
                continue
            if workers == 1 and FAMILIES[family].paired:
                continue
            for schedule in _schedules(family, workers, batch // micro // data, len(profile.graph.layers)):
                yield micro, data, family, schedule, Shared()
                yield micro, data, family, schedule, Shared("state", data * ranks * len(schedule.place))
                free = bool(profile.optimizer.by_element) and ranks == 1
                for what, share in product(("gradients", "parameters"), range(2, data + 1) if free else ()):
                    if data % share == 0:
                        yield micro, data, family, schedule, Shared(what, share)


def _recomputing(schedule: Schedule) -> Iterator[tuple[int, ...]]:
    """Stages that recompute: any of them, the fewest first."""
    for count in range(schedule.stages + 1):
        yield from combinations(range(schedule.stages), count)


def _schedules(family: str, workers: int, micros: int, layers: int) -> Iterator[Schedule]:
    spec = FAMILIES[family]
    chunks = (spec.chunks, spec.chunks + 1) if isinstance(spec.chunks, int) else spec.chunks
    for pairs, chunk in product(range(1, workers + 1) if spec.paired else (1,), chunks):
        if workers * chunk > layers or (spec.paired and 2 * pairs > micros):
            continue
        try:
            yield generate(family, workers=workers, micros=micros, pairs=pairs, chunks=chunk)
        except BadInput:
            continue


def _judge(
    known: Known,
    cluster: Cluster,
    micro: int,
    replicas: int,
    schedule: Schedule,
    boundaries: Sequence[int],
    shared: Shared,
    update: str,
    launch_ns: int,
    ranks: int,
) -> int | None:
    profile, key = known.profile, CostKey("", micro, (), "fp32", "eager")
    names = [layer.name for layer in profile.graph.layers]
    edges = [0, *boundaries, len(names)]
    stages = [names[i:j] for i, j in pairwise(edges)]
    done = _done_again(known, cluster, key, stages, schedule, shared, replicas, ranks)
    if done is None:
        return None
    times = [
        _times(
            profile,
            cluster,
            key,
            stage,
            replicas * len({row[s] for row in schedule.place}),
            shared.ranks if shared.by_element is None else 1,
            done[s],
        )
        for s, stage in enumerate(stages)
    ]
    if shared.by_element is not None:
        units = _Units(profile, cluster, key, shared)
        pairs = zip(times, stages, done, strict=True)
        times = [
            units.added(row, stage, again, replicas * len(schedule.place)) for row, stage, again in pairs
        ]
    times = [_launched(row, launch_ns) for row in times]
    hops = _hops(profile, cluster, key, schedule, boundaries)
    compiled = compile(schedule, hops, update=update)  # type: ignore[arg-type]
    return period(compiled, duration_vector(times, hops)).period_ns


def _times(
    profile: Profile,
    cluster: Cluster,
    key: CostKey,
    layers: Sequence[str],
    holders: int,
    share: int,
    done: int,
) -> StageTimes:
    costs = [profile.cost(name, key) for name in layers]
    used = {name for layer in layers for name in profile.graph.layer[layer].parameters}
    trained = [profile.graph.parameter[name] for name in used if profile.graph.parameter[name].trainable]
    kept = {p.name: profile.kept.counts.get(p.name, prod(p.shape)) for p in trained}
    gradient = sum(kept[p.name] * p.bytes // prod(p.shape) for p in trained)
    pruned = sum(kept[p.name] for p in trained if p.name in profile.kept.counts)
    gathered = sum(round(_gathered_s(profile, name) * NS) for name in layers)
    rate = profile.optimizer.seconds_per_parameter.median
    sync = _sum_s(cluster, holders, gradient, share > 1) * NS if gradient else 0.0
    return StageTimes(
        forward_ns=sum(round(c.forward.median * NS) for c in costs),
        backward_ns=sum(round(c.backward.median * NS) for c in costs) + gathered,
        input_grad_ns=sum(round(c.input_grad.median * NS) for c in costs),
        weight_grad_ns=sum(round(c.weight_grad.median * NS) for c in costs) + gathered,
        recompute_ns=sum(round(c.forward.median * NS) for c in costs[:done]),
        sync_ns=ceil(sync - 1e-6),
        step_ns=_step_ns(
            _most_elements(profile, layers, share),
            rate,
            share,
            ceil(sync - 1e-6),
            pruned * profile.optimizer.scatter_s,
        ),
    )


def _sum_s(cluster: Cluster, holders: int, size: int, shared: bool) -> float:
    """The least of the sums that were measured and may be used; of shared updates the sum by parts alone."""
    assert cluster.links.rack is not None
    rates = cluster.links.rack.sums if holders > 1 else {}
    names = ["direct"] if shared else list(rates)
    times = [
        line_of(parse(name), SumLoad(holders)).seconds(
            size, rates[name].latency_s, 1 / rates[name].bandwidth_bytes_per_s
        )
        for name in names
        if name in rates and offered(parse(name), holders)
    ]
    if times:
        return min(times)
    return sum_s(cluster, spread(cluster, [Slot(node, 0) for node in range(holders)]), size)


class _Units:
    """What gathers and sums of units add to the times of stages, each layer in a unit of its own.

    A gather is half of an all-reduce, as is a sum of which each rank gets a part. A gather hides behind the layer that
    runs before it, a sum behind the one that runs after it; the longest of an action hides behind nothing.
    """

    def __init__(self, profile: Profile, cluster: Cluster, key: CostKey, shared: Shared) -> None:
        self.profile, self.cluster, self.key, self.shared = profile, cluster, key, shared
        names = [layer.name for layer in profile.graph.layers]
        costs = [profile.cost(name, key) for name in names]
        wire = {name: self._half(self._gradients([name])) for name in names}
        gathers = shared.what == "parameters"
        sums, both = [1] * len(names), [2 if gathers else 1] * len(names)
        alone = [int(cost.walks and gathers) for cost in costs]
        plans = {
            "forward_ns": ([int(gathers)] * len(names), [c.forward for c in costs], -1),
            "backward_ns": (both, [c.backward for c in costs], 1),
            "input_grad_ns": ([int(gathers)] * len(names), [c.input_grad for c in costs], 1),
            "weight_grad_ns": (
                [a + b for a, b in zip(sums, alone, strict=True)],
                [c.weight_grad for c in costs],
                1,
            ),
        }
        plans["recompute_ns"] = plans["forward_ns"]
        self.exposed: dict[str, dict[str, int]] = {}
        self.begun: dict[str, int] = {}
        for kind, (times, seconds, way) in plans.items():
            ns = [round(each.median * NS) for each in seconds]
            moved = [count * wire[name] for count, name in zip(times, names, strict=True)]
            near = [ns[k + way] if 0 <= k + way < len(ns) else 0 for k in range(len(ns))]
            rows = zip(names, moved, near, strict=True)
            self.exposed[kind] = {name: max(0, size - hidden) for name, size, hidden in rows}
            self.begun[kind] = max(moved)

    def _gradients(self, layers: Sequence[str]) -> int:
        used = {name for layer in layers for name in self.profile.graph.layer[layer].parameters}
        return sum(row.bytes for row in self.profile.graph.trained if row.name in used)

    def _half(self, size: int) -> int:
        slots = [Slot(node, 0) for node in range(self.shared.ranks)]
        ns = sum_s(self.cluster, spread(self.cluster, slots), size) * NS if size else 0.0
        return (ceil(ns - 1e-6) + 1) // 2

    def added(self, times: StageTimes, layers: Sequence[str], done: int, holders: int) -> StageTimes:
        graph, columns = self.profile.graph, holders // self.shared.ranks
        parts = -(-self._gradients(layers) // 1) / self.shared.ranks
        slots = [Slot(node, 0) for node in range(columns)]
        sync = sum_s(self.cluster, spread(self.cluster, slots), parts) * NS if columns > 1 and parts else 0.0  # type: ignore[arg-type]
        used = {name for layer in layers for name in graph.layer[layer].parameters}
        elements = sum(prod(row.shape) for row in graph.trained if row.name in used)
        rate = self.profile.optimizer.seconds_per_parameter.median
        handed = self._half(self._gradients(layers)) if self.shared.what == "gradients" else 0
        more = {
            kind: getattr(times, kind) + sum(by_layer[name] for name in layers) + self.begun[kind]
            for kind, by_layer in self.exposed.items()
        }
        more["recompute_ns"] = (
            times.recompute_ns
            + sum(self.exposed["recompute_ns"][name] for name in layers[:done])
            + self.begun["recompute_ns"]
        )
        return times.model_copy(
            update=more
            | {
                "sync_ns": ceil(sync - 1e-6),
                "step_ns": ceil(ceil(elements / self.shared.ranks) * rate * NS - 1e-6) + handed,
            }
        )


def _gathered_s(profile: Profile, layer: str) -> float:
    used = set(profile.graph.layer[layer].parameters)
    return sum(profile.kept.counts.get(name, 0) for name in used) * profile.optimizer.gather_s


def _step_ns(elements: int, rate: float, share: int, sync_ns: int, scattered_s: float) -> int:
    handed = 0 if share == 1 else (sync_ns + 1) // 2
    return ceil((elements * rate + scattered_s) * NS - 1e-6) + handed


def _most_elements(profile: Profile, layers: Sequence[str], share: int) -> int:
    """Of one holder, where parameters are dealt out whole; what an earlier stage holds too counts whole."""
    alone: dict[str, int] = {}
    earlier = 0
    position = profile.graph.index
    for row in sorted(profile.graph.trained, key=lambda row: min(position[user] for user in row.users)):
        if set(row.users) & set(layers):
            size = profile.kept.counts.get(row.name, prod(row.shape))
            if set(row.users) <= set(layers):
                alone[row.name] = size
            elif max(row.users, key=profile.graph.index.__getitem__) in layers:
                earlier += size
    most = dict.fromkeys(range(share), 0)
    for name, owner in owners(range(share), alone).items():
        most[owner] += alone[name]
    return earlier + max(most.values())


def _launched(times: StageTimes, launch_ns: int) -> StageTimes:
    longer = {name: ns + launch_ns for name, ns in times if name != "sync_ns"}
    return times.model_copy(update=longer)


def _hops(
    profile: Profile, cluster: Cluster, key: CostKey, schedule: Schedule, boundaries: Sequence[int]
) -> list[Hop]:
    sizes: dict[tuple[str, int, int], int] = {}
    stage_of = stage_of_layers(len(profile.graph.layers), boundaries)
    for crossing in crossings(profile.graph, stage_of):
        value = profile.graph.value[crossing.value]
        ways = [("act", crossing.source, target) for target in crossing.targets]
        if value.needs_grad:
            receivers = (crossing.source, *crossing.targets)
            ways += [("grad", b, a) for a, b in pairwise(receivers)]
        for way in ways:
            sizes[way] = sizes.get(way, 0) + value.bytes(key.micro)
    found = []
    for (direction, sender, receiver), size in sorted(sizes.items()):
        apart = any(row[sender] != row[receiver] for row in schedule.place)
        ns = transfer_s(cluster, Slot(0, 0), Slot(1, 0), size) * NS if apart else 0.0
        found.append(
            Hop(
                direction=direction,  # type: ignore[arg-type]
                sender=sender,
                receiver=receiver,
                values=(),
                bytes=size,
                ns=ceil(ns - 1e-6),
            )
        )
    return found


def _done_again(
    known: Known,
    cluster: Cluster,
    key: CostKey,
    stages: Sequence[Sequence[str]],
    schedule: Schedule,
    shared: Shared,
    replicas: int,
    ranks: int,
) -> list[int] | None:
    """Of each stage how many layers it recomputes, so that all fits and none could do with less; None where it cannot
    be. A stage that has its worker alone, and whole samples, may recompute its first layers only."""
    profile = known.profile
    again = {action.stage for order in schedule.orders for action in order if action.kind is Kind.R}
    copies = copies_of_statistics(replicas * len(schedule.place), recompute=bool(again))
    losses = losses_held(schedule)
    state = [known.state(layers, key, shared, losses, copies) for layers in stages]
    chosen = [len(layers) if stage in again else 0 for stage, layers in enumerate(stages)]
    alone = ranks == 1 and len(schedule.place) == 1 and schedule.stages == schedule.workers
    for stage in again if alone else ():
        options = [[*chosen[:stage], done, *chosen[stage + 1 :]] for done in range(1, len(stages[stage]) + 1)]
        worker = schedule.place[0][stage]
        fitting = [
            o for o in options if worker not in _full(known, cluster, key, stages, schedule, state, o, shared)
        ]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda option: _forward_s(profile, key, stages[stage][: option[stage]]))
    return None if _full(known, cluster, key, stages, schedule, state, chosen, shared) else chosen


def _forward_s(profile: Profile, key: CostKey, layers: Sequence[str]) -> float:
    return sum(profile.cost(name, key).forward.median for name in layers)


def _state(
    profile: Profile, key: CostKey, layers: Sequence[str], shared: Shared, losses: int, copies: int
) -> int:
    graph = profile.graph
    used = {name for layer in layers for name in graph.layer[layer].parameters}
    weights = [graph.parameter[name] for name in used]
    trained = [p for p in weights if p.trainable]
    stay = {p.name: profile.kept.counts.get(p.name, prod(p.shape)) for p in trained}
    elements = _most_elements(profile, layers, shared.ranks)
    gradients = sum(stay[p.name] * p.bytes // prod(p.shape) for p in trained)
    parted = 0
    if shared.by_element is not None:
        elements = ceil(sum(stay.values()) / shared.ranks)
        parted = (gradients - ceil(gradients / shared.ranks)) * (2 if shared.what == "parameters" else 1)
    total = sum(p.bytes for p in weights) + gradients - parted
    pruned = [p for p in trained if p.name in profile.kept.counts]
    total += sum(stay[p.name] * (p.bytes // prod(p.shape) + 4) for p in pruned)
    kept = elements * profile.optimizer.state_bytes_per_parameter
    kept += len(trained) * profile.optimizer.state_bytes_per_tensor
    total += step_bytes(profile, layers, key, losses=losses, copies=copies)
    return total + ceil(kept - 1e-6)


def _full(
    known: Known,
    cluster: Cluster,
    key: CostKey,
    stages: Sequence[Sequence[str]],
    schedule: Schedule,
    state: Sequence[int],
    done: Sequence[int],
    shared: Shared,
) -> set[int]:
    """The workers that lack memory."""
    table = weights(
        [known.bytes(layers, key, count, shared) for layers, count in zip(stages, done, strict=True)]
    )
    found = set()
    for worker, own in enumerate(known.spans(schedule)):
        fixed = sum(state[s] for row in schedule.place for s, w in enumerate(row) if w == worker)
        if fixed + bytes_in_use(own, table)[:, 0].max(initial=0) > limit_bytes(cluster, Slot(worker, 0)):
            found.add(worker)
    return found
