"""Plans of any size for the report's tests: made from a family, nothing measured, nothing solved."""

from __future__ import annotations

from planner.plan import (
    Axes,
    Batch,
    Certificate,
    Memory,
    ModelRef,
    Place,
    Plan,
    PlannedConfiguration,
    Prediction,
    Provenance,
    Rival,
    ScheduleChoice,
    SearchCounts,
    SearchSpace,
    StagePlan,
    StageTimes,
)
from planner.schedule import generate
from planner.simulate.longest_path import neighbour_hops
from tests.planner import plan_examples

MS = 10**6
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\"'&"


def plan(family: str = "1f1b", *, workers: int = 4, micros: int = 8, name: str = "synthetic") -> Plan:
    made = generate(family, workers=workers, micros=micros)
    stages = len(made.place[0])
    times = tuple(
        StageTimes(
            forward_ns=2 * MS + 997 * s, backward_ns=4 * MS + 1993 * s, input_grad_ns=2 * MS + 997 * s,
            weight_grad_ns=2 * MS + 996 * s, sync_ns=MS, step_ns=MS // 2,
        )
        for s in range(stages)
    )  # fmt: skip
    hops = neighbour_hops(stages, act_ns=MS // 5, grad_ns=MS // 5)
    hops = tuple(hop.model_copy(update={"values": (f"{name}.{hop.sender}",), "bytes": 1000}) for hop in hops)
    found = Plan(
        model=ModelRef(workload=name, arguments={"size": name}, fingerprint="sha256:0"),
        batch=Batch(samples=micros, micro=1, micros=micros),
        axes=Axes(pipeline=workers),
        schedule=ScheduleChoice(
            family=made.family,
            place=made.place,
            pipe_of=made.pipe_of,
            orders=tuple(made.to_text().split("\n")),
        ),
        stages=tuple(StagePlan(layers=tuple(f"{name}.{s}.{i}" for i in range(3))) for s in range(stages)),
        places=tuple(
            Place(rank=w, node=w // 8, slot=w % 8, data=0, pipeline=w, spatial=0) for w in range(workers)
        ),
        times=times,
        hops=hops,
        prediction=Prediction(step_ns=0, low_ns=0, high_ns=10**12, memory=(_memory(),) * workers),
        provenance=Provenance(profile="made up", cluster=name, versions={"torch": name}),
    )
    return _proved(found, name)


def _memory() -> Memory:
    return Memory(
        parameters=10**9,
        gradients=10**9,
        optimizer=2 * 10**9,
        activations=3 * 10**9,
        buffers=10**8,
        margin=10**8,
        limit=10**10,
    )


def _proved(found: Plan, name: str) -> Plan:
    times = found.times[0]
    rounds = found.batch.micros + found.axes.pipeline - 1
    step_ns = rounds * (times.forward_ns + times.backward_ns)  # about; the pages tell what is simulated, too
    other = PlannedConfiguration(family=f"{name} one device", micro=1, micros=8)
    rivals = (
        Rival(kind="family", configuration=other, step_ns=2 * step_ns, peak_bytes=123456789),
        Rival(kind="data_parallel", missing_bytes=123456789),
    )
    proof = Certificate(
        objective_ns=step_ns,
        bound_ns=step_ns,
        order_free_bound_ns=step_ns * 9 // 10,
        searched=SearchCounts(configurations=3, solved=1, ruled_out=2, open=0),
        space=SearchSpace(
            families=(name,), most_workers=64, most_actions=1 << 17, parts="any", cuts="all", recompute="none", shard=(False,)
        ),
        rivals=rivals,
    )  # fmt: skip
    prediction = found.prediction.model_copy(
        update={"step_ns": step_ns, "low_ns": step_ns, "high_ns": step_ns}
    )
    return found.model_copy(update={"prediction": prediction, "certificate": proof})


def cases() -> dict[str, Plan]:
    """Six that differ in what they draw: one pipe and many, halves of a backward, recomputation, replicas, chunks."""
    return {
        "1f1b": plan("1f1b"),
        "chimera": plan("chimera"),
        "zb-h1": plan("zb-h1"),
        "interleaved": plan("interleaved"),
        "recomputed": plan_examples.plan(recompute=True),
        "gpipe of hostile names": plan("gpipe", name=HOSTILE),
    }
