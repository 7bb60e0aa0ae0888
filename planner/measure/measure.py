"""Makes the profile of a workload: measured on a device of this machine, or by the roofline of another device.

    profile(load("resnet50"), "cpu", micros=(1, 2, 4))
    profile(load("gpt2", {"size": "xl"}), "roofline:H100-80GB")

Measuring happens in a process of its own. Both ways run the layers to see what autograd keeps, the roofline on fake
tensors. Only the times differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from planner import cluster as clusters
from planner.errors import BadInput
from planner.measure.process.parent import measure
from planner.measure.process.protocol import Done, MeasureRequest
from planner.model import Layer
from planner.profile import CostKey, Profile, Seconds, check, kept_values
from planner.terminal import Report

if TYPE_CHECKING:
    from planner.measure.passes import BackwardSplit, SpatialSplit
    from planner.workload import Workload

ROOFLINE = "roofline:"
SECONDS_PER_ROW = 0.4
# By so much of the share that others take, times differed that were measured apart on busy machines
BESIDE = 0.3
# By about so much they differed on idle virtual machines ten minutes apart, where a pass takes a fraction of a
# millisecond; longer ones by no more seconds than these, and all by this least share
VIRTUAL, VIRTUAL_S, VIRTUAL_LEAST = 0.5, 150e-6, 0.15
_PROCESSORS = Path("/proc/cpuinfo")


def usual_precision(device: str) -> str:
    """Returns what people train in on a device: bf16 where its hardware has it, else fp32.

    Args: `device` is cpu, cuda or roofline:NAME.
    Raises: BadInput where the catalogue does not know the name.
    """
    if device.startswith("roofline:"):
        return "bf16" if clusters.find(device.partition(":")[2], where="device").has_bf16 else "fp32"
    if device != "cuda":
        return "fp32"
    import torch

    return "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported(False) else "fp32"


def measured_on(device: str) -> str:
    """Returns how to have the costs of a device where only its name is given: measured where it is here.

    Args: `device` is one of the catalogue's, or what its driver calls it.
    Returns: cpu, cuda or roofline:NAME.
    """
    if device == "cpu":
        return "cpu"
    import torch

    from planner.cluster import name_of

    here = torch.cuda.is_available() and device == name_of(torch.cuda.get_device_name())
    return "cuda" if here else f"{ROOFLINE}{device}"


def profile(
    workload: Workload,
    device: str = "cpu",
    *,
    micros: Sequence[int] = (1, 2, 4),
    precision: str = "fp32",
    execution: str = "eager",
    split: BackwardSplit | None = None,
    spatial: SpatialSplit | None = None,
    grids: Sequence[tuple[int, ...]] = (),
    journal: Path | None = None,
    seconds_per_row: float = SECONDS_PER_ROW,
) -> Profile:
    """Returns what every layer of the workload costs at every micro-batch.

    Args: `device` is cpu, cuda or roofline:NAME, with NAME from the catalogue of devices. `micros` are numbers of
        samples, and `grids` the grids to measure shards on (parts along the dims from 2 on). `split` halves the
        backward as the runtime does. Without `split`, the halves are the whole backward, shared out in proportion
        to what each half would take alone. `spatial` makes shards as the runtime does. The measuring process makes
        both again, without arguments. `journal` is the profile's future path: an interrupted profile continues from
        the rows saved beside it. `seconds_per_row` is the time spent on timing one row.
    Returns: a checked profile. Rows that could not be measured are in its `failures`.
    Raises: BadInput where the device, a micro-batch, a grid or the precision cannot be measured; Infeasible where
        at every micro-batch some layer fails.
    """
    request = MeasureRequest(
        workload=workload.name,
        arguments={name: str(value) for name, value in workload.arguments.items()},
        device=device,
        micros=tuple(micros),
        precision=precision,
        execution=execution,
        split=_name(split),
        spatial=_name(spatial),
        grids=tuple(dict.fromkeys(grids)),
        seconds_per_row=seconds_per_row,
    )
    if device.startswith(ROOFLINE):
        return check(_by_roofline(workload, request, split, spatial))
    return check(_by_measuring(workload, request, journal))


def _name(tool: object | None) -> str:
    return f"{type(tool).__module__}:{type(tool).__qualname__}" if tool is not None else ""


def _by_roofline(
    workload: Workload, request: MeasureRequest, split: BackwardSplit | None, spatial: SpatialSplit | None
) -> Profile:
    name = request.device.removeprefix(ROOFLINE)
    device = clusters.find(name, where="device")
    if request.execution != "eager":
        raise BadInput(f"a roofline knows no execution '{request.execution}'", allowed="eager")
    from planner.measure.bench import bench_of, versions
    from planner.measure.optimizer import roofline_optimizer
    from planner.measure.rows import counted_rows

    bench = bench_of(workload, request, "cpu", split, spatial)
    with Report(f"profile {workload.name} by roofline") as report:
        for line in bench.left_out:
            report.say(line)
        report.at(0.0)
        if bench.said:
            report.say(bench.said)
        total = len(bench.micros) * len(bench.situations(bench.micros[0]))
        rows = []
        for row in counted_rows(bench, device):
            rows.append(row)
            report.at(len(rows) / total)
    found = Profile(
        workload=workload.name,
        arguments=dict(workload.arguments),
        graph=bench.captured.graph,
        device=name,
        source="roofline",
        costs={row.key: row.cost for row in rows},
        optimizer=roofline_optimizer(workload, bench.captured.graph, device),
        versions=versions(),
    )
    return with_slack(found, rows)


def _by_measuring(workload: Workload, request: MeasureRequest, journal: Path | None) -> Profile:
    partial = journal.with_name(f"{journal.name}.partial") if journal is not None else None
    with Report(f"profile {workload.name} on {request.device}") as report:
        report.at(0.0)
        try:
            found = measure(request, partial, report)
        except KeyboardInterrupt:
            if partial is not None and partial.exists():
                report.say(f"what was measured is in {partial}; the same command goes on from there")
            raise
    assert found.optimizer is not None
    profile_ = Profile(
        workload=workload.name,
        arguments=dict(workload.arguments),
        graph=found.ready.graph,
        device=found.ready.device,
        source="measured",
        costs={key: row.cost for key, row in found.done.items()},
        optimizer=found.optimizer,
        versions=found.ready.versions,
        failures=found.failures,
        others=round(found.others, 3),
        samples=found.samples,
    )
    slack = with_slack(profile_, found.done.values())
    return less_sure(slack, virtual=is_virtual()) if request.device == "cpu" else slack


def is_virtual(processors: Path = _PROCESSORS) -> bool:
    """Returns whether this machine is a virtual one, whose processors others use that nobody here can see."""
    try:
        text = processors.read_text()
    except OSError:
        return False
    return any("hypervisor" in line.split() for line in text.splitlines() if line.startswith("flags"))


def less_sure(found: Profile, *, virtual: bool) -> Profile:
    """Returns the profile with spreads no smaller than what else runs on the machine makes of them.

    Others take caches and memory as well, which not even the processor time of one thread leaves out, and they take
    them for longer than a profile takes. So its visits agree with each other, and not with what comes ten minutes later.

    Args: on a `virtual` machine some of the others are never seen; short passes feel them most.
    """
    least = BESIDE * found.others

    def at_least(time: Seconds, of: int = 1) -> Seconds:
        unseen = (
            max(VIRTUAL_LEAST * time.median, min(VIRTUAL * time.median, VIRTUAL_S / of)) if virtual else 0.0
        )
        return replace(time, spread=max(time.spread, least * time.median, unseen))

    costs = {
        key: replace(
            cost,
            forward=at_least(cost.forward),
            backward=at_least(cost.backward),
            input_grad=at_least(cost.input_grad),
            weight_grad=at_least(cost.weight_grad),
        )
        for key, cost in found.costs.items()
    }
    update = found.optimizer.seconds_per_parameter
    updated = sum(prod(p.shape) for p in found.graph.trained)
    optimizer = replace(found.optimizer, seconds_per_parameter=at_least(update, max(1, updated)))
    return replace(found, costs=costs, optimizer=optimizer)


def with_slack(found: Profile, rows: Iterable[Done]) -> Profile:
    """Returns the profile with the unseen bytes of kept outputs added to the layers that make these outputs.

    An output may show only a part of a larger storage, as a slice does. Where the output is kept, all of its
    storage stays alive. Layers of one signature share a row, so the bytes count in all of them if they count in
    one. Shards are judged as whole samples are.

    Args: `rows` are the measured rows of the profile, with `slack_bytes` each.
    """
    slack = {row.key: row.slack_bytes for row in rows if row.slack_bytes}
    if not slack:
        return found
    kept = {(x.signature, setting.micro) for setting in found.settings for x in _kept_layers(found, setting)}
    costs = dict(found.costs)
    for key, more in slack.items():
        if (key.signature, key.micro) in kept:
            costs[key] = replace(costs[key], own_saved_bytes=costs[key].own_saved_bytes + more)
    return replace(found, costs=costs)


def _kept_layers(found: Profile, setting: CostKey) -> Iterator[Layer]:
    """Yields the layers of which some output is kept for a backward."""
    kept = kept_values(found, [layer.name for layer in found.graph.layers], setting)
    return (layer for layer in found.graph.layers if kept.intersection(layer.outputs))
