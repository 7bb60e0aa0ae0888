"""The catalogue of devices: what a roofline needs to know of each, from public sources.

Rates are peaks without sparsity. A GPU's memory is the advertised figure read as decimal gigabytes: a little less
than the device reports, which leaves the driver's own share out. `launch_s` is no vendor figure. It is the least
that an eager operation costs on a host that has to launch it, an order of magnitude from published micro-benchmarks.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from planner.errors import BadInput

GB = 10**9
TERA = 1e12
# Measured of ranks on hosts (benchmarks/memory.py): what a process holds with torch and the captured model before it
# has a tensor of its own, and what its heap grows by beyond the tensors that a plan counts.
HOST_PROCESS_BYTES = 400 * 2**20
DEVICE_FRAGMENTS = 0.02  # of a GPU's memory, whose allocator keeps what it has cut up
HOST_FRAGMENTS = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A kind of device with its memory and peak rates."""

    name: str
    memory_bytes: int
    fp32_flop_per_s: float
    fp16_flop_per_s: float  # matrix units where there are any
    bf16_flop_per_s: float  # the fp32 rate where the hardware has no bf16
    memory_bytes_per_s: float
    launch_s: float

    @property
    def has_bf16(self) -> bool:
        """Returns whether the device computes faster in bf16 than in fp32."""
        return self.bf16_flop_per_s > self.fp32_flop_per_s

    def flop_per_s(self, precision: str) -> float:
        """Returns the peak rate of a precision in FLOP/s.

        Args: `precision` is "fp32", "fp16" or "bf16".
        Raises: BadInput for any other precision.
        """
        rates = {
            "fp32": self.fp32_flop_per_s,
            "fp16": self.fp16_flop_per_s,
            "bf16": self.bf16_flop_per_s,
        }
        if precision not in rates:
            raise BadInput(f"unknown precision '{precision}'", allowed=", ".join(rates))
        return rates[precision]


def _device(
    name: str,
    *,
    memory_gb: int,
    fp32: float,
    fp16: float,
    bf16: float,
    gb_per_s: float,
    launch_us: float = 5,
) -> Device:
    """Returns a device from the units of the datasheets: GB, TFLOP/s, GB/s."""
    return Device(
        name=name,
        memory_bytes=memory_gb * GB,
        fp32_flop_per_s=fp32 * TERA,
        fp16_flop_per_s=fp16 * TERA,
        bf16_flop_per_s=bf16 * TERA,
        memory_bytes_per_s=gb_per_s * GB,
        launch_s=launch_us * 1e-6,
    )


_DEVICES = (
    # NVIDIA Tesla P100 PCIe datasheet: 16 GB, 9.3 TFLOPS single, 18.7 TFLOPS half, 732 GB/s; no bf16.
    _device("P100-16GB", memory_gb=16, fp32=9.3, fp16=18.7, bf16=9.3, gb_per_s=732),
    # NVIDIA V100 datasheet, SXM2: 15.7 TFLOPS single, 125 TFLOPS tensor (fp16), 900 GB/s; no bf16.
    _device("V100-16GB", memory_gb=16, fp32=15.7, fp16=125, bf16=15.7, gb_per_s=900),
    _device("V100-32GB", memory_gb=32, fp32=15.7, fp16=125, bf16=15.7, gb_per_s=900),
    # NVIDIA A100 datasheet, SXM: 19.5 TFLOPS fp32, 312 TFLOPS fp16 and bf16; 1,555 GB/s (40 GB), 2,039 GB/s (80 GB).
    _device("A100-40GB", memory_gb=40, fp32=19.5, fp16=312, bf16=312, gb_per_s=1555),
    _device("A100-80GB", memory_gb=80, fp32=19.5, fp16=312, bf16=312, gb_per_s=2039),
    # NVIDIA H100 datasheet, SXM: 67 TFLOPS fp32, 1,979 TFLOPS fp16 and bf16 with sparsity (half without), 3.35 TB/s.
    _device("H100-80GB", memory_gb=80, fp32=67, fp16=989.5, bf16=989.5, gb_per_s=3350),
    # NVIDIA H200 datasheet, SXM: 141 GB, 4.8 TB/s, rates of the H100.
    _device("H200-141GB", memory_gb=141, fp32=67, fp16=989.5, bf16=989.5, gb_per_s=4800),
    # NVIDIA GH200 Grace Hopper Superchip datasheet: 96 GB HBM3, 4 TB/s, 67 TFLOPS fp32, 990 TFLOPS fp16 and bf16.
    _device("GH200-96GB", memory_gb=96, fp32=67, fp16=990, bf16=990, gb_per_s=4000),
    # AMD Instinct MI250X datasheet: 128 GB, 3,276.8 GB/s, 47.9 TFLOPS fp32 vector, 383 TFLOPS fp16 and bf16 for the
    # whole card; torch sees its two dies as two devices, and this is one of them.
    _device("MI250X", memory_gb=64, fp32=23.95, fp16=191.5, bf16=191.5, gb_per_s=1638.4),
    # AMD Instinct MI300X datasheet: 192 GB, 5.3 TB/s, 163.4 TFLOPS fp32, 1,307.4 TFLOPS fp16 and bf16.
    _device("MI300X", memory_gb=192, fp32=163.4, fp16=1307.4, bf16=1307.4, gb_per_s=5300),
    # NVIDIA Ampere GA102 whitepaper, RTX 3090: 24 GB, 936 GB/s, 35.6 TFLOPS fp32, 71 TFLOPS fp16 and bf16 on tensor
    # cores with fp32 accumulation.
    _device("RTX3090", memory_gb=24, fp32=35.6, fp16=71, bf16=71, gb_per_s=936),
    # NVIDIA Ada whitepaper, RTX 4090: 24 GB, 1,008 GB/s, 82.6 TFLOPS fp32, 165.2 TFLOPS fp16 and bf16 on tensor cores
    # with fp32 accumulation.
    _device("RTX4090", memory_gb=24, fp32=82.6, fp16=165.2, bf16=165.2, gb_per_s=1008),
    # No product: one process on eight AVX2 cores at 3 GHz (8 x 3e9 x 32 FLOP) and two channels of DDR4-3200
    # (JEDEC JESD79-4: 25.6 GB/s each), with 16 GB to itself. bf16 is emulated.
    _device("cpu", memory_gb=16, fp32=0.768, fp16=0.768, bf16=0.768, gb_per_s=51.2),
)

CATALOGUE = {device.name: device for device in _DEVICES}
# What drivers call these devices. Cards of the same chip with other rates, such as those for PCIe, are not among them.
_OF_DRIVERS = {
    "Tesla P100-PCIE-16GB": "P100-16GB",
    "Tesla V100-SXM2-16GB": "V100-16GB",
    "Tesla V100-SXM2-32GB": "V100-32GB",
    "NVIDIA A100-SXM4-40GB": "A100-40GB",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "NVIDIA H100 80GB HBM3": "H100-80GB",
    "NVIDIA H200": "H200-141GB",
    "NVIDIA GH200 480GB": "GH200-96GB",
    "AMD Instinct MI250X": "MI250X",
    "AMD Instinct MI300X": "MI300X",
    "NVIDIA GeForce RTX 3090": "RTX3090",
    "NVIDIA GeForce RTX 4090": "RTX4090",
}
CLUSTERS = (
    Path(__file__).resolve().parents[2] / "plans" / "clusters"
)  # the files of clusters that have a name


def cluster_names() -> tuple[str, ...]:
    """Returns the names of the clusters that come along."""
    return tuple(sorted(path.stem for path in CLUSTERS.glob("*.yaml")))


def cluster_file(path: Path) -> Path:
    """Returns the file of a cluster: the one at a path, or the one that comes along under a name.

    Args: a file of the user's comes before a name.
    Raises: BadInput, with all names, where a plain word is neither.
    """
    word = str(path)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    if word not in cluster_names():
        allowed = f"a cluster.yaml, or {', '.join(cluster_names())}"
        raise BadInput(f"there is no cluster '{word}'", where="cluster", allowed=allowed)
    return CLUSTERS / f"{word}.yaml"


def find(name: str, *, where: str = "") -> Device:
    """Returns a device of the catalogue.

    Args: `where` says in errors where the name stands.
    Raises: BadInput, with all names, where the catalogue does not have it.
    """
    if name not in CATALOGUE:
        near = get_close_matches(name.upper(), CATALOGUE, n=1, cutoff=0.3)
        meant = f"; the nearest is {near[0]}" if near else ""
        raise BadInput(f"unknown device '{name}'{meant}", where=where, allowed=", ".join(CATALOGUE))
    return CATALOGUE[name]


def name_of(reported: str) -> str:
    """Returns the name of a device here, or the one given where the catalogue does not have it.

    Args: `reported` is what its driver calls it.
    """
    return _OF_DRIVERS.get(reported, reported)


def host_margin(memory_bytes: int) -> int:
    """Returns the bytes of a host's memory that a plan leaves to its process and to fragments of its heap.

    Args: `memory_bytes` is what one rank may take of the host.
    """
    process = min(HOST_PROCESS_BYTES, memory_bytes // 2)
    return process + round((memory_bytes - process) * HOST_FRAGMENTS / (1 + HOST_FRAGMENTS))


def device_margin(memory_bytes: int, taken_bytes: int) -> int:
    """Returns the bytes of a GPU's memory that a plan leaves to drivers, libraries and fragments of the allocator.

    Args: `taken_bytes` of `memory_bytes` are gone before the first tensor; NCCL takes about as much again.
    """
    return min(2 * taken_bytes + round(memory_bytes * DEVICE_FRAGMENTS), memory_bytes // 2)


def with_host_margin(group: object) -> object:
    """Returns a group of nodes as given, with the margin of a process where it is the catalogue's `cpu`, left as it is.

    Args: `group` has the fields of a group by name; anything else is returned.
    """
    own = isinstance(group, dict) and group.get("device") == "cpu" and group.get("memory_bytes") is None
    if not own or not isinstance(group, dict):
        return group
    return {"margin_bytes": host_margin(CATALOGUE["cpu"].memory_bytes), **group}
