"""Imports a user's file as Python would import a script, and gives its functions what `--set` says.

What lies beside the file is found first. A folder of the user's own called `models`, `runtime` or `planner` means
theirs to their file and ours to us. So while the file is imported its folder comes first and our modules of such a
name are put away. Afterwards our modules are back, and the folder stays behind everything else, for imports that the
user's functions make later.

The values that `--set name=value` gives come in the type that each argument has.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from planner.errors import BadInput
from planner.files import absolute

MODELS = Path(__file__).resolve().parents[2] / "models"
NOT_USERS = ("<", str(Path(__file__).parents[1]), str(Path(inspect.getfile(inspect)).parent))
OURS = ("models", "planner", "runtime", "shardwright")


@contextmanager
def importing_beside(folder: Path) -> Iterator[None]:
    """Lets imports find what lies in a folder first, while it is entered.

    Args: `folder` is that of the user's file.
    """
    place = str(folder.resolve())
    theirs = [name for name in OURS if _own(folder, name)]
    away = _taken(theirs)
    finder = _Theirs(theirs, place)
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
        sys.meta_path.remove(finder)
        if place not in sys.path:
            sys.path.append(place)
        _taken(theirs)
        sys.modules.update(away)


def outside(name: str, folders: Iterable[Path]) -> Path | None:
    """Returns the file or folder of a workload that lies in none of some folders, None where it does or is a module.

    A module is found in the current folder, or was installed by the user. The folder of a captured model holds no
    code, but names classes and functions that are called.
    Args: `name` is as a plan names its workload.
    """
    if not name.endswith(".py") and not Path(name).is_dir():
        return None
    path = absolute(Path(name))
    return None if any(path.is_relative_to(absolute(folder)) for folder in folders) else path


class _Theirs(MetaPathFinder):
    """A finder of some names in one folder, since a folder without `__init__.py` would come after any package with
    one.
    """

    def __init__(self, names: Sequence[str], folder: str) -> None:
        self._names, self._folder = names, folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a module of the user's by name.

        Returns: its spec; None for other names, which Python's own finders look up.
        """
        return PathFinder.find_spec(name, [self._folder], target) if name in self._names else None


def _own(folder: Path, name: str) -> bool:
    """Returns whether a folder holds a module of this name that is not this project's."""
    found = [path for path in (folder / name, folder / f"{name}.py") if path.exists()]
    ours = Path(__file__).resolve().parents[2]
    return any(path.resolve().parent != ours for path in found)


def _taken(names: list[str]) -> dict[str, ModuleType]:
    """Takes the modules of these names, and those within them, out of `sys.modules`, and returns them."""
    found = {key: module for key, module in sys.modules.items() if key.partition(".")[0] in names}
    for key in found:
        del sys.modules[key]
    return found


Scalar = str | int | float | bool


def parse_settings(texts: Iterable[str], option: str = "--set") -> dict[str, str]:
    """Splits settings as `--set` and `--fix` take them.

    Args: `option` is named in messages.
    Returns: the text of each value, by name.
    Raises: BadInput for a text without a name and "=", or a name that is set twice.
    Example: parse_settings(["size=xl"]) is {"size": "xl"}.
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise BadInput(f"'{text}' sets nothing", where=option, allowed="name=value")
        if name in settings:
            raise BadInput(f"'{name}' is set twice", where=option)
        settings[name] = value
    return settings


def bind(
    functions: Mapping[str, Callable[..., object]], settings: Mapping[str, str], where: str
) -> tuple[dict[str, Scalar], dict[str, Callable[..., object]]]:
    """Binds settings to the functions that have an argument of the name, converted to the type of its default.

    Returns: the values by name, and the functions by role, to be called without these arguments.
    Raises: BadInput for a name that no function takes, or a value that does not fit; `where` is the user's file.
    """
    arguments: dict[str, Scalar] = {}
    bound = dict(functions)
    named: dict[str, set[str]] = {}
    for role, function in functions.items():
        defaults = _defaults(function)
        named[role] = set(defaults)
        given = {
            key: _convert(text, _example(function, key, defaults[key], text), f"{where}: {role}({key}=)")
            for key, text in settings.items()
            if key in defaults
        }
        arguments.update(given)
        if given:
            bound[role] = _with(function, given)
    known = sorted(set().union(*named.values()))
    for key in settings:
        if key not in known:
            raise BadInput(
                f"no function of the workload has an argument '{key}'",
                where=f"{where}: --set {key}",
                allowed=", ".join(known) or "none: its functions have no arguments with defaults",
            )
    return arguments, bound


def _with(function: Callable[..., object], given: Mapping[str, Scalar]) -> Callable[..., object]:
    def bound(*values: object) -> object:
        return function(*values, **given)

    return bound


def _defaults(function: Callable[..., object]) -> dict[str, object]:
    """Returns the arguments of a function that `--set` may give, with their defaults."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _example(function: Callable[..., object], name: str, default: object, text: str) -> object:
    """Returns a value of the type that an argument takes.

    Where the default is None the annotation tells, such as `int | None`. Without an annotation the text itself tells:
    192 is a number.
    """
    if default is not None:
        return default
    annotation = inspect.signature(function).parameters[name].annotation
    said = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    words = set(re.findall(r"\w+", said)) if annotation is not inspect.Parameter.empty else set()
    for kind, known in (("str", ""), ("int", 0), ("float", 0.0), ("bool", False)):
        if kind in words:
            return known
    return 0 if re.fullmatch(r"[+-]?\d+", text) else 0.0 if re.fullmatch(_NUMBER, text) else None


_NUMBER = r"[+-]?(\d+\.\d*|\.?\d+)([eE][+-]?\d+)?"


def _convert(text: str, default: object, where: str) -> Scalar:
    if isinstance(default, bool):
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if text.lower() not in words:
            raise BadInput(f"'{text}' is not a truth value", where=where, allowed="true, false")
        return words[text.lower()]
    for kind, noun in ((int, "an integer"), (float, "a number")):
        if isinstance(default, kind):
            try:
                value = kind(text)
            except ValueError:
                raise BadInput(f"'{text}' is not {noun}", where=where, allowed=noun) from None
            if not math.isfinite(value):  # no file of ours could hold it
                raise BadInput(f"'{text}' is not finite", where=where, allowed="a finite number")
            return value
    if default is None or isinstance(default, str):
        return text
    raise BadInput(
        f"the default is {kind_of(default)}", where=where, allowed="an argument with a plain default"
    )


def kind_of(value: object) -> str:
    """Returns the type of a value with its article, for messages.

    Example: kind_of(3) is "an int".
    """
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def where_raised(error: BaseException, fallback: str) -> str:
    """Finds the innermost line of the user's in the trace of an error: outside torch, Python and this package.

    Returns: file:line, or `fallback` where there is none.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return fallback


def is_users(file: str) -> bool:
    """Returns whether a file of code is the user's: outside torch, Python and this package.

    Args: `file` is the name that its code objects have.
    """
    return not file.startswith(NOT_USERS) and "site-packages" not in file


def import_named(name: str) -> tuple[ModuleType, str]:
    if name.endswith(".py"):
        return _import_file(Path(name), name)
    if name.isidentifier() and (MODELS / f"{name}.py").is_file():
        return _import_file(MODELS / f"{name}.py", name)
    bad = [part for part in name.split(".") if not part.isidentifier()]
    if bad:
        raise BadInput(f"'{name}' is no workload", allowed=_allowed())
    try:
        with importing_beside(Path.cwd()):
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise BadInput(f"cannot be imported: {error}", where=where_raised(error, name)) from error
        raise BadInput(f"there is no workload '{name}'", allowed=_allowed()) from None
    except (Exception, SystemExit) as error:
        raise _failed_import(error, name) from error
    return module, module.__file__ or name


def _import_file(path: Path, name: str) -> tuple[ModuleType, str]:
    if not path.is_file():
        raise BadInput(f"there is no file '{path}'", allowed=_allowed())
    # The path is part of the name, so that two files called train.py are two modules.
    key = "workload_" + path.stem + "_" + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(key, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module  # dataclasses and pickling look their module up there
    try:
        with nullcontext() if path.parent == MODELS else importing_beside(path.resolve().parent):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[key]
        raise _failed_import(error, str(path)) from error
    return module, str(path)


def _failed_import(error: BaseException, where: str) -> BadInput:
    if isinstance(error, SyntaxError):
        place = f"{error.filename or where}:{error.lineno or 1}"
    else:
        place = where_raised(error, where)
    return BadInput(f"cannot be imported: {type(error).__name__}: {error}", where=place)


def _allowed() -> str:
    known = sorted(path.stem for path in MODELS.glob("*.py") if not path.stem.startswith("_"))
    return f"file.py, package.module, a model's folder, or one of {', '.join(known)}"
