"""Live models that nobody could build again on a rank train as they stand, or are refused by the path of what hinders."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from planner.capture import LiveLoop, capture
from planner.capture.live import recipe_of
from planner.errors import BadInput
from runtime.data.live import Loaded, _loader, live_workload
from runtime.launch import launch_inline
from tests.runtime.plans import plan_for

PAIR = (
    torch.randn(4, 6, generator=torch.Generator().manual_seed(1)),
    torch.randint(3, (4,), generator=torch.Generator().manual_seed(2)),
)
LOOP = LiveLoop(optimizer=functools.partial(torch.optim.SGD, lr=0.1))
Change = Callable[[nn.Sequential], object]


def base() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))


class Calls(nn.Module):
    """A layer that calls a function of the notebook."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Adapter(nn.Module):
    """A frozen layer with a small one beside it, as LoRA adds."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(self.down(x))
        return self.inner(x) + added  # type: ignore[no-any-return]


class Through(nn.Module):
    """Has what its inner module has, by a lookup of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> object:  # type: ignore[override]
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


def put(place: int, make: Callable[[nn.Module], nn.Module]) -> Change:
    def change(model: nn.Sequential) -> None:
        model[place] = make(model[place])

    return change


def tie(model: nn.Sequential) -> None:
    model[2].weight = model[0].weight


def replace_forward(model: nn.Sequential) -> None:
    old = model[2].forward
    model[2].forward = lambda x: 3 * old(x)


scale = torch.rand(6)
TRAIN: dict[str, Change] = {
    "lambda": put(1, lambda _: Calls(lambda x: 2 * x.relu())),
    "closure over a tensor": put(1, lambda _: Calls(lambda x: scale * x)),
    "closure over a module": put(2, lambda inner: Calls(lambda x: inner(x).sin())),
    "forward hook": lambda m: m[0].register_forward_hook(lambda *row: 1.5 * row[2]),
    "hook before forward": lambda m: m[2].register_forward_pre_hook(lambda _, given: (given[0] + 1,)),
    "weight norm": lambda m: nn.utils.parametrizations.weight_norm(m[2]),
    "spectral norm": lambda m: nn.utils.parametrizations.spectral_norm(m[2]),
    "parametrization": lambda m: nn.utils.parametrize.register_parametrization(m[2], "weight", Symmetric()),
    "pruned": lambda m: prune.l1_unstructured(m[2], "weight", 0.5),
    "lookups of its own": put(2, Through),
    "adapter": put(2, Adapter),  # type: ignore[arg-type]
    "exchanged layer": put(1, lambda _: nn.GELU()),
    "tied afterwards": tie,
    "frozen part": lambda m: m[0].requires_grad_(False),
    "another type of numbers": lambda m: m.double(),
    "forward replaced": replace_forward,
    "gradients left from before": lambda m: nn.functional.cross_entropy(m(PAIR[0]), PAIR[1]).backward(),
    "in evaluation mode": lambda m: m.eval(),
}


@pytest.mark.parametrize("name", TRAIN)
def test_a_model_that_was_changed_trains_as_it_stands(name: str, tmp_path: Path) -> None:
    model, twin = base(), base()
    for each in (model, twin):
        torch.manual_seed(1)
        TRAIN[name](each)
    before = copy.deepcopy(dict(model.state_dict()))
    pair = (PAIR[0].to(next(model.parameters()).dtype), PAIR[1])
    workload = live_workload(model, pair, nn.functional.cross_entropy, None, LOOP, tmp_path / "m.model")
    plan = plan_for(capture(workload).graph, workload.name, workers=1, micros=1, micro=4)
    found = launch_inline(plan, tmp_path / "run", steps=3).losses
    trained = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.SGD(trained, lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(twin.train()(pair[0]), pair[1])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert list(found.values()) == pytest.approx(losses, rel=1e-5)
    assert all(torch.equal(x, before[key]) for key, x in model.state_dict().items())


class Logs(nn.Module):
    def __init__(self, log: IO[str], inner: nn.Module) -> None:
        super().__init__()
        self.log, self.inner = log, inner

    def forward(self, x: Tensor) -> Tensor:
        self.log.write("called\n")
        return self.inner(x)  # type: ignore[no-any-return]


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.clamp(-1, 1)


FILES = ExitStack()


def opened() -> IO[str]:
    return FILES.enter_context(Path("log").open("w"))


@pytest.fixture(autouse=True)
def _files_are_closed() -> Iterator[None]:
    with FILES:
        yield


def share(model: nn.Sequential) -> None:
    model[2].weight.data = model[0].weight.data


def inferred(model: nn.Sequential) -> None:
    with torch.inference_mode():
        model[2] = nn.Linear(6, 6)


elsewhere = torch.rand(6, device="meta")  # stands for a tensor on a GPU
REFUSED: dict[str, tuple[Change, str]] = {
    "open file": (put(2, lambda inner: Logs(opened(), inner)), r"'2\.log' \(a file at"),
    "counter": (put(1, lambda _: Counts()), r"changes '1\.calls'"),
    "tensor elsewhere": (put(1, lambda _: Calls(lambda x: elsewhere * x)), "module '1'.*two devices"),
    "own backward": (put(1, lambda _: Calls(Clip.apply)), "module '1': 'Clip', code of yours"),
    "hook on gradients": (
        lambda m: m[2].register_full_backward_hook(lambda *row: row[1]),
        "module '2' has a hook on its gradients",
    ),
    "hook of a parameter": (
        lambda m: m[2].weight.register_hook(lambda gradient: gradient / 2),
        r"the gradient of parameter '2\.weight' has a hook",
    ),
    "two in one memory": (
        share,
        r"parameters '0\.weight' and '2\.weight' are two and lie in the same memory",
    ),
    "no values": (lambda m: m[2].to("meta"), r"parameter '2\.weight' is on the meta device"),
    "made for inference": (inferred, r"parameter '2\.weight' was made under torch\.inference_mode"),
    "lazy": (put(2, lambda _: nn.LazyLinear(6)), "module '2' is lazy"),
    "compiled to TorchScript": (put(2, lambda inner: torch.jit.script(inner)), "module '2' is TorchScript"),
    "one part in evaluation mode": (lambda m: m[2].eval(), "module '2' is in evaluation mode"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_plan_would_not_do_is_refused_by_its_path_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change, words = REFUSED[name]
    model = base()
    change(model)
    with pytest.raises(BadInput, match=words):
        live_workload(model, PAIR, nn.functional.cross_entropy, None, LOOP, tmp_path / "m.model")
    assert not (tmp_path / "m.model").exists()


def clip(*given: object) -> None:
    """A hook, which does nothing."""


def sgd(module: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9)


def replace_step(optimizer: Any) -> None:
    old = optimizer.step
    optimizer.step = lambda closure=None: old(closure)


HOOKED: dict[str, tuple[Callable[[Any], object], str]] = {
    "before a step": (
        lambda o: o.register_step_pre_hook(clip),
        r"hook 'clip' \(register_step_pre_hook\).*clip_norm=.*callbacks=.*module file",
    ),
    "after a step": (lambda o: o.register_step_post_hook(clip), r"'clip' \(register_step_post_hook\)"),
    "another step": (replace_step, r"step\(\) was replaced by '<lambda>'"),
    "a schedule": (lambda o: lr_scheduler.StepLR(o, 2), "schedule .* is attached.*as lr_schedule="),
}


@pytest.mark.parametrize("name", HOOKED)
def test_what_hangs_on_an_optimizer_is_refused(name: str) -> None:
    module = base()
    optimizer = sgd(module)
    assert recipe_of(LiveLoop(optimizer=optimizer), module)
    HOOKED[name][0](optimizer)
    with pytest.raises(BadInput, match=HOOKED[name][1]):
        recipe_of(LiveLoop(optimizer=optimizer), module)


def test_hooks_of_all_optimizers_are_refused() -> None:
    hook = register_optimizer_step_post_hook(clip)
    try:
        with pytest.raises(BadInput, match=r"'clip' \(register_optimizer_step_post_hook\)"):
            recipe_of(LOOP, base())
    finally:
        hook.remove()
    assert recipe_of(LOOP, base())


def test_an_optimizer_whose_schedule_is_passed_begins_with_the_rates_from_before_it() -> None:
    module = base()
    optimizer = sgd(module, lr=0.3)
    lr_scheduler.LinearLR(optimizer, start_factor=0.1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.03)
    recipe = recipe_of(LiveLoop(optimizer=optimizer, lr_schedule=lr_scheduler.LinearLR), module)
    assert recipe["optimizer"]["groups"][0]["options"]["lr"] == 0.3


SCHEDULES: dict[str, tuple[Any, str]] = {
    "a function as setting": (
        functools.partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 1.0),
        r"lr_lambda=.*module file, whose lr_schedule\(\) may take functions",
    ),
    "a factory": (
        lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
        r"is a function.*module file, whose lr_schedule\(\) may call any function",
    ),
    "an object": (lr_scheduler.StepLR(sgd(base()), 2), r"partial\(StepLR, its settings by name\)"),
    "by a metric": (functools.partial(lr_scheduler.ReduceLROnPlateau, patience=1), "StepLR"),
    "an object by a metric": (lr_scheduler.ReduceLROnPlateau(sgd(base())), "asks for a metric"),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_cannot_travel_is_refused_with_what_to_do(name: str) -> None:
    schedule, words = SCHEDULES[name]
    with pytest.raises(BadInput, match=words):
        recipe_of(LiveLoop(lr_schedule=schedule), base())


class Scaled(DataLoader[Any]):
    def __iter__(self) -> Any:
        for inputs, targets in super().__iter__():
            yield 10 * inputs, targets


class Named(DataLoader[Any]):
    """A loader with nothing but a name of its own."""


LOADERS: dict[str, tuple[Callable[[], DataLoader[Any]], str]] = {
    "its own batches": (
        lambda: Scaled(TensorDataset(*PAIR), batch_size=2),
        "loader is a Scaled with __iter__ of its own.*collate_fn",
    ),
    "set in its workers": (
        lambda: DataLoader(TensorDataset(*PAIR), batch_size=2, num_workers=1, worker_init_fn=clip),
        "worker_init_fn.*seeds are set",
    ),
    "batches of several sizes": (
        lambda: DataLoader(TensorDataset(*PAIR), batch_sampler=[[0], [1, 2], [3]]),
        "batches of 1, 2 samples.*one size",
    ),
    "no batches": (lambda: DataLoader(TensorDataset(*PAIR), batch_size=None), "batch_size=None"),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_that_does_what_no_rank_would_do_is_refused(name: str, tmp_path: Path) -> None:
    make, words = LOADERS[name]
    with pytest.raises(BadInput, match=words):
        live_workload(base(), None, nn.functional.cross_entropy, make(), LOOP, tmp_path / "m.model")
    assert not (tmp_path / "m.model").exists()


def test_sizes_of_batches_are_looked_at_to_the_end_and_the_samplers_numbers_stay() -> None:
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    order = RandomSampler(range(2000), generator=generator)

    class Buckets(BatchSampler):
        def __iter__(self) -> Any:
            yield from list(super().__iter__())[:-1]
            yield from ([0, 1], [2])

    loader = DataLoader(TensorDataset(torch.zeros(2000)), batch_sampler=Buckets(order, 1, False))
    assert Loaded(loader).sizes() == 1999 * [1] + [2, 1]
    assert torch.equal(generator.get_state(), before)


def test_a_loader_of_another_name_and_what_no_worker_calls_are_taken() -> None:
    for loader in (Named(TensorDataset(*PAIR)), DataLoader(TensorDataset(*PAIR), worker_init_fn=clip)):
        assert _loader(loader, "loader") is loader


def test_a_live_model_is_told_of_a_module_file_for_opaque_modules(tmp_path: Path) -> None:
    def jump(x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x

    model = base()
    model[1] = Calls(jump)
    with pytest.raises(BadInput, match=r"opaque = \['1'\] in a module file"):
        live_workload(model, PAIR, nn.functional.cross_entropy, None, LOOP, tmp_path / "m.model")
