"""Commands from dataclasses of their options, which arrive as one value; and the options that several of them share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="argument of the workload")
]
Json = Annotated[bool, typer.Option("--json", help="one JSON object on standard output")]
Force = Annotated[bool, typer.Option("--force", help="overwrite what is there")]
Out = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="where to write")]
PlanFile = Annotated[Path, typer.Argument(help="a plan.yaml", metavar="PLAN")]
RunFolder = Annotated[Path, typer.Argument(help="a folder that launch made", metavar="RUN")]

Options = TypeVar("Options", bound="DataclassInstance")


def register(
    app: typer.Typer,
    name: str,
    options: type[Options],
    run: Callable[[Options], None],
    *,
    about: str,
    example: str,
) -> None:
    """Field names are those of the options, types are `Annotated` with what Typer is to know of them."""
    hints = get_type_hints(options, include_extras=True)

    def call(**given: Any) -> None:  # of the types of the fields, as Typer has checked
        run(options(**given))

    call.__doc__ = about
    call.__annotations__ = {field.name: hints[field.name] for field in fields(options)}
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(options)
        ]
    )
    app.command(name, epilog=f"Example: {example}")(call)
