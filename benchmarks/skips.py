"""Skips of a U-Net under V placements: bytes that pass between devices, beside those of a pipeline that relays them.

A skip is a value that some layer reads which is not the next one. Relayed, it passes every device between the stage
that makes it and the last that reads it; ours goes straight, and nowhere where both stages share a device.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Cell, Result, Table, below, main
from benchmarks.solver import captured, flat
from planner.milp import Question, solve
from planner.model import ModelGraph
from planner.plan import Plan, as_planned
from planner.profile import Profile

CLAIM = "A 3-D U-Net under a V placement moves at least 80 % fewer bytes of skips than a pipeline that relays them."
LEAST = 80.0  # per cent of bytes that are not moved
DEVICE, BATCH = "H100-80GB", 8
V_SHAPED = ("zb-v", "v-half", "v-min", "wave")


def skip_bytes(plan: Plan, graph: ModelGraph) -> tuple[int, int]:
    """Of one micro-batch, forwards, between devices: straight, and relayed from where the next layer has it anyway."""
    graph, place = as_planned(graph, plan), plan.schedule.place[0]
    stage_of = [number for number, stage in enumerate(plan.stages) for _ in stage.layers]
    straight = relayed = 0
    for value in graph.values:
        made = graph.index[value.producer] if value.producer else -1
        readers = [graph.index[name] for name in value.consumers]
        far = [reader for reader in readers if reader > made + 1]
        if made < 0 or not far:
            continue
        near = stage_of[made + 1] if made + 1 in readers else stage_of[made]
        size = value.bytes(plan.batch.micro)
        straight += size * len({place[stage_of[reader]] for reader in far} - {place[stage_of[made]]})
        passed = range(near, stage_of[max(far)])
        relayed += size * sum(place[stage] != place[stage + 1] for stage in passed)
    return straight, relayed


def planned(profile: Profile, devices: int, family: str) -> Plan:
    fix = {"pipeline": devices, "data": 1}
    return solve(
        Question(profile=profile, cluster=flat(devices, DEVICE)(), batch=BATCH, fix=fix, schedules=[family])
    )


def compared(profile: Profile, devices: int) -> list[tuple[Cell, ...]]:
    plain = planned(profile, devices, "1f1b")
    _, other = skip_bytes(plain, profile.graph)
    rows: list[tuple[Cell, ...]] = [
        (devices, "1f1b", plain.prediction.step_ns / 1e6, None, other / 1e6, None, None)
    ]
    for family in V_SHAPED:
        plan = planned(profile, devices, family)
        straight, relayed = skip_bytes(plan, profile.graph)
        fewer = [100 * (1 - straight / most) if most else None for most in (relayed, other)]
        rows.append((devices, family, plan.prediction.step_ns / 1e6, straight / 1e6, relayed / 1e6, *fewer))
    return rows


def missed(rows: Sequence[tuple[Cell, ...]]) -> tuple[str, ...]:
    """Returns a sentence for each of the two comparisons in which some family saves too little."""
    relaying = ("its own stages", "1F1B")
    return tuple(
        sentence
        for column, name in enumerate(relaying, 5)
        for sentence in below(
            f"The saving over relaying by {name}",
            ((f"{row[1]} on {row[0]} devices", row[column]) for row in rows),
            LEAST,
            " %",
        )
    )


def run(quick: bool) -> Result:
    profile = captured("unet3d", DEVICE, (1,), size="tiny" if quick else "small")()
    rows = [row for devices in ((2,) if quick else (2, 4)) for row in compared(profile, devices)]
    columns = (
        "devices",
        "family",
        "step, ms",
        "skips sent straight, MB",
        "relayed by the same stages, MB",
        "fewer than these, %",
        "fewer than 1F1B relaying, %",
    )
    notes = (
        "cuts are the solver's, the fastest and not those with the fewest bytes; megabytes of one micro-batch, forwards "
        "(gradients take the same ways back); on two devices 1F1B cuts where no skip passes",
    )
    table = Table(title="3-D U-Net", columns=columns, rows=rows, notes=notes)
    return Result(name="skips", claim=CLAIM, missed=missed(rows), tables=[table])


if __name__ == "__main__":
    main(run)
