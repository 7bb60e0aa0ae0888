"""The models that come along, read without importing them."""

from __future__ import annotations

import ast

from planner.workload import MODELS


def known_models() -> dict[str, tuple[str, str]]:
    """Returns the models that come along by name, without importing them.

    Returns: what each is, and the arguments of its `build` with their defaults, for `--set`.
    """
    found = {}
    for path in sorted(MODELS.glob("[!_]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        about = (ast.get_docstring(tree) or "").partition("\n")[0]
        builds = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "build"]
        found[path.stem] = (about, _settings(builds[0].args, _sizes(tree)) if builds else "")
    return found


def _sizes(tree: ast.Module) -> str:
    """Returns the keys of a model's table SIZES; empty where it has none."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == "SIZES" and isinstance(value, ast.Dict):
            return "|".join(str(key.value) for key in value.keys if isinstance(key, ast.Constant))
    return ""


def _settings(arguments: ast.arguments, sizes: str) -> str:
    """Returns the arguments of a function that have a default, as `--set` takes them; a size with all it may be."""
    named = [*arguments.posonlyargs, *arguments.args][len(arguments.args) - len(arguments.defaults) :]
    pairs = [
        *zip(named, arguments.defaults, strict=False),
        *((arg, default) for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)),
    ]
    constants = {arg.arg: str(value.value) for arg, value in pairs if isinstance(value, ast.Constant)}
    constants |= {"size": sizes} if sizes and "size" in constants else {}
    return ", ".join(f"{name}={value}" for name, value in constants.items())
