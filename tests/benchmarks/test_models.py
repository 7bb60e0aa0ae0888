"""Models of others, drawn by seed, are equal or refused; and what the table does with those that die.

The whole of the table is the benchmark `models`.
"""

from __future__ import annotations

import json
import os
import signal
import time
import warnings
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor, nn

from benchmarks import models
from benchmarks.models import Choice, chosen, judged
from benchmarks.zoo import FAMILIES, Family, followed, limits
from benchmarks.zoo import check as zoo_check
from benchmarks.zoo.check import Finding, Verdict, check
from benchmarks.zoo.parts import Case, squares
from planner.workload import Workload
from tests.draws import SEED
from tests.planner.capture.more_state import STATES

DRAWN = {"torch": 3, "constructs": 2, "strangers": 2, "transformers": 1}


@cache
def drawn(family: str) -> list[str]:
    """Cases of a family; to list those of torch takes seconds, so only who runs them does it."""
    return [case for _, case in chosen(Choice(only=(family,), each=DRAWN[family], seed=SEED), print)]


@pytest.mark.parametrize(
    ("family", "number"), [(name, number) for name, each in DRAWN.items() for number in range(each)]
)
def test_a_model_trains_evaluates_and_is_planned_as_by_itself_or_is_refused(family: str, number: int) -> None:
    if not drawn(family):
        pytest.skip(f"{family} is not installed")
    case = drawn(family)[number]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        found = check(case, FAMILIES[family].cases()[case], ranks=family == "strangers")
    assert found.judgement in ("equal", "refused", "no model"), models.said(found)


@pytest.mark.parametrize("name", Random(SEED).sample(list(STATES), 5))
def test_a_state_of_any_kind_is_carried_for_three_steps_and_an_evaluation_or_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo_check, "STEPS", 3)
    found = check(name, FAMILIES["constructs"].cases()[name], plans=False)
    assert found.judgement in ("equal", "refused"), models.said(found)


class Other(nn.Module):
    """A linear layer, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.first(x)
        return made * 1.5


def test_a_run_that_trains_otherwise_than_a_plain_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = followed.plain_loop

    def other(workload: Workload) -> followed.Plain:
        found = plain(workload)
        found.after["first.weight"] *= 1.01
        return found

    monkeypatch.setattr(zoo_check, "plain_loop", other)
    make = lambda: (Other(), lambda n: (torch.randn(n, 4), torch.zeros(n)), squares)  # noqa: E731
    found = check("odd", make, plans=False, ranks=True)
    assert found.judgement == "WRONG", models.said(found)
    assert "data 2: 'first.weight' is" in models.said(found)


class Halved(nn.Module):
    """Trains another weight than it evaluates with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.first(x)) * (1.0 if self.training else 0.5)


def other() -> Case:
    return Other(), lambda n: (torch.randn(n, 4), torch.randn(n, 4)), squares


def halved() -> Case:
    return Halved(), lambda n: (torch.randn(n, 4), torch.zeros(n)), squares


def killed() -> Case:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def sleeping() -> Case:
    time.sleep(60)
    raise AssertionError


def test_a_module_that_does_not_train_by_itself_is_no_model() -> None:
    found = check("odd", lambda: (nn.Linear(3, 3), halved()[1], squares))
    assert found.judgement == "no model" and "shapes cannot be multiplied" in models.said(found)


@pytest.mark.parametrize("kinds", [{torch.float32}, {torch.float32, torch.float64}])
def test_what_differs_in_single_precision_alone_is_equal(
    kinds: set[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(who: str, have: zoo_check.Trained, *_: object) -> None:
        if kinds & {x.dtype for x in have.after.values()}:
            raise followed.Differs(who)

    monkeypatch.setattr(zoo_check, "_compare", compare)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a scalar that has a gradient
        found = check("other", other, plans=False)
    assert found.judgement == ("equal" if len(kinds) == 1 else "WRONG"), models.said(found)


def test_a_case_that_is_killed_or_takes_too_long_is_a_crash_of_its_own() -> None:
    facts = [limits._forked(make, "case", 0.5) for make in (killed, sleeping)]
    first, second = (limits.verdict_of(json.loads(each)) for each in facts)
    assert first.judgement == second.judgement == "CRASH"
    assert "signal 9" in first.findings[0].said and "no end within 0.5 s" in second.findings[0].said


def test_a_sample_has_cases_of_every_family_and_another_seed_has_others() -> None:
    only = ("torch", "constructs", "examples")
    samples = [list(chosen(Choice(only=only, each=3, seed=seed))) for seed in (0, 0, 1)]
    assert [family for family, _ in samples[0]] == [*only] * 3
    assert samples[0] == samples[1] != samples[2]


def test_a_package_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "absent", Family(("no_such_package",), dict))
    said: list[str] = []
    assert list(chosen(Choice(only=("absent",)), said.append)) == []
    assert said == ["absent: left out, no_such_package is not installed here"]


def test_what_the_journal_has_is_not_judged_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    finding = Finding(step="plan", judgement="refused", said="no", cured=False)
    models._note(journal, "torch", Verdict(case="nn.Linear 0", findings=(finding,), cpu_s=1.0))
    rows = judged(Choice(journal=journal), [("torch", "nn.Linear 0")], print)
    assert rows == [("torch", Verdict(case="nn.Linear 0", findings=(finding,), cpu_s=1.0))]
    table, rest = models.counts(rows), models.exceptions(rows)
    assert table.rows == [("torch", 1, 0, 1, 0, 0, 0, 1, 0, 1)]
    assert rest.rows == [("torch", "nn.Linear 0", "plan", "refused, no cure", "no")]
    assert models.missed(rows, ()) == ("1 cases are refused without a place or a cure (torch nn.Linear 0).",)


def test_what_there_was_no_time_for_is_said_and_nothing_else_is_lost(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    models._note(journal, "examples", Verdict(case="lstm"))
    choice = Choice(only=("examples",), journal=journal, seconds=-1.0)
    found = models.result_of(choice, quick=False)
    cases = len(FAMILIES["examples"].cases())
    assert found.missed == (
        f"{cases - 1} of {cases} cases were not judged in the time there was; `--journal` goes on.",
    )
    assert found.tables[0].rows[0][:3] == ("examples", 1, 1)
    assert found.tables[-1].rows == [("examples", cases, 1)]
