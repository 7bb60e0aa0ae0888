"""Defines the plan: every decision about one training, as plain data that can be read, edited, verified and executed.

>>> from planner.plan import load
>>> plan = load("plans/mlp-two-stages.yaml")
>>> plan.axes.pipeline, len(plan.stages), len(plan.places)
(2, 2, 2)

A plan is frozen, and validated for form on the way in. Whether it is *right* for its model and cluster is
`verify`'s question. Times are integer nanoseconds, sizes bytes. Nothing volatile is in it: equal plans are equal
bytes. A stage is some consecutive layers. A worker is one position in the pipeline and holds one stage or several.
A rank is one process; each worker has a rank for every data replica and every shard. A pipe is one direction of a
Chimera pair.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from planner import files
from planner.cluster import Corrections
from planner.files import Count, Flag, Natural, Part, Text
from planner.plan.certificate import Certificate, Hop, Prediction, ReplicaTimes, StageTimes, of_version_1
from planner.shown import Shown
from planner.sums import SumsByName

PLAN_VERSION: Final = 2
GROUP_AXIS: Final = "group"  # read as `spatial`

_ACTIONS = re.compile(r"(?:\d+(?:[FBIWR]\d+|SYNC|STEP)'*(?: |$))*")


def _only_actions(line: str) -> str:
    if (found := _ACTIONS.match(line)) and found.end() == len(line):
        return line
    word = line[found.end() if found else 0 :].split(" ")[0]
    raise files.wrong(
        f"'{word}' is no action", allowed="such as 2F3, 0B1', 1I0, 1W0, 1R0, 2SYNC, 2STEP, one blank apart"
    )


Order = Annotated[str, AfterValidator(_only_actions)]
Setting = int | float | str | bool


class ModelRef(Part):
    workload: Text = Field(description="file.py, package.module, or the bare name of a reference model")
    arguments: dict[str, Setting] = Field(default_factory=dict)
    fingerprint: Text


class Batch(Part):
    samples: Count = Field(description="global batch, in samples")
    micro: Count = Field(description="samples of one micro-batch on one pipeline group")
    micros: Count = Field(description="micro-batches a step of one pipeline group; of the largest share")
    shares: tuple[Count, ...] = Field(
        default=(), description="micro-batches of each replica; empty: all alike"
    )

    @property
    def whole(self) -> int:
        """Returns the micro-batches of a step over all replicas."""
        return self.samples // self.micro

    def share(self, replica: int) -> int:
        """Returns the micro-batches of one replica.

        Args: `replica` is a number along the data axis.
        """
        return self.shares[replica] if self.shares else self.micros

    def first(self, replica: int) -> int:
        """Returns the number over all replicas of a replica's micro-batch 0.

        Args: `replica` is a number along the data axis.
        """
        return sum(self.shares[:replica]) if self.shares else self.micros * replica


def _with_group(schema: dict[str, Any]) -> None:
    """Adds to the form of the axes the other name of the innermost one."""
    schema["properties"][GROUP_AXIS] = schema["properties"]["spatial"] | {"title": "Group"}
    schema["properties"]["order"]["items"]["enum"].append(GROUP_AXIS)


class Axes(Part):
    """Degrees of the mesh; a rank is (data, pipeline, spatial). `order` goes from outermost to innermost."""

    model_config = ConfigDict(json_schema_extra=_with_group)

    data: Count = 1
    pipeline: Count = 1
    spatial: Count = 1
    order: tuple[Literal["data", "pipeline", "spatial"], ...] = ("data", "pipeline", "spatial")

    @model_validator(mode="before")
    @classmethod
    def _of_group(cls, data: object) -> object:
        """Reads `group` as the axis of the ranks that work on one micro-batch together, whatever they share of it."""
        if not isinstance(data, dict) or "spatial" in data or ("group" not in data and "order" not in data):
            return data
        read = {GROUP_AXIS: "spatial"}
        found = {read.get(key, key): value for key, value in data.items()}
        if isinstance(found.get("order"), list):
            found["order"] = [read.get(x, x) if isinstance(x, str) else x for x in found["order"]]
        return found


class ScheduleChoice(Part):
    family: Text
    pairs: Count = Field(1, description="Chimera: pairs of pipelines; 1 elsewhere")
    chunks: Count = Field(1, description="stages a worker and pipe")
    update: Literal["rolling", "barrier"] = "barrier"
    settings: dict[str, Setting] = Field(default_factory=dict)
    place: tuple[tuple[Natural, ...], ...] = Field(description="place[pipe][stage] is the pipeline worker")
    pipe_of: tuple[Natural, ...] = Field(description="pipe of every micro-batch")
    orders: tuple[Order, ...] = Field(description="one line of actions a pipeline worker")


class Regrid(Part):
    before: Text = Field(description="layer from which on samples lie otherwise")
    spatial: tuple[Count, ...] = Field(
        (), description="another grid; with fewer parts than ranks, some compute one alike"
    )
    samples: Flag = Field(
        False, description="in the place of a grid: each rank has whole samples, its share of the micro-batch"
    )


class StageShard(Part):
    """What the replicas of a stage share, in place of each holding all of it."""

    what: Literal["state", "gradients", "parameters"] = Field(
        description="optimizer state; gradients and state; parameters, gradients and state"
    )
    ranks: Natural = Field(
        default=0, description="data replicas that hold one copy among them; 0 is all of them"
    )
    unit: str = Field(
        default="",
        description="layers gathered and summed together, such as blocks.*; empty: one repeated block",
    )


class CutLine(Part):
    """The factor that some layers take along each axis of the group; nothing is said of an axis that is left out."""

    layers: Text = Field(description="a module or a pattern of modules, such as blocks.*.attention")
    x: str = Field("", description="such as heads, hidden, out, in, vocabulary, classes or sequence")
    y: str = ""
    z: str = ""

    @property
    def factors(self) -> tuple[str, ...]:
        """Returns the factor along each axis; empty ones are not said."""
        return self.x, self.y, self.z


class StagePlan(Shown, Part):
    layers: tuple[str, ...]
    recompute: Flag = False
    recompute_before: str = Field(
        "", description="layer before which what is recomputed ends; empty: all of a stage that recomputes"
    )
    spatial: tuple[Count, ...] = Field((), description="grid over the spatial dims; empty: whole samples")
    gather_before: str = Field(
        "", description="layer from which on samples are whole; empty: where rules end"
    )
    regrid: tuple[Regrid, ...] = Field((), description="where samples are re-split on the way, in order")
    shard: StageShard | None = Field(
        None, description="what replicas share; shard_optimizer is {what: state}"
    )
    mesh: tuple[Count, ...] = Field(
        (), description="ranks along each axis of the group: x, y, z; empty: all are along x"
    )
    cut: tuple[CutLine, ...] = Field(
        (), description="layers whose tensors the group has in parts; what is not named is alike on all ranks"
    )


class KeptWeights(Part):
    """The entries of pruned weights that a training keeps; it has no gradients, state and updates of others."""

    share: Annotated[float, Field(gt=0, lt=1, description="of the entries of pruned weights")]
    digest: str = Field(default="", description="of the masks; empty where there is no mask yet")
    counts: dict[str, Count] = Field(
        default_factory=dict,
        description="kept entries by parameter; empty: the share of each weight with two dims of more than one entry",
    )


class SampleReading(Part):
    """The cost of reading samples, and the place where they are kept."""

    sample_ns: Natural = Field(default=0, description="of one reader, for one sample; 0: not measured")
    finish_ns: Natural = Field(
        default=0, description="of these, where a store keeps samples as they are read"
    )
    batch_ns: Natural = Field(default=0, description="of one reader, for each batch beside its samples")
    sample_bytes: Natural = Field(default=0, description="of one sample as tensors")
    store: Literal["none", "ram"] = Field(
        default="none", description="ram: the nodes keep the samples in memory"
    )

    @property
    def each_ns(self) -> int:
        """Returns what one reader takes for a sample out of where samples are."""
        return self.sample_ns if self.store == "none" else self.finish_ns


class Place(Part):
    rank: Natural
    node: Natural
    slot: Natural = Field(description="device on the node")
    data: Natural
    pipeline: Natural
    spatial: Natural


PLACE_COLUMNS = "rank node slot data pipeline spatial"


def _from_row(value: object) -> object:
    """A place may be written as a row of six numbers, which keeps a table of thousands short."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}(?: \d{1,18}){5}", value):
        return dict(zip(PLACE_COLUMNS.split(), map(int, value.split()), strict=True))
    return value


PlaceRow = Annotated[
    Place,
    BeforeValidator(_from_row),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\d+( \d+){5}$", "description": f"six numbers: {PLACE_COLUMNS}"}
    ),
]


class Provenance(Part):
    profile: str = Field(description="device and source of the costs")
    cluster: str
    versions: dict[str, str] = Field(default_factory=dict)


class Plan(Part):
    version: Literal[2] = PLAN_VERSION
    model: ModelRef
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    weights: Literal["same", "bf16"] = Field(
        "same", description="bf16: weights that only products and convolutions read; fp32 ones are updated"
    )
    execution: Literal["eager", "compiled"] = "eager"
    optimizer: str = "adamw"
    shard_optimizer: Flag = False
    kept: KeptWeights | None = Field(default=None, description="where weights are pruned")
    ema: Flag = Field(
        False, description="whether memory counts the averages of parameters that `--ema` keeps"
    )
    sums: SumsByName | None = Field(default=None, description="where gradients are not summed as by default")
    batch: Batch
    data: SampleReading | None = Field(default=None, description="where reading samples was measured")
    axes: Axes
    schedule: ScheduleChoice
    stages: tuple[StagePlan, ...]
    places: tuple[PlaceRow, ...]
    times: tuple[StageTimes, ...] = Field(description="one a stage")
    replica_times: tuple[ReplicaTimes, ...] = Field(
        default=(), description="times of replicas whose devices differ, where shares do; others have `times`"
    )
    hops: tuple[Hop, ...]
    prediction: Prediction
    certificate: Certificate | None = None
    provenance: Provenance
    fitted: Corrections | None = Field(
        default=None, description="corrections that times and hops are made with"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_version_1(cls, data: object) -> object:
        """Reads files of version 1, which differ in their certificate alone."""
        if not isinstance(data, dict) or data.get("version") != 1 or data["version"] is True:
            return data
        proof = data.get("certificate")
        changed = {"certificate": of_version_1(proof)} if isinstance(proof, dict) else {}
        return {**data, "version": PLAN_VERSION, **changed}
