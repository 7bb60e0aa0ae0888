"""The plan: every decision about one training, as plain data that can be read, edited, verified and executed.

Frozen and validated for form on the way in; whether it is *right* for its model and cluster is `verify`'s question.
Times are integer nanoseconds, sizes bytes. Nothing volatile is in it: the same input gives the same bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

PLAN_VERSION = 1

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelRef(Part):
    workload: str = Field(description="file.py, package.module, or the bare name of a reference model")
    arguments: dict[str, str | int | float | bool] = Field(default_factory=dict)
    fingerprint: str


class Batch(Part):
    samples: Count = Field(description="global batch, in samples")
    micro: Count = Field(description="samples of one micro-batch on one pipeline group")
    micros: Count = Field(description="micro-batches a step of one pipeline group")


class Axes(Part):
    """Degrees of the mesh; a rank is (data, pipeline, spatial). `order` goes from outermost to innermost."""

    data: Count = 1
    pipeline: Count = 1
    spatial: Count = 1
    order: tuple[Literal["data", "pipeline", "spatial"], ...] = ("data", "pipeline", "spatial")


class ScheduleChoice(Part):
    family: str
    pairs: Count = Field(1, description="Chimera: pairs of pipelines; 1 elsewhere")
    chunks: Count = Field(1, description="stages a worker and pipe")
    update: Literal["rolling", "barrier"] = "barrier"
    settings: dict[str, int | float | str | bool] = Field(default_factory=dict)
    place: tuple[tuple[Natural, ...], ...] = Field(description="place[pipe][stage] is the pipeline worker")
    pipe_of: tuple[Natural, ...] = Field(description="pipe of every micro-batch")
    orders: tuple[str, ...] = Field(description="one line of actions a pipeline worker")


class StagePlan(Part):
    layers: tuple[str, ...]
    recompute: bool = False
    spatial: tuple[Count, ...] = Field((), description="grid over the spatial dims; empty: whole samples")


class Place(Part):
    rank: Natural
    node: Natural
    slot: Natural = Field(description="device on the node")
    data: Natural
    pipeline: Natural
    spatial: Natural


class StageTimes(Part):
    """Durations of one stage for one micro-batch, nanoseconds; `step` and `sync` are once a step."""

    forward_ns: Natural
    backward_ns: Natural
    input_grad_ns: Natural
    weight_grad_ns: Natural
    recompute_ns: Natural = 0
    sync_ns: Natural = 0
    step_ns: Natural = 0


class Hop(Part):
    """One message a micro-batch between two stages: which Values, how many bytes, how long on the wire."""

    direction: Literal["act", "grad"]
    sender: Natural = Field(description="stage")
    receiver: Natural = Field(description="stage")
    values: tuple[str, ...]
    bytes: Natural
    ns: Natural


class Memory(Part):
    """Predicted peak of one pipeline worker, bytes, by what holds it."""

    parameters: Natural
    gradients: Natural
    optimizer: Natural
    activations: Natural
    buffers: Natural = Field(description="receives, sync, workspace")
    margin: Natural
    limit: Natural

    @property
    def total(self) -> int:
        return (
            self.parameters + self.gradients + self.optimizer + self.activations + self.buffers + self.margin
        )


class Prediction(Part):
    step_ns: Natural
    low_ns: Natural = Field(description="lower end of the error bar")
    high_ns: Natural
    memory: tuple[Memory, ...] = Field(description="one a pipeline worker")


class Rival(Part):
    """A plan that was priced by the same model and lost."""

    name: str
    step_ns: Natural | None = Field(description="empty where it does not fit")
    why: str


class Certificate(Part):
    objective_ns: Natural
    bound_ns: Natural = Field(description="no plan of the space searched is faster")
    free_bound_ns: Natural = Field(0, description="no order of these actions whatever is faster")
    gap: float = Field(ge=0)
    scope: str = Field(description="what was searched")
    rivals: tuple[Rival, ...] = ()


class Provenance(Part):
    profile: str = Field(description="device and source of the costs")
    cluster: str
    versions: dict[str, str] = Field(default_factory=dict)


class Plan(Part):
    version: Literal[1] = PLAN_VERSION
    model: ModelRef
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    execution: Literal["eager", "compiled"] = "eager"
    optimizer: str = "adamw"
    shard_optimizer: bool = False
    batch: Batch
    axes: Axes
    schedule: ScheduleChoice
    stages: tuple[StagePlan, ...]
    places: tuple[Place, ...]
    times: tuple[StageTimes, ...] = Field(description="one a stage")
    hops: tuple[Hop, ...]
    prediction: Prediction
    certificate: Certificate | None = None
    provenance: Provenance
