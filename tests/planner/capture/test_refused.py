"""What cannot be captured is refused with the user's own line, and what was allowed."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.capture import capture
from planner.errors import BadInput
from planner.workload import load


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if y.sum() > 0:
            y = y * 2
        return y


class Loops(Branches):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.abs().max())):
            x = x + 1
        return self.a(x)


class Conditional(Branches):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * 2.0, lambda y: y - 1.0, (self.a(x),))


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.randn(n, 3)


def line_of(function: Callable[..., object], text: str) -> str:
    lines, start = inspect.getsourcelines(function)
    return f"{__file__}:{start + next(i for i, line in enumerate(lines) if text in line)}"


@pytest.mark.parametrize(
    ("forward", "cured"),
    [
        (
            lambda self, x: torch.nested.nested_tensor([self.a(row) for row in x]).to_padded_tensor(0.0),
            "padded",
        ),
        (lambda self, x: self.a(x) + torch.rand(1, generator=self.own), "own generator"),
        (lambda self, x: self.a(x) if torch.rand([]) < self.layerdrop else self.a(x) * 2, "layerdrop=0"),
    ],
)
def test_what_is_known_to_fail_says_what_to_change(forward: Callable[..., Tensor], cured: str) -> None:
    class Known(Branches):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.layerdrop = torch.Generator(), 0.5

    Known.forward = forward  # type: ignore[method-assign]
    with pytest.raises(BadInput) as caught:
        capture(Known(), batch, F.mse_loss)
    assert cured in caught.value.allowed


def test_a_refusal_names_the_module_and_takes_it_as_opaque() -> None:
    with pytest.raises(BadInput) as caught:
        capture(nn.Sequential(nn.Linear(4, 4), Branches()), batch, F.mse_loss)
    assert "module '1'" in caught.value.what and "opaque = ['1']" in caught.value.allowed


def test_a_module_of_torchscript_is_refused_by_its_path() -> None:
    with pytest.deprecated_call():
        scripted = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 3)))
    with pytest.raises(BadInput, match="module '1' is TorchScript"):
        capture(scripted, batch, F.mse_loss)


def test_a_branch_on_a_tensor_names_its_line_and_the_ways_out() -> None:
    with pytest.raises(BadInput) as caught:
        capture(Branches(), batch, F.mse_loss)
    assert caught.value.where == line_of(Branches.forward, "if y.sum()")
    assert "values of tensors in `if y.sum() > 0:`" in caught.value.what
    assert "only settings" in caught.value.allowed


def test_a_loop_over_a_tensor_names_its_line() -> None:
    with pytest.raises(BadInput) as caught:
        capture(Loops(), batch, F.mse_loss)
    assert caught.value.where == line_of(Loops.forward, "for _ in")


def test_an_operator_that_branches_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="'cond' decides while it runs"):
        capture(Conditional(), batch, F.mse_loss)


def loss_of_other_rows(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


BAD_BATCHES: dict[str, tuple[Callable[[int], tuple[object, object]], str]] = {
    "the same for every n": (lambda n: (torch.randn(2, 4), torch.randn(2, 3)), "the same shapes"),
    "another nesting": (lambda n: (torch.randn(n, 4), [torch.randn(n, 3)] * n), "another nesting"),
    "another type": (
        lambda n: (torch.randn(n, 4), torch.zeros(n, 3, dtype=[torch.int, torch.long][n % 2])),
        "target",
    ),
    "shrinking": (lambda n: (torch.randn(n, 4), torch.randn(9 - n, 3)), "dim 0 of target"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_batch_that_does_not_grow_with_n_is_refused(name: str) -> None:
    bad, words = BAD_BATCHES[name]
    with pytest.raises(BadInput, match=words):
        capture(nn.Linear(4, 3), bad, F.mse_loss)


def test_shapes_of_inputs_and_targets_that_disagree_name_the_line_of_the_loss() -> None:
    def bad(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 4), torch.randint(3, (n + 1,))

    with pytest.raises(BadInput) as caught:
        capture(nn.Linear(4, 3), bad, loss_of_other_rows)
    assert caught.value.where == line_of(loss_of_other_rows, "F.cross_entropy")


@pytest.mark.parametrize("rows", [lambda n: n + 1, lambda n: 2 * n], ids=["one more", "twice as many"])
def test_targets_that_would_broadcast_against_one_sample_are_refused_for_one_sample_too(
    rows: Callable[[int], int],
) -> None:
    def bad(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 4), torch.randn(rows(n), 3)

    with pytest.raises(BadInput, match=r"dim 0 of target is .* for n=2 and .* for n=3"):
        capture(nn.Linear(4, 3), bad, lambda y, t: (y - t).pow(2).mean(), micro=1)


def test_inputs_by_wrong_names_are_told_how_they_are_given() -> None:
    with pytest.raises(BadInput, match="a dictionary by the names of its arguments"):
        capture(nn.Linear(4, 3), lambda n: ({"z": torch.randn(n, 4)}, torch.randn(n, 3)), F.mse_loss)


def test_a_loss_without_gradient_is_refused() -> None:
    with pytest.raises(BadInput, match="the loss has no gradient"):
        capture(nn.Linear(4, 3), batch, lambda y, t: F.mse_loss(y, t).detach())


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, t: (y - t).pow(2).mean(1),
        lambda y, t: (y.sum(), y.mean(), t.mean()),
        lambda y, t: 3.0,
        lambda y, t: {"loss": y.mean()}["loss"].reshape(1),
    ],
    ids=["a loss a sample", "three numbers", "no tensor", "a vector of one"],
)
def test_a_loss_that_cannot_be_summed_over_micro_batches_is_refused(loss: Callable[..., object]) -> None:
    with pytest.raises(BadInput, match="loss"):
        capture(nn.Linear(4, 3), batch, loss)


def test_a_module_without_batch_is_refused() -> None:
    with pytest.raises(BadInput, match="batch and loss"):
        capture(nn.Linear(4, 3))


@pytest.mark.parametrize(
    "example", [3, (torch.zeros(()), None), (torch.zeros(2, 4),)], ids=["3", "scalar", "one"]
)
def test_an_example_without_samples_is_refused(example: object) -> None:
    with pytest.raises(BadInput, match="batch"):
        capture(nn.Linear(4, 3), example, F.mse_loss)  # type: ignore[arg-type]


def test_a_failed_capture_leaves_the_module_as_it_was() -> None:
    module = Branches().eval()
    with pytest.raises(BadInput):
        capture(module, batch, F.mse_loss)
    assert not any(part.training for part in module.modules())


class HooksATensor(Branches):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 0.1)
        return y


HOOKS: dict[str, tuple[Callable[[nn.Linear], object], str]] = {
    "of a parameter": (
        lambda a: a.weight.register_hook(lambda g: g * 2),
        r"'1.weight' has .*\(register_hook\)",
    ),
    "of what a parameter has summed": (
        lambda a: a.bias.register_post_accumulate_grad_hook(lambda p: None),
        r"'1.bias' has .*\(register_post_accumulate_grad_hook\)",
    ),
    "of a module": (
        lambda a: a.register_full_backward_hook(lambda m, given, made: None),
        r"module '1' has .*\(register_full_backward_hook\)",
    ),
    "before a module": (
        lambda a: a.register_full_backward_pre_hook(lambda m, made: None),
        r"module '1' has .*\(register_full_backward_pre_hook\)",
    ),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_on_gradients_is_refused_by_what_has_it(hook: str) -> None:
    register, said = HOOKS[hook]
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    register(module[1])  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=said) as caught:
        capture(module, batch, F.mse_loss)
    assert "autograd.Function" in caught.value.allowed


def test_a_hook_that_forward_registers_is_refused_with_its_line() -> None:
    with pytest.raises(BadInput, match=r"forward\(\) registers a hook") as caught:
        capture(HooksATensor(), batch, F.mse_loss)
    assert caught.value.where == line_of(HooksATensor.forward, "y.register_hook")
    torch.ones(1, requires_grad=True).register_hook(lambda gradient: gradient)  # allowed again


def test_a_hook_inside_of_an_opaque_module_is_its_own() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    module[1].register_full_backward_hook(lambda m, given, made: None)
    assert "1" in capture(module, batch, F.mse_loss, opaque=["1"]).graph.index


class Freezes(Branches):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.b, self.how = nn.Linear(3, 3), how

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if self.how == "set":
            self.b.weight.requires_grad = False  # set
        elif self.how == "parameter":
            self.b.weight.requires_grad_(False)
        else:
            self.b.requires_grad_(False)
        y = self.b(y)
        self.b.requires_grad_(True)
        return y


@pytest.mark.parametrize(
    ("how", "line"),
    [("set", "# set"), ("parameter", "weight.requires_grad_(False)"), ("module", "b.requires_grad_(False)")],
)
def test_a_forward_that_turns_a_gradient_off_is_refused_by_parameter_and_line(how: str, line: str) -> None:
    with pytest.raises(BadInput, match=r"turns requires_grad of parameter 'b.weight' off") as caught:
        capture(Freezes(how), batch, F.mse_loss)
    assert caught.value.where == line_of(Freezes.forward, line)
    assert "detach()" in caught.value.allowed


class Thaws(Branches):
    def forward(self, x: Tensor) -> Tensor:
        self.a.requires_grad_(True)
        x = x.clone().requires_grad_(True)
        return self.a(x.requires_grad_(True))


def test_a_forward_that_turns_gradients_on_is_captured() -> None:
    assert capture(Thaws(), batch, F.mse_loss).graph.parameters


class Counts(Branches):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.count, self.seen = how, 0, [1.0]

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "list":
            self.seen.append(2.0)
            return self.a(x) * len(self.seen)
        if self.how == "once":
            y = self.a(x) if self.count else x.sum() + self.a(x)
            self.count = 1
            return y
        self.count += 1
        return self.a(x) * self.count


@pytest.mark.parametrize(("how", "name"), [("counts", "count"), ("list", "seen"), ("once", "count")])
def test_a_forward_that_changes_a_number_of_its_module_is_refused_by_its_name(how: str, name: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), Counts(how))
    with pytest.raises(BadInput, match=rf"changes '1\.{name}'") as caught:
        capture(module, batch, F.mse_loss)
    assert "register_buffer" in caught.value.allowed
    assert (module[1].count, module[1].seen) == (0, [1.0])


class Keeps(Branches):
    """Moving averages, as quantizers have them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.mean: Tensor
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "reads":
            return self.a(x) + F.linear(x, self.a.weight.data)  # reads
        if self.how == "writes":
            self.mean.data.mul_(0.9).add_(self.a(x).detach().mean(0))  # writes
        else:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(self.a(x).mean(0))
            return self.a(x) + F.linear(x, self.a.weight.detach())
        return self.a(x) + self.mean


@pytest.mark.parametrize("how", ["reads", "writes"])
def test_the_data_of_a_weight_or_buffer_is_refused_with_its_line(how: str, tmp_path: Path) -> None:
    path = tmp_path / "keeps.py"
    path.write_text(
        "from tests.planner.capture.test_refused import Keeps, batch\nfrom torch.nn.functional import mse_loss as loss\n"
        f"def build(how={how!r}):\n    return Keeps(how)\n"
    )
    with pytest.raises(BadInput, match=r"'\.data'") as caught:
        capture(load(str(path)))
    assert caught.value.where == line_of(Keeps.forward, f"# {how}")
    assert "detach()" in caught.value.allowed
    with pytest.raises(BadInput, match=r"'\.data'"):
        capture(Keeps(how), batch, F.mse_loss)
    assert capture(load(str(path), {"how": "instead"})).graph.buffer["mean"].mutated


class Draws(Branches):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        if self.how == "random":
            return y * random.random()
        if self.how == "numpy.random":
            return y + torch.from_numpy(np.random.rand(3).astype("float32"))
        return y * torch.rand(())


@pytest.mark.parametrize("how", ["random", "numpy.random"])
def test_numbers_that_python_or_numpy_draws_in_forward_are_refused(how: str) -> None:
    with pytest.raises(BadInput, match=f"forward\\(\\) draws from '{how}'") as caught:
        capture(Draws(how), batch, F.mse_loss)
    assert "torch.rand" in caught.value.allowed
    assert caught.value.where == line_of(Draws.forward, "* random.random()")
    with pytest.raises(BadInput, match=f"forward\\(\\) draws from '{how}'"):
        capture(nn.Sequential(Draws(how)), batch, F.mse_loss, opaque=["0"])
    assert "a" in capture(Draws("torch"), batch, F.mse_loss).graph.index


class Maps(Branches):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.vmap(self.a)(x)  # maps
        return made


def test_what_holds_inside_of_vmap_alone_is_refused_with_its_line() -> None:
    with pytest.raises(BadInput, match="does not run operation by operation") as caught:
        capture(Maps(), batch, F.mse_loss)
    assert caught.value.where == line_of(Maps.forward, "# maps")
    assert "torch.vmap" in caught.value.allowed


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full((x.shape[0],), 1)
        packed = nn.utils.rnn.pack_padded_sequence(x[:, None], lengths, batch_first=True)
        made, _ = nn.utils.rnn.pad_packed_sequence(self.a(packed)[0], batch_first=True)
        return made[:, 0]


class Nests(Branches):
    def forward(self, x: Tensor) -> Tensor:
        nested = torch.nested.nested_tensor([x[0], x[1]])
        return self.a(nested.to_padded_tensor(0))


class Penalty(Branches):
    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_(True)
        y: Tensor = self.a(x)
        return y + torch.autograd.grad(y.sum(), x, create_graph=True)[0].sum()  # penalty


class Unrolled(Branches):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x[:, None], torch.ones(len(x)), batch_first=True)
        made: Tensor = self.gru(packed)[1][-1]
        return made


class Energy(Branches):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.func.grad(lambda v: self.a(v).square().sum())(x)[:, :3]
        return made


class Generates(Branches):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.a(x)
        return made + torch.randn(3, generator=self.generator)


class Copies(Branches):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.a(x)
        return made * torch.from_numpy(made.detach().numpy().std(axis=0))


@dataclass
class Holder:
    x: Tensor


class Held(Branches):
    def forward(self, holder: Holder) -> Tensor:
        made: Tensor = self.a(holder.x)
        return made


CURED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), "module '0' is lazy", "one forward pass"),
    "scripted": (
        lambda: torch.jit.script(nn.Linear(4, 3)),
        "the model is TorchScript",
        "before torch.jit.script",
    ),
    "packed": (Packs, "cannot be captured", "padded sequences"),
    "nested": (Nests, "cannot be captured", "padded tensors"),
    "packed, of another cell": (Unrolled, "cannot be captured", "padded sequences"),
    "a gradient of torch.func": (Energy, "takes a gradient by torch.func", "opaque"),
    "a generator": (Generates, "a generator of one's own", "torch's own generator"),
    "numpy": (Copies, "cannot be captured", "in the place of numpy's"),
    "gradient penalty": (Penalty, "torch.autograd.grad is called", "opaque"),
}


@pytest.mark.parametrize("what", CURED)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_be_captured_is_refused_with_what_to_do_instead(what: str) -> None:
    make, said, cure = CURED[what]
    with pytest.raises(BadInput, match=re.escape(said)) as caught:
        capture(make(), batch, F.mse_loss)
    assert cure in caught.value.allowed and caught.value.where


def test_inputs_of_a_class_are_refused_with_what_a_batch_may_hold() -> None:
    with pytest.raises(BadInput, match="Unsupported input type") as caught:
        capture(Held(), lambda n: (Holder(torch.randn(n, 4)), torch.randn(n, 3)), F.mse_loss)
    assert "dictionaries" in caught.value.allowed


def test_a_part_that_was_put_into_evaluation_mode_alone_is_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    module[1].eval()
    with pytest.raises(BadInput, match="module '1' is in evaluation mode"):
        capture(module, batch, F.mse_loss)
    module.eval()  # as a whole it is put into training mode, as a pretrained one is
    assert capture(module, batch, F.mse_loss).graph.layers


def test_a_dictionary_is_no_loss() -> None:
    with pytest.raises(BadInput, match="gives a dictionary"):
        capture(nn.Linear(4, 3), batch, lambda o, t: {"loss": F.mse_loss(o, t), "share": o.mean()})


class Learning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs * self.scale, targets)


def test_a_loss_with_a_parameter_that_trains_is_refused_since_no_plan_would_train_it() -> None:
    loss = Learning()
    with pytest.raises(
        BadInput, match=re.escape("the loss holds 'loss.scale', a parameter that trains")
    ) as caught:
        capture(nn.Linear(4, 3), batch, loss)
    assert "in the model" in caught.value.allowed
    assert capture(nn.Linear(4, 3), batch, loss.requires_grad_(False)).graph.layers


class Sampling(Branches):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return torch.distributions.Normal(y, F.softplus(y)).rsample()


def test_samples_of_a_distribution_are_captured_though_it_checks_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        torch.distributions.Distribution, "_validate_args", True
    )  # torch's compiler ends it for good
    assert "a" in capture(Sampling(), batch, F.mse_loss).graph.index
    assert torch.distributions.Distribution._validate_args
