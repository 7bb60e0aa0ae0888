"""A Strategy of Lightning whose steps are trained by a plan, on the ranks of this machine.

What `training_step` computes is captured once and trains on the ranks. The loop of Lightning goes on around it: progress,
loggers and callbacks see every step, and its loss. Gradients never are in this process, so hooks on them are refused.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from planner.errors import BadInput
from planner.workload import seeded, whole_batch
from runtime.bridges.prepared import Prepare, Prepared, TrainedStep

GRADIENT_HOOKS = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
MODULE_HOOKS = (
    *GRADIENT_HOOKS,
    "backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "on_before_batch_transfer",
    "on_after_batch_transfer",
)
CHANGING = (
    callbacks.GradientAccumulationScheduler,
    callbacks.StochasticWeightAveraging,
    callbacks.WeightAveraging,
    callbacks.ModelPruning,
    callbacks.BaseFinetuning,
)


class StrategyByPlan(SingleDeviceStrategy):  # type: ignore[misc]
    """A Strategy that follows a training by a plan; after `fit` the module has the trained weights."""

    def __init__(self, prepare: Prepare) -> None:
        """Starts nothing yet.

        Args: `prepare` plans a model with its optimizer and loader, and returns its training.
        """
        super().__init__("cpu")
        self._prepare = prepare
        self.prepared: Prepared | None = None
        self._steps: Iterator[TrainedStep] | None = None
        self._asked: StepOfModule | None = None

    def training_step(self, *given: Any, **more: Any) -> Tensor:
        """Returns the loss of the next step that the ranks have trained, and logs it where the module logs its loss."""
        module = self._module
        if self._steps is None:
            self._steps = iter(self._begun(module.trainer))
        step = next(self._steps)
        assert self.prepared is not None and self._asked is not None
        if step.number == self.prepared.steps:  # the weights come home before anybody asks for them
            next(self._steps, None)
            self._steps = iter(())
        loss = torch.tensor(step.loss)
        for name, settings in self._asked.logged.items():
            module.log(name, loss, **settings, batch_size=1)
        return loss

    def backward(self, closure_loss: Tensor, optimizer: Any, *given: Any, **more: Any) -> Tensor:
        """Does nothing: the ranks have."""
        return closure_loss

    def validation_step(self, *given: Any, **more: Any) -> Any:
        """Evaluates with the weights of before the training, or of its end."""
        self._refuse_between("a validation")
        return super().validation_step(*given, **more)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint of the trained weights; the optimizer's state is in those of the run folder."""
        self._refuse_between("a checkpoint")
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Returns no state: it stays on the ranks."""
        return {}

    def teardown(self) -> None:
        """Ends a run that was left early."""
        if self._steps is not None and hasattr(self._steps, "close"):
            self._steps.close()
        self._steps = None
        super().teardown()

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module

    def _begun(self, trainer: Trainer) -> Prepared:
        loader = refuse(trainer, self._module, self)
        step = StepOfModule(self._module)
        batches = whole_batches(loader)
        with alone(self._module, step):
            self._asked = logging_of(step, batches)
            self.prepared = self._prepare(
                step,
                self.optimizers[0],
                batches,
                loss=loss_of,
                steps=int(trainer.estimated_stepping_batches),
                clip_norm=trainer.gradient_clip_val or None,
                drop_last=loader.drop_last,
            )
        missed = ", ".join(sorted(self._asked.missed))
        if missed:
            warnings.warn(
                f"training_step logs {missed}, which stays on the ranks: only the loss comes back",
                stacklevel=2,
            )
        return self.prepared

    def _refuse_between(self, what: str) -> None:
        done = self.prepared is not None and self.prepared.run is not None and self.prepared.finished
        if self._steps is not None and not done:
            raise BadInput(
                f"weights are on the ranks until the last step, and {what} asks for them",
                where="PlanStrategy",
                allowed="one epoch, check_val_every_n_epoch=, or enable_checkpointing=False; save_every= keeps them",
            )


class StepOfModule(nn.Module):
    """The `training_step` of a module as a forward pass, with the names under which it logs its loss."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module
        self.logged: dict[str, dict[str, Any]] = {}
        self.missed: set[str] = set()
        self._told: list[tuple[str, object, dict[str, Any]]] = []

    def forward(self, *parts: Any, **named: Any) -> Any:
        """Returns the loss of a batch.

        Args: its tensors, by position or by name.
        """
        self._told.clear()
        batch = named or (parts[0] if len(parts) == 1 else list(parts))
        wants = inspect.signature(self.module.training_step).parameters
        found = self.module.training_step(batch, None) if len(wants) > 1 else self.module.training_step(batch)
        loss = loss_of(found, ())
        for name, value, settings in self._told:
            if value is loss:
                self.logged[name] = settings
            else:
                self.missed.add(name)
        return loss

    def note(self, name: str, value: object, **settings: Any) -> None:
        """Takes what `self.log` is called with."""
        self._told.append((name, value, {k: x for k, x in settings.items() if k != "batch_size"}))

    def note_all(self, values: Mapping[str, object], **settings: Any) -> None:
        """Takes what `self.log_dict` is called with."""
        for name, value in values.items():
            self.note(name, value, **settings)


class Parts:
    """Joins samples as a loader does, with the whole batch as inputs of the model."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> tuple[object, tuple[()]]:
        return whole_batch(self._collate(samples))


class NoTrainer:
    """Stands for the Trainer while a step is captured: what it says would be a constant on the ranks."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise BadInput(
            f"training_step asks the Trainer for {name}", where="PlanStrategy", allowed="tensors of the batch"
        )


def whole_batches(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Returns a loader of the same samples in the same order, whose inputs are the whole batch."""
    how: Any = {"batch_size": loader.batch_size, "sampler": loader.sampler}
    return DataLoader(loader.dataset, collate_fn=Parts(loader.collate_fn), **how)


@contextmanager
def step_of(
    module: Any, loader: Any, optimizer: object = None
) -> Iterator[tuple[StepOfModule, DataLoader[Any], object]]:
    """Yields a module's `training_step`, its loader and its optimizer as a live workload takes them.

    Args: `optimizer` is in the place of what the module configures.
    """
    made = module.configure_optimizers() if optimizer is None else optimizer
    step = StepOfModule(module)
    if isinstance(made, (list, tuple, dict)):
        allowed = "optimizer=, and lr_schedule=functools.partial(a class, its settings)"
        raise BadInput(
            "configure_optimizers returns more than an optimizer", where="Workload", allowed=allowed
        )
    with alone(module, step):
        yield step, whole_batches(loader), made


def logging_of(step: StepOfModule, loader: DataLoader[Any]) -> StepOfModule:
    """Returns a copy of a step that has computed two samples, and so knows the names that it logs under.

    Args: `loader` has the samples; nothing random is drawn for good.
    """
    known, data = copy.deepcopy(step), cast(Any, loader.dataset)
    with seeded(0), torch.no_grad():
        inputs = loader.collate_fn([data[i % len(data)] for i in (0, 1)])[0]
        known(**inputs) if isinstance(inputs, dict) else known(*inputs)
    return known


@contextmanager
def alone(module: LightningModule, step: StepOfModule) -> Iterator[None]:
    """Keeps a module from its Trainer while it is entered, and takes what it logs.

    Args: `step` takes it.
    """
    trainer, module._trainer = module._trainer, NoTrainer()
    module.log, module.log_dict = step.note, step.note_all
    try:
        yield
    finally:
        del module.log, module.log_dict
        module._trainer = trainer


def loss_of(outputs: Any, targets: object) -> Any:
    """Returns the loss among what `training_step` gives."""
    return outputs["loss"] if isinstance(outputs, Mapping) else outputs


def refuse(trainer: Trainer, module: LightningModule, strategy: StrategyByPlan) -> DataLoader[Any]:
    """Returns the training loader.

    Raises: BadInput for what Lightning would do otherwise than the ranks of a plan do.
    """
    loader: Any = trainer.train_dataloader
    plain = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if not plain or loader.batch_size is None:
        raise BadInput(
            "the training data are no DataLoader with indices and a batch size", where="PlanStrategy"
        )
    ends = len(loader.dataset) % loader.batch_size and not loader.drop_last
    wrong = {
        "manual optimization": not module.automatic_optimization,
        "more than one optimizer": len(strategy.optimizers) != 1,
        "accumulate_grad_batches": trainer.accumulate_grad_batches != 1,
        f"precision {trainer.precision}": type(strategy.precision_plugin) is not Precision,
        "gradient_clip_algorithm value": str(trainer.gradient_clip_algorithm or "norm").endswith("value"),
        "limit_train_batches": trainer.num_training_batches != len(loader),
        "an epoch that ends with a smaller batch": bool(ends),
        "a training without end": math.isinf(trainer.estimated_stepping_batches),
        "a schedule of configure_optimizers": bool(strategy.lr_scheduler_configs),
        "ckpt_path": bool(trainer.ckpt_path),
    }
    wrong |= {f"the module's {name}": is_overridden(name, module) for name in MODULE_HOOKS}
    for each in trainer.callbacks:
        kind = type(each).__name__
        wrong |= {f"{kind}.{name}": is_overridden(name, each, Callback) for name in GRADIENT_HOOKS}
        wrong[kind] = isinstance(each, CHANGING)
    for name in (name for name, is_so in wrong.items() if is_so):
        allowed = "what ranks can be told: lr_schedule= and other arguments of PlanStrategy"
        raise BadInput(f"{name} is not the plan's to do", where="PlanStrategy", allowed=allowed)
    return cast(DataLoader[Any], loader)
