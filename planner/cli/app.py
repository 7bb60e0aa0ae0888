"""Commands from dataclasses of their options, which arrive as one value; and the options that several of them share."""

from __future__ import annotations

import errno
import inspect
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, cast, get_args, get_type_hints

import typer

from planner.errors import BadInput, Interrupted, ShardwrightError, Unexpected
from planner.terminal import answers_alone, report_error

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from planner.calibrate import Observation
    from planner.measure import BackwardSplit, SpatialSplit
    from planner.profile import Profile
    from planner.simulate import RunRecord


class ProfileElsewhere(Protocol):
    """Has `shardwright profile WORDS` run on a device of each kind; where the profiles are."""

    def __call__(
        self,
        words: Sequence[str],
        output: Path,
        *,
        cuda: bool,
        force: bool,
        sbatch: Sequence[str],
        note: Callable[[str], None],
    ) -> list[Path]: ...


class Measure(Protocol):
    def __call__(
        self,
        workload: str,
        settings: dict[str, str],
        *,
        device: str,
        micros: tuple[int, ...],
        precision: str | None,
        execution: str,
        grids: tuple[tuple[int, ...], ...],
    ) -> Profile: ...


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The functions that the planner needs of the runtime, handed in by the facade and fetched only when used."""

    backward_split: Callable[[], BackwardSplit]
    spatial_split: Callable[[], SpatialSplit]
    show_run: Callable[[Path], tuple[dict[str, object], str]]
    observe: Callable[[Path], Observation]
    record: Callable[[Path], RunRecord]
    profile_by_slurm: ProfileElsewhere


Json = Annotated[bool, typer.Option("--json", help="one JSON object on standard output")]
Force = Annotated[bool, typer.Option("--force", help="overwrite what is there")]
Out = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="where to write")]
PlanFile = Annotated[Path, typer.Argument(help="a plan.yaml, or a run of it", metavar="PLAN")]
RunFolder = Annotated[Path, typer.Argument(help="a folder that launch made", metavar="RUN")]

NAME = "shardwright"
DEBUG = "--debug"  # of every command, wherever it stands
WORDS = ("plan", "launch")  # commands that are programs of their own too
COMPLETION = ("--install-completion", "--show-completion")
Options = TypeVar("Options", bound="DataclassInstance")


def add_command(
    app: typer.Typer,
    name: str,
    options: type[Options],
    run: Callable[[Options], None],
    *,
    about: str,
    example: str,
    panels: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Adds a command whose options are the fields of a dataclass.

    Args: names of fields are those of the options, and types are `Annotated` with what Typer is to know of them. A
      field that is a dataclass itself is a group of options that commands share. `panels` are titles in the help, and
      the fields under each; fields that none names stand under "Options".
    """
    titles = {name: title for title, names in (panels or {}).items() for name in names}
    parameters = [_in_panel(each, titles.get(each.name)) for each in _parameters(options)]

    def call(**given: Any) -> None:  # of the types of the fields, as Typer has checked
        run(_filled(options, given))

    call.__doc__ = about
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app.command(name, epilog=f"Example: {example}")(call)


def _in_panel(parameter: inspect.Parameter, title: str | None) -> inspect.Parameter:
    """Returns an option as it stands in a panel of the help; commands that share it may have it elsewhere."""
    if title is None:
        return parameter
    kind, info = get_args(parameter.annotation)
    info = copy(info)
    info.rich_help_panel = title
    return parameter.replace(annotation=Annotated[kind, info])


def _parameters(options: type[Any]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from _parameters(cast(type[Any], hint))
            continue
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _filled(options: type[Options], given: Mapping[str, Any]) -> Options:
    hints, values = get_type_hints(options), dict[str, Any]()
    for field in fields(options):
        hint = hints[field.name]
        values[field.name] = _filled(cast(Any, hint), given) if is_dataclass(hint) else given[field.name]
    return options(**values)


def app(about: str) -> typer.Typer:
    """Returns the program, without commands yet.

    Args: `about` is the first line of its help.
    """
    made = typer.Typer(
        name=NAME,
        help=about,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def beside(
        version: Annotated[
            bool, typer.Option("--version", help="print it", is_eager=True, callback=_version)
        ] = False,
        debug: Annotated[bool, typer.Option(DEBUG, help="print the traceback of an error")] = False,
    ) -> None:
        pass

    made.callback()(beside)
    return made


def _version(asked: bool) -> None:
    if asked:
        print(f"{NAME} {metadata.version(NAME)}")
        raise typer.Exit


def answer(made: Callable[[], typer.Typer], arguments: Sequence[str]) -> int:
    """Runs the command that the arguments name.

    Returns: the exit status.
    """
    own = list(takewhile("--".__ne__, arguments))  # after it: a script's
    debug = DEBUG in own
    arguments = [*filter(DEBUG.__ne__, own), *arguments[len(own) :]]
    as_json = "--json" in own
    with answers_alone() if as_json and not {"--help", "-h"}.intersection(own) else nullcontext():
        programs = (NAME, *WORDS) if own and own[0] in COMPLETION else (NAME,)
        return max(_answer(made, arguments, program, as_json=as_json, debug=debug) for program in programs)


def completing(word: str, environment: MutableMapping[str, str]) -> None:
    """What a shell asks of the program `plan` becomes what it would ask of `shardwright plan`."""
    asked = environment.pop(f"_{word.upper()}_COMPLETE", None)
    if asked is None:
        return
    environment[f"_{NAME.upper()}_COMPLETE"] = asked
    if "COMP_CWORD" in environment:  # bash
        environment["COMP_WORDS"] = f"{NAME}\n{environment['COMP_WORDS']}"
        environment["COMP_CWORD"] = str(int(environment["COMP_CWORD"]) + 1)
    if "_TYPER_COMPLETE_ARGS" in environment:  # zsh
        environment["_TYPER_COMPLETE_ARGS"] = f"{NAME} {environment['_TYPER_COMPLETE_ARGS']}"


def _answer(
    made: Callable[[], typer.Typer], arguments: Sequence[str], program: str, *, as_json: bool, debug: bool
) -> int:
    # Typer's own, or that of click, as its version has it.
    WrongUsage: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        status = made()(list(arguments) or ["--help"], prog_name=program, standalone_mode=False)
    except Unexpected as error:
        return _unexpected(error, as_json=as_json, debug=debug)
    except ShardwrightError as error:
        if debug:
            traceback.print_exc()
        return report_error(error, as_json=as_json)
    except WrongUsage as error:
        return report_error(_wrong_usage(cast(typer.BadParameter, error)), as_json=as_json)
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO):
            unwritten = BadInput(f"cannot be written: {error.strerror}", where="what was to be printed")
            return report_error(unwritten, as_json=as_json)
        if error.filename is None:
            return _unexpected(Unexpected.of(error), as_json=as_json, debug=debug)
        unusable = BadInput(f"cannot be used: {error.strerror}", where=str(error.filename))
        return report_error(unusable, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return report_error(Interrupted("interrupted"), as_json=as_json)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except (
        Exception
    ) as error:  # of a library, of the user's code, or ours: a message and a file, never a traceback
        return _unexpected(Unexpected.of(error), as_json=as_json, debug=debug)
    if status == Interrupted.status:  # Typer's answer to Ctrl-C
        return report_error(Interrupted("interrupted"), as_json=as_json)
    return status or (0 if arguments else BadInput.status)


def _unexpected(error: Unexpected, *, as_json: bool, debug: bool) -> int:
    """Reports an error that nobody foresaw, with its traceback in a file or, for `--debug`, on standard error."""
    if debug:
        print(error.trace, file=sys.stderr)
        return report_error(error, as_json=as_json)
    where = _kept(error.trace)
    told = (
        f"{error}\nThe traceback is in {where}; --debug prints it"
        if where
        else f"{error}\n--debug prints more"
    )
    return report_error(Unexpected(told, error.trace), as_json=as_json)


def _kept(trace: str) -> str:
    """Writes a traceback to a new file here, or in the folder for temporary files; empty where neither takes it."""
    for folder in (".", None):
        with suppress(OSError):
            number, name = tempfile.mkstemp(".txt", "shardwright-error-", folder)
            with open(number, "w", encoding="utf-8") as file:
                file.write(trace)
            return str(Path(name))
    return ""


def _wrong_usage(error: typer.BadParameter) -> BadInput:
    command = error.ctx.command_path if error.ctx is not None else NAME
    missing = getattr(error.param, "help", None) if type(error).__name__ == "MissingParameter" else None
    more = f"{missing}; `{command} --help` says more" if missing else f"what `{command} --help` lists"
    return BadInput(error.format_message().rstrip("."), where=command, allowed=more)


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Reads a list of whole numbers, such as `1,2,4`.

    Returns: the numbers in order and without repeats.
    Raises: BadInput that names `option`, for anything else or a number below 1.
    """
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise BadInput(
            f"'{text}' is no list of whole numbers", where=option, allowed="such as 1,2,4"
        ) from None
    if numbers[0] < 1:
        raise BadInput(f"{numbers[0]} is too small", where=option, allowed="1 or more")
    return tuple(numbers)


def grids(text: str, option: str) -> tuple[tuple[int, ...], ...]:
    """Reads a list of grids, such as `1,2,2x2`.

    Returns: the parts along each dimension of every grid; grids of one part, 1 or 1x1, are left out.
    Raises: BadInput that names `option`, for anything else or a part below 1.
    """
    try:
        found = [tuple(int(part) for part in word.split("x")) for word in text.split(",")]
    except ValueError:
        raise BadInput(f"'{text}' is no list of parts", where=option, allowed="such as 1,2,2x2") from None
    least = min(part for grid in found for part in grid)
    if least < 1:
        raise BadInput(f"{least} is too small", where=option, allowed="1 or more")
    return tuple(dict.fromkeys(grid for grid in found if max(grid) > 1))
