"""A Trainer of transformers whose steps are trained by a plan, on the ranks of this machine.

Callbacks, logs and metrics are the Trainer's own. Forward, backward, clipping and update happen on the ranks, so what a
Trainer does with gradients or weights between steps has nothing to act on here, and is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainingArguments

from planner.errors import BadInput
from runtime.bridges.prepared import Prepare, Prepared, TrainedStep
from runtime.bridges.schedules import NamedSchedule

IGNORED = -100  # the label of what no loss counts
STILL = ("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "polynomial")


class TrainerByPlan(Trainer):
    """A Trainer that follows a training by a plan; afterwards its model has the trained weights."""

    def __init__(self, *given: Any, prepare: Prepare, **more: Any) -> None:
        """Takes what a Trainer takes.

        Args: `prepare` plans a model with its optimizer and loader, and returns its training.
        """
        super().__init__(*given, **more)
        self._prepare = prepare
        self.prepared: Prepared | None = None
        self._steps: Iterator[TrainedStep] = iter(())
        self._now: TrainedStep | None = None

    def _inner_training_loop(  # type: ignore[override]
        self, batch_size: int | None = None, args: TrainingArguments | None = None, **more: Any
    ) -> Any:
        args = args or self.args
        epochs, per_epoch, *_, steps = self.set_initial_training_values(args, self.get_train_dataloader())
        refuse(self, steps, epochs, more)
        self.create_optimizer()
        assert self.model is not None
        self.prepared = self._prepare(
            self.model,
            self.optimizer,
            self._loader(per_epoch),
            loss=self._loss,
            lr_schedule=self._schedule(steps),
            steps=steps,
            seed=args.seed,
            clip_norm=args.max_grad_norm if args.max_grad_norm > 0 else None,
            drop_last=args.dataloader_drop_last,
        )
        self._steps, self._now = iter(self.prepared), None
        try:
            return super()._inner_training_loop(batch_size=batch_size, args=args, **more)
        finally:
            self._steps.close()  # type: ignore[attr-defined]

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Returns the loss of the next step that the ranks have trained, or its part of an accumulated one."""
        assert self.prepared is not None
        number = self.state.global_step + 1
        if self._now is None or self._now.number < number:
            self._now = next(self._steps)
            if number == self.prepared.steps:  # the weights come home before anybody asks for them
                next(self._steps, None)
        return torch.tensor(self._now.loss / self.args.gradient_accumulation_steps)

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Clips nothing: the ranks have."""

    def _get_grad_norm(self, model: nn.Module, grad_norm: object = None) -> float | None:
        return None if self._now is None else self._now.gradient_norm

    def _maybe_log_save_evaluate(self, *given: Any, **more: Any) -> None:
        assert self.prepared is not None
        early = self.state.global_step < self.prepared.steps
        if early and (self.control.should_save or self.control.should_evaluate):
            raise _mid_run("a callback asks for it")
        super()._maybe_log_save_evaluate(*given, **more)

    def _save_optimizer_and_scheduler(self, output_dir: str | None) -> None:
        """Writes nothing: the optimizer's state is in the checkpoints of the run folder."""

    def _loader(self, per_epoch: int) -> DataLoader[Any]:
        """Returns the training set with its own order and joining, in batches of a whole step."""
        args, data = self.args, self.train_dataset
        if data is None or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise BadInput("train_dataset has no length", where="Trainer", allowed="a map-style dataset")
        samples = args.train_batch_size * args.gradient_accumulation_steps
        if len(data) % samples and not (args.dataloader_drop_last and args.gradient_accumulation_steps == 1):
            raise BadInput(
                f"an epoch of {len(data)} samples ends with a smaller step than {samples}",
                where="Trainer",
                allowed="dataloader_drop_last=True without accumulation, or whole steps",
            )
        joined = self._get_collator_with_removed_columns(self.data_collator, description="training")
        joined = partial(one_item, joined) if self.model_accepts_loss_kwargs else joined
        sampler = self._get_train_sampler(data)
        return DataLoader(data, batch_size=samples, sampler=sampler, collate_fn=joined)

    @property
    def _loss(self) -> Callable[[Any, Any], object] | None:
        """Returns the loss as this Trainer counts it: over all labels of a step where its model is told their number."""
        return (
            partial(summed_loss, shifts=self._loss_shifts_labels) if self.model_accepts_loss_kwargs else None
        )

    def _schedule(self, steps: int) -> partial[NamedSchedule]:
        args = self.args
        return partial(
            NamedSchedule,
            name=str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
            warmup=args.get_warmup_steps(steps),
            steps=steps,
            more=json.dumps(args.lr_scheduler_kwargs or {}),
        )


def summed_loss(outputs: Any, labels: Any, *, shifts: bool) -> tuple[Tensor, Tensor]:
    """Returns a model's own loss, which is a sum where it is told that there is one item, and what the Trainer divides by.

    Args: `shifts` says that the Trainer does not count the first label of a sequence.
    """
    return outputs["loss"], ((labels[..., 1:] if shifts else labels) != IGNORED).sum()


def one_item(collate: Callable[[Any], Any], samples: list[Any]) -> dict[str, Any]:
    """Returns a batch whose model sums its loss instead of dividing by the number of labels.

    Args: `collate` joins the samples.
    """
    return {**collate(samples), "num_items_in_batch": 1}


def refuse(trainer: TrainerByPlan, steps: int, epochs: int, more: dict[str, Any]) -> None:
    """Raises BadInput for what a Trainer would do otherwise than the ranks of a plan do.

    Args: `steps` and `epochs` are of the training; `more` is what `train` was called with besides.
    """
    args = trainer.args
    wrong = {
        "resume_from_checkpoint": more.get("resume_from_checkpoint") is not None,
        "trial": more.get("trial") is not None,
        "fp16": args.fp16,
        "bf16": args.bf16,
        "torch_compile": args.torch_compile,
        "a device that is not the CPU": args.device.type != "cpu",
        "label_smoothing_factor": args.label_smoothing_factor != 0,
        "neftune_noise_alpha": args.neftune_noise_alpha is not None,
        "compute_loss_func": trainer.compute_loss_func is not None,
        "optimizers=(.., a schedule)": trainer.lr_scheduler is not None,
        "auto_find_batch_size": args.auto_find_batch_size,
        "load_best_model_at_end": args.load_best_model_at_end,
        "train_sampling_strategy": args.train_sampling_strategy not in ("random", "sequential"),
        "lr_scheduler_type": trainer._schedule(steps).keywords["name"] not in STILL,
        "a mean of means over accumulated batches": args.gradient_accumulation_steps > 1
        and not trainer.model_accepts_loss_kwargs,
    }
    for name in (name for name, is_so in wrong.items() if is_so):
        allowed = "a plain Trainer for it, or sw.prepare with what ranks can be told"
        raise BadInput(f"{name} is not the plan's to do", where="Trainer", allowed=allowed)
    for role in ("eval", "save"):
        how = str(getattr(getattr(args, f"{role}_strategy"), "value", getattr(args, f"{role}_strategy")))
        every = getattr(args, f"{role}_steps") or steps
        every = every * steps if every < 1 else every
        if (how == "steps" and every < steps) or (how == "epoch" and epochs > 1) or how == "best":
            raise _mid_run(f"{role}_strategy is '{how}'")


def _mid_run(why: str) -> BadInput:
    return BadInput(
        f"weights are on the ranks until the last step, and {why}",
        where="Trainer",
        allowed="to evaluate and save at the end; launch(eval_every=, save_every=) does it on the ranks",
    )
