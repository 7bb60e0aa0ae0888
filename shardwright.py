"""shardwright: plan and run the distributed training of any torch module.

`import shardwright as sw` gives the verbs of the commands as functions.

    costs = sw.profile("gpt2", device="cpu", size="tiny")
    plan = sw.plan(costs, "plans/clusters/laptop.yaml", batch=8)
    result = sw.launch(plan, steps=10, on="local").wait().check()
    result.losses

This is the only file that sees both the planner and the runtime. It hands each what it needs of the other,
and imports them when a verb is used. Planning from a profile file therefore needs no torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal


def _claim(name: str) -> None:
    """Imports the package of this name that is beside this file, whatever else is where Python was started."""
    own = Path(__file__).resolve().parent / name / "__init__.py"
    found = sys.modules.get(name)
    if found is None:
        spec = importlib.util.spec_from_file_location(name, own, submodule_search_locations=[str(own.parent)])
        assert spec is not None and spec.loader is not None
        sys.modules[name] = found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    elif Path(found.__file__ or "").resolve() != own:
        raise ImportError(
            f"another '{name}' is in use, {found.__file__}: import shardwright before it, or rename it"
        )


_claim("planner")
_claim("runtime")

from planner.cluster import Cluster  # noqa: E402
from planner.errors import BadInput, BadPlan, Infeasible, ShardwrightError  # noqa: E402
from planner.plan import Plan  # noqa: E402
from planner.shown import install  # noqa: E402
from planner.workload import Workload as LiveWorkload  # noqa: E402

install()

if TYPE_CHECKING:
    import torch
    import typer

    from planner.capture import Captured
    from planner.cluster import Corrections
    from planner.milp import Question
    from planner.notebook import SolvedFrontier, SolvedPlan
    from planner.plan import Certificate, Prediction, StagePlan
    from planner.profile import Profile
    from planner.show import SideBySide
    from planner.simulate import RunRecord
    from planner.timeline import Comparison, Timeline
    from runtime.bridges import Prepared, StrategyByPlan, TrainerByPlan
    from runtime.infer import InferStatus
    from runtime.launch import Handle, Run, Runs
    from runtime.rehearse import Rehearsal

# Results by the rooms that define them: imported when first asked for, since some need torch.
_RESULTS = {
    "Captured": "planner.capture",
    "Certificate": "planner.plan",
    "Comparison": "planner.timeline",
    "Corrections": "planner.cluster",
    "Handle": "runtime.launch",
    "InferStatus": "runtime.infer",
    "Prediction": "planner.plan",
    "Profile": "planner.profile",
    "Rehearsal": "runtime.rehearse",
    "Run": "runtime.launch",
    "RunRecord": "planner.simulate",
    "Runs": "runtime.launch",
    "SideBySide": "planner.show",
    "SolvedFrontier": "planner.notebook",
    "SolvedPlan": "planner.notebook",
    "StagePlan": "planner.plan",
    "Timeline": "planner.timeline",
}

__all__ = [
    "BadInput",
    "BadPlan",
    "Captured",
    "Certificate",
    "Cluster",
    "Comparison",
    "Corrections",
    "Handle",
    "Infeasible",
    "InferStatus",
    "Plan",
    "PlanStrategy",
    "PlanTrainer",
    "Prediction",
    "Profile",
    "Rehearsal",
    "Run",
    "RunRecord",
    "Runs",
    "ShardwrightError",
    "SideBySide",
    "SolvedFrontier",
    "SolvedPlan",
    "StagePlan",
    "Timeline",
    "Workload",
    "calibrate",
    "capture",
    "compare",
    "export",
    "frontier",
    "infer",
    "launch",
    "load_plan",
    "load_profile",
    "plan",
    "prepare",
    "profile",
    "record",
    "refine",
    "rehearse",
    "report",
    "runs",
    "save",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> object:
    """Returns the type of a result, which is imported when it is first asked for."""
    if name not in _RESULTS:
        raise AttributeError(f"module 'shardwright' has no attribute '{name}'")
    return getattr(importlib.import_module(_RESULTS[name]), name)


def __dir__() -> list[str]:
    """Returns the names of the API and nothing else."""
    return sorted(__all__)


def _plan_of(given: Plan | str | Path) -> Plan:
    """Returns a plan, or the one in a file."""
    if isinstance(given, Plan):
        return given
    from planner import plan as plans

    return plans.load(Path(given))


def _profile_of(
    given: Profile | str | Path | Sequence[Profile | str | Path], machines: Cluster | None = None
) -> Profile:
    """Returns a profile, or the one in a file; several, of one type of device each, become one for the machines."""
    from planner.device_types import together
    from planner.profile import Profile

    if isinstance(given, str | Path):
        return load_profile(given)
    if isinstance(given, Profile):
        return given
    if not given:
        raise BadInput("no profile", where="costs", allowed="one for each type of device")
    known = [_profile_of(each) for each in given]
    return together(known, {group.device for group in machines.nodes} if machines else ())


def _pruned(known: Profile, kept: float | str | Path) -> Profile:
    """Returns a profile for plans that keep a share of each weight, or what masks in a file keep."""
    from planner.kept import kept_asked, shares_asked

    if len(shares_asked(str(kept))) > 1:
        raise BadInput(f"several shares: {kept}", where="kept", allowed="one for each plan")
    return replace(known, kept=kept_asked(known.graph, str(kept)))


def _cluster_of(given: Cluster | str | Path, nodes: int | None = None) -> Cluster:
    """Returns a cluster, or the one in a file or of a name, with so many nodes."""
    from planner.cluster import with_nodes

    found = given if isinstance(given, Cluster) else Cluster.load(given)
    return found if nodes is None else with_nodes(found, nodes)


def _corrections_of(given: Corrections | str | Path) -> Corrections:
    """Returns corrections, or those in a file."""
    if not isinstance(given, str | Path):
        return given
    from planner.cluster import load_corrections

    return load_corrections(Path(given))


def capture(workload: str | Path, *, micro: int = 1, **arguments: str | int | float | bool) -> Captured:
    """Captures the model of a workload as a graph of layers.

    Args: `workload` is a Python file, a module, or the name of a model here; `arguments` are those of its
      `build` and `batch`; `micro` is the number of samples to capture with.
    Returns: the graph as data, and the graph that the runtime executes.
    Raises: BadInput where the workload is wrong.
    """
    from planner.capture import capture as captured

    return captured(_load(workload, arguments), micro=micro)


def Workload(
    model: torch.nn.Module,
    batch: object = None,
    loss: Callable[..., object] | None = None,
    *,
    loader: object = None,
    optimizer: object = None,
    lr_schedule: object = None,
    valid: object = None,
    metrics: Callable[..., object] | None = None,
    callbacks: Mapping[str, str] | None = None,
    dataset: str | None = None,
    collate: str | None = None,
    sampler: str | None = None,
    folder: str | Path | None = None,
) -> LiveWorkload:
    """Makes a workload of a model that stands in a notebook; its ranks need none of your code.

    Args: `batch` is one (inputs, targets) with the samples along their first dimension; a DataLoader `loader` may
      stand in its place, and is then what is trained on here. `loss(outputs, targets)` gives a mean, or (sum,
      count); without it the model's own `loss` output counts, and of a module of Lightning with a loader its `training_step`
      with the optimizer that it configures. `optimizer` is one made for the model, or a class;
      `lr_schedule` is functools.partial(a class, its settings). `valid` is a dataset or DataLoader to evaluate
      between steps; `metrics(outputs, targets)` gives {name: (sum, count)} of it. `callbacks` has "module:function" for
      on_step, on_evaluation, on_checkpoint and on_failure. `dataset`, `collate`, `sampler` and `valid` are
      "module:function" for ranks on other machines. `folder` is where the captured model is kept, next to here by default.
    Returns: what `profile`, `plan` and `launch` take in the place of a module file.
    Raises: BadInput with the path of what cannot travel as data.
    """
    from planner.capture import LiveLoop
    from runtime.data import live_workload

    place = Path(folder) if folder else Path(f"{type(model).__name__.lower()}.model")
    loop = LiveLoop(
        optimizer=optimizer,  # type: ignore[arg-type]
        lr_schedule=lr_schedule,  # type: ignore[arg-type]
        dataset=dataset,
        collate=collate,
        sampler=sampler,
        metrics=metrics,
        callbacks=callbacks or {},
    )
    if loss is None and batch is None and loader is not None and hasattr(model, "training_step"):
        from runtime.bridges import loss_of, step_of

        with step_of(model, loader, optimizer) as (step, batches, made):
            loop = replace(loop, optimizer=made, whole=True)  # type: ignore[arg-type]
            return live_workload(step, None, loss_of, batches, loop, place, valid)
    return live_workload(model, batch, loss, loader, loop, place, valid)


def profile(
    workload: str | Path | LiveWorkload | torch.nn.Module,
    batch: object = None,
    loss: Callable[..., object] | None = None,
    *,
    device: str = "cpu",
    micro: int | Sequence[int] = (1, 2, 4),
    precision: str | None = None,
    spatial: Sequence[tuple[int, ...]] = (),
    **arguments: str | int | float | bool,
) -> Profile:
    """Measures what every layer costs on a device.

    Args: `workload` is a Python file, a module, the name of a model here, or a live module with `batch` and `loss`
      as `Workload` takes them. `device` is `cpu`, `cuda`, or `roofline:H100-80GB` for a device that is not here;
      `micro` is samples a micro-batch, of one size or several; `spatial`, such as `[(2,), (2, 2)]`, is numbers of parts of
      a sample by dimension, whose shards are measured too; `precision` is fp32, bf16 or fp16, by default bf16 where a GPU has it; `arguments` are
      those of the workload.
    Returns: times in nanoseconds and sizes in bytes.
    Raises: BadInput where the workload or the device is wrong.
    """
    from planner import measure
    from planner.terminal import patient
    from runtime import cli as commands

    if not isinstance(workload, str | Path | LiveWorkload):
        workload = Workload(workload, batch, loss)
    found = workload if isinstance(workload, LiveWorkload) else _load(workload, arguments)
    with patient(f"measuring the layers of {found.name}"):
        return measure.profile(
            found,
            device=device,
            micros=(micro,) if isinstance(micro, int) else tuple(micro),
            precision=precision or measure.usual_precision(device),
            split=commands.backward_split(),
            spatial=commands.spatial_split() if spatial else None,
            grids=spatial,
        )


def plan(
    costs: Profile | str | Path | Sequence[Profile | str | Path],
    cluster: Cluster | str | Path,
    *,
    batch: int,
    nodes: int | None = None,
    schedule: str | Sequence[str] | None = None,
    fix: Mapping[str, object] | None = None,
    precision: str | None = None,
    execution: str | None = None,
    calibration: Corrections | str | Path | None = None,
    kept: float | str | Path | None = None,
    baseline: str | Path | None = None,
    effort: str = "normal",
) -> SolvedPlan:
    """Finds the fastest plan that fits the machines.

    Args: `costs` is a profile or its file, or a list of one for each type of device; `cluster` a value, a file or a
      name such as "h100x8", of which there may be `nodes`; `batch` is samples a step; `schedule` names the families to choose from, one or several; `fix` pins choices by name, such as
      `{"pipeline": 2}`; `precision` and `execution` are as profiled; `calibration`, a value or a file, corrects costs by
      earlier runs; `kept` is a file of masks, or the share that is kept of each weight; `baseline` is a file with your present
      settings, of torchtitan, megatron, deepspeed, accelerate, fsdp2 or torchrun; `effort` is "quick", "normal" or "full".
    Returns: the plan with its certificate; it answers `what_if(...)` and `frontier()`, and its `baseline` says what the
      present settings take. The first Ctrl-C gives the best
      plan so far.
    Raises: Infeasible where no plan fits; BadInput for a wrong argument.
    """
    from planner.calibrate import with_corrections
    from planner.cli import present
    from planner.notebook import SolvedPlan, searched
    from planner.show import other_device
    from planner.terminal import Output

    machines = _cluster_of(cluster, nodes)
    known = _profile_of(costs, machines)
    if kept is not None:
        known = _pruned(known, kept)
    if calibration is not None:
        machines = with_corrections(machines, _corrections_of(calibration))
    if known.device not in {group.device for group in machines.nodes}:
        Output(as_json=False).note(other_device(known.device, machines))
    asked = _question(known, machines, batch, schedule, fix, precision, execution, effort)
    now = None if baseline is None else present(asked, Path(baseline))
    found = searched(asked)
    if now is None:
        return SolvedPlan.of(found, asked)
    data, lines = now.compared(found)
    return SolvedPlan.of(found, asked, "\n".join(lines), data)


def frontier(
    costs: Profile | str | Path | Sequence[Profile | str | Path],
    cluster: Cluster | str | Path,
    *,
    batch: int,
    nodes: int | None = None,
    schedule: str | Sequence[str] | None = None,
    fix: Mapping[str, object] | None = None,
    precision: str | None = None,
    execution: str | None = None,
    effort: str = "normal",
) -> SolvedFrontier:
    """Finds the Pareto-optimal plans: time against memory, and time against devices.

    Args: they are those of `plan`.
    Returns: plans, each with its own certificate; the first Ctrl-C gives those so far.
    """
    from planner.notebook import front

    machines = _cluster_of(cluster, nodes)
    return front(_question(costs, machines, batch, schedule, fix, precision, execution, effort))


def _question(
    costs: Profile | str | Path | Sequence[Profile | str | Path],
    cluster: Cluster | str | Path,
    batch: int,
    schedule: str | Sequence[str] | None = None,
    fix: Mapping[str, object] | None = None,
    precision: str | None = None,
    execution: str | None = None,
    effort: str = "normal",
) -> Question:
    from planner.limits import effort_named
    from planner.milp import Question

    machines = _cluster_of(cluster)
    return Question(
        profile=_profile_of(costs, machines),
        cluster=machines,
        batch=batch,
        schedules=(schedule,) if isinstance(schedule, str) else None if schedule is None else tuple(schedule),
        fix=dict(fix or {}),
        precision=precision,
        execution=execution,
        effort=effort_named(effort),
    )


def compare(*plans: Plan | str | Path) -> SideBySide:
    """Compares plans side by side.

    Args: `plans` are values or files; the first is the one that the others are compared with.
    Returns: their facts side by side, which show themselves.
    """
    from planner.show import compare as compared

    return compared(*map(_plan_of, plans))


def export(chosen: Plan | str | Path, to: str) -> str:
    """Writes a plan as the settings of another trainer.

    Args: `chosen` is a plan or its file; `to` is torchtitan, megatron, deepspeed, accelerate, fsdp2 or torchrun.
    Returns: the text of a file or command, with the same degrees, batches, schedule, cuts and sharding.
    Raises: BadInput with all that the trainer cannot state.
    """
    from planner import export as trainers
    from planner import plan as plans

    if isinstance(chosen, Plan):
        return trainers.export(chosen, to)
    return trainers.export(plans.load(chosen), to, str(chosen))


def calibrate(*runs: str | Path) -> Corrections:
    """Fits corrections to finished runs, which make predicted costs like measured ones.

    Args: `runs` are run folders.
    Returns: corrections for `plan(..., calibration=...)`, with the error that is left.
    Raises: BadInput where a folder has no trace.
    """
    from planner.calibrate import fit
    from runtime.launch import observation

    return fit([observation(Path(folder)) for folder in runs])


def simulate(chosen: Plan | str | Path) -> Timeline:
    """Simulates one step of a plan.

    Args: `chosen` is a plan or its file, from anywhere; no solver has to have made it.
    Returns: what each rank does when, in nanoseconds.
    """
    from planner.simulate import simulate_plan

    return simulate_plan(_plan_of(chosen))


def verify(
    chosen: Plan | str | Path,
    *,
    costs: Profile | str | Path | Sequence[Profile | str | Path] | None = None,
    cluster: Cluster | str | Path | None = None,
    nodes: int | None = None,
) -> list[str]:
    """Checks a plan against the problem statement, without any solver.

    Args: `chosen` is a plan or its file; with `costs` and `cluster`, values or files, predicted times and memory are
      checked too. Of a cluster such as "h100x8" there may be `nodes`, as for `plan`.
    Returns: one sentence for each thing that is wrong; none where nothing is.
    Raises: BadInput for `nodes` without a cluster.
    """
    from planner.verify import violations

    if cluster is None and nodes is not None:
        raise BadInput("nodes without a cluster", where="verify", allowed="cluster= and nodes=")
    machines = None if cluster is None else _cluster_of(cluster, nodes)
    known = None if costs is None else _profile_of(costs, machines)
    return [str(found) for found in violations(_plan_of(chosen), profile=known, cluster=machines)]


def launch(
    chosen: Plan | str | Path,
    folder: str | Path | None = None,
    *,
    steps: int = 10,
    seed: int = 0,
    on: Literal["inline", "local", "slurm"] | None = None,
    options: Mapping[str, object] | None = None,
    **settings: object,
) -> Handle:
    """Launches a training by a plan and returns at once.

    Args: `chosen` is a plan or its file; `folder` is a new one, or that of a run to go on with; `steps` are of the
      training and `seed` that of weights and samples. `on` is "local", "slurm" or "inline", which trains in this
      process and returns when it is done; without it, SLURM is used where it answers. `options` are those of a site
      file for SLURM, such as `{"partition": "gpu"}`. `settings` are fields of Job, such as `save_every`.
    Returns: a handle with `state`, `metrics()`, `logs(rank)`, `cancel()`, and `wait()` for losses and the
      Timeline. A local run ends with this process.
    Raises: BadInput and BadPlan for whatever can be known before the run starts.
    """
    from planner.terminal import patient
    from runtime import launch as launching

    found = _plan_of(chosen)
    with patient(f"handing {found.model.workload} over to its ranks"):
        return launching.launch(found, folder, steps=steps, seed=seed, on=on, options=options, **settings)


def prepare(
    model: torch.nn.Module,
    optimizer: object,
    loader: object,
    *,
    cluster: Cluster | str | Path,
    steps: int,
    loss: Callable[..., object] | None = None,
    lr_schedule: object = None,
    batch: int | None = None,
    fix: Mapping[str, object] | None = None,
    schedule: str | Sequence[str] | None = None,
    folder: str | Path | None = None,
    **settings: object,
) -> Prepared:
    """Plans a module as it stands, and returns its training as something to iterate over.

    Args: `model`, `optimizer`, `loader`, `loss` and `lr_schedule` are those of `Workload`, `cluster`, `fix` and `schedule` those of
      `plan`. `batch` is samples a step, those of the loader by default. `folder` is that of the run; the model is kept
      beside it. `settings` are fields of Job, such as `seed`.
    Returns: a training with its `plan`; `for step in ...` trains on this machine, gives each step's `loss`, and loads the
      trained weights into the module at the end.
    Raises: BadInput and Infeasible for whatever can be known before it starts.
    """
    from runtime.bridges import Prepared
    from runtime.runfolder import unused

    run = Path(folder) if folder is not None else unused(type(model).__name__.lower())
    samples = batch if batch is not None else int(getattr(loader, "batch_size", 0) or 0)
    if samples < 1:
        raise BadInput("the loader has no batch size", where="prepare", allowed="batch=, samples a step")
    mine = Workload(
        model,
        loader=loader,
        loss=loss,
        optimizer=optimizer,
        lr_schedule=lr_schedule,
        folder=run.parent / f"{run.name}.model",
    )
    powers = [micro for micro in (1, 2, 4, 8, 16) if samples % micro == 0]
    pinned = (fix or {}).get("micro")
    costs = profile(mine, micro=powers if pinned is None else (int(str(pinned)),))
    chosen = plan(costs, cluster, batch=samples, fix=fix, schedule=schedule)
    return Prepared(model, chosen, steps=steps, folder=run, settings=dict(settings))


def PlanTrainer(
    *given: object,
    cluster: Cluster | str | Path,
    fix: Mapping[str, object] | None = None,
    schedule: str | Sequence[str] | None = None,
    folder: str | Path | None = None,
    **more: object,
) -> TrainerByPlan:
    """Makes a Trainer of transformers whose steps are trained by a plan on the ranks of this machine.

    Args: `given` and `more` are those of `transformers.Trainer`; the others are those of `prepare`.
    Returns: a Trainer with callbacks, logs and metrics of its own; `train()` plans first, and its `prepared` has the plan.
    Raises: BadInput, from `train()`, for settings that ranks cannot follow.
    """
    from runtime.bridges import TrainerByPlan

    chosen = partial(prepare, cluster=cluster, fix=fix, schedule=schedule, folder=folder)
    return TrainerByPlan(*given, prepare=chosen, **more)


def PlanStrategy(
    *,
    cluster: Cluster | str | Path,
    lr_schedule: object = None,
    fix: Mapping[str, object] | None = None,
    schedule: str | Sequence[str] | None = None,
    folder: str | Path | None = None,
    **settings: object,
) -> StrategyByPlan:
    """Makes a Strategy of Lightning whose steps are trained by a plan on the ranks of this machine.

    Args: they are those of `prepare`; `settings` are fields of Job, such as `seed`.
    Returns: what `Trainer(strategy=...)` takes; after `fit` its `prepared` has the plan.
    Raises: BadInput, from `fit`, for settings that ranks cannot follow.
    """
    from runtime.bridges import StrategyByPlan

    chosen = partial(
        prepare, cluster=cluster, lr_schedule=lr_schedule, fix=fix, schedule=schedule, folder=folder
    )
    return StrategyByPlan(partial(chosen, **settings))


def rehearse(
    chosen: Plan | str | Path, *, device: str = "cpu", steps: int = 3, threads: int = 1
) -> Rehearsal:
    """Runs each distinct rank of a plan alone on one device, with real kernels and memory.

    Args: `chosen` is a plan or its file; `device` is `cpu` or `cuda`; `steps` are timed; `threads` are of a rank on the host.
    Returns: times and peaks of memory beside the plan's.
    Raises: BadInput where the device is not here.
    """
    from runtime import rehearse

    return rehearse.rehearse(_plan_of(chosen), device=device, steps=steps, threads=threads)


def infer(
    workload: str | Path,
    *,
    weights: str | Path,
    input: str | Path,  # as the command says
    output: str | Path,
    on_line: Callable[[str], None] | None = None,
    settings: Mapping[str, str | int | float | bool] | None = None,
    **options: object,
) -> InferStatus:
    """Applies a trained model to a volume larger than memory, and waits for it.

    Args: `weights` is a run folder or safetensors; `input` and `output` are volumes (.npy, .zarr, .h5; slices of TIFF as
      input, and PATH:ARRAY); `options` are those of the command, such as `mode`, `chunk`, `workers`, `mask`, `memory` in
      bytes; `settings` are arguments of the workload; `on_line` is told how it goes on.
    Returns: the state, with `checksum`, `done`, and the tasks that were set `aside`.
    Raises: BadInput, which names what needs all of space, or whatever else can be known before it starts.
    """
    from runtime import infer as inference

    request = inference.InferRequest(
        workload=str(workload),
        weights=str(weights),
        input=str(input),
        output=str(output),
        settings={name: str(value) for name, value in (settings or {}).items()},
        **options,  # type: ignore[arg-type]
    )
    return inference.run(inference.prepared(request), on_line or (lambda line: None))


def runs(folder: str | Path = "runs") -> Runs:
    """Finds the runs in a folder.

    Args: `folder` holds run folders directly, or is one itself.
    Returns: the newest first; `[0]` has its plan, its measured times, and `.plot()`.
    Raises: BadInput where there is no such folder.
    """
    from runtime import launch as launching

    return launching.runs(Path(folder))


def record(folder: str | Path) -> RunRecord:
    """Reads a run, with predicted and measured times side by side.

    Args: `folder` is a run folder.
    Raises: BadInput where the folder is no run folder or has no trace.
    """
    from runtime import launch as launching

    return launching.record(Path(folder))


def refine(run: RunRecord | str | Path) -> SolvedPlan:
    """Looks again for the order of weight gradients and gradient sums, with the times that a run has
    measured.

    Args: `run` is a record or a run folder, trained with the family `overlap`.
    Returns: the plan with the measured times, and with another order where that is faster.
    Raises: BadInput for another family.
    """
    from planner.calibrate import refined
    from planner.notebook import SolvedPlan
    from planner.show import against

    ran = record(run) if isinstance(run, str | Path) else run
    found = refined(ran.plan, ran.measured)
    return SolvedPlan.of(found, above=against(ran.plan, found))


def report(
    chosen: Plan | str | Path,
    path: str | Path,
    *,
    run: RunRecord | str | Path | None = None,
    costs: Profile | str | Path | Sequence[Profile | str | Path] | None = None,
    against: Plan | RunRecord | str | Path | None = None,
) -> Path:
    """Writes a report page for a browser.

    Args: `chosen` is a plan, its file or the folder of a run of it, which is then shown too; an existing file at
      `path` is overwritten; `run` and `costs`, values or files, add sections. `against` is another plan, or another
      run, to lie side by side with it.
    Returns: the path of the page.
    """
    from planner.notebook import SolvedPlan

    if run is None and isinstance(chosen, str | Path) and Path(chosen).is_dir():
        run = chosen
    ran = record(run) if isinstance(run, str | Path) else run
    found = _plan_of(chosen)
    known = None if costs is None else _profile_of(costs)
    asked = found.asked if isinstance(found, SolvedPlan) else None
    if isinstance(against, str | Path):
        against = record(against) if Path(against).is_dir() else _plan_of(against)
    return SolvedPlan.of(found, asked).report(path, run=ran, costs=known, against=against)


def load_plan(
    path: str | Path,
    *,
    costs: Profile | str | Path | Sequence[Profile | str | Path] | None = None,
    cluster: Cluster | str | Path | None = None,
    nodes: int | None = None,
) -> SolvedPlan:
    """Loads a plan from its file.

    Args: `path` is its file; with `costs` and `cluster`, values or files, the plan can be asked `what_if`. Of a cluster
      such as "h100x8" there may be `nodes`, as for `plan`.
    Returns: the plan, which shows itself.
    Raises: BadInput where the file is wrong, or where `costs` are of another model.
    """
    from planner import plan as plans
    from planner.notebook import SolvedPlan
    from planner.report import check_same_model

    found = plans.load(path)
    if costs is None or cluster is None:
        return SolvedPlan.of(found)
    machines = _cluster_of(cluster, nodes)
    known = _profile_of(costs, machines)
    check_same_model(found, known)
    asked = _question(
        known, machines, found.batch.samples, precision=found.precision, execution=found.execution
    )
    return SolvedPlan.of(found, asked)


def load_profile(path: str | Path) -> Profile:
    """Loads a profile from its file.

    Args: `path` is a file that `save` or the command `profile` has written.
    Raises: BadInput where the file is wrong.
    """
    from planner import profile as profiles

    return profiles.load(Path(path))


def save(thing: Plan | Profile, path: str | Path) -> None:
    """Writes a plan or a profile as YAML, whole or not at all.

    Args: an existing file at `path` is overwritten.
    """
    from planner import files
    from planner import plan as plans
    from planner import profile as profiles

    if isinstance(thing, Plan):
        files.write_whole(Path(path), plans.dump(thing))
    else:
        profiles.save(thing, Path(path))


def _load(workload: str | Path, arguments: Mapping[str, str | int | float | bool]) -> LiveWorkload:
    from planner.workload import load

    return load(str(workload), {name: str(value) for name, value in arguments.items()})


DEMO = (("gpt2", "tiny"), ("unet3d", "tiny"))


def _demo_command() -> Callable[..., None]:
    import typer

    def demo(
        as_json: bool = typer.Option(False, "--json", help="one JSON object on standard output"),
    ) -> None:
        """Take two small models from capture to a measured run, here, on two processes."""
        from planner.terminal import Output

        out = Output(as_json=as_json)
        runs = list(_demo(out.note if as_json else partial(print, flush=True)))
        if as_json:
            out.result({"runs": runs}, str)

    return demo


def _demo(say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    import tempfile

    from planner import show
    from runtime import launch as launching
    from runtime.runfolder import Paths

    cluster = Cluster.load(Path(__file__).parent / "plans" / "clusters" / "laptop.yaml")
    for name, size in DEMO:
        say(f"\n{name}: what does every layer cost here?")
        costs = profile(name, micro=(1, 2), size=size)
        chosen = plan(costs, cluster, batch=8)
        say(show.text(chosen))
        folder = Path(tempfile.mkdtemp(prefix="shardwright-demo-"))
        say(f"\n{name}: ten steps by that plan, in {len(chosen.places)} processes")
        done = launch(chosen, folder, steps=10, on="local").wait().check()
        found = launching.comparison(folder)
        say(
            f"loss {done.losses[1]:.4f} at first, {done.losses[10]:.4f} at last\n{launching.comparison_text(found, launching.notes(folder, found))}"
        )
        page = chosen.report(Paths(folder).report, run=record(folder))
        say(f"plan, trace and checkpoints: {folder}\nto look at in a browser: {page}")
        facts = {"workload": name, "run": str(folder), "report": str(page), "losses": done.losses}
        yield facts | launching.as_dict(found)


_PANELS = {
    "Commands that decide": "list init profile plan layouts verify show simulate report export calibrate",
    "Commands that train": "launch infer prune dedup",
    "Commands about runs": "status logs cancel watch track",
    "Commands about machines": "doctor probe rehearse demo",
}


def _reported(folder: Path) -> Path:
    from runtime.runfolder import Paths

    return report(load_plan(Paths(folder).plan), Paths(folder).report, run=folder)


def _app() -> typer.Typer:
    from planner import cli as deciding
    from runtime import cli as running

    app = deciding.app(
        "Decide how to split the training of a torch model over a cluster, with a proof, and run it."
    )
    tools = running.tools()
    deciding.register(app, tools)
    deciding.register_calibrate(app, tools.observe)
    running.register(app)
    running.register_track(app, _reported)
    running.register_watch(app, _reported)
    app.command("demo", epilog="Example: shardwright demo")(_demo_command())
    titles = {name: title for title, names in _PANELS.items() for name in names.split()}
    for command in app.registered_commands:
        command.rich_help_panel = titles.get(str(command.name), "Commands")
    for group in app.registered_groups:
        group.rich_help_panel = "Commands that decide"
    return app


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status.

    Args: `arguments` are the words of the command line after the program's name.
    Example: `run(["plan", "--help"])`
    """
    from planner.cli import answer

    return answer(_app, arguments)


def main() -> None:
    sys.exit(_ended(sys.argv[1:]))


def plan_main() -> None:
    _main_of("plan")


def launch_main() -> None:
    _main_of("launch")


def _main_of(word: str) -> None:
    from planner.cli import completing

    completing(word, os.environ)
    sys.exit(_ended([word, *sys.argv[1:]]))


def _ended(arguments: Sequence[str]) -> int:
    """Runs one command as a program; standard streams that are closed take what is printed for nobody."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    try:
        return run(arguments)
    except KeyboardInterrupt:  # while the commands themselves are imported
        print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    main()
