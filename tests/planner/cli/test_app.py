"""A command whose options are the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import pytest
import typer

import planner.cli as command


@dataclass(frozen=True, kw_only=True)
class Options:
    file: Annotated[Path, typer.Argument()]
    count: Annotated[int, typer.Option(help="how often")]
    names: Annotated[list[str] | None, typer.Option("--name")] = None
    as_json: command.Json = False


def app_of(seen: list[Options]) -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    command.add_command(app, "do", Options, seen.append, about="Does it.", example="do file --count 2")
    return app


def test_options_arrive_as_one_value_of_the_types_that_were_declared() -> None:
    seen: list[Options] = []
    app_of(seen)(["do", "a.yaml", "--count", "2", "--name", "x", "--name", "y"], standalone_mode=False)
    app_of(seen)(["do", "b", "--count", "3", "--json"], standalone_mode=False)
    assert seen == [
        Options(file=Path("a.yaml"), count=2, names=["x", "y"]),
        Options(file=Path("b"), count=3, as_json=True),
    ]


def test_a_field_without_a_default_is_an_option_that_must_be_given() -> None:
    seen: list[Options] = []
    wrong: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        app_of(seen)(["do", "a.yaml"], standalone_mode=False)
    except wrong as error:
        assert "--count" in str(getattr(error, "format_message", error.__str__)())
    else:
        raise AssertionError("nothing was refused")
    assert not seen


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.answer(lambda: command.app("Tells."), ["--version"]) == 0
    assert capsys.readouterr().out == f"shardwright {metadata.version('shardwright')}\n"
