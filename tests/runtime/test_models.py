"""Real models under plans of every kind: transformers, recurrent nets, U-Nets, residual nets, from elsewhere too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import captured_of
from tests.draws import part
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.test_equality import HERE, plan_of

# workload, arguments, shape of the plan; sizes keep gradients far from rounding noise
CASES: dict[str, tuple[str, dict[str, str], dict[str, object]]] = {
    "gpt2, tied, 1F1B": (HERE + "gpt2.py", {"size": "tiny", "seq": "16"}, {"workers": 3, "micros": 4}),
    "gpt2, tied, zero bubbles, replicas": (
        HERE + "gpt2.py",
        {"size": "tiny", "seq": "16"},
        {"family": "zb-h1", "workers": 2, "micros": 2, "data": 2},
    ),
    "gpt2, tied, chimera": (
        HERE + "gpt2.py",
        {"size": "tiny", "seq": "16"},
        {"family": "chimera", "workers": 4, "micros": 4},
    ),
    "bert, counted loss, dictionaries": (
        HERE + "bert.py",
        {"size": "tiny", "dropout": "0", "seq": "16"},
        {"family": "zb-v", "workers": 2, "micros": 5},
    ),
    "lstm, split by the graph walk": (
        HERE + "lstm.py",
        {"size": "tiny"},
        {"family": "zb-h1", "workers": 3, "micros": 4},
    ),
    "3-D U-Net, a wave": (
        HERE + "unet3d.py",
        {"size": "tiny"},
        {"family": "wave", "workers": 2, "micros": 4},
    ),
    "3-D U-Net, split": (
        HERE + "unet3d.py",
        {"size": "tiny"},
        {"family": "zb-h1", "workers": 3, "micros": 3},
    ),
    "llama of transformers": (
        HERE + "hf_llama.py",
        {},
        {"family": "interleaved-zb", "workers": 2, "micros": 4},
    ),
    "U-Net of MONAI": (HERE + "monai_unet.py", {}, {"family": "zb-v", "workers": 2, "micros": 3}),
    "autograd functions of the user, split": (
        HERE + "custom.py",
        {},
        {"family": "zb-h1", "workers": 2, "micros": 3},
    ),
    "resnet": ("resnet50", {"side": "32", "width": "8", "classes": "10"}, {"workers": 2, "micros": 2}),
}


@pytest.mark.parametrize("case", part(CASES, 4))
def test_a_model_trains_under_a_plan_as_in_one_process(case: str, pool: Pool, tmp_path: Path) -> None:
    workload, arguments, shape = CASES[case]
    plan, steps = plan_of(workload, arguments, **shape), 1 if workload == "resnet50" else 3
    model = captured_of(workload, arguments, 2)[1].graph
    have = run(pool, plan, tmp_path, steps=steps)
    want = expected(plan, tmp_path, steps=steps)
    found = distance(want, have)
    assert found.loss <= 1e-6, found
    if len(plan.schedule.place) == plan.axes.data == 1:
        once = [row.name for row in model.parameters if len(set(row.users)) == 1]
        assert {n: found.grads[n] for n in once if found.grads.get(n)} == {}
        exact = len(have.losses) if len(once) == len(model.parameters) else 1  # then of other tied weights
        assert have.losses[:exact] == want.losses[:exact]
    assert max(found.grads.values()) <= 1e-6, {n: d for n, d in found.grads.items() if d > 1e-6}
    assert max(found.after.values()) <= 2e-6, {n: d for n, d in found.after.items() if d > 2e-6}
