"""Stage modules: what they hold, what they read and make, where they run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.capture import Captured, capture, cut, layer_module, materialise
from planner.capture.stage_modules import whole
from planner.errors import BadInput
from planner.workload import load
from runtime.stage import states_of
from tests.planner.capture_cases import CASES


@pytest.fixture(scope="module")
def gpt() -> Captured:
    return capture(load("gpt2", {"size": "tiny", "seq": "8"}))


@pytest.fixture(scope="module")
def modes() -> tuple[Captured, nn.Module]:
    torch.manual_seed(0)
    module, batch, loss = CASES["modes"]()
    return capture(module, batch, loss), module


def test_a_stage_holds_only_its_own_tensors_under_the_users_names(gpt: Captured) -> None:
    first, last = cut(gpt, [9])
    assert dict(first.named_parameters()).keys() == {
        "token.weight",
        "position.weight",
        *(f"blocks.0.{part}.{kind}" for part in PARTS for kind in ("weight", "bias")),
        *(f"blocks.1.{part}.{kind}" for part in PARTS[:1] for kind in ("weight", "bias")),
    }
    assert "token.weight" in dict(last.named_parameters())  # the head's, by its own name
    assert {p.device.type for p in (*first.parameters(), *last.parameters())} == {"meta"}
    assert next(name for name, _ in last.named_parameters("stage")).startswith("stage.")


PARTS = ("norm1", "attention.qkv", "attention.out", "norm2", "feedforward.up", "feedforward.down")


def test_inputs_and_outputs_are_named_by_values(gpt: Captured) -> None:
    first, middle, last = cut(gpt, [4, 20])
    assert first.inputs == ("input",)
    assert first.outputs == ("position:0", "blocks.0.attention.qkv:0")
    assert set(middle.inputs) == set(first.outputs)
    assert last.inputs[-1] == "target" and last.outputs == ("loss:0",)
    assert [layer for stage in (first, middle, last) for layer in stage.layers] == list(gpt.graph.index)
    assert [stage.index for stage in (first, middle, last)] == [0, 1, 2]


def test_a_layer_alone_reads_and_makes_what_the_graph_says(gpt: Captured) -> None:
    for layer in gpt.graph.layers:
        module = layer_module(gpt, layer.name)
        assert (module.inputs, module.outputs) == (layer.inputs, layer.outputs)
        assert tuple(name for name, _ in module.named_parameters()) == layer.parameters


def test_layers_one_by_one_give_the_whole(modes: tuple[Captured, nn.Module]) -> None:
    captured, module = modes
    initial = captured.initial(module)
    values = captured.batch_values(torch.randn(4, 4), torch.randn(4, 3))
    torch.manual_seed(1)
    expected = materialise(whole(captured), initial)(values)
    torch.manual_seed(1)
    known = dict(values)
    for layer in captured.graph.layers:
        known |= materialise(layer_module(captured, layer.name), initial)(known)
    assert torch.equal(known["loss:0"], expected["loss:0"])


@pytest.mark.parametrize("boundaries", [[0], [3, 3], [5, 2], [99], [-1]])
def test_boundaries_out_of_order_are_refused(gpt: Captured, boundaries: list[int]) -> None:
    with pytest.raises(BadInput, match="increasing numbers from 1 to 28"):
        cut(gpt, boundaries)


def test_an_unknown_layer_is_refused(gpt: Captured) -> None:
    with pytest.raises(BadInput, match=r"blocks\.9"):
        layer_module(gpt, "blocks.9")


def test_a_missing_or_misshapen_tensor_is_named(modes: tuple[Captured, nn.Module]) -> None:
    captured, module = modes
    initial = captured.initial(module)
    with pytest.raises(BadInput, match=r"no tensor 'a\.weight'"):
        materialise(whole(captured), {name: x for name, x in initial.items() if name != "a.weight"})
    with pytest.raises(BadInput, match=r"a\.weight.*\(4, 4\)"):
        materialise(whole(captured), initial | {"a.weight": torch.zeros(4, 5)})
    with pytest.raises(BadInput, match=r"a\.weight.*float32"):
        materialise(whole(captured), initial | {"a.weight": torch.zeros(4, 4, dtype=torch.float64)})


def test_a_stage_owns_copies_of_what_it_loads(modes: tuple[Captured, nn.Module]) -> None:
    captured, module = modes
    stage = materialise(whole(captured), captured.initial(module))
    stage(captured.batch_values(torch.randn(4, 4), torch.randn(4, 3)))
    assert float(dict(stage.named_buffers())["calls"]) == 1.0
    assert float(module.get_buffer("calls")) == 0.0


def test_constants_of_the_trace_need_not_be_loaded(modes: tuple[Captured, nn.Module]) -> None:
    captured, module = modes
    initial = captured.initial(module)
    assert "constant.0" in initial or any(name.startswith("constant") for name in initial)
    given = {name: x for name, x in initial.items() if not name.startswith("constant")}
    materialise(whole(captured), given)


def test_a_stage_runs_on_the_device_that_it_is_loaded_to(modes: tuple[Captured, nn.Module]) -> None:
    captured, module = modes
    stage = materialise(whole(captured), captured.initial(module), "meta")
    values = captured.batch_values(torch.randn(4, 4, device="meta"), torch.randn(4, 3, device="meta"))
    assert stage(values)["loss:0"].device.type == "meta"


def test_the_gradient_mode_is_left_as_it_was(modes: tuple[Captured, nn.Module]) -> None:
    captured, module = modes
    stage = materialise(whole(captured), captured.initial(module))
    values = captured.batch_values(torch.randn(4, 4), torch.randn(4, 3))
    assert stage(values)["loss:0"].requires_grad and torch.is_grad_enabled()
    with torch.no_grad():
        assert not stage(values)["loss:0"].requires_grad
        assert not torch.is_grad_enabled()


class Looks(nn.Module):
    """Fails inside of its contexts where a number of the batch is no row of its table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found = self.table(x)
        y: Tensor = self.out(found.float())
        return y


def test_modes_are_left_as_they_were_where_a_stage_fails_inside_of_them() -> None:
    module = Looks()
    captured = capture(module, lambda n: (torch.zeros(n, dtype=torch.long), torch.randn(n, 3)), F.mse_loss)
    stage = materialise(whole(captured), captured.initial(module))
    values = captured.batch_values(torch.full((2,), 9), torch.randn(2, 3))
    with pytest.raises(IndexError):
        stage(values)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x).transpose(1, 2))
        return y.mean(1)


def test_values_keep_their_strides() -> None:
    case = (Strided(), lambda n: (torch.randn(n, 5, 4), torch.randn(n, 3)), F.mse_loss)
    captured = capture(*case)
    stage = materialise(cut(captured, [1])[0], captured.initial(case[0]))
    made = stage(captured.batch_values(*case[1](2)))["a:0"]
    assert made.shape == (2, 6, 5) and made.stride() == (30, 1, 6)


def test_a_stage_takes_more_values_than_it_needs_and_names_one_that_is_missing(gpt: Captured) -> None:
    stage = whole(gpt).to("meta")
    tokens = torch.zeros(3, 8, dtype=torch.long, device="meta")
    assert stage({"input": tokens, "target": tokens, "more": tokens})["loss:0"].shape == ()
    with pytest.raises(KeyError, match="target"):
        stage({"input": tokens})


def test_a_batch_that_lacks_an_input_is_refused(gpt: Captured) -> None:
    with pytest.raises(BadInput, match="no 'target'"):
        gpt.batch_values(torch.zeros(2, 8, dtype=torch.long), {"labels": torch.zeros(2, 8)})


def test_names_with_slashes_and_percent_signs_are_kept() -> None:
    module = nn.ModuleDict({"a/b": nn.Linear(3, 3), "a%2fb": nn.Linear(3, 3)})

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = module

        def forward(self, x: Tensor) -> Tensor:
            for head in self.heads.values():
                x = head(x)
            return x

    made = Both()
    captured = capture(made, (torch.randn(2, 3), torch.randn(2, 3)), nn.functional.mse_loss)
    stage = materialise(whole(captured), captured.initial(made))
    assert {name for name, _ in stage.named_parameters()} == {name for name, _ in made.named_parameters()}
    assert {*states_of(stage).values()} == {name for name, _ in made.named_parameters()}
