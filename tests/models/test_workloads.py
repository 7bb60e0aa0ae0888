"""What holds for every reference model: each is a workload file, and exports as it is."""

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves, tree_map

from models import bert, cosmoflow, gpt2, lstm, mlp, mobilenetv3, resnet50, unet3d


class Workload(NamedTuple):
    module: ModuleType
    settings: dict[str, object]


TINY = [
    Workload(gpt2, {"size": "tiny", "seq": 16}),
    Workload(gpt2, {"size": "tiny", "seq": 16, "dropout": 0.1}),
    Workload(bert, {"size": "tiny", "seq": 16}),
    Workload(resnet50, {"width": 8, "side": 64, "classes": 10}),
    Workload(mobilenetv3, {"size": "small", "side": 64, "classes": 10}),
    Workload(unet3d, {"size": "tiny"}),
    Workload(cosmoflow, {"size": "tiny"}),
    Workload(lstm, {"size": "tiny"}),
    Workload(mlp, {"width": 16}),
]
MODULES = sorted({workload.module.__name__: workload.module for workload in TINY}.items())
SIZES = [Workload(module, {"size": size}) for _, module in MODULES for size in getattr(module, "SIZES", {})]

# torch.export says so of every nn.LSTM, restores the attributes itself, and exports it rightly.
ignore_flat_weights = pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")


def _title(workload: Workload) -> str:
    return "-".join([workload.module.__name__.removeprefix("models."), *map(str, workload.settings.values())])


def _call(function: Callable[..., Any], settings: dict[str, object], *args: object) -> Any:
    """As `--set` does it: a function gets the settings that it names."""
    named = inspect.signature(function).parameters
    return function(*args, **{name: value for name, value in settings.items() if name in named})


def _build(workload: Workload) -> nn.Module:
    model: nn.Module = _call(workload.module.build, workload.settings)
    return model


def _batch(workload: Workload, n: int) -> Any:
    return _call(workload.module.batch, workload.settings, n)


def _as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def _run(model: nn.Module, inputs: Any) -> Any:
    args, kwargs = _as_arguments(inputs)
    return model(*args, **kwargs)


def _mean_loss(workload: Workload, outputs: Any, targets: Any) -> Tensor:
    error = workload.module.loss(outputs, targets)
    mean: Tensor = error[0] / error[1] if isinstance(error, tuple) else error
    return mean


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("workload", TINY, ids=_title)
def test_every_parameter_gets_a_finite_gradient_that_is_not_all_zero(workload: Workload) -> None:
    model = _build(workload)
    inputs, targets = _batch(workload, 3)
    _mean_loss(workload, _run(model, inputs), targets).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@ignore_flat_weights
@pytest.mark.parametrize("workload", TINY, ids=_title)
def test_the_export_with_a_symbolic_batch_has_the_outputs_of_the_module_to_the_bit(
    workload: Workload,
) -> None:
    model = _build(workload)
    args, kwargs = _as_arguments(_batch(workload, 2)[0])
    batch_dim = Dim("batch", min=2)
    dynamic_shapes = tree_map(lambda _: {0: batch_dim}, kwargs or args)
    program = export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)

    inputs, _ = _batch(workload, 3)
    torch.manual_seed(1)
    expected = _run(model, inputs)
    torch.manual_seed(1)
    actual = _run(program.module(), inputs)
    assert all(map(torch.equal, tree_leaves(actual), tree_leaves(expected)))


@pytest.mark.parametrize(("name", "module"), MODULES)
def test_the_defaults_fit_together(name: str, module: ModuleType) -> None:
    workload = Workload(module, {})
    with FakeTensorMode():
        inputs, targets = _batch(workload, 2)
        assert _mean_loss(workload, _run(_build(workload), inputs), targets).shape == ()


@pytest.mark.parametrize("workload", SIZES, ids=_title)
def test_every_size_runs_without_allocating(workload: Workload) -> None:
    with torch.device("meta"):
        inputs, targets = _batch(workload, 2)
        error = _mean_loss(workload, _run(_build(workload), inputs), targets)
    assert error.is_meta
    assert error.shape == ()


@pytest.mark.parametrize("workload", TINY, ids=_title)
def test_a_batch_has_its_size_first_and_owns_its_memory(workload: Workload) -> None:
    for tensor in tree_leaves(_batch(workload, 5)):
        assert tensor.shape[0] == 5
        assert tensor.is_contiguous()


@pytest.mark.parametrize("workload", TINY, ids=_title)
def test_the_mean_over_a_batch_is_that_over_its_micro_batches(workload: Workload) -> None:
    model = _build(workload).eval()
    inputs, targets = _batch(workload, 4)
    with torch.no_grad():
        outputs = _run(model, inputs)
    halves = [tree_map(lambda t, i=i: t[2 * i : 2 * i + 2], (outputs, targets)) for i in range(2)]
    errors = [workload.module.loss(*half) for half in halves]
    if isinstance(errors[0], tuple):
        mean = sum(error for error, _ in errors) / sum(count for _, count in errors)
    else:
        mean = sum(errors) / 2
    torch.testing.assert_close(mean, _mean_loss(workload, outputs, targets))


@pytest.mark.parametrize("workload", [w for w in TINY if hasattr(w.module, "optimizer")], ids=_title)
def test_the_optimizer_steps_every_parameter_once(workload: Workload) -> None:
    model = _build(workload)
    optimizer = workload.module.optimizer(model.named_parameters())
    stepped = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(stepped) == sorted(map(id, model.parameters()))


@pytest.mark.parametrize(("name", "module"), [(n, m) for n, m in MODULES if hasattr(m, "SIZES")])
def test_an_unknown_size_is_answered_with_the_sizes_there_are(name: str, module: ModuleType) -> None:
    with pytest.raises(ValueError, match="size='huge': choose one of ") as error:
        module.build(size="huge")
    assert all(size in str(error.value) for size in module.SIZES)
