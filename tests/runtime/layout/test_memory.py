"""What a plan with tensors in parts predicts a rank to hold, against what it holds: within 4 %, and never 1 % too little.

`benchmarks.layouts` has all cases; tests draw from them by seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import pytest

from planner.milp import Question, solve
from planner.plan import Plan
from tests.draws import part
from tests.runtime.test_memory_model import machines, profile, ratios

LEAST, MOST = 0.96, 1.01
DRAWN = 3

HEADS = "blocks.*.attention:heads,blocks.*.feedforward:hidden"
SEQUENCE = f"{HEADS},token:sequence,blocks.*:sequence,norm:sequence"
RING = "blocks.*.attention:ring,token:sequence,blocks.*:sequence,norm:sequence"
VOCABULARY = f"{HEADS},token:vocabulary,head:out"
CHANNELS = "input:hidden,down.*:hidden,up.*.convolutions:hidden"
SQUARE = "blocks.*.attention:heads:samples,blocks.*.feedforward:hidden:samples,*::stored,*::samples"
LAYERS = "model.layers.*.mlp:hidden"


class Case(NamedTuple):
    """A model, its cut, and how many micro-batches a plan of one schedule has."""

    workload: str
    arguments: tuple[tuple[str, str], ...]
    cut: str
    group: tuple[int, ...]
    schedule: str = "1f1b"
    pipeline: int = 1
    recompute: bool = False
    micro: int = 4
    shared: str = "none"  # by two replicas, where it is


TINY = (("size", "tiny"), ("dropout", "0"))
CASES: Mapping[str, Case] = {
    **{
        f"GPT-2 by {name}, group {group}": Case("gpt2", TINY, cut, (group,))
        for name, cut in (("heads", HEADS), ("sequence", SEQUENCE), ("vocabulary", VOCABULARY))
        for group in (2, 4)
    },
    **{
        f"U-Net by channels, group {group}": Case("unet3d", (("size", "tiny"),), CHANNELS, (group,), micro=2)
        for group in (2, 4)
    },
    "GPT-2 in a ring": Case("gpt2", TINY, RING, (2,)),
    "GPT-2 with dropout": Case("gpt2", (("size", "tiny"), ("dropout", "0.1")), SEQUENCE, (2,)),
    "GPT-2 on two axes": Case(
        "gpt2", TINY, "blocks.*.attention:heads:samples,blocks.*.feedforward:hidden:samples", (2, 2)
    ),
    "GPT-2, weights that rest in parts": Case("gpt2", TINY, "*:samples,*:stored", (2,)),
    "GPT-2 by sequence, weights that rest in parts": Case("gpt2", TINY, f"{SEQUENCE},*:stored", (2,)),
    "GPT-2 in 2-D": Case("gpt2", TINY, SQUARE, (2, 2)),
    "U-Net, weights that rest in parts": Case(
        "unet3d", (("size", "tiny"),), f"{CHANNELS},*:stored", (2,), micro=2
    ),
    "GPT-2 in two stages": Case("gpt2", TINY, SEQUENCE, (2,), pipeline=2),
    "GPT-2, backward in halves": Case("gpt2", TINY, HEADS, (2,), "zb-h1", 2),
    "GPT-2, sequence, backward in halves": Case("gpt2", TINY, SEQUENCE, (2,), "zb-h1", 2),
    "GPT-2, vocabulary, backward in halves": Case("gpt2", TINY, VOCABULARY, (2,), "zb-h1", 2),
    "U-Net, backward in halves": Case("unet3d", (("size", "tiny"),), CHANNELS, (2,), "zb-h1", 2, micro=2),
    "GPT-2 recomputed": Case("gpt2", TINY, HEADS, (2,), pipeline=2, recompute=True),
    **{
        f"GPT-2, {what} shared beside": Case("gpt2", TINY, HEADS, (2,), shared=what)
        for what in ("state", "gradients", "parameters")
    },
    "GPT-2 by vocabulary in two stages, parameters shared": Case(
        "gpt2", TINY, VOCABULARY, (2,), pipeline=2, shared="parameters"
    ),
    "GPT-2 in chimera, gradients shared": Case(
        "gpt2", TINY, HEADS, (2,), "chimera", 2, micro=2, shared="gradients"
    ),
    "GPT-2 recomputed, parameters shared": Case(
        "gpt2", TINY, HEADS, (2,), recompute=True, shared="parameters"
    ),
    "GPT-2, weights that rest in parts, shared": Case(
        "gpt2", TINY, "*:samples,*:stored", (2,), shared="parameters"
    ),
    "Llama by columns": Case("tests/runtime/workloads/hf_llama.py", (), LAYERS, (2,), micro=2),
}


def planned(case: Case) -> Plan:
    """Returns the plan of a case, with four micro-batches for each worker."""
    costs = profile(case.workload, tuple(sorted(case.arguments)), case.micro)
    data = 1 if case.shared == "none" else 2
    ranks = data * case.pipeline * prod(case.group)
    fix = {
        "data": data,
        "shard": case.shared,
        "pipeline": case.pipeline,
        "schedule": case.schedule,
        "recompute": case.recompute,
        "micro": case.micro,
        "group": "x".join(map(str, case.group)),
        "cut": case.cut,
    }
    batch = case.micro * 2 * case.pipeline * data
    return solve(Question(profile=costs, cluster=machines(ranks), batch=batch, fix=fix))


@pytest.mark.parametrize("name", part(CASES, DRAWN))
def test_a_rank_with_parts_of_tensors_holds_what_was_predicted(name: str) -> None:
    found = ratios(planned(CASES[name]))
    assert LEAST <= max(found) <= MOST, found
