"""Plans of small models, made without a solver: stages of about equal numbers of layers, times that mean nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from planner.model import ModelGraph, crossings, stage_of_layers
from planner.plan import (
    Axes,
    Batch,
    Hop,
    Memory,
    ModelRef,
    Place,
    Plan,
    Prediction,
    Provenance,
    ScheduleChoice,
    StagePlan,
    StageShard,
    StageTimes,
    coordinates,
    world_size,
)
from planner.schedule import Kind, Overlap, Schedule, generate, overlapped, with_recompute
from runtime.messages import routes_of

MS = 1_000_000
TIMES = StageTimes(
    forward_ns=MS,
    backward_ns=2 * MS,
    input_grad_ns=MS,
    weight_grad_ns=MS,
    recompute_ns=MS,
    sync_ns=0,
    step_ns=0,
)


def even_cuts(layers: int, stages: int) -> list[int]:
    return [round(layers * i / stages) for i in range(1, stages)]


def plan_for(
    graph: ModelGraph,
    workload: str,
    *,
    arguments: Mapping[str, str | int | float | bool] | None = None,
    family: str = "1f1b",
    workers: int = 2,
    micros: int = 4,
    micro: int = 2,
    data: int = 1,
    pairs: int = 1,
    cuts: Sequence[int] | None = None,
    recompute: Sequence[int] = (),
    recompute_first: int = 0,
    precision: str = "fp32",
    shard: bool = False,
    times: StageTimes = TIMES,
    hop_ns: int = 0,
    update: str = "barrier",
    overlap: Overlap | None = None,
    sharing: str = "",
    ranks: int = 0,
    unit: str = "",
) -> Plan:
    plain = generate(family, workers=workers, micros=micros, pairs=pairs)
    schedule = with_recompute(overlapped(plain, overlap or Overlap()), recompute)
    edges = even_cuts(len(graph.layers), schedule.stages) if cuts is None else list(cuts)
    stage_of = stage_of_layers(len(graph.layers), edges)
    names = [layer.name for layer in graph.layers]
    bounds = [0, *edges, len(names)]
    axes = Axes(data=data, pipeline=workers, spatial=1)
    memory = Memory(parameters=0, gradients=0, optimizer=0, activations=0, buffers=0, margin=0, limit=0)
    return Plan(
        model=ModelRef(workload=workload, arguments=dict(arguments or {}), fingerprint=graph.fingerprint),
        precision=precision,  # type: ignore[arg-type]
        shard_optimizer=shard,
        batch=Batch(samples=micro * micros * data, micro=micro, micros=micros),
        axes=axes,
        schedule=ScheduleChoice(
            family=family,
            pairs=pairs,
            chunks=int(schedule.settings.get("chunks", 1)),
            update=update,  # type: ignore[arg-type]
            settings={k: v for k, v in schedule.settings.items() if k not in ("pairs", "chunks")},
            place=schedule.place,
            pipe_of=schedule.pipe_of,
            orders=tuple(schedule.to_text().splitlines()),
        ),
        stages=tuple(
            StagePlan(
                layers=tuple(names[a:b]),
                recompute=i in recompute,
                recompute_before=names[a + recompute_first] if i in recompute and recompute_first else "",
                spatial=(),
                shard=StageShard(what=sharing, ranks=ranks, unit=unit) if sharing else None,  # type: ignore[arg-type]
            )
            for i, (a, b) in enumerate(pairwise(bounds))
        ),
        places=tuple(
            Place(rank=r, node=0, slot=r, **coordinates(axes, r)._asdict()) for r in range(world_size(axes))
        ),
        times=(times,) * schedule.stages,
        hops=hops_of(graph, stage_of, micro, hop_ns),
        prediction=Prediction(step_ns=MS, low_ns=MS, high_ns=MS, memory=(memory,) * workers),
        provenance=Provenance(profile="none", cluster="none"),
    )


def hops_of(graph: ModelGraph, stage_of: Sequence[int], micro: int, ns: int) -> tuple[Hop, ...]:
    routes = routes_of(graph, stage_of)
    assert {c.value for c in crossings(graph, stage_of)} == {
        n for names in routes.act.values() for n in names
    }
    tables = (("act", routes.act), ("grad", routes.grad))
    return tuple(
        Hop(
            direction=direction,  # type: ignore[arg-type]
            sender=sender,
            receiver=receiver,
            values=names,
            bytes=sum(graph.value[name].bytes(micro) for name in names),
            ns=ns,
        )
        for direction, table in tables
        for (sender, receiver), names in sorted(table.items())
    )


def kinds(schedule: Schedule) -> set[Kind]:
    return {action.kind for order in schedule.orders for action in order}
