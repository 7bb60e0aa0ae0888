"""Small questions by seed, and whether the solver's answer is that of the exhaustive search."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import prod

from planner import limits
from planner.cluster import Cluster
from planner.errors import BadInput, Infeasible
from planner.kept import KeptEntries
from planner.milp import Question, solve_or_none
from planner.plan import Plan
from planner.profile import Profile, Seconds
from planner.schedule import FAMILIES
from planner.sums import SumRate
from planner.verify import violations
from tests.planner.milp import oracle
from tests.planner.milp.instances import chain, cluster, keeping, profile

ORDERS = 13  # of the layers, up to which the solver looks at all
FROZEN = tuple(name for name in FAMILIES if name not in ("listed", "overlap"))


@dataclass(frozen=True)
class Case:
    profile: Profile
    cluster: Cluster
    batch: int
    families: tuple[str, ...]  # that are asked for; none asks for whatever there is
    update: str


def case(seed: int, families: Sequence[str] = FROZEN) -> Case:
    """Chains, graphs with skips and with branches; tight and ample memory; fast and slow links; barrier and rolling
    updates, some so slow that sharing them pays; of three of the families."""
    rng = random.Random(seed)
    layers = rng.randint(3, 7)
    equal, skips, loose = rng.random() < 0.2, rng.choice([0, 0, 1, 2, 3]), rng.random() < 0.3
    blocks = chain(layers, seed, equal=equal, skips=skips, loose=loose)
    costs = profile(blocks, micros=rng.choice([(1,), (1, 2)]), scale=rng.choice([1, 10]))
    update_s = rng.choice([0.0, 1e-12, 1e-9, 3e-9])
    return Case(
        profile=replace(
            costs, optimizer=replace(costs.optimizer, seconds_per_parameter=Seconds(median=update_s))
        ),
        cluster=cluster(
            rng.randint(1, 4),
            latency_s=rng.choice([1e-9, 5e-7]),
            memory=rng.choice([1 << 40, 400_000, 200_000, 120_000, 80_000]),
            bandwidth=rng.choice([1e9, 1e11]),
        ),
        batch=rng.choice([1, 2, 3, 4, 6]),
        families=tuple(rng.sample(list(families), 3)),
        update=rng.choice(["barrier", "barrier", "rolling"]),
    )


def pruned(seed: int) -> Case:
    """Questions as `case` or `summed` asks them, where some layers keep a random share of their weights.

    Of three in a row two leave less memory than the fastest plan of the pruned model takes, or about as much.
    """
    rng, given = random.Random(f"{seed}/kept"), (summed if seed % 3 == 2 else case)(seed)
    rows = [row for row in given.profile.graph.trained if prod(row.shape) > 1 and rng.random() < 0.8]
    counts = {row.name: rng.randint(1, prod(row.shape) - 1) for row in rows}
    rates = {name: rng.choice([0.0, 1e-11, 1e-9]) for name in RATES}
    optimizer = replace(given.profile.optimizer, **rates)
    costs = replace(given.profile, kept=KeptEntries(counts, share=0.5, even=False), optimizer=optimizer)
    ample = replace(given, profile=costs)
    plan = answer(ample) if seed % 3 else None
    if plan is None:
        return ample
    most = int(max(each.total for each in plan.prediction.memory) * rng.uniform(0.6, 1.05))
    machines = cluster(
        given.cluster.nodes[0].count, memory=most
    )  # whole, since a copy keeps what it has reckoned
    return replace(ample, cluster=machines.model_copy(update={"links": given.cluster.links}))


def summed(seed: int) -> Case:
    """Questions as `case` asks them, between hosts whose sums were measured: some of the names, at random rates."""
    rng, given = random.Random(f"{seed}/sums"), case(seed)
    names = [
        "ring",
        "direct",
        *rng.sample(["rings 2", "rings 3", "colours 2", "colours 4"], rng.randint(0, 3)),
    ]
    rates = {
        name: SumRate(
            latency_s=rng.choice([1e-9, 1e-7, 5e-7]), bandwidth_bytes_per_s=rng.choice([3e8, 1e9, 1e11])
        )
        for name in names
    }
    far = given.cluster.links.rack
    assert far is not None
    links = given.cluster.links.model_copy(update={"rack": far.model_copy(update={"sums": rates})})
    return replace(given, cluster=given.cluster.model_copy(update={"links": links}))


def shared(seed: int) -> Case:
    """Questions as `case` asks them, where replicas may share gradients or parameters: on links as fast as layers need
    them, and in memory in which a plan fits only where they do."""
    rng, given = random.Random(f"{seed}/shared"), case(seed)
    optimizer = replace(given.profile.optimizer, by_element=True)
    return replace(
        given,
        profile=replace(given.profile, optimizer=optimizer),
        cluster=cluster(
            rng.choice([2, 2, 3, 4]),
            latency_s=rng.choice([1e-9, 5e-8]),
            memory=rng.choice([1 << 40, 400_000, 200_000, 120_000, 80_000]),
            bandwidth=rng.choice([1e10, 1e11, 1e12]),
        ),
        batch=rng.choice([2, 3, 4, 6]),
        update=rng.choice(["barrier", "barrier", "barrier", "rolling"]),
    )


RATES = ("gather_seconds_per_parameter", "scatter_seconds_per_parameter")
SEVERAL = ("zb-v", "interleaved", "chimera", "chimera-zb", "wave", "v-half", "v-min", "dualpipe-v", "overlap")


def crowded(seed: int) -> Case:
    """Workers with several stages and less memory than the fastest plan would take: which of them recompute decides.
    Parts of replicas under a barrier, also in a pipeline, and with a single micro-batch."""
    rng = random.Random(seed)
    layers = rng.randint(4, 7)
    blocks = chain(
        layers,
        seed,
        equal=rng.random() < 0.2,
        skips=rng.choice([0, 0, 1, 2]),
        loose=rng.random() < 0.15,
    )
    costs = keeping(profile(blocks, scale=rng.choice([1, 10])), seed)
    update_s = rng.choice([0.0, 1e-12, 1e-9, 3e-9])
    nodes, wire = rng.choice([2, 2, 3, 4]), (rng.choice([1e-9, 5e-7]), rng.choice([1e9, 1e11]))
    family = rng.choice(SEVERAL)
    ample = Case(
        profile=replace(
            costs, optimizer=replace(costs.optimizer, seconds_per_parameter=Seconds(median=update_s))
        ),
        cluster=cluster(nodes, latency_s=wire[0], bandwidth=wire[1]),
        batch=rng.choice([1, 2, 3, 4, 6]),
        families=(family,),
        update="barrier" if family == "overlap" else rng.choice(["barrier", "barrier", "rolling"]),
    )
    plan = answer(ample)
    if plan is None:
        return ample
    most = int(max(each.total for each in plan.prediction.memory) * rng.uniform(0.45, 1.0))
    return replace(ample, cluster=cluster(nodes, latency_s=wire[0], bandwidth=wire[1], memory=most))


def unasked(seed: int) -> Case:
    """No family is named: on few devices, where one worker may have several stages; memory as in `crowded`."""
    rng = random.Random(seed)
    blocks = chain(
        rng.randint(3, 5), seed, equal=rng.random() < 0.2, skips=rng.choice([0, 0, 1]), loose=False
    )
    costs = keeping(profile(blocks, micros=rng.choice([(1,), (1, 2)]), scale=rng.choice([1, 10])), seed)
    update_s = rng.choice([0.0, 1e-12, 1e-9, 3e-9])
    nodes, wire = rng.choice([1, 2, 2, 3]), (rng.choice([1e-9, 5e-7]), rng.choice([1e9, 1e11]))
    ample = Case(
        profile=replace(
            costs, optimizer=replace(costs.optimizer, seconds_per_parameter=Seconds(median=update_s))
        ),
        cluster=cluster(nodes, latency_s=wire[0], bandwidth=wire[1]),
        batch=rng.choice([1, 2, 2, 4]),
        families=(),
        update="barrier",
    )
    plan = answer(ample)
    if plan is None or rng.random() < 0.2:
        return ample
    most = int(max(each.total for each in plan.prediction.memory) * rng.uniform(0.7, 1.3))
    return replace(ample, cluster=cluster(nodes, latency_s=wire[0], bandwidth=wire[1], memory=most))


# `PARTED_LAYERS` is not among them: it takes recomputation of single layers out of the space, which exhaustion has.
LOW = {
    "TABLED_LAYERS": 2,
    "ORDERED_LAYERS": 2,
    "SMALL_LAYERS": 2,
    "IDEALS": 30,
    "SILENT": 0.5,
    "EVEN_CUTS": 2,
    "FAR": 1.0,
    "FIRST_ANSWERS": 1,
    "SOON_PROVED": 1,
    "STALE": 0.0,
    "CROWD": 0,
    "UNMOVED": 1,
    "BARE_PARTS": 1,
    "PROGRAM_ARCS": 20,
    "RELISTED_ACTIONS": 24,
    "MOMENTS": 200,
    "KEPT_ROWS": 20,
    "GRIDS": 3,
    "LONG_ACTIONS": 16,
    "SLOW_ACTIONS": 8,
    "LONGEST_BLOCK": 1,
}


@contextmanager
def low_limits() -> Iterator[None]:
    """Sets the thresholds of the solver so low that small questions cross each of them; puts them back afterwards."""
    known = {name: getattr(limits, name) for name in LOW}
    try:
        for name, value in LOW.items():
            setattr(limits, name, value)
        yield
    finally:
        for name, value in known.items():
            setattr(limits, name, value)


def branched(seed: int) -> Case:
    """Models whose layers often do not read the one before them: towers, blocks of branches, heads of attention,
    encoders with skips. Families and memory are as in `case`.
    """
    rng = random.Random(seed)
    given = case(seed)
    count = rng.randint(4, 8)
    reads = rng.choice([_towers, _branches, _heads, _skipping])(rng, count)
    blocks = [replace(block, reads=reads[k]) for k, block in enumerate(chain(count, seed))]
    costs = profile(blocks, scale=rng.choice([1, 10]))
    nodes = cluster(
        rng.choice([2, 3, 4]),
        latency_s=rng.choice([1e-9, 5e-7]),
        memory=rng.choice([1 << 40, 1 << 40, 400_000, 200_000]),
        bandwidth=rng.choice([1e9, 1e11]),
    )
    return replace(given, profile=replace(costs, optimizer=given.profile.optimizer), cluster=nodes)


def _towers(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Two towers behind one stem, or each behind the batch, joined by the last layer."""
    begin = rng.randint(2, count - 2)
    reads: list[tuple[int, ...]] = [(k - 1,) for k in range(count)]
    reads[begin] = (rng.choice([0, -1]),)
    reads[-1] = tuple(sorted({begin - 1, count - 2}))
    return reads


def _branches(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Layers that read one of the last few, and join what nothing else reads."""
    reads: list[tuple[int, ...]] = [(-1,)]
    for k in range(1, count):
        reads.append((rng.randint(max(0, k - 3), k - 1),))
    read = {source for row in reads for source in row}
    reads[-1] = tuple(sorted({*reads[-1], *(k for k in range(count - 1) if k not in read)}))
    return reads


def _heads(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Some layers read the same one, and the layer behind them reads all of them."""
    reads: list[tuple[int, ...]] = [(-1,)]
    while len(reads) < count:
        first, heads = len(reads), min(rng.randint(1, 3), max(1, count - len(reads) - 1))
        reads += [(first - 1,)] * heads
        reads += [tuple(range(first, first + heads))] if len(reads) < count else []
    return reads[:count]


def _skipping(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """An encoder and a decoder with skips between them, of which the decoder begins anew."""
    reads: list[tuple[int, ...]] = [(k - 1,) for k in range(count)]
    middle = count // 2
    reads[middle] = (rng.choice([middle - 1, 0]),)
    for k in range(middle + 1, count):
        reads[k] = tuple(sorted({k - 1, rng.randint(max(0, middle - (k - middle)), k - 1)}))
    return reads


def in_own_order(given: Case, plan: Plan | None) -> list[str]:
    """What is wrong of a plan whose certificate is about the model's own order of layers: its bound, its memory."""
    best = _best([given.profile], given)
    if plan is None or best is None:
        wrong = plan is None and best is not None
        return [f"the solver finds nothing, exhaustion {best.ns} ns"] if wrong and best is not None else []
    ns, proof = plan.prediction.step_ns, plan.certificate
    found = [] if proof is not None else ["no certificate"]
    if proof is not None and proof.bound_ns > best.ns:
        found.append(
            f"the bound is {proof.bound_ns} ns of {ns} ns, exhaustion finds {best.ns} ns ({best.family})"
        )
    return found + [str(each) for each in violations(plan, profile=given.profile, cluster=given.cluster)]


def answer(given: Case) -> Plan | None:
    """The solver's."""
    return solve_or_none(asked(given).instance())


def asked(given: Case) -> Question:
    return Question(
        profile=given.profile,
        cluster=given.cluster,
        batch=given.batch,
        schedules=given.families or None,
        fix={"update": given.update},
    )


def exhausted(given: Case) -> tuple[oracle.Best | None, bool]:
    """The best of all orders of the layers, or of the model's own where these are too many; whether of all. Where no
    family is named `overlap` is for one worker only."""
    every = oracle.orders(given.profile, ORDERS)
    return _best(every or [given.profile], given), bool(every)


def _best(profiles: Sequence[Profile], given: Case) -> oracle.Best | None:
    spaces = [(given.families, None)] if given.families else [(FROZEN, None), (("overlap",), 1)]
    found = [
        oracle.best(costs, given.cluster, given.batch, names, update=given.update, deepest=deepest)
        for costs in profiles
        for names, deepest in spaces
    ]
    return min((best for best in found if best is not None), key=lambda best: best.ns, default=None)


def differences(given: Case, plan: Plan | None) -> list[str]:
    """What is not as it must be; nothing where the plan is the best there is, says so, and holds."""
    best, all_ = exhausted(given)
    if plan is None or best is None:
        right = best is None and (plan is None or not all_)
        return (
            [] if right else [f"the solver finds {_ns(plan)}, exhaustion {None if best is None else best.ns}"]
        )
    found = []
    ns, proof = plan.prediction.step_ns, plan.certificate
    anew = not given.families and "relisted" in plan.schedule.settings
    if ns > best.ns or (ns < best.ns and all_ and not anew):
        found.append(f"the solver finds {ns} ns, exhaustion {best.ns} ns ({best.family}, data {best.data})")
    if proof is None or not proof.objective_ns == proof.bound_ns == ns:
        found.append(f"the certificate says {proof and (proof.objective_ns, proof.bound_ns)} of {ns} ns")
    return found + [str(each) for each in violations(plan, profile=given.profile, cluster=given.cluster)]


def trivial(given: Case) -> Iterator[tuple[str, int]]:
    """Every plan of replicas alone and its time: DDP, sharded state, and FSDP and HSDP by gradients or parameters."""
    for data in range(2, sum(group.count for group in given.cluster.nodes) + 1):
        copies = [r for r in range(2, data) if data % r == 0]
        several = [f"{what}:{r}" for what in ("gradients", "parameters") for r in copies]
        for shard in (False, True, "gradients", "parameters", *several):
            fix = {"update": given.update, "data": data, "pipeline": 1, "shard": shard}
            with suppress(
                BadInput, Infeasible
            ):  # what does not divide the batch, families that need a pipeline
                plan = solve_or_none(replace(asked(given), fix=fix).instance())
                if plan is not None:
                    yield f"data {data}, shard {shard}", plan.prediction.step_ns


def beaten(given: Case, plan: Plan | None) -> list[str]:
    """The plans of replicas alone that are faster than the solver's."""
    ns = plan.prediction.step_ns if plan is not None else None
    return [
        f"the solver finds {ns} ns, {name} takes {taken} ns"
        for name, taken in trivial(given)
        if ns is None or taken < ns
    ]


def _ns(plan: Plan | None) -> int | None:
    return None if plan is None else plan.prediction.step_ns
