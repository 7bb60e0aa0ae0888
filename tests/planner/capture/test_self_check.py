"""What forward leaves behind is carried or refused: a table of constructs, each against the module's own training."""

from __future__ import annotations

import collections
import copy
import linecache
import re
from collections.abc import Callable
from random import Random
from typing import NoReturn

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.capture import Captured, beside, capture, check_training, evaluation_of, mixes_samples
from planner.capture.batch import repeated
from planner.capture.left_behind import Reachable
from planner.capture.stage_modules import whole
from planner.errors import BadInput
from planner.workload import Workload
from tests.draws import SEED
from tests.planner.capture.constructs import EQUAL, LOSSES, OPAQUE, REFUSED
from tests.planner.capture.more_state import STATES


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.randn(n, 3)


def checked(
    module: nn.Module, loss: Callable[..., object] = F.mse_loss, opaque: list[str] | None = None
) -> Captured:
    captured = capture(module, batch, loss, opaque=opaque or [])
    assert check_training(captured, module, batch, loss, samples=1) == ""
    return captured


@pytest.mark.parametrize("name", EQUAL)
def test_a_construct_trains_as_its_module_does(name: str) -> None:
    torch.manual_seed(0)
    module = EQUAL[name]()
    before = {key: x.clone() for key, x in module.state_dict().items()}
    captured = checked(module, opaque=OPAQUE.get(name))
    assert all(torch.equal(x, before[key]) for key, x in module.state_dict().items())
    own = copy.deepcopy(module).train()
    stage = whole(captured)
    stage.materialise(captured.initial(module))
    optimizers = [torch.optim.SGD(x.parameters(), 0.1) for x in (own, stage)]
    for step in range(3):
        inputs, targets = batch(5 if captured.graph.symbolic_batch else captured.graph.captured_micro)
        torch.manual_seed(step)
        a = F.mse_loss(own(inputs), targets)
        torch.manual_seed(step)
        b = stage(captured.batch_values(inputs, targets))["loss:0"]
        for loss, optimizer in zip((a, b), optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(a, b)
    held = dict(stage.named_buffers()) | dict(stage.named_parameters())
    for key, x in own.state_dict().items():
        if key in held:
            torch.testing.assert_close(held[key], x)


@pytest.mark.parametrize("name", REFUSED)
def test_a_construct_is_refused_by_name(name: str) -> None:
    torch.manual_seed(0)
    make, words = REFUSED[name]
    with pytest.raises(BadInput) as caught:
        checked(make(), opaque=OPAQUE.get(name))
    assert words in str(caught.value)
    assert caught.value.allowed
    assert re.search(r"\S+\.py:\d+|(module|parameter) '", str(caught.value))


LINES = {  # of the constructs that are refused, what stands in the line that the message names
    "a context variable": "LEVEL",
    "a local of the thread": "LOCAL.n",
    "a file in memory": "self.log",
    "a queue of Python": "self.rows.put",
    "an iterator by tee": "next(self.rows)",
    "object.__setattr__": "self.n",
    "an attribute of a parameter": "weight.calls",
    "an entry of an lru_cache past a threshold": "first_time",
    "an integer of C past a threshold": "self.n.value",
    "an array of Python past a threshold": "self.counts[0]",
    "an attribute of torch past a threshold": "torch.steps_of_a_test",
    "the clock": "perf_counter_ns",
    "the environment of the process": "os.environ",
    "statistics in a list that nobody registers": "self.parts[0]",
}


@pytest.mark.parametrize("name", LINES)
def test_a_refused_state_is_named_with_the_line_that_keeps_it(name: str) -> None:
    functions = {"build": STATES[name], "batch": batch, "loss": F.mse_loss}
    workload = Workload(name="mine", where="mine.py", arguments={}, functions=functions)
    with pytest.raises(BadInput) as caught:
        check_training(capture(workload), workload, samples=1)
    file, _, line = caught.value.where.rpartition(":")
    assert LINES[name] in linecache.getline(file, int(line))
    assert caught.value.allowed


class Applied(nn.Module):
    """A linear layer by its data, from which no gradient comes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.a.weight.data * 2
        return self.a(x) + x @ weight.T


def test_a_weight_that_is_read_by_its_data_is_refused_with_the_line() -> None:
    with pytest.raises(BadInput, match=r"'\.data'") as caught:
        checked(Applied())
    file, _, line = caught.value.where.rpartition(":")
    assert "self.a.weight.data" in linecache.getline(file, int(line))


# What tensors without values do not show: other operations while a trace is made, gradients, and numbers of the data.
UNSEEN = {
    "a buffer in place carries a gradient",
    "a branch on is_compiling",
    "a branch on is_exporting",
    "a branch on the type of a tensor",
    "try numpy",
    "try a number",
    "a gradient that only eager has",
    "a generator",
    "a branch on modes that dispatch",
    "a buffer is written that its backward needs",
}
DRAWN = Random(SEED)


@pytest.mark.parametrize("name", DRAWN.sample([x for x in EQUAL if x not in OPAQUE], 4))
def test_a_large_model_runs_on_fake_tensors_and_that_is_said(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "LARGEST_BYTES", -1)
    module = EQUAL[name]()
    captured = capture(module, batch, F.mse_loss)
    assert "fake tensors only, so that no values" in check_training(captured, module, batch, F.mse_loss)


class Tabled(nn.Module):
    """A model that keeps a table in a dictionary, as the prompts of adapters are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.tables = {"scale": torch.arange(3.0)}

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * self.tables["scale"]


@pytest.mark.parametrize("known", [True, False])
def test_a_module_file_whose_model_keeps_tensors_in_a_dictionary_is_captured_with_their_values(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such tensors are looked for before the trace, and met in it where they were not found."""
    if not known:
        monkeypatch.setattr(Reachable, "unregistered", lambda self, module: [])
    workload = Workload(
        name="mine",
        where="mine.py",
        arguments={},
        functions={"build": Tabled, "batch": batch, "loss": F.mse_loss},
    )
    captured = capture(workload)
    assert check_training(captured, workload) == ""
    assert evaluation_of(captured, 2).graph.layers


def test_a_large_model_that_reads_numbers_while_it_is_built_is_built_for_real(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build() -> nn.Module:
        rates = [float(x) for x in torch.linspace(0, 0.1, 2)]  # as vision models do for their dropped paths
        return nn.Sequential(nn.Linear(4, 4), nn.Dropout(rates[1]), nn.Linear(4, 3))

    monkeypatch.setattr(beside, "LARGEST_BYTES", -1)
    workload = Workload(
        name="mine",
        where="mine.py",
        arguments={},
        functions={"build": build, "batch": batch, "loss": F.mse_loss},
    )
    assert "fake tensors only" in check_training(capture(workload), workload)


@pytest.mark.parametrize("name", DRAWN.sample([x for x in REFUSED if x not in UNSEEN and x not in OPAQUE], 8))
def test_what_a_large_model_leaves_behind_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "LARGEST_BYTES", -1)
    make, words = REFUSED[name]
    with pytest.raises(BadInput) as caught:
        checked(make())
    assert words in str(caught.value) and caught.value.allowed


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_with_a_state_is_refused(name: str) -> None:
    make, words = LOSSES[name]
    with pytest.raises(BadInput, match=words) as caught:
        checked(nn.Linear(4, 3), make())
    assert "a loss that keeps nothing" in str(caught.value.allowed)


class Chosen(nn.Module):
    """Takes a word, a number and nothing beside its tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: Tensor, mode: str, scale: float, mask: Tensor | None = None) -> Tensor:
        y: Tensor = self.a(x) * scale
        return y.relu() if mode == "relu" else y if mask is None else y * mask


GIVEN = {"mode": "relu", "scale": 2, "mask": None}


@pytest.mark.parametrize("other", [{"mode": "tanh"}, {"scale": 3}, {"mask": torch.ones(2, 3)}])
def test_a_batch_with_other_words_and_numbers_than_at_the_capture_is_refused(
    other: dict[str, object],
) -> None:
    captured = capture(Chosen(), lambda n: ({"x": torch.randn(n, 4), **GIVEN}, torch.randn(n, 3)), F.mse_loss)
    inputs, targets = {"x": torch.randn(2, 4), **GIVEN}, torch.randn(2, 3)
    assert sorted(captured.batch_values(inputs, targets)) == ["input.x", "target"]
    with pytest.raises(BadInput, match=f"as 'input.{next(iter(other))}', and the model was captured with"):
        captured.batch_values(inputs | other, targets)
    with pytest.raises(BadInput, match=r"has None as 'input\.mode'"):
        captured.batch_values({key: x for key, x in inputs.items() if key != "mode"}, targets)


class Shifts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5)
        return self.a(x)


def test_a_write_into_a_tensor_that_is_the_target_as_well_is_refused_and_a_batch_without_a_write_is_not() -> (
    None
):
    def batch(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 4)
        return x, x

    module = nn.Linear(4, 4)
    assert check_training(capture(module, batch, F.mse_loss), module, batch, F.mse_loss) == ""
    module = Shifts()
    with pytest.raises(BadInput, match="'input' and 'target' of the batch share memory") as caught:
        check_training(capture(module, batch, F.mse_loss), module, batch, F.mse_loss)
    assert "clone()" in caught.value.allowed


def test_a_target_that_no_batch_of_the_capture_had_is_refused() -> None:
    """The loss might read it; one that it had, and the loss does not read, is left where it is."""

    def batch(n: int) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.randn(n, 4), {"y": torch.randn(n, 3), "unread": torch.randn(n)}

    def loss(outputs: Tensor, targets: dict[str, Tensor]) -> Tensor:
        rows = F.mse_loss(outputs, targets["y"], reduction="none").mean(1)
        return (rows * targets["w"]).mean() if "w" in targets else rows.mean()

    captured = capture(nn.Linear(4, 3), batch, loss)
    inputs, targets = batch(2)
    assert sorted(captured.batch_values(inputs, targets)) == ["input", "target.unread", "target.y"]
    with pytest.raises(BadInput, match=r"captured without 'target\.w'"):
        captured.batch_values(inputs, targets | {"w": torch.ones(2)})


def test_a_number_that_grows_with_the_batch_is_refused() -> None:
    given = {"mode": "", "mask": None}
    with pytest.raises(BadInput, match=r"gives 2 and 3 as input\.scale"):
        capture(
            Chosen(), lambda n: ({"x": torch.randn(n, 4), "scale": n, **given}, torch.randn(n, 3)), F.mse_loss
        )


class Importing(dict[str, int]):
    """What a library hands out as a table, and fills when it is asked."""

    def items(self) -> NoReturn:
        raise ValueError("no such module")

    keys = values = __iter__ = items  # type: ignore[assignment]


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.table = Importing(a=1)
        self.names = collections.OrderedDict(b=2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


def test_tables_with_code_of_their_own_are_not_asked() -> None:
    assert checked(WithTable()) is not None


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.a(x)
        return made


def among_all(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs @ targets.t(), torch.arange(len(outputs)))


def kept(targets: Tensor) -> Tensor:
    """Returns how much each sample counts."""
    return targets[:, 0].abs()


@pytest.mark.parametrize(
    ("build", "loss", "mixed"),
    [
        (Pairs, F.mse_loss, False),
        (Pairs, among_all, True),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), F.mse_loss, True),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout()), F.mse_loss, False),
        (Pairs, lambda o, t: (F.mse_loss(o, t, reduction="sum"), torch.tensor(float(o.numel()))), False),
        (Pairs, lambda o, t: F.mse_loss(o, t, reduction="sum"), True),
        (Pairs, lambda o, t: F.mse_loss(o, t).sqrt(), True),
        (Pairs, lambda o, t: ((o - t).square().mean(1) * kept(t)).sum() / kept(t).sum(), True),
        (Pairs, lambda o, t: (((o - t).square().mean(1) * kept(t)).sum(), kept(t).sum()), False),
    ],
    ids=[
        "a mean",
        "pairs of samples",
        "BatchNorm",
        "drawn numbers",
        "a sum and its count",
        "a sum alone",
        "the root of a mean",
        "a mean of some samples",
        "some samples and their count",
    ],
)
def test_a_training_that_depends_on_its_micro_batch_is_told_so(
    build: Callable[[], nn.Module], loss: Callable[..., object], mixed: bool
) -> None:
    torch.manual_seed(3)
    module = build()
    said = mixes_samples(capture(module, batch, loss), lambda: module, batch, loss)
    assert ("depends on its micro-batch" in said) == mixed


def test_a_live_model_is_told_so_in_evaluation_mode_with_its_own_samples() -> None:
    torch.manual_seed(3)
    module, given = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), batch(16)
    captured = capture(module, given, F.mse_loss)
    alone = mixes_samples(captured, lambda: module, repeated(given), F.mse_loss, rows=16, training=False)
    assert alone == "" and module.training


class Padded(nn.Module):
    def __init__(self, nested: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.unsqueeze(1).expand(-1, 3, -1)
        mask = torch.tensor([[False, False, True]]).expand(len(x), -1)
        made: Tensor = self.encoder(rows, src_key_padding_mask=mask)
        return made.mean(1)[:, :3]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("nested", [False, True])
def test_a_fast_path_that_gives_another_evaluation_is_told(nested: bool) -> None:
    torch.manual_seed(0)
    module = Padded(nested)
    said = check_training(capture(module, batch, F.mse_loss), module, batch, F.mse_loss)
    assert ("enable_nested_tensor=False" in said) == nested
    assert torch.backends.mha.get_fastpath_enabled()
