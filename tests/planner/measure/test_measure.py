from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch

from planner.arrays import NS_PER_S
from planner.errors import BadInput, Infeasible
from planner.measure import measure, measured_on
from planner.measure.measure import BESIDE, VIRTUAL, VIRTUAL_LEAST, VIRTUAL_S, is_virtual, less_sure
from planner.measure.process.parent import child
from planner.measure.process.protocol import Done, Journal, encode
from planner.profile import CostKey, Profile, Seconds
from planner.profile import yaml as profile_yaml
from planner.workload import Workload, load
from runtime.stage import Split
from tests.planner import plan_examples
from tests.planner.graphs import cost

# A workload whose middle layer runs an operation of its own, so that a test can make it fail where it likes.
WORKLOAD = """
import os, signal
import torch
from torch import nn

def trouble(x):
    {trouble}

@torch.library.custom_op("shardwright_test::{name}", mutates_args=())
def operation(x: torch.Tensor) -> torch.Tensor:
    trouble(x)
    return x * 2

@operation.register_fake
def _(x):
    return torch.empty_like(x)

operation.register_autograd(lambda ctx, grad: grad * 2)

class Middle(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
    def forward(self, x):
        return operation(x) * self.scale

def build():
    return nn.Sequential(nn.Linear(4, 4), Middle(), nn.Linear(4, 4))

def batch(n):
    return torch.randn(n, 4), torch.randn(n, 4)

def loss(outputs, targets):
    return nn.functional.mse_loss(outputs, targets)
"""


def workload(folder: Path, trouble: str = "pass") -> Workload:
    path = folder / "work.py"
    path.write_text(WORKLOAD.format(trouble=trouble, name=f"operation_{abs(hash(trouble))}"))
    return load(str(path))


def measured(work: Workload, *, micros: tuple[int, ...] = (1,), journal: Path | None = None) -> Profile:
    return measure.profile(work, "cpu", micros=micros, journal=journal, seconds_per_row=0.001)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workload, Profile]:
    """It prints what would break the lines between the two processes, if it got among them."""
    work = workload(tmp_path_factory.mktemp("plain"), "print('{')")
    return work, measured(work, micros=(3, 1))


def test_every_layer_is_measured_at_every_micro_batch(
    plain: tuple[Workload, Profile], tmp_path: Path
) -> None:
    _, found = plain
    assert found.source == "measured"
    assert [setting.micro for setting in found.settings] == [1, 3]
    for setting in found.settings:
        for layer in found.graph.layers:
            row = found.cost(layer.name, setting)
            assert row.forward.median > 0 and row.backward.median > 0
            assert row.backward.median == pytest.approx(row.input_grad.median + row.weight_grad.median)
    assert found.cost("0", found.settings[0]).input_grad.median == 0, "the batch needs no gradient"
    assert found.optimizer.name == "adamw" and found.optimizer.state_bytes_per_parameter == 8
    profile_yaml.save(found, tmp_path / "profile.yaml")
    assert profile_yaml.load(tmp_path / "profile.yaml") == found


def test_layers_alike_are_measured_once() -> None:
    found = measure.profile(load("mlp"), "roofline:cpu", micros=(1,))
    signatures = [layer.signature for layer in found.graph.layers]
    assert len(set(signatures)) < len(signatures)
    assert len(found.costs) == len(set(signatures))


def test_weights_that_nothing_learns_by_can_be_planned_with() -> None:
    branches = load("tests/runtime/workloads/branches.py")
    found = measure.profile(branches, "roofline:cpu", micros=(4,), split=Split())
    gate = found.cost("gate", found.settings[0])  # only integers come of it
    assert gate.backward.median == 1 / NS_PER_S


@pytest.mark.usefixtures("warm_starts")
def test_running_out_of_memory_is_a_row_without_costs(tmp_path: Path) -> None:
    trouble = "\n    if len(x) > 1: raise RuntimeError('DefaultCPUAllocator: can\\'t allocate memory')"
    found = measured(workload(tmp_path, trouble), micros=(1, 2, 4))
    assert [setting.micro for setting in found.settings] == [1]
    assert {(key.micro, why) for key, why in found.failures.items()} == {
        (2, "out of memory"),
        (4, "did not fit at micro-batch 2 already"),
    }


@pytest.mark.usefixtures("warm_starts")
def test_a_crash_is_blamed_on_the_layer_that_caused_it(tmp_path: Path) -> None:
    trouble = "\n    if len(x) > 1: os.kill(os.getpid(), signal.SIGKILL)"
    found = measured(workload(tmp_path, trouble), micros=(1, 2))
    assert [setting.micro for setting in found.settings] == [1]
    ((key, why),) = found.failures.items()
    assert "SIGKILL" in why
    assert found.graph.layer["1"].signature == key.signature


@pytest.mark.usefixtures("warm_starts")
def test_a_layer_that_never_fits_is_named(tmp_path: Path) -> None:
    trouble = "raise MemoryError"
    with pytest.raises(
        Infeasible, match=r"layer '1' cannot be measured on cpu .*micro-batch 1: out of memory"
    ):
        measured(workload(tmp_path, trouble))


@pytest.mark.usefixtures("warm_starts")
def test_a_journal_of_the_same_model_goes_on(plain: tuple[Workload, Profile], tmp_path: Path) -> None:
    (work, first), path = plain, tmp_path / "profile.yaml"
    key = CostKey(first.graph.layer["1"].signature, 1, (), "fp32", "eager")
    partial = path.with_name("profile.yaml.partial")
    head = {
        "journal": "1",
        "fingerprint": first.graph.fingerprint,
        "device": "cpu",
        "precision": "fp32",
        "execution": "eager",
        "split": "",
        "spatial": "",
        **{f"version of {name}": text for name, text in first.versions.items()},
    }
    known = encode(Done(key, cost(forward=123.0), 0))
    partial.write_text(json.dumps(head, sort_keys=True) + "\n" + known + "\n" + known[:20])
    second = measured(work, micros=(1, 3), journal=path)
    assert second.costs[key].forward.median == 123.0
    assert set(second.costs) == set(first.costs)
    assert not partial.exists()


def test_a_journal_of_another_model_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    entry = Done(CostKey("s", 1, (), "fp32", "eager"), cost(), 0)
    Journal(path, {"fingerprint": "a"}).add(entry)
    assert Journal(path, {"fingerprint": "a"}).found == [entry]
    assert Journal(path, {"fingerprint": "b"}).found == []
    assert Journal(path, {"fingerprint": "a"}).found == []


@pytest.mark.usefixtures("warm_starts")
def test_an_interrupted_profile_leaves_its_rows_in_the_journal(tmp_path: Path) -> None:
    work = workload(tmp_path, "\n    if len(x) > 3: import time; time.sleep(600)")
    path = tmp_path / "profile.yaml"
    program = (
        "import sys; from pathlib import Path; from planner import measure; from planner.workload import load\n"
        "measure.profile(load(sys.argv[1]), micros=(1, 4), journal=Path(sys.argv[2]), seconds_per_row=0.001)"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program, work.name, str(path)],
        cwd=Path(__file__).parents[3],
        stderr=subprocess.DEVNULL,
    )
    partial = path.with_name("profile.yaml.partial")
    try:
        wait_for(lambda: partial.exists() and partial.read_text().count('"Done"') == 4)
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(60)
    assert partial.read_text().count('"Done"') == 4
    assert not path.exists()


def wait_for(condition: object) -> None:
    assert callable(condition)
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("device", "options", "words"),
    [
        ("tpu", {}, "there is no device 'tpu' here.*cpu, roofline:NAME"),
        ("roofline:H1000", {}, "unknown device 'H1000'.*H100-80GB"),
        ("roofline:H100-80GB", {"precision": "fp8"}, "unknown precision 'fp8'.*fp32, bf16"),
        ("roofline:H100-80GB", {"execution": "fast"}, "no execution 'fast'.*eager"),
        ("roofline:H100-80GB", {"micros": (0, 1)}, r"micro-batches \[0, 1\]"),
        ("roofline:H100-80GB", {"micros": ()}, r"micro-batches \[\]"),
    ],
)
def test_what_cannot_be_profiled_is_refused(device: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        measure.profile(load("mlp"), device, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("warm_starts")
def test_an_error_of_the_workload_comes_back_from_the_process_that_measures(tmp_path: Path) -> None:
    path = tmp_path / "work.py"
    path.write_text("def build(): raise KeyError('nothing')\ndef batch(n): ...\ndef loss(o, t): ...\n")
    with pytest.raises(BadInput, match=r"work.py:1: build\(\) raised KeyError: 'nothing'"):
        measured(load(str(path)))


WIDE = """
from torch import nn
from torch.nn.functional import mse_loss as loss
import torch

def build(): return nn.Sequential(*(nn.Linear(20_000, 20_000) for _ in range(4)))
def batch(n): return torch.randn(n, 20_000), torch.randn(n, 20_000)
"""


def test_a_roofline_allocates_nothing_of_a_large_model(tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text(WIDE)
    found = measure.profile(load(str(tmp_path / "wide.py"), {}), "roofline:H100-80GB", micros=(1,))
    assert sum(row.bytes for row in found.graph.parameters) > 6e9
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 6e9
    (setting,) = found.settings
    seconds = sum(found.cost(x.name, setting).forward.median for x in found.graph.layers)
    flops = sum(x.flops(1) for x in found.graph.layers)
    assert seconds >= flops / 67e12, "no faster than the peak"


def test_the_process_that_measures_ends_with_the_one_that_waits(tmp_path: Path) -> None:
    from planner.measure.process.protocol import MeasureRequest

    request = MeasureRequest(
        workload="mlp",
        arguments={},
        device="cpu",
        micros=(1,),
        precision="fp32",
        execution="eager",
        split="",
        spatial="",
        grids=(),
        seconds_per_row=0.001,
    )
    with child(request) as running:
        process = running._process
        assert process.poll() is None
    assert process.poll() is not None


MASKED = """
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Selects(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(x)[x[:, 0] > 0].sum(0, keepdim=True)


def build(masks="loss"):
    return nn.Conv2d(3, 4, 3) if masks == "loss" else nn.Sequential(nn.Linear(4, 4), Selects())


def batch(n, masks="loss"):
    return (torch.randn(n, 3, 6, 6), torch.randint(4, (n, 4, 4))) if masks == "loss" else (torch.randn(n, 4),) * 2


def loss(o, y, masks="loss"):
    return F.cross_entropy(o.movedim(1, -1)[y != 2], y[y != 2]) if masks == "loss" else (o - y).pow(2).mean()
"""


@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("device", ["cpu", "roofline:H100-80GB"])
@pytest.mark.parametrize(("masks", "where"), [("loss", "loss()"), ("model", "module '1'")])
def test_a_size_that_values_tell_is_refused_with_its_place_and_what_to_write_instead(
    masks: str, where: str, device: str, tmp_path: Path
) -> None:
    path = tmp_path / "masked.py"
    path.write_text(MASKED)
    with pytest.raises(BadInput, match=r"aten\.index gives depends on the values.*ignore_index") as refused:
        measure.profile(load(str(path), {"masks": masks}), device, micros=(2,), seconds_per_row=0.001)
    assert where in refused.value.where
    assert "planner" not in refused.value.where


def test_a_device_is_measured_where_it_is_here_and_estimated_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert measured_on("cpu") == "cpu" and measured_on("H100-80GB") == "roofline:H100-80GB"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: "NVIDIA H100 80GB HBM3")
    assert measured_on("H100-80GB") == "cuda" and measured_on("A100-40GB") == "roofline:A100-40GB"


def test_times_of_a_busy_machine_are_no_surer_than_what_else_ran_lets_them_be() -> None:
    key = CostKey("layer", 1, (), "fp32", "eager")
    sure, unsure = Seconds(median=1.0, spread=0.01), Seconds(median=1.0, spread=0.5)
    graph = plan_examples.profile((1,))
    row = replace(cost(), forward=sure, backward=unsure)
    found = less_sure(replace(graph, costs={key: row}, others=0.8), virtual=False).costs[key]
    assert (found.forward.median, found.forward.spread) == (1.0, pytest.approx(0.8 * BESIDE))
    assert found.backward == unsure
    assert less_sure(replace(graph, others=0.0), virtual=False) == graph


def test_passes_on_a_virtual_machine_are_no_surer_than_two_profiles_apart_would_be(
    tmp_path: Path,
) -> None:
    key = CostKey("layer", 1, (), "fp32", "eager")
    short, middle, long = (Seconds(median=x, spread=1e-6) for x in (1e-4, 1e-3, 1.0))
    row = replace(cost(), forward=short, backward=long, input_grad=middle)
    found = less_sure(replace(plan_examples.profile((1,)), costs={key: row}, others=0.0), virtual=True)
    assert found.costs[key].forward.spread == pytest.approx(VIRTUAL * 1e-4)
    assert found.costs[key].input_grad.spread == pytest.approx(VIRTUAL_S)
    assert found.costs[key].backward.spread == pytest.approx(VIRTUAL_LEAST * 1.0)
    elements, update = sum(prod(p.shape) for p in found.graph.trained), found.optimizer.seconds_per_parameter
    assert update.spread <= max(VIRTUAL_S / elements, VIRTUAL_LEAST * update.median)
    processors = tmp_path / "cpuinfo"
    for flags, virtual in (("flags\t\t: fpu hypervisor sse2", True), ("flags\t\t: fpu hypervisors", False)):
        processors.write_text(f"processor : 0\n{flags}\n")
        assert is_virtual(processors) is virtual
    assert not is_virtual(tmp_path / "nothing")
