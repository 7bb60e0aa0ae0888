"""Counts how docstrings are written: how many begin with a fragment, and how many say what comes in and out.

`python -m tests.prose [paths]` prints the counts of every package below the paths, then the lines to mend.
Without paths it counts the product: `planner/`, `runtime/`, `models/` and `shardwright.py`.
What a fragment is stands in `tests/sentences.py`.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.sentences import first_sentence, is_fragment

ROOT = Path(__file__).parents[1]
PRODUCT = ("planner", "runtime", "models", "shardwright.py")
SHOWN_LINES = 40  # unless paths are given: then all

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


SECTION = re.compile(r"^\s*(Args|Returns|Yields|Raises|Example):|^\s*>>> ", re.MULTILINE)
RETURNS = re.compile(r"(Returns?|Yields?)\b")


class Docstring(NamedTuple):
    """A docstring, where it stands, and what is known of the definition that it documents."""

    path: Path
    line: int
    name: str
    kind: type[Documented]
    text: str
    public: bool
    takes_nothing: bool

    @property
    def is_function(self) -> bool:
        """Returns whether the docstring documents a function, method or property."""
        return issubclass(self.kind, Function)

    @property
    def is_fragment(self) -> bool:
        """Returns whether the first sentence lacks the verb that its kind needs."""
        return is_fragment(self.text, of_function=self.is_function)

    @property
    def says_in_and_out(self) -> bool:
        """Returns whether the docstring names arguments, results, errors or an example.

        Where there are no arguments, a docstring that begins with "Returns" says all.
        """
        return bool(SECTION.search(self.text) or (self.takes_nothing and RETURNS.match(self.text)))


# Reading


def read(paths: Iterable[Path]) -> list[Docstring]:
    """Returns the docstrings of all Python files below the paths, in the order of path and line."""
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return [docstring for file in files for docstring in docstrings(file, file.read_text())]


def docstrings(path: Path, source: str) -> Iterator[Docstring]:
    """Yields the docstrings of one file: its own, then those of what it defines."""
    tree = ast.parse(source, filename=str(path))
    public = not any(part.startswith("_") and part != "__init__" for part in path.with_suffix("").parts[-1:])
    yield from _walk(path, tree, path.stem, public)


def _walk(path: Path, node: Documented, name: str, public: bool) -> Iterator[Docstring]:
    text = ast.get_docstring(node)
    counted = public and isinstance(node, Function) and not _is_overload(node)
    if text:
        line = node.body[0].lineno
        yield Docstring(path, line, name, type(node), text, counted, _takes_nothing(node))
    inner_public = public and not isinstance(node, Function)
    for child in _definitions(node):
        inner = child.name if isinstance(node, ast.Module) else f"{name}.{child.name}"
        yield from _walk(path, child, inner, inner_public and not child.name.startswith("_"))


def _definitions(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields what is defined directly in a node, also under `if`, `try` and `with`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | Function):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _definitions(child)


def _is_overload(node: Function) -> bool:
    return any(ast.unparse(decorator).split(".")[-1] == "overload" for decorator in node.decorator_list)


def _takes_nothing(node: Documented) -> bool:
    if not isinstance(node, Function):
        return False
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return (
        not given.vararg and not given.kwarg and not [name for name in names if name not in ("self", "cls")]
    )


# Counting


class Count(NamedTuple):
    """How the docstrings of a package are written."""

    docstrings: int
    fragments: int
    public: int
    in_and_out: int

    @property
    def fragment_share(self) -> float:
        """Returns the share of docstrings that begin with a fragment."""
        return self.fragments / self.docstrings if self.docstrings else 0.0

    @property
    def in_and_out_share(self) -> float:
        """Returns the share of public functions with a docstring that says what comes in and out."""
        return self.in_and_out / self.public if self.public else 1.0


def count(found: Iterable[Docstring]) -> Count:
    """Returns how many docstrings are fragments, and how many public ones say what comes in and out."""
    all_of_them = list(found)
    public = [each for each in all_of_them if each.public]
    return Count(
        docstrings=len(all_of_them),
        fragments=sum(each.is_fragment for each in all_of_them),
        public=len(public),
        in_and_out=sum(each.says_in_and_out for each in public),
    )


def package_of(path: Path) -> str:
    """Returns the package that a file counts for: "planner/milp" for "planner/milp/cut/problem.py"."""
    parts = (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def table(found: Sequence[Docstring]) -> str:
    """Returns the counts as text, one line a package and one for all."""
    packages = sorted({package_of(each.path) for each in found})
    rows = [(name, count(each for each in found if package_of(each.path) == name)) for name in packages]
    head = f"{'package':24}{'docstrings':>11}{'fragments':>11}{'':>8}{'public':>8}{'in and out':>12}"
    lines = [head, *(_row(name, counted) for name, counted in rows), _row("all", count(found))]
    return "\n".join(lines)


def _row(name: str, counted: Count) -> str:
    fragments = f"{counted.docstrings:11}{counted.fragments:11}{counted.fragment_share:8.1%}"
    return f"{name:24}{fragments}{counted.public:8}{counted.in_and_out:12}{counted.in_and_out_share:8.1%}"


def faults(found: Iterable[Docstring]) -> Iterator[str]:
    """Yields "path:line name: what is wrong: the first sentence" for every docstring to mend."""
    for each in found:
        wrong = ["fragment"] if each.is_fragment else []
        wrong += ["no in and out"] if each.public and not each.says_in_and_out else []
        if wrong:
            path = each.path.relative_to(ROOT) if each.path.is_relative_to(ROOT) else each.path
            yield f"{path}:{each.line} {each.name}: {' and '.join(wrong)}: {first_sentence(each.text)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the counts and the lines to mend; with paths all of these, else the first few."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description="How docstrings are written.")
    parser.add_argument(
        "paths", nargs="*", type=Path, help="files and folders; the product where none are given"
    )
    given: list[Path] = parser.parse_args(arguments).paths
    found = read([path.resolve() for path in given] or [ROOT / name for name in PRODUCT])
    print(table(found))
    lines = sorted(faults(found), key=lambda line: ": fragment" not in line)
    for line in lines if given else lines[:SHOWN_LINES]:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
