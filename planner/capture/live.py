"""Writes a model that stands in a notebook as a folder that travels: captured graph, weights, one batch, its training.

    write_model(Path("mine.model"), module, (inputs, targets), loss, LiveLoop(optimizer=torch.optim.SGD(...)))
    workload = load("mine.model")

The module trains as it stands: weights that were loaded, layers that were exchanged and adapters that were added are
in the graph and its tensors. The module itself is left as it is.
"""

from __future__ import annotations

import functools
import inspect
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import optimizer as steps
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from planner.capture.batch import repeated, rows_of
from planner.capture.beside import mixes_samples
from planner.capture.capture import capture
from planner.capture.captured import Captured, Loss, Metrics
from planner.capture.evaluation import evaluation_of
from planner.capture.refusals import refuse_overlaps
from planner.capture.self_check import check_training
from planner.capture.traced_graph import computes_alike
from planner.capture.travel import to_data
from planner.errors import BadInput
from planner.model import Buffer, Parameter
from planner.workload import CALLBACKS, MODEL, SAMPLES, VERSION, WEIGHTS, Workload, flat

Json = Any  # what json.dumps takes


@dataclass(frozen=True, kw_only=True)
class LiveLoop:
    """How a live model is trained, as objects of a notebook have it."""

    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None
    lr_schedule: Callable[..., LRScheduler] | None = None
    dataset: str | None = None  # module:factory
    collate: str | None = None  # module:function
    whole: bool = False  # the model takes the whole batch as its inputs
    sampler: str | None = None  # module:function
    metrics: Metrics | None = None
    valid_dataset: str | None = None  # module:factory
    callbacks: Mapping[str, str] = field(default_factory=dict)  # role -> module:function


def initial(captured: Captured, workload: Workload) -> dict[str, Tensor]:
    """Returns every tensor that stages hold as a training begins with it, by the user's names.

    Args: `workload` is what the model was captured from.
    Raises: BadInput where the user's build() fails, or a file of a captured model is damaged.
    """
    if workload.folder is None:
        return captured.initial(workload.build())
    tensors = workload.folder.tensors(WEIGHTS)
    rows: list[Parameter | Buffer] = [*captured.graph.parameters, *captured.graph.buffers]
    missing = [x.name for x in rows if x.name not in tensors or tuple(tensors[x.name].shape) != x.shape]
    if missing:
        raise BadInput(
            f"has no tensor '{missing[0]}' of its shape", where=str(workload.folder.path / WEIGHTS)
        )
    return {x.name: tensors[x.name] for x in rows}


def write_model(
    folder: Path, module: nn.Module, pair: tuple[object, object], loss: Loss, loop: LiveLoop
) -> Captured:
    """Writes a live model as a folder that `load` takes.

    Args: `folder` is made, or holds a model, which is replaced. `pair` is one batch, (inputs, targets), with samples
        along the first dimension.
    Returns: the captured model.
    Raises: BadInput with the path of what cannot travel, before anything is written.
    """
    if folder.exists() and not (folder / MODEL).is_file() and any(folder.iterdir()):
        raise BadInput(
            "holds something else than a model", where=str(folder), allowed="a new or empty folder"
        )
    asked = sorted({1, 2, rows_of(pair)})  # a model may ask for as many samples as the example has
    captured = capture(module, pair, loss, metrics=loop.metrics, micro=asked)
    refuse_overlaps(module, type(module).__name__)
    served = [n for n in asked if captured.graph.serves(n)]
    check_training(captured, module, pair, loss, samples=min(served, default=asked[-1]))
    half = max(1, asked[-1] // 2)
    mixed = mixes_samples(captured, lambda: module, repeated(pair), loss, rows=2 * half, training=False)
    if mixed and captured.graph.serves(half):
        warnings.warn(mixed, stacklevel=3)
    evaluation, more = _evaluation(captured)
    samples: dict[str, Tensor] = {}
    rows = rows_of(pair)
    data = {
        "version": VERSION,
        "captured": to_data(captured),
        "evaluation": evaluation,
        "batch": [flat(part, samples, rows) for part in pair],
        "recipe": recipe_of(loop, module),
    }
    weights = {
        name: x.detach().cpu().contiguous().clone() for name, x in (captured.initial(module) | more).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / WEIGHTS)
    save_file(samples, folder / SAMPLES)
    (folder / MODEL).write_text(json.dumps(data))
    return captured


def _evaluation(captured: Captured) -> tuple[dict[str, Json], dict[str, Tensor]]:
    """Returns the model in evaluation mode as data, with its constants; or why it cannot be evaluated.

    Under "one" is the model for a batch of one sample, where it computes otherwise.
    """
    try:
        evaluated = evaluation_of(captured, captured.graph.captured_micro)
    except BadInput as error:
        return {"refused": str(error)}, {}
    traced = evaluated.layout.traced
    if captured.graph.symbolic_batch and not traced.symbolic and evaluated.metrics:
        raise BadInput(
            "metrics() can be captured for one batch size only, and the model for any",
            where="metrics",
            allowed="sizes as targets.shape[0] or targets.numel(): Python's len() makes them constants",
        )
    if not traced.symbolic:
        return to_data(evaluated), traced.constants
    try:
        one = evaluation_of(captured, 1)
    except BadInput as error:
        return to_data(evaluated) | {"one": {"refused": str(error)}}, traced.constants
    if computes_alike(traced, one.layout.traced, 1):
        return to_data(evaluated), traced.constants
    return to_data(evaluated) | {"one": to_data(one)}, traced.constants | one.layout.traced.constants


def recipe_of(loop: LiveLoop, module: nn.Module) -> dict[str, Json]:
    """Returns how a model is trained as data: classes and functions by their names, with their settings.

    Raises: BadInput for what a name and settings cannot say, such as a schedule with a function of one's own.
    """
    found: dict[str, Json] = {"dataset": loop.dataset, "collate": loop.collate, "whole": loop.whole}
    found |= {"valid_dataset": loop.valid_dataset, "sampler": loop.sampler, **_callbacks(loop.callbacks)}
    _refuse_hooked(loop.optimizer)
    if isinstance(loop.optimizer, torch.optim.Optimizer):
        found["optimizer"] = _optimizer(loop.optimizer, module, scheduled=loop.lr_schedule is not None)
    elif loop.optimizer is not None:
        found["optimizer"] = _made_by(loop.optimizer, torch.optim.Optimizer, "optimizer") | {"groups": []}
    if loop.lr_schedule is not None:
        found["lr_schedule"] = _made_by(loop.lr_schedule, LRScheduler, "lr_schedule")
    return {role: value for role, value in found.items() if value}


def _callbacks(given: Mapping[str, str]) -> dict[str, Json]:
    wrong = next((x for x in given.items() if x[0] not in CALLBACKS or not isinstance(x[1], str)), None)
    if wrong is not None:
        raise BadInput(
            f"callback {wrong[0]}={wrong[1]!r:.60}",
            where="callbacks",
            allowed=f"'module:function' of {', '.join(CALLBACKS)}; a module file has functions of its own",
        )
    return dict(given)


def _refuse_hooked(optimizer: object) -> None:
    """Refuses what hangs on the steps of an optimizer, of which its class and settings say nothing.

    Args: `optimizer` may be a class or None, for which the hooks of all optimizers count alone.
    """
    hooks: dict[str, Mapping[int, object]] = {
        "register_optimizer_step_pre_hook": steps._global_optimizer_pre_hooks,
        "register_optimizer_step_post_hook": steps._global_optimizer_post_hooks,
    }
    wrong = ""
    if isinstance(optimizer, torch.optim.Optimizer):
        hooks["register_step_pre_hook"] = optimizer._optimizer_step_pre_hooks
        hooks["register_step_post_hook"] = optimizer._optimizer_step_post_hooks
        step = vars(optimizer).get("step")
        if getattr(step, "_wrapped_by_lr_sched", False):
            step = getattr(step, "__wrapped__", None)  # a schedule counts the steps
        if step not in (None, type(optimizer).step):
            wrong = f"step() was replaced by '{_name_of(step)}'"
    for register, held in hooks.items():
        wrong = next((f"step has the hook '{_name_of(x)}' ({register})" for x in held.values()), wrong)
    if wrong:
        raise BadInput(
            f"the optimizer's {wrong}, which a plan would not run",
            where="optimizer",
            allowed="clip_norm= at the launch to clip gradients; callbacks= to look on; "
            "or a module file, whose optimizer() registers the hook",
        )


def _name_of(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _optimizer(optimizer: torch.optim.Optimizer, module: nn.Module, *, scheduled: bool) -> dict[str, Json]:
    """Returns a new optimizer as data; a schedule begins with the rates from before one was attached here."""
    if optimizer.state:
        raise BadInput(
            "the optimizer has taken steps already, and its state does not travel",
            where="optimizer",
            allowed="a new optimizer for the model",
        )
    attached = any("initial_lr" in group for group in optimizer.param_groups)
    if attached and not scheduled:
        raise BadInput(
            "a schedule of learning rates is attached to the optimizer, and none is passed",
            where="optimizer",
            allowed="the same as lr_schedule=functools.partial(its class, its settings by name) of Workload; "
            "or an optimizer without a schedule",
        )
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    known = inspect.signature(type(optimizer)).parameters  # a subclass may fix what its base has as a default
    defaults = {name: x for name, x in optimizer.defaults.items() if name in known}
    groups = []
    for group in optimizer.param_groups:
        foreign = [x for x in group["params"] if id(x) not in names]
        if foreign:
            raise BadInput(
                f"the optimizer has a tensor of shape {tuple(foreign[0].shape)} that is no parameter of the model",
                where="optimizer",
            )
        options = {key: x for key, x in group.items() if key in defaults}
        options |= {"lr": group["initial_lr"]} if "initial_lr" in group else {}
        groups.append(
            {"names": [names[id(x)] for x in group["params"]], "options": _plain(options, "optimizer")}
        )
    options = _plain(defaults, "optimizer")
    return {"class": _path(type(optimizer), "optimizer"), "options": options, "groups": groups}


def _made_by(make: object, base: type, role: str) -> dict[str, Json]:
    options: Mapping[str, object] = {}
    if isinstance(make, functools.partial) and not make.args:
        options, make = make.keywords, make.func
    if isinstance(make, ReduceLROnPlateau) or make is ReduceLROnPlateau:
        raise BadInput(
            f"{role} is a ReduceLROnPlateau, which asks for a metric at each step",
            where=role,
            allowed="a schedule that only the number of steps moves, such as CosineAnnealingLR or StepLR",
        )
    if not isinstance(make, type) or not issubclass(make, base):
        kind = type(make).__name__ if isinstance(make, base) else "a class"
        raise BadInput(
            f"{role} is a {type(make).__name__}, which cannot travel as data",
            where=role,
            allowed=f"a class, or functools.partial({kind}, its settings by name), of {base.__name__}; "
            f"or a module file, whose {role}() may call any function",
        )
    return {"class": _path(make, role), "options": _plain(options, role)}


def _path(kind: type, role: str) -> str:
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise BadInput(
            f"{role} is of a class of the notebook's own, '{kind.__qualname__}'",
            where=role,
            allowed=f"a class of an installed module; or a module file, whose {role}() makes it",
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def _plain(options: Mapping[str, object], role: str) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, value in options.items():
        if isinstance(value, Tensor) and value.ndim == 0:
            value = value.item()
        parts = value if isinstance(value, list | tuple) else [value]
        if not all(x is None or isinstance(x, bool | int | float | str) for x in parts):
            raise BadInput(
                f"{role} has {name}={value!r:.60}, which cannot travel as data",
                where=role,
                allowed="numbers, texts and tuples of them; "
                f"or a module file, whose {role}() may take functions and tensors",
            )
        found[name] = value
    return found
