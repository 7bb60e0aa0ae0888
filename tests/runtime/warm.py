"""Imported once, by the process that pool workers are forked from: what all of them would else do each."""

from __future__ import annotations

import torch

from tests.captures import captured_of

HERE = "tests/runtime/workloads/"

torch.set_num_threads(1)  # a process that has run threads cannot be forked
for _name, _arguments in (
    ("branches.py", {"double": "False"}),
    ("branches.py", {"double": "True"}),
    ("mlp.py", {"layers": "9"}),
    ("normalised.py", {}),
    ("dropping.py", {}),
):
    captured_of(HERE + _name, _arguments, 2)
