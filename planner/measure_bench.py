"""What all rows of one profile have in common: the captured model, its batches, and how it will run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from planner.capture import Captured, capture
from planner.errors import BadInput
from planner.measure_events import Request
from planner.measure_passes import BackwardSplit
from planner.measure_specimen import PRECISIONS, Situation, Way, situations
from planner.profile import CostKey
from planner.workload import Workload

EXECUTIONS = ("eager", "compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    batch_of: Callable[[int], tuple[object, object]]
    captured: Captured
    execution: str
    way: Way

    def batch(self, micro: int) -> Mapping[str, Tensor]:
        """The tensors of a micro-batch by the names of their Values."""
        return self.captured.batch_values(*self.batch_of(micro))

    def situations(self, micro: int) -> list[Situation]:
        return situations(self.captured, self.batch(micro), self.way.precision)

    def key(self, situation: Situation, micro: int) -> CostKey:
        return CostKey(situation.layer.signature, micro, (), self.way.precision, self.execution)


def bench_of(workload: Workload, request: Request, device: str, split: BackwardSplit | None) -> Bench:
    """`device` is where tensors are, which for a roofline is not the one that is asked for."""
    precision, execution, micros = request.precision, request.execution, request.micros
    if precision not in PRECISIONS:
        raise BadInput(f"unknown precision '{precision}'", allowed=", ".join(PRECISIONS))
    if execution not in EXECUTIONS:
        raise BadInput(f"unknown execution '{execution}'", allowed=", ".join(EXECUTIONS))
    if not micros or min(micros) < 1:
        raise BadInput(f"micro-batches {list(micros)}", allowed="one or more numbers, each at least 1")
    captured = capture(workload, micro=micros[0])
    if not captured.graph.symbolic_batch and len(set(micros)) > 1:
        raise BadInput(
            "this model can be captured for one batch size at a time",
            where=workload.where,
            allowed=f"one micro-batch a profile, such as {micros[0]}",
        )
    way = Way(precision=precision, device=device, compiled=execution == "compiled", split=split)
    return Bench(batch_of=workload.batch, captured=captured, execution=execution, way=way)


def device_name(device: str) -> str:
    """The name that a device gives itself; BadInput where there is none."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return "cpu"
    if kind == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    known = ["cpu", "roofline:NAME", *(["cuda"] if torch.cuda.is_available() else [])]
    raise BadInput(f"there is no device '{device}' here", allowed=", ".join(known))


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "shardwright": _version("shardwright"),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
