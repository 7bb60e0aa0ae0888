from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from planner.cluster import catalogue as devices
from planner.errors import BadInput
from planner.measure.optimizer import measured_optimizer, roofline_optimizer
from planner.measure.passes import CpuClock
from planner.workload import Workload
from tests.planner.graphs import chain

Make = Callable[..., torch.optim.Optimizer]
DEVICE = devices.find("V100-16GB")


def workload(make: Make) -> Workload:
    return Workload(name="test", where="test.py", arguments={}, functions={"optimizer": make})


@pytest.mark.parametrize(
    ("make", "name", "state_bytes"),
    [
        (lambda rows: torch.optim.AdamW(p for _, p in rows), "adamw", 8),
        (lambda rows: torch.optim.SGD((p for _, p in rows), lr=0.1, momentum=0.9), "sgd", 4),
        (lambda rows: torch.optim.SGD((p for _, p in rows), lr=0.1), "sgd", 0),
    ],
)
def test_the_state_of_the_users_own_optimizer_is_counted(make: Make, name: str, state_bytes: int) -> None:
    found = roofline_optimizer(workload(make), chain(), DEVICE)
    assert (found.name, found.state_bytes_per_parameter) == (name, state_bytes)
    assert found.state_bytes_per_tensor == (4 if name == "adamw" else 0), "a counter of steps"
    assert found.seconds_per_parameter.median >= 12 / DEVICE.memory_bytes_per_s, "reads two, writes one"


def test_an_update_is_timed() -> None:
    make: Make = lambda rows: torch.optim.SGD((p for _, p in rows), lr=0.1)  # noqa: E731
    found = measured_optimizer(workload(make), chain(), "cpu", CpuClock(), [])
    assert 0 < found.seconds_per_parameter.median < 1


def test_names_are_those_of_the_model() -> None:
    seen: list[str] = []

    def make(rows: object) -> torch.optim.Optimizer:
        pairs = list(rows)  # type: ignore[call-overload]
        seen.extend(name for name, _ in pairs)
        return torch.optim.SGD([p for _, p in pairs], lr=0.1)

    graph = chain()
    roofline_optimizer(workload(make), graph, DEVICE)
    names = [row.name for row in graph.parameters]
    assert seen[: len(names)] == names
    assert set(seen) == set(names)


@pytest.mark.parametrize(
    ("device", "largest", "others"),
    [(devices.find("cpu"), 12.0, 0.0), (DEVICE, 4.0, 4.0)],
    ids=["cpu", "gpu"],
)
def test_what_an_update_takes_for_a_moment_is_counted(
    device: devices.Device, largest: float, others: float
) -> None:
    """AdamW one by one: the root of the second moment, twice for a while, and once of the parameter before; on a
    GPU all roots at once."""
    make: Make = lambda rows: torch.optim.AdamW([p for _, p in rows])  # noqa: E731
    found = roofline_optimizer(workload(make), chain(), device)
    assert found.largest_bytes_per_parameter == largest
    assert found.other_bytes_per_parameter == others


def test_an_optimizer_that_needs_more_than_gradients_is_refused() -> None:
    make: Make = lambda rows: torch.optim.LBFGS([p for _, p in rows])  # noqa: E731
    with pytest.raises(BadInput, match=r"test.py: optimizer\(\) returned a LBFGS.*asks for 'closure'"):
        roofline_optimizer(workload(make), chain(), DEVICE)
