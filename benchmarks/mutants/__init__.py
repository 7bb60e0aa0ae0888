"""Hostile inputs by seed, for the fuzzer and for tests.

In: right inputs, which `right.py` makes. Out: for each kind of input a function that writes a changed one and returns
the command that reads it, and `judged`, which runs that command and says what is wrong with how it ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.mutants import deciding, training
from benchmarks.mutants.changes import EVIL
from benchmarks.mutants.judging import judged
from benchmarks.mutants.right import ROOFLINE, Seeds, seeds, trained

Kind = Callable[[Seeds, Path, random.Random], list[str]]
KINDS: Mapping[str, Kind] = {
    "plan": deciding.a_plan,
    "cluster": deciding.a_cluster,
    "profile": deciding.a_profile,
    "calibration": deciding.a_calibration,
    "run": training.a_run,
    "plan with sections": deciding.a_plan_with_sections,
    "cluster with sums": deciding.a_cluster_with_sums,
    "layout": deciding.a_cut,
    "profile with operations": deciding.a_profile_of_operations,
    "log of a site": deciding.a_log_of_a_site,
    "baseline": deciding.a_baseline,
    "captured model": training.a_model,
    "masks": training.a_mask,
    "checkpoint": training.a_checkpoint,
    "weights": training.some_weights,
    "index of samples": training.some_samples,
    "inference": training.an_inference,
    "volume": training.a_volume,
    "settings": training.some_settings,
}

__all__ = [
    "EVIL",
    "KINDS",
    "ROOFLINE",
    "Kind",
    "Seeds",
    "judged",
    "seeds",
    "trained",
]
