from __future__ import annotations

import math

import pytest

from planner.cluster import CATALOGUE, Device, device_margin, name_of
from planner.cluster import catalogue as devices
from planner.errors import BadInput

PROMISED = [
    "P100-16GB",
    "V100-16GB",
    "V100-32GB",
    "A100-40GB",
    "A100-80GB",
    "H100-80GB",
    "H200-141GB",
    "GH200-96GB",
    "MI250X",
    "MI300X",
    "RTX3090",
    "RTX4090",
    "cpu",
]


def test_every_promised_device_is_there() -> None:
    assert set(PROMISED) <= set(CATALOGUE)


def test_what_a_driver_calls_a_device_leads_to_its_name_here() -> None:
    assert set(devices._OF_DRIVERS.values()) <= set(CATALOGUE)
    assert name_of("NVIDIA H100 80GB HBM3") == "H100-80GB"
    assert name_of("NVIDIA H100 PCIe") == "NVIDIA H100 PCIe", "it has other rates"


def test_a_gpu_keeps_room_for_its_driver_for_nccl_and_for_fragments() -> None:
    assert device_margin(80 * 10**9, 10**9) == 2 * 10**9 + round(0.02 * 80 * 10**9)
    assert device_margin(10**9, 10**9) == 10**9 // 2, "half is left to tensors in any case"


@pytest.mark.parametrize("device", CATALOGUE.values(), ids=lambda device: device.name)
def test_every_figure_can_be_calculated_with(device: Device) -> None:
    figures = [device.flop_per_s(x) for x in ("fp32", "fp16", "bf16")]
    figures += [device.memory_bytes, device.memory_bytes_per_s, device.launch_s]
    assert all(math.isfinite(x) and x > 0 for x in figures)
    assert device.fp16_flop_per_s >= device.fp32_flop_per_s
    assert 1e9 < device.memory_bytes < 1e12, "bytes, not gigabytes"
    assert 1e10 < device.memory_bytes_per_s < 1e13, "bytes a second"


@pytest.mark.parametrize("name", [x for x in PROMISED if x.endswith("GB")])
def test_a_name_that_ends_in_gigabytes_tells_the_memory(name: str) -> None:
    assert devices.find(name).memory_bytes == int(name.rpartition("-")[2].removesuffix("GB")) * 10**9


def test_an_unknown_device_is_refused_with_the_names_of_those_known() -> None:
    with pytest.raises(BadInput, match=r"unknown device 'H1000'.*H100-80GB.*RTX4090"):
        devices.find("H1000")


def test_the_nearest_name_of_an_unknown_device_is_told() -> None:
    with pytest.raises(BadInput, match="unknown device 'h100'; the nearest is H100-80GB"):
        devices.find("h100")


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown precision 'int3'"):
        devices.find("cpu").flop_per_s("int3")
