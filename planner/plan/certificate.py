"""What a plan predicts, and its proof as data: bounds, what was searched, and the plans priced beside it.

No sentence is stored. `planner.show.proof` makes every text about a certificate from these values.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.files import Count, Flag, Natural, NotNegative, Part, Text
from planner.shown import Shown

MOST_NEAR = 6  # rivals of the kind "near" that a certificate names at most
Axis = Literal["data", "pipeline", "spatial"]
Stage = Literal["picked", "settled", "proved"]


class StageTimes(Part):
    """Durations of one stage for one micro-batch, nanoseconds; `step` and `sync` are once a step."""

    forward_ns: Natural
    backward_ns: Natural
    input_grad_ns: Natural
    weight_grad_ns: Natural
    recompute_ns: Natural = 0
    sync_ns: Natural = 0
    step_ns: Natural = 0
    forward_conversions_ns: Natural = Field(
        default=0, description="of forward_ns, tensors in parts on their way"
    )
    backward_conversions_ns: Natural = Field(default=0, description="of backward_ns and of input_grad_ns")


class ReplicaTimes(Part):
    """Durations on replicas whose devices take other times than those of replica 0."""

    replicas: tuple[Natural, ...]
    times: tuple[StageTimes, ...] = Field(description="one a stage")


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
        """Returns the bytes of all parts, the margin included."""
        return (
            self.parameters + self.gradients + self.optimizer + self.activations + self.buffers + self.margin
        )


class Prediction(Shown, Part):
    step_ns: Natural
    low_ns: Natural = Field(description="lower end of the error bar")
    high_ns: Natural
    memory: tuple[Memory, ...] = Field(description="one a pipeline worker")


class PlannedConfiguration(Part):
    """Everything discrete about a plan but its cuts. Values that equal their default are left out of files."""

    family: Text
    data: Count = Field(default=1, description="replicas")
    pipeline: Count = Field(default=1, description="pipeline workers")
    pairs: Count = Field(default=1, description="Chimera: pairs of pipes; 1 elsewhere")
    chunks: Count = Field(default=1, description="stages a worker and pipe")
    micro: Count = Field(description="samples of one micro-batch")
    micros: Count = Field(description="micro-batches a step of one replica")
    grid: tuple[Count, ...] = Field(default=(), description="shards of each sample; empty: whole samples")
    then: tuple[Count, ...] = Field(
        default=(), description="the grid from layer `then_from` on; empty: the same"
    )
    then_from: Natural = Field(default=0, description="number of a layer")
    whole_from: Natural = Field(
        default=0, description="number of the layer from which on samples are whole; 0: where rules end"
    )
    shared: Flag = Field(
        default=False, description="from `whole_from` on each rank has its share of the samples"
    )
    mesh: tuple[Count, ...] = Field(default=(), description="ranks along the axes of a group with a cut")
    recompute: Literal["none", "where_needed", "all"] = "none"
    recomputed: tuple[Natural, ...] = Field(
        default=(), description="the stages that recompute, where they are chosen"
    )
    shard: Flag = Field(default=False, description="optimizer state is sharded over the replicas")
    held: Literal["", "gradients", "parameters"] = Field(
        default="", description="what replicas share by element"
    )
    ranks: Natural = Field(default=0, description="replicas that share it")
    innermost: Axis | None = Field(
        default=None, description="axis of neighbouring ranks, where there is a choice"
    )
    mirrored: Flag = Field(default=False, description="the first stage is on the last worker")
    rescheduled: Flag = Field(default=False, description="the order was made again for these costs")


RivalKind = Literal[
    "chosen", "data_parallel", "fsdp", "equal_stages", "one_device", "spatial", "family", "near"
]


class Rival(Part):
    """A plan that was priced by the same model. Shares are of its own step."""

    kind: RivalKind = Field(
        description="the plan itself, a plan that needs no planner, the best of another family, or a near one"
    )
    configuration: PlannedConfiguration | None = Field(
        default=None, description="empty where none can be had"
    )
    step_ns: Natural | None = Field(default=None, description="empty where it does not fit")
    idle: NotNegative = 0.0
    sums: NotNegative = Field(default=0.0, description="share of gradient sums on the critical path")
    messages: NotNegative = Field(default=0.0, description="share of messages on the critical path")
    recomputing: NotNegative = 0.0
    peak_bytes: Natural = Field(default=0, description="of the fullest worker, without the margin")
    missing_bytes: Natural = Field(
        default=0, description="where it does not fit: what a device lacks at least"
    )


class SearchCounts(Part):
    """The numbers of configurations that a search met, by what became of them."""

    configurations: Natural
    solved: Natural = Field(description="taken up, and proved to hold no faster plan")
    ruled_out: Natural = Field(description="excluded by a bound alone")
    open: Natural = Field(description="not finished: a faster plan may be among them")
    rescheduled: Natural = Field(default=0, description="orders made again for these costs")


class LayerOrders(Part):
    """The orders of the layers that were searched besides the model's own, on whole samples."""

    searched: Literal["model", "all", "balanced", "too_many"] = Field(
        default="model",
        description="`balanced`: those of the best balanced stages; `too_many`: none could be compared",
    )
    others: Natural = 0
    proved: Natural = Field(default=0, description="other orders that the bound is about")


class SearchSpace(Part):
    """The plans that a bound is about: none of them is faster."""

    families: tuple[Text, ...]
    fixed: dict[str, str] = Field(default_factory=dict, description="decisions that were pinned")
    most_workers: Count
    most_actions: Count = Field(description="of one replica and step")
    free_chunks: Count | None = Field(
        default=None, description="the least numbers of stages a worker, where a family takes any"
    )
    parts: Literal["none", "one_worker", "any"] = Field(
        description="where gradients of one worker may be summed in parts"
    )
    most_forwards: Count | None = Field(
        default=None, description="of a worker whose gradients are summed in parts"
    )
    equal_parts: Flag = Field(
        default=False, description="where updates come at use: only parts of about equal work or equal bytes"
    )
    cuts: Literal["all", "chained"] = Field(
        description="`chained`: boundaries only where each stage feeds the next"
    )
    layer_orders: LayerOrders = LayerOrders()
    recompute: Literal["none", "all", "whole_stages", "first_layers"] = Field(
        description="`whole_stages` and `first_layers`: where memory excludes a cut"
    )
    shard: tuple[Flag, ...] = Field(description="whether optimizer state may be sharded")
    held: tuple[Literal["gradients", "parameters"], ...] = Field(
        default=(), description="what replicas may share by element"
    )
    grids: tuple[tuple[Count, ...], ...] = Field(
        default=(), description="ways to split samples besides whole ones"
    )
    layouts: tuple[tuple[Count, ...], ...] = Field(
        default=(),
        description="groups of the layouts of tensors in parts besides whole ones, each as often as it is",
    )
    grid_changes: Count | None = Field(
        default=None, description="layers before which the grid may change; empty: any"
    )
    gathers: Count | None = Field(
        default=None, description="layers before which samples may be whole again; empty: any"
    )
    limits: tuple[Text, ...] = Field(default=(), description="what the model itself does not allow, and why")


class Certificate(Shown, Part):
    """The proof of a plan about the costs it was made for."""

    objective_ns: Natural = Field(description="step of the plan")
    bound_ns: Natural = Field(description="no plan of the space searched is faster")
    own_order_bound_ns: Natural | None = Field(
        default=None,
        description="no plan of the space whose family keeps its own order is faster; empty where that is no more than `bound_ns`",
    )
    order_free_bound_ns: Natural = Field(
        default=0, description="no order of these actions whatever is faster"
    )
    searched: SearchCounts | None = Field(
        default=None, description="empty where a file of version 1 was read"
    )
    space: SearchSpace | None = Field(default=None, description="empty where a file of version 1 was read")
    stage: Stage = Field(
        default="proved",
        description="how far the search came: first answers, answers improved in turn, or its proof",
    )
    chosen: Rival | None = Field(default=None, description="the plan itself, as its rivals are told")
    rivals: tuple[Rival, ...] = ()

    @property
    def gap(self) -> float:
        """Returns the share of the step that a better plan could save at most; 0 is a proof."""
        return (self.objective_ns - self.bound_ns) / self.objective_ns if self.objective_ns else 0.0


def with_bounds(proof: Certificate, bound_ns: int, own_order_ns: int) -> Certificate:
    """Returns a certificate with other bounds.

    Args: `bound_ns` is of the whole space; `own_order_ns`, which may lie above the plan, leaves orders out that were made
      again.
    """
    own = min(own_order_ns, proof.objective_ns)
    update = {"bound_ns": bound_ns, "own_order_bound_ns": own if own > bound_ns else None}
    return proof.model_copy(update=update)


def of_version_1(data: dict[str, object]) -> dict[str, object]:
    """Returns the certificate of a version 1 file as version 2 has it.

    Args: `data` is as read; its sentences are dropped, and so are its rivals, which it knew by sentences only.
    """
    kept = {key: value for key, value in data.items() if key not in ("gap", "scope", "rivals")}
    if "free_bound_ns" in kept:
        kept["order_free_bound_ns"] = kept.pop("free_bound_ns")
    return kept


def compact(certificate: Certificate) -> dict[str, object]:
    """Returns a certificate as it is written.

    Returns: plain data; optional values that equal their default are left out.
    """
    data = certificate.model_dump(mode="json", exclude={"chosen", "rivals", "space"})
    if certificate.stage == "proved":
        del data["stage"]
    if certificate.space is not None:
        data["space"] = certificate.space.model_dump(mode="json", exclude_defaults=True)
    if certificate.chosen is not None:
        data["chosen"] = _rival(certificate.chosen)
    data["rivals"] = [_rival(rival) for rival in certificate.rivals]
    return {key: value for key, value in data.items() if value is not None}


_PRICED = ("kind", "configuration", "step_ns", "idle", "sums", "messages", "recomputing", "peak_bytes")
_UNFIT = ("kind", "configuration", "step_ns", "missing_bytes")


def _rival(rival: Rival) -> dict[str, object]:
    """Returns a rival without the defaults of its configuration, and with the numbers that tell its step or what it lacks."""
    short, whole = rival.model_dump(mode="json", exclude_defaults=True), rival.model_dump(mode="json")
    names = _UNFIT if rival.step_ns is None else _PRICED
    told = {name: short.get(name, whole[name]) for name in names}
    extra = {name: value for name, value in short.items() if name not in told}
    return {**told, **extra}
