"""Models on parts train as one process does: losses and all gradients, step by step, in float64.

Tests draw from the matrix by seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch

from planner.capture import Captured
from planner.errors import BadInput
from planner.group import ring_sent
from planner.layout import Wish
from planner.spatial import NoRule
from runtime.layout.stage import local_graph
from tests.draws import part
from tests.runtime.layout import training
from tests.runtime.layout.cut_models import CONFIGURATIONS, MODELS, fused, wishes, without_dropout
from tests.runtime.layout.training import (
    EXACT,
    Trained,
    alone,
    captured_in_double,
    difference,
    together,
)

MESHES = ((2,), (4,))
TABLE = [*itertools.product(MODELS, MESHES, CONFIGURATIONS)]
GROUPED = {"Llama": {"model.layers.*.self_attn.q_proj": "out", "model.layers.*.self_attn.o_proj": "in"}}
DRAWN = 6

Prepared = tuple[Captured, Mapping[str, torch.Tensor], Sequence[Mapping[str, torch.Tensor]], Trained]


@cache
def prepared(name: str) -> Prepared:
    torch.manual_seed(0)
    case = fused(name) if name not in MODELS else without_dropout(MODELS[name][0]())
    found = captured_in_double(case)
    return (*found, alone(*found))


def cuts_of(name: str, mesh: tuple[int, ...], configuration: tuple[str, ...]) -> list[Wish]:
    cuts = MODELS[name][1]
    if mesh == (4,) and name in GROUPED:  # two groups of keys and values: they stay whole
        mlp = {x: f for x, f in cuts["heads"].items() if f == "hidden"}
        cuts = {**cuts, "heads": GROUPED[name] | mlp}
    return wishes(cuts, configuration)


def row(name: str, mesh: tuple[int, ...], configuration: tuple[str, ...]) -> tuple[float, float]:
    captured, tensors, batches, one = prepared(name)
    others, _ = together(captured, tensors, batches, mesh, cuts_of(name, mesh, configuration))
    return difference(one, others)


@pytest.mark.parametrize(("name", "mesh", "configuration"), part(TABLE, DRAWN))
def test_a_model_on_parts_trains_as_one_process(
    name: str, mesh: tuple[int, ...], configuration: tuple[str, ...]
) -> None:
    losses, gradients = row(name, mesh, configuration)
    assert losses < EXACT and gradients < EXACT


ATTENTION = {
    "our GPT-2": ("blocks.*.attention",),
    "transformers GPT-2": ("transformer.h.*.attn",),
    "BERT": ("bert.encoder.layer.*.attention.self",),
    "Llama": ("model.layers.*.self_attn",),
    "T5": ("*.block.*.layer.*.SelfAttention", "*.block.*.layer.*.EncDecAttention"),
    "ALBERT": ("albert.encoder.albert_layer_groups.*.albert_layers.*.attention",),
    "ViT": ("vit.layers.*.attention",),
    "Whisper": ("model.*.layers.*.self_attn", "model.*.layers.*.encoder_attn"),
}
WAYS = {"ulysses": "exchange", "dim2": "gather", "ring": ""}  # and what moves for it
NO_RING = {"T5": "its mask is trained", "Whisper": "8 rows of the query meet 16 of the keys"}
SEQUENCES = 8


@pytest.mark.parametrize(
    ("name", "ranks", "way"), part(itertools.product(ATTENTION, (2, 4), WAYS), SEQUENCES)
)
def test_attention_over_a_cut_sequence_trains_as_one_process(name: str, ranks: int, way: str) -> None:
    """By heads, with keys and values gathered, or in a ring; where there is no ring, the message says why."""
    captured, tensors, batches, one = prepared(name)
    cuts = {**MODELS[name][1]["sequence"], **({"token": "sequence"} if name == "our GPT-2" else {})}
    own = dict.fromkeys(ATTENTION[name], way)
    if way == "ring" and name in NO_RING:
        with pytest.raises(NoRule, match=f"no ring: {NO_RING[name]}"):
            local_graph(captured, (ranks,), [Wish(x, 0, factor) for x, factor in (cuts | own).items()])
        own = dict(zip(ATTENTION[name], ("ring", "dim2"), strict=True)) if name == "Whisper" else {}
    trained, graph = together(
        captured, tensors, batches, (ranks,), [Wish(x, 0, factor) for x, factor in (cuts | own).items()]
    )
    assert max(difference(one, trained)) < EXACT
    moved = {step.forward for x in graph.conversions() for step in x.steps}
    assert way == "ring" or WAYS[way] in moved
    done = [x for x in graph.placed if "ring" in x.kernels.values()]
    assert bool(done) == ("ring" in own.values())
    assert all(x.inputs["key"].cuts == x.inputs["query"].cuts for x in done)


def test_a_ring_leaves_double_precision_alone_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = training._losses

    def under_autocast(*given: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return plain(*given)

    monkeypatch.setattr(training, "_losses", under_autocast)
    captured, tensors, batches, one = prepared("our GPT-2")
    cuts = {**MODELS["our GPT-2"][1]["sequence"], ATTENTION["our GPT-2"][0]: "ring"}
    trained, _ = together(
        captured, tensors, batches, (2,), [Wish(x, 0, factor) for x, factor in cuts.items()]
    )
    assert max(difference(one, trained)) < EXACT


@pytest.mark.parametrize("ranks", [2, 4])
def test_products_of_rows_that_samples_and_positions_share_keep_to_the_sequence(ranks: int) -> None:
    """Two samples: neither two ranks nor four turn to samples or gather in between."""
    captured, *_ = prepared("transformers GPT-2")
    own = {"transformer": "sequence", ATTENTION["transformers GPT-2"][0]: "ulysses"}
    graph = local_graph(captured, (ranks,), [Wish(x, 0, factor) for x, factor in own.items()])
    inside = [x for x in graph.conversions() if ".attn." in x.layer]
    assert {step.forward for x in inside for step in x.steps} == {"exchange"}
    assert not [x for x in graph.conversions() if ".mlp." in x.layer]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["our GPT-2", "Llama"])  # causal in a zigzag; with fewer heads of keys
def test_keys_and_values_that_go_round_are_counted_at_the_wire(name: str, ranks: int) -> None:
    captured, tensors, batches, _ = prepared(name)
    cuts = {**MODELS[name][1]["sequence"], ATTENTION[name][0]: "ring"}
    trained, graph = together(
        captured, tensors, batches, (ranks,), [Wish(x, 0, factor) for x, factor in cuts.items()]
    )
    done = [x for x in graph.placed if "ring" in x.kernels.values()]
    assert len(done) == 2
    said = sum(sum(x.sent((ranks,))) for x in graph.conversions()) + sum(
        sum(ring_sent(x, (ranks,))) for x in done
    )
    assert sum(each.sent for each in trained) == pytest.approx(8 * ranks * said, rel=0.02)


# Every attention across reads what the encoder gives. In T5 four attentions take their heads of a bias, too.
BESIDE = {"T5": 1 + 4, "Whisper": 1}


MESHES_OF_TWO = (
    {"blocks.*.attention": ("heads", "heads"), "blocks.*.feedforward": ("hidden", "hidden")},
    {"blocks.*.attention": ("heads", "samples"), "blocks.*.feedforward": ("hidden", "samples")},
    {"blocks.*.attention": ("heads", "sequence"), "blocks.*.feedforward": ("hidden", "sequence")},
)


@pytest.mark.parametrize("cuts", MESHES_OF_TWO)
def test_a_mesh_of_two_axes_trains_as_one_process(cuts: Mapping[str, tuple[str, str]]) -> None:
    captured, tensors, batches, one = prepared("our GPT-2")
    chosen = [Wish(pattern, axis, x) for pattern, pair in cuts.items() for axis, x in enumerate(pair)]
    chosen += [Wish("token", 1, "samples"), Wish("blocks.*", 1, "sequence")] * (cuts is MESHES_OF_TWO[2])
    others, _ = together(captured, tensors, batches, (2, 2), chosen)
    assert max(difference(one, others)) < EXACT


@pytest.mark.parametrize("order", ["(3,h,d)", "(h,3,d)", "groups"])
def test_q_k_and_v_of_one_weight_are_never_gathered(order: str) -> None:
    captured, tensors, batches, one = prepared(order)
    others, graph = together(captured, tensors, batches, (2,), [Wish("attention", 0, "heads")])
    assert max(difference(one, others)) < EXACT
    assert [(x.tensor, x.steps[0].forward) for x in graph.conversions()] == [
        ("state:attention.out.bias", "first"),
        ("%linear_1", "reduce"),
    ]


@pytest.mark.parametrize("name", part(MODELS, 2))
def test_a_cut_by_heads_converts_no_more_than_megatron_does(name: str) -> None:
    """Of each pair of layers what goes in and what comes out, once."""
    captured, *_ = prepared(name)
    graph = local_graph(captured, (2,), cuts_of(name, (2,), ("heads",)))
    ends = [x for x in graph.placed if "in" in x.factors]
    sending = [x for x in graph.conversions() if any(x.sent((2,)))]
    assert {step.forward for x in sending for step in x.steps} <= {
        "none",
        "reduce",
        "own",
    }  # nothing is gathered
    assert len(sending) == 2 * len(ends) + BESIDE.get(name, 0)


@pytest.mark.parametrize("configuration", [("heads",), ("heads", "sequence")])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_block_sends_what_the_formula_says(ranks: int, configuration: tuple[str, ...]) -> None:
    """8 (t-1)/t M h for a block, counted at the wire and said by the plan; beside them only the ends of the model."""
    captured, tensors, batches, one = prepared("our GPT-2")
    others, graph = together(
        captured, tensors, batches, (ranks,), cuts_of("our GPT-2", (ranks,), configuration)
    )
    assert max(difference(one, others)) < EXACT
    tokens, width, blocks, double = 2 * 8, 16, 2, 8
    formula = 8 * (ranks - 1) / ranks * tokens * width * blocks * double
    inside = [x for x in graph.conversions() if x.tensor not in _ENDS]
    said = sum(sum(x.sent((ranks,))) for x in inside) * double
    ends = sum(sum(x.sent((ranks,))) for x in graph.conversions() if x not in inside) * double
    assert said == formula
    assert abs(others[0].sent - (formula + ends)) <= 0.02 * formula


_ENDS = (
    "token:0",
    "position:0",
    "%embedding_1",
    "%add",
    "norm:0",
    "head:0",
    "loss:0",
    "target",
    "%flatten_5",
)


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_encoder_of_torch_itself_trains_as_one_process(ranks: int) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    given = captured_in_double(
        (module, lambda n: torch.randn(2, n, 6, 16).unbind(), torch.nn.functional.mse_loss)
    )
    cuts = {"layers.*.self_attn": "heads", "layers.*.linear1": "out", "layers.*.linear2": "in"}
    others, graph = together(*given, (ranks,), [Wish(pattern, 0, factor) for pattern, factor in cuts.items()])
    assert max(difference(alone(*given), others)) < EXACT
    ways = {step.forward for x in graph.conversions() for step in x.steps if any(x.sent((ranks,)))}
    assert ways == {"none", "reduce"}


def test_q_k_and_v_of_one_input_share_one_sum() -> None:
    captured, *_ = prepared("Llama")
    graph = local_graph(captured, (2,), cuts_of("Llama", (2,), ("heads",)))
    entered = [x.layer for x in graph.conversions() if x.steps[0].backward == "reduce"]
    blocks = 2
    assert len(entered) == 2 * blocks  # q, k and v once, gate and up once
    summed = [x.layer for x in graph.conversions() if x.steps[0].forward == "reduce"]
    assert len(summed) == 2 * blocks


@pytest.mark.parametrize(
    ("cuts", "error", "said"),
    [
        (
            {"blocks.*.attention": "heads"},
            NoRule,
            r"48 columns in 3 parts do not fit the aten.scaled_dot_product_attention of \(2, 4, 8, 4\)",
        ),
        (
            {"blocks.*.attention": "columns"},
            BadInput,
            r"factor 'columns' .*allowed: heads, hidden, ulysses, ring, out, in",
        ),
        ({"norm": "vocabulary"}, BadInput, r"no operation of 'norm' has the factor 'vocabulary'"),
        ({"block.*": "heads"}, BadInput, r"no module 'block.\*' .*allowed: token, position"),
        (
            {"token": "vocabulary"},
            NoRule,
            r"parameter 'token.weight' is used under two cuts: .*'token'.*'head'",
        ),
    ],
)
def test_a_cut_that_cannot_be_is_refused_in_one_message(
    cuts: Mapping[str, str], error: type[Exception], said: str
) -> None:
    captured, *_ = prepared("our GPT-2")
    with pytest.raises(error, match=said):
        local_graph(captured, (3,), [Wish(pattern, 0, factor) for pattern, factor in cuts.items()])


def test_the_same_cut_gives_the_same_graph() -> None:
    captured, *_ = prepared("our GPT-2")
    cuts = cuts_of("our GPT-2", (2,), ("heads", "vocabulary"))
    assert repr(local_graph(captured, (2,), cuts)) == repr(local_graph(captured, (2,), cuts))
