"""What the graph says of a module: layers, Values, parameters, sizes, signatures, the causal flag."""

from __future__ import annotations

import resource
import warnings
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.capture import Captured, capture, cut
from planner.capture.functional import written
from planner.capture.stage_modules import whole
from planner.capture.traced_graph import OWNERS
from planner.errors import BadInput
from planner.model import crossings, stage_of_layers
from planner.model.check import graph_from_dict
from planner.workload import load
from tests.planner.capture_cases import CASES
from tests.planner.staged import check_case


def captured_case(name: str) -> Captured:
    torch.manual_seed(0)
    return capture(*CASES[name]())


def targets_of(captured: Captured) -> list[str]:
    return [str(node.target) for node in captured.layout.traced.graph.nodes]


@pytest.fixture(scope="module")
def tiny_gpt() -> Captured:
    return capture(load("gpt2", {"size": "tiny", "seq": "16"}))


class Warns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.scale = torch.ones(3, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("this path is slow", stacklevel=1)
        self.shape = x.sum()
        y: Tensor = self.out(x) * self.scale
        return y


def test_warnings_of_the_model_are_told_with_their_line_and_those_of_the_export_are_not() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        capture(Warns(), lambda n: (torch.randn(n, 4), torch.randn(n, 3)), F.mse_loss)
    own = [each for each in found if "slow" in str(each.message)]
    assert [each.filename for each in own] == [__file__], "once, though it is traced several times"
    rest = {str(each.message).partition(".")[0] for each in found} - {"this path is slow"}
    assert all("requires gradient" in said for said in rest)


def test_layers_are_module_paths_in_order_and_the_last_is_the_loss(tiny_gpt: Captured) -> None:
    names = [layer.name for layer in tiny_gpt.graph.layers]
    assert names[:4] == ["token", "position", "blocks.0.norm1", "blocks.0.attention.qkv"]
    assert names[-3:] == ["norm", "head", "loss"]
    assert len(names) == 5 + 4 * 6


def test_a_path_visited_again_gets_a_number_and_shared_state_is_not_cut() -> None:
    graph = captured_case("visited_twice").graph
    assert [layer.name for layer in graph.layers] == ["inner", "norm", "inner#2", "last", "loss"]
    assert graph.parameter["inner.weight"].users == ("inner", "norm", "inner#2")
    assert graph.buffer["norm.running_mean"].users == ("norm",)
    assert graph.buffer["norm.running_mean"].mutated
    assert not graph.buffer["norm.running_mean"].remembered


def test_equal_layers_share_a_signature_and_others_do_not(tiny_gpt: Captured) -> None:
    layer = tiny_gpt.graph.layer
    blocks = [layer[f"blocks.{i}.feedforward.up"].signature for i in range(4)]
    assert len(set(blocks)) == 1
    assert layer["blocks.0.feedforward.down"].signature != blocks[0]
    assert layer["blocks.0.norm1"].signature == layer["norm"].signature
    wider = capture(load("gpt2", {"size": "tiny", "seq": "8"})).graph
    assert wider.layer["blocks.0.feedforward.up"].signature != blocks[0]


def test_a_value_knows_every_consumer_and_its_bytes(tiny_gpt: Captured) -> None:
    value = tiny_gpt.graph.value["position:0"]
    assert value.consumers == ("blocks.0.norm1", "blocks.0.attention.out")
    assert (value.shape, value.dtype, value.needs_grad) == ((1, 16, 64), "float32", True)
    assert (value.fixed_bytes, value.sample_bytes) == (0, 16 * 64 * 4)
    tokens = tiny_gpt.graph.value["input"]
    assert (tokens.role, tokens.producer, tokens.dtype, tokens.needs_grad) == ("input", "", "int64", False)


def test_a_tied_weight_is_one_parameter_with_two_users(tiny_gpt: Captured) -> None:
    weight = tiny_gpt.graph.parameter["token.weight"]
    assert weight.users == ("token", "head")
    assert weight.aliases == ("head.weight",)
    assert "head.weight" not in tiny_gpt.graph.parameter


def test_frozen_and_unused_parameters_are_told() -> None:
    graph = captured_case("parameters").graph
    assert not graph.parameter["frozen.weight"].trainable
    assert graph.parameter["unused.weight"].users == ()
    assert graph.buffer["second.parametrizations.weight.0._u"].mutated


def test_inputs_nobody_reads_have_no_consumers() -> None:
    graph = captured_case("keywords_only").graph
    assert graph.value["input.unused"].consumers == ()
    assert graph.value["input.pair.1.scale"].consumers == ("c",)
    assert graph.value["target.y"].role == "target"


def test_only_state_is_written() -> None:
    captured = captured_case("in_place")
    assert [layer.name for layer in captured.graph.layers] == ["a", "b", "c", "head", "loss"]
    traced = captured.layout.traced
    for node in traced.graph.nodes:
        for x in written(node):
            assert "local" in node.meta or traced.sources[x].kind in OWNERS, node.format_node()


def test_flops_are_those_of_the_formulas(tiny_gpt: Captured) -> None:
    layer = tiny_gpt.graph.layer
    assert layer["blocks.0.feedforward.up"].flops(3) == 3 * 2 * 16 * 64 * 256
    attention = 4 * 16 * 16 * 64  # scores and their product with the values, over all heads
    assert layer["blocks.0.attention.qkv"].flops(1) == 2 * 16 * 64 * 192 + attention
    recurrent = captured_case("recurrent").graph.layer
    assert recurrent["lstm"].sample_flops == 2 * 5 * 2 * (32 * 8 + 32 * 8)
    norms = captured_case("norms").graph.layer
    assert norms["conv2"].sample_flops == 2 * 6 * 4 * 4 * 3


def test_loss_kinds() -> None:
    assert captured_case("masked").graph.loss_kind == "sum_count"
    assert captured_case("masked").graph.layers[-1].outputs == ("loss:0", "loss:1")
    assert captured_case("views").graph.loss_kind == "mean"


def test_the_fingerprint_does_not_depend_on_the_example(tiny_gpt: Captured) -> None:
    workload = load("gpt2", {"size": "tiny", "seq": "16"})
    for_real = capture(workload.build(), workload.batch, workload.loss, micro=4)
    again = capture(workload, micro=7)
    assert for_real.graph.fingerprint == again.graph.fingerprint == tiny_gpt.graph.fingerprint
    assert for_real.graph == tiny_gpt.graph
    assert capture(load("gpt2", {"size": "tiny", "seq": "8"})).graph.fingerprint != again.graph.fingerprint


def test_a_graph_survives_its_dictionary(tiny_gpt: Captured) -> None:
    assert graph_from_dict(tiny_gpt.graph.to_dict()) == tiny_gpt.graph


def test_a_model_larger_than_memory_is_captured() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = capture(load("gpt2", {"size": "medium", "seq": "64"})).graph
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    weights = sum(parameter.bytes for parameter in graph.parameters)
    assert weights == 4 * 354_823_168
    assert grown < weights / 4


def test_one_example_will_do_for_a_batch() -> None:
    module, batch, loss = CASES["masked"]()
    assert capture(module, batch(4), loss).graph == capture(module, batch, loss).graph


class ByBatch(nn.Module):
    """Has another graph for every batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.a(row) * (i + 1) for i, row in enumerate(x)]
        return cast(Tensor, self.b(torch.stack(parts)))


def test_a_batch_that_cannot_be_symbolic_is_captured_for_one_size() -> None:
    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 4), torch.randn(n, 3)

    case = (ByBatch(), batch, F.mse_loss)
    captured = capture(*case, micro=3)
    assert not captured.graph.symbolic_batch and captured.graph.captured_micro == 3
    assert captured.graph.value["loss:0"].bytes(3) == 4
    check_case(case, n=3, captured=captured)


class Attends(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.token, self.qkv, self.head = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11)
        self.register_buffer("kept", torch.ones(5, 5, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.token(x)).unsqueeze(1).chunk(3, -1)
        return cast(Tensor, self.head(F.scaled_dot_product_attention(q, k, v, self.mask(x)).squeeze(1)))

    def mask(self, x: Tensor) -> Tensor:
        n, t = x.shape
        lower = torch.ones(t, t, dtype=torch.bool).tril()
        hidden = torch.zeros(t, t).masked_fill(~lower, float("-inf"))
        masks = {
            "boolean": lambda: lower,
            "additive": lambda: hidden,
            "expanded": lambda: lower.expand(n, 1, t, t),
            "most negative": lambda: torch.full((t, t), torch.finfo(torch.float32).min).triu(1),
            "of a buffer": lambda: self.kept,
            "of the tokens": lambda: lower & (x != 0)[:, None, None, :],
            "a band": lambda: lower & lower.T.roll(1, 0),
            "a penalty": lambda: torch.full((t, t), -3.0).triu(1),
            "shifted": lambda: torch.ones(t, t, dtype=torch.bool).tril(1),
        }
        return masks[self.kind]()


@pytest.mark.parametrize(
    ("kind", "proven"),
    [
        ("boolean", True),
        ("additive", True),
        ("expanded", True),
        ("most negative", True),
        ("of a buffer", False),
        ("of the tokens", False),
        ("a band", False),
        ("a penalty", False),
        ("shifted", False),
    ],
)
def test_the_causal_flag_is_restored_only_where_the_mask_is_proven_to_be_causal(
    kind: str, proven: bool
) -> None:
    torch.manual_seed(0)

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.randint(1, 11, (n, 5)), torch.randint(0, 11, (n, 5))

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    case = (Attends(kind), batch, loss)
    captured = capture(*case)
    nodes = [node for node in captured.layout.traced.graph.nodes if "scaled_dot" in str(node.target)]
    assert [len(node.args) > 5 and node.args[3] is None and node.args[5] is True for node in nodes] == [
        proven
    ]
    check_case(case, captured=captured)


def test_masks_and_positions_are_computed_where_they_are_read_and_never_sent() -> None:
    pytest.importorskip("transformers")
    from tests.planner.library_models import LIBRARY

    torch.manual_seed(0)
    graph = capture(*LIBRARY["Llama"]()).graph
    stage_of = stage_of_layers(len(graph.layers), [8, 15, 22])
    sent = {crossing.value for crossing in crossings(graph, stage_of)}
    assert sent and all(
        graph.value[name].dtype == "float32" and graph.value[name].needs_grad for name in sent
    )


def test_no_stage_reads_the_targets_but_the_one_with_the_loss(tiny_gpt: Captured) -> None:
    assert tiny_gpt.graph.value["target"].consumers == ("loss",)
    assert tiny_gpt.graph.value["input"].consumers == ("token",)


def test_dropout_is_kept() -> None:
    captured = capture(load("gpt2", {"size": "tiny", "seq": "8", "dropout": "0.1"}))
    assert targets_of(captured).count("aten.dropout.default") == 1 + 2 * 4


def test_normalisations_may_use_cudnn_as_the_module_does() -> None:
    nodes = captured_case("norms").layout.traced.graph.nodes
    switches = [node.args[-1] for node in nodes if str(node.target) == "aten.batch_norm.default"]
    assert switches == [True, True]


@pytest.mark.parametrize("name", ["norms", "modes", "in_place"])
def test_a_capture_leaves_the_module_and_the_random_numbers_alone(name: str) -> None:
    torch.manual_seed(0)
    module, batch, loss = CASES[name]()
    module.eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    state = torch.get_rng_state()
    capture(module, batch, loss)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert not any(part.training for part in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert [part.momentum for part in module.modules() if isinstance(part, nn.BatchNorm1d)][:1] in (
        [],
        [None],
    )


class _Frozen(nn.BatchNorm1d):
    """Uses what it has learnt even where the model trains."""

    def forward(self, x: Tensor) -> Tensor:
        self.training = False
        return super().forward(x)


def test_a_frozen_norm_without_momentum_uses_and_keeps_what_it_has_learnt() -> None:
    torch.manual_seed(0)
    norm = _Frozen(4, momentum=None)
    nn.init.uniform_(norm.running_mean)  # type: ignore[arg-type]
    module = nn.Sequential(nn.Linear(4, 4), norm)
    captured = capture(module, lambda n: (torch.randn(n, 4), torch.randn(n, 4)), F.mse_loss)
    values = captured.batch_values(torch.randn(3, 4), torch.zeros(3, 4))
    stage = whole(captured)
    stage.materialise(captured.initial(module))
    assert torch.equal(stage(values)["loss:0"], module(values["input"]).square().mean())
    assert not any(row.mutated for row in captured.graph.buffers)


def test_one_tensor_given_as_input_and_as_target_is_read_as_both() -> None:
    def batch(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 4)
        return x, x

    torch.manual_seed(0)
    module = nn.Linear(4, 4)
    captured = capture(module, batch, F.mse_loss)
    stage, values = whole(captured), captured.batch_values(torch.randn(3, 4), torch.zeros(3, 4))
    stage.materialise(captured.initial(module))
    assert torch.equal(stage(values)["loss:0"], module(values["input"]).square().mean())


class _Axes(nn.Module):
    def __init__(self, shift: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(())), shift

    def forward(self, x: Tensor) -> Tensor:
        axes = torch.arange(1, x.dim())
        if self.shift:
            axes += self.shift
        return (x * self.scale).mean(axes.tolist())


def test_axes_that_are_a_range_of_numbers_are_known_without_the_tensor() -> None:
    """Losses of monai list them so."""

    def captured(shift: int) -> Captured:
        return capture(_Axes(shift), lambda n: (torch.ones(n, 2, 3), torch.ones(n)), F.mse_loss)

    (mean,) = (x for x in captured(0).layout.traced.graph.nodes if str(x.target) == "aten.mean.dim")
    assert mean.args[1] == [1, 2]
    with pytest.raises(BadInput, match="depends on the values of tensors"):
        captured(-1)


def test_the_sum_is_the_loss_also_where_its_count_is_computed_first() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        count = targets.ne(-100).sum()
        return torch.nn.functional.cross_entropy(outputs, targets, ignore_index=-100, reduction="sum"), count

    module = nn.Linear(4, 5)
    batch = (torch.randn(6, 4), torch.tensor([0, 1, -100, 3, 4, 2]))
    captured = capture(module, batch, loss)
    (stage,) = cut(captured, [])
    stage.materialise(captured.initial(module))
    made = stage(captured.batch_values(*batch))
    expected = loss(module(batch[0]), batch[1])
    assert torch.equal(made["loss:0"], expected[0]) and torch.equal(made["loss:1"], expected[1])
