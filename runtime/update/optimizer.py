"""Updates: the user's optimizer a bucket, clipping by the true global norm, state sharded over the holders.

The optimizer is called with the parameters of one bucket at a time. So a user's `optimizer` must be a
function of named parameters, which is what the workload file promises. With sharded state each holder updates
its own range of the bucket and sends it to the others.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from planner.errors import BadInput
from planner.workload import of_nothing, with_parts
from runtime.execute import NotFinite
from runtime.stage import Scaler
from runtime.update.clipping import Averages, PreviousNorm, Squares, too_long_by
from runtime.update.flats import AnyFlat, Bucket, OwnPart, is_plain
from runtime.update.gradient_sums import GradientSync

Settings = dict[str, dict[str, object]]
LrSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler | None]
Make = Callable[[Iterable[tuple[str, torch.nn.Parameter]]], torch.optim.Optimizer]


class Updater:
    """One rank's gradient sums and updates, by SYNC and STEP actions."""

    def __init__(
        self,
        sync: GradientSync,
        make: Make,
        *,
        squares: Squares,
        clip_norm: float | None = None,
        count: Callable[[], float] | None = None,
        scaler: Scaler | None = None,
        schedule: LrSchedule | None = None,
        world: dist.ProcessGroup | None = None,
        previous: PreviousNorm | None = None,
        averages: Averages | None = None,
        draws: Callable[[str, int], AbstractContextManager[None]] = lambda bucket, number: nullcontext(),
    ) -> None:
        """Makes the user's optimizer for each bucket of the rank.

        Args: `count` returns what this rank's losses are a mean of, where losses come as (sum, count); `schedule` makes
            a learning rate schedule, or None; `world` is the group of all ranks; `draws` seeds an update of a bucket.
        """
        self._sync, self._clip_norm, self._count = sync, clip_norm, count
        self._squares, self._world, self._scaler = squares, world, scaler
        self.previous, self.averages, self._draws = previous, averages, draws
        self._updates: Counter[Bucket] = Counter()  # of this run and of those that it goes on from
        self.optimizers: dict[Bucket, torch.optim.Optimizer] = {}
        for flat in sync.flats:
            pieces = flat.pieces()
            optimizer = made(make, pieces) if pieces else None
            if optimizer is not None:
                self.optimizers[flat.bucket] = optimizer
        rates = {bucket: schedule(each) for bucket, each in self.optimizers.items()} if schedule else {}
        self._schedules = {bucket: each for bucket, each in rates.items() if each is not None}
        self._prepared = self._skipped = False
        self.norm: float | None = None  # of the last step, where it was needed
        self._rates: dict[Bucket, float] = {}  # of each bucket's last update
        self.given: dict[Bucket, str] = {}  # whence a bucket has its state, until its first update
        self.before: Callable[[], None] = lambda: None  # waits until parameters and their state may change

    @property
    def rate(self) -> float | None:
        """Returns the learning rate of the first group here, with which this step's gradients are applied."""
        for bucket, optimizer in self.optimizers.items():
            late = any(flat.bucket == bucket for flat in self._sync.left())
            return _rate(optimizer) if late else self._rates.get(bucket)
        return None

    def begin(self) -> None:
        """Starts a step of gradient sums and updates."""
        self._sync.begin()
        if self.previous is not None:
            self.previous.begin()
        self._prepared = self._skipped = False

    def catch_up(self, steps: int) -> None:
        """Moves learning rates to where they stand after some steps.

        Args: `steps` were done before, by an earlier run.
        """
        for bucket in self.optimizers:
            self._advance(bucket, steps, quietly=True)

    def _advance(self, bucket: Bucket, steps: int, quietly: bool) -> None:
        self._updates[bucket] += steps
        with warnings.catch_warnings() if quietly else nullcontext():
            if quietly:  # torch warns of a schedule that moves where its optimizer has not
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for _ in range(steps if bucket in self._schedules else 0):
                self._schedules[bucket].step()

    def launch(self, pipe: int, stage: int) -> None:
        """Does a SYNC: starts the sums of buckets that are complete with this stage of this rank."""
        self._sync.launch((pipe, stage))

    def wait(self, pipe: int, stage: int) -> None:
        """Waits for what a STEP needs: the stage's sums, or all sums where the step's norm or count is needed.

        Args: `pipe` and `stage` live on this rank.
        Raises: NotFinite where the norm of all gradients is not finite, or the loss counted nothing.
        """
        if self._prepared or not (self._clip_norm or self._count or self._scaler):
            self._sync.wait(self._sync.due((pipe, stage)))
        else:
            self._prepare()

    def step(self, pipe: int, stage: int) -> None:
        """Does a STEP: updates the buckets of this stage that are due."""
        for flat in self._sync.due((pipe, stage)):
            self._update(flat)

    def settle(self) -> None:
        """Makes the updates that the next step would have made where it needs them, so that weights are up to date."""
        for flat in self._sync.left():
            self._update(flat)

    def _update(self, flat: AnyFlat) -> None:
        """Updates one bucket; a step that is left out counts for learning rates too."""
        self._sync.wait([flat])
        self.before()
        if self.previous is not None:
            self.previous.clip(flat)
        optimizer = self.optimizers.get(flat.bucket)
        if optimizer is not None:
            self._apply(optimizer, flat.bucket)
        if not self._skipped:
            self._sync.hand_round(flat)
            flat.publish()
        if self.averages is not None:
            self.averages.update(flat)
        self._advance(flat.bucket, 1, quietly=self._skipped)
        self._sync.updated(flat)

    def _apply(self, optimizer: torch.optim.Optimizer, bucket: Bucket) -> None:
        """Updates a bucket unless the step is left out; the first update shows whether its given state can be used.

        Raises: BadInput where it cannot.
        """
        given = self.given.get(bucket, "")
        try:
            self._rates[bucket] = _rate(optimizer)
            if not self._skipped:
                with self._draws(bucket.names[0], self._updates[bucket]):
                    optimizer.step()
                self.given.pop(bucket, None)
        except (LookupError, RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
            if not given:
                raise
            raise BadInput(
                f"the optimizer cannot go on from its state there: {type(error).__name__}: {error}",
                where=given,
                allowed="a checkpoint of a training with this optimizer, or weights alone",
            ) from error

    def _prepare(self) -> None:
        """Works out what needs the whole step: the number of what the loss is a mean of, and the norm.

        The norm is that of `clip_grad_norm_` over the whole model: a parameter counts once, on the first of
        its holders.
        """
        self._sync.wait(self._sync.flats)
        self._prepared = True
        square, count = self._totals()
        divisor = self._scaler.scale if self._scaler is not None else 1.0
        if self._count is not None:
            if count == 0:
                raise NotFinite("the loss counted nothing in this step: its mean is not defined")
            divisor *= count
        self.norm = math.sqrt(square) / divisor
        finite = math.isfinite(self.norm)
        if self._scaler is not None:
            self._scaler.update(finite)
            self._skipped = not finite
        elif not finite:
            raise NotFinite(f"the norm of all gradients is {self.norm}")
        self._divide(divisor)
        if self._clip_norm is not None:
            self._divide(too_long_by(self.norm, self._clip_norm))

    def _totals(self) -> tuple[float, float]:
        for flat in self._sync.flats:
            self._squares.take(flat)
        count = torch.tensor([self._count() if self._count is not None else 0.0], dtype=torch.float64)
        totals = torch.cat([count, self._squares.table.cpu()])
        if self._world is not None:
            dist.all_reduce(totals, group=self._world)
        return float(totals[1:].sum()), float(totals[0])

    def _divide(self, by: float) -> None:
        for flat in self._sync.flats if by != 1.0 else ():
            flat.grads.div_(by)


def _rate(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0].get("lr", math.nan))


def made(make: Make, pieces: Sequence[OwnPart]) -> torch.optim.Optimizer | None:
    """Returns the user's optimizer; None where it is for some of the model's parameters, of which none are here.

    It is made for whole parameters, since it may group them by name, dims or size. Where only some entries of one are
    updated, a tensor of these then takes the parameter's place, and state that it has already goes along.
    """
    named = [(piece.name, piece.tensor if piece.whole is None else piece.whole) for piece in pieces]
    try:
        optimizer = make(named)  # type: ignore[arg-type]
    except BadInput as failure:
        if not of_nothing(failure):
            raise
        return None
    with_parts(
        optimizer, {id(x.whole): (x.tensor, partial(_taken, x)) for x in pieces if x.whole is not None}
    )
    return optimizer


def _taken(piece: OwnPart, every: Tensor) -> Tensor:
    """Returns the entries here of a tensor as large as the parameter that an optimizer was made for.

    Raises: BadInput where the optimizer has them from the parameter, whose numbers it must not read yet.
    """
    if piece.take is None:
        found = every.reshape(-1)[piece.start : piece.stop].clone().view(piece.tensor.shape)
    else:
        found = piece.take(every)
    if found.is_floating_point() and found.isnan().any():
        raise BadInput(
            f"the optimizer keeps numbers of '{piece.name}' when it is made, and no rank has that whole then",
            allowed="an optimizer that reads parameters in step() alone, or ranks that share none of them",
        )
    return found


@dataclass(frozen=True)
class SavedState:
    """Optimizer state by parameter name: tensors, other state, and the options of the parameter's group."""

    tensors: dict[str, dict[str, Tensor]]
    settings: dict[str, Settings]  # name -> "group" | "state" -> key -> plain value


def state_of(optimizers: Mapping[Bucket, torch.optim.Optimizer], flats: Sequence[AnyFlat]) -> SavedState:
    """Returns the state of this rank's optimizers, by parameter name.

    Args: `flats` are the rank's buckets.
    Returns: views of the tensors, not copies.
    Raises: BadInput where a state has more than tensors, numbers, flags and texts.
    """
    saved = SavedState({}, {})
    for group, name, _, state in _members(optimizers, flats):
        saved.tensors[name] = {key: x.detach() for key, x in state.items() if isinstance(x, Tensor)}
        plain = {key: x for key, x in state.items() if is_plain(x)}
        if len(plain) + len(saved.tensors[name]) < len(state):
            raise BadInput(f"the optimizer's state of '{name}' has more than tensors and numbers")
        options = {key: value for key, value in group.items() if is_plain(value)}
        saved.settings[name] = {"group": options, "state": plain}
    return saved


def load_state(
    optimizers: Mapping[Bucket, torch.optim.Optimizer], flats: Sequence[AnyFlat], saved: SavedState
) -> None:
    """Puts saved state into this rank's optimizers; `saved` may have more parameters than are here, or fewer."""
    for group, name, parameter, state in _members(optimizers, flats):
        settings = saved.settings.get(name, {})
        options = settings.get("group", {}).items()
        group.update({k: tuple(v) if isinstance(v, list) else v for k, v in options})
        for key, value in saved.tensors.get(name, {}).items():
            own = key == "step" and not group.get("capturable") and not group.get("fused")  # of the host
            state[key] = value.to(value.device if own else parameter.device, copy=True)
        state.update(settings.get("state", {}))


def _members(
    optimizers: Mapping[Bucket, torch.optim.Optimizer], flats: Sequence[AnyFlat]
) -> Iterator[tuple[dict[str, object], str, Tensor, dict[str, object]]]:
    """Yields group, name, the parameter itself and state of every parameter that is updated here."""
    for flat in flats:
        optimizer = optimizers.get(flat.bucket)
        names = {id(piece.tensor): piece.name for piece in flat.pieces()}
        for group in optimizer.param_groups if optimizer else ():
            for parameter in group["params"]:
                yield group, names[id(parameter)], parameter, optimizer.state[parameter]  # type: ignore[union-attr]
