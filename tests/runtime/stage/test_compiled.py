"""Compiled stages: what repeats is compiled once, and trains as the eager stage does."""

from __future__ import annotations

import pytest
import torch

from planner.capture.stage_modules import whole
from runtime.stage import compile_stage, graph_of
from runtime.stage.compiled import blocks
from tests.captures import captured_of
from tests.runtime.test_equality import HERE

MLP = HERE + "mlp.py"


@pytest.mark.parametrize(
    ("signatures", "units"),
    [
        ("e ab ab ab h", "0 11 22 33 4"),
        ("ab ab", "00 11"),
        ("abc", "000"),
        ("aaaa", "0123"),
        ("ee x ab ab y z cd cd", "01 2 33 44 5 5 66 77"),
        ("", ""),
    ],
)
def test_copies_of_a_run_of_layers_are_units_and_so_is_what_lies_between(signatures: str, units: str) -> None:
    assert blocks(signatures.replace(" ", "")) == [int(x) for x in units.replace(" ", "")]


@pytest.mark.filterwarnings("ignore")  # those that torch's compiler causes itself
def test_blocks_that_repeat_share_one_compiled_graph_and_give_the_same_numbers() -> None:
    workload, captured = captured_of(MLP, {"layers": "9"}, 2)
    module, plain = whole(captured), whole(captured)
    torch.manual_seed(0)
    tensors = captured.initial(workload.build())
    values = captured.batch_values(*workload.batch(2))
    gradients = []
    for one in (module, plain):
        one.materialise(tensors)
        if one is module:
            compile_stage(one, [layer.signature for layer in captured.graph.layers])
        one(values)["loss:0"].backward()
        gradients.append({name: p.grad for name, p in one.named_parameters()})
    parts = [part for name, part in vars(module._run)["_modules"].items() if name.startswith("submod")]
    assert len({id(part) for part in parts}) < len(parts)
    assert graph_of(module).graph.nodes, "the graph that was compiled is still at hand"
    for name, want in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], want, rtol=1e-4, atol=1e-6)
