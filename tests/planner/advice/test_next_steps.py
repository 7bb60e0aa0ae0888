from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.main import get_command

import shardwright as sw
from planner.advice import Sources, advice
from planner.plan import Plan
from planner.report import Contents
from tests.planner import plan_examples, report_cases
from tests.planner.report.test_page import record

CASES = report_cases.cases()
SOURCES = Sources(plan=Path("my plan.yaml"), cluster=Path("c.yaml"))


def told(found: Contents, sources: Sources = SOURCES) -> list[tuple[str, str]]:
    return list(advice(found.plan, sources, run=found.run, idle=found.idle_share, fullest=found.fullest))


def words(found: Contents) -> str:
    return " ".join(what for what, _ in told(found))


def test_advice_has_reasons() -> None:
    plan = CASES["1f1b"]
    alone = words(Contents(plan=plan))
    assert "idle" in alone and "Nothing has been measured" in alone and "roofline" not in alone
    ran = words(Contents(plan=plan, run=record(plan)))
    assert "1.50 times what was predicted" in ran
    well = words(Contents(plan=plan, run=record(plan, slower=1.01)))
    assert "times what was predicted" not in well


def roofline(plan: Plan) -> Plan:
    source = plan.provenance.model_copy(update={"profile": "H100-80GB (roofline)", "cluster": "h100x8"})
    return plan.model_copy(update={"provenance": source, "certificate": None, "precision": "bf16"})


@pytest.mark.parametrize("sources", [SOURCES, replace(SOURCES, profile=Path("p.yaml")), Sources()])
@pytest.mark.parametrize("ran", [False, True])
def test_every_command_is_one_that_the_command_line_takes(ran: bool, sources: Sources) -> None:
    plans = [*CASES.values(), plan_examples.plan(recompute=True), roofline(CASES["zb-h1"])]
    app, seen = get_command(sw._app()), 0
    for plan in plans:
        found = Contents(plan=plan, run=record(plan) if ran else None)
        for _, command in told(found, sources):
            for one in filter(None, command.split(" && ")):
                program, name, *rest = shlex.split(one)
                assert program == "shardwright" and "..." not in one and "CLUSTER" not in one
                inner = app.commands[name]  # type: ignore[attr-defined]
                inner.make_context(name, rest, resilient_parsing=False)
                seen += 1
    assert seen > 10


def test_a_command_names_the_files_that_were_given() -> None:
    plan = roofline(CASES["1f1b"])
    commands = [command for _, command in told(Contents(plan=plan))]
    assert any("--cluster c.yaml" in each and "--precision bf16" in each for each in commands)
    assert any("'my plan.yaml'" in each for each in commands)
    named = [command for _, command in told(Contents(plan=plan), Sources())]
    assert any("--cluster h100x8" in each for each in named)
