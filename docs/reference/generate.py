"""Writes the reference pages from the code: `make docs`. A test says when a page is behind the code."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo, ParameterInfo

import shardwright
from docs.reference.schemas import MODELS, text
from planner.errors import BadInput
from planner.plan import StageTimes
from planner.schedule import FAMILIES, generate
from planner.schedule.families.out_of_order import OPTIONS
from planner.schedule.families.registry import Family
from planner.show import terminal
from planner.shown import Shown
from planner.simulate import compile, duration_vector, simulate
from planner.simulate.longest_path import neighbour_hops
from planner.spatial.rules.table import RULES

HERE = Path(__file__).parent
MADE = "<!-- made by `make docs`: edit the code, not this page -->\n"
_REQUIRED = (inspect.Parameter.empty, ...)
_OTHER_NAMES = {
    "--micro 1,2": "micro=(1, 2)",
    "--schedule 1f1b,chimera": 'schedule=["1f1b", "chimera"]',
    "--fix pipeline=4": 'fix={"pipeline": 4}',
    "--spatial 2,2x2": "spatial=[(2,), (2, 2)]",
    "--profile FILE": "costs, a value or a file",
    "--set width=128": "width=128",
    "--frontier": "sw.frontier(...)",
    "--devices 8": 'fix={"devices": 8}',
    "--proof, --explain": "plan.certificate, and print(plan)",
    "--local, --slurm": 'on="local", on="slurm"',
    "show": "print(value)",
}
_TOLD = {  # classes whose fields are those of a file
    "Plan": "A plan: what every device does in a step, and the proof. Its fields are those of [plan.yaml](plan.md).",
    "Prediction": "The step that a plan should take, with its error bar, and the memory of every worker: "
    "[its fields](plan.md#prediction).",
    "StagePlan": "The layers of one stage, and how they are trained: [its fields](plan.md#stageplan).",
}
WORKERS, MICROS = 4, 4  # of the pictures
UNIT = StageTimes(
    forward_ns=4000,
    backward_ns=8000,
    input_grad_ns=4000,
    weight_grad_ns=4000,
    recompute_ns=4000,
    sync_ns=0,
    step_ns=0,
)


def pages() -> dict[str, str]:
    """Name of each page, and its text."""
    made = {
        "cli.md": commands(),
        "api.md": facade(),
        "plan.md": fields("plan", "What a plan holds. `shardwright verify` judges one, whoever wrote it."),
        "cluster.md": fields("cluster", "What a cluster holds. `shardwright probe` measures one."),
        "schedules.md": schedules(),
        "spatial.md": operations(),
    }
    return {name: MADE + body for name, body in made.items()}


def commands() -> str:
    parts = [
        "# Commands\n",
        "Every command takes `--help`, and `--json` for one JSON object on standard output. Exit status: 0 done; "
        "1 a run that failed, or something that `doctor` finds wrong; 2 bad input; 3 infeasible; 4 a plan that violates "
        "something; 130 interrupted. `plan` and `launch` are also commands of their own. "
        "`shardwright --install-completion` completes commands and options in bash and zsh, after `plan` and `launch` too; `NO_COLOR` is respected.\n",
    ]
    app = shardwright._app()
    groups = {f"{group.typer_instance.info.name} ": group.typer_instance for group in app.registered_groups}
    own = [("", command) for command in app.registered_commands]
    for prefix, command in [*own, *((word, c) for word, x in groups.items() for c in x.registered_commands)]:
        assert command.callback is not None
        parts += [
            f"## shardwright {prefix}{command.name}\n",
            f"{inspect.getdoc(command.callback) or command.help or ''}\n",
        ]
        example = (command.epilog or "").removeprefix("Example: ")
        parts += [f"```text\n{example}\n```\n", "| | | |", "|---|---|---|"]
        hints = get_type_hints(command.callback, include_extras=True)
        given = inspect.signature(command.callback).parameters.values()
        parts += [_option(x.name, x.default, hints[x.name]) for x in given]
        parts.append("")
    return "\n".join(parts)


def _option(name: str, default: object, hint: object) -> str:
    if isinstance(default, ParameterInfo):
        kind, info, default = hint, default, default.default
    else:
        kind, info = get_args(hint)
    inner = [x for x in (get_args(kind) or (kind,)) if x is not type(None)]
    shown = getattr(inner[0], "__name__", str(inner[0]))
    about = info.help or ""
    if isinstance(info, ArgumentInfo):
        return f"| `{_cell(info.metavar or name.upper())}` | | {_cell(about)} |"
    first = [info.default] if isinstance(info.default, str) and info.default.startswith("-") else []
    named = [*first, *(info.param_decls or ())] or [f"--{name.replace('_', '-')}"]
    takes = (
        "" if inner == [bool] else info.metavar or {"str": "TEXT", "Path": "FILE"}.get(shown, shown.upper())
    )
    if default not in (None, False, (), [], *_REQUIRED):
        about += f" [{default}]"
    needed = " **required**" if default in _REQUIRED else ""
    return f"| {', '.join(f'`{x}`' for x in named)} | {_cell(takes)} | {_cell(about)}{needed} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def facade() -> str:
    parts = [
        "# Python\n",
        "`import shardwright as sw`. The same verbs as the commands, with their options under the same names. These "
        "differ, since Python has lists and values:\n",
        "| of a command | in Python |",
        "|---|---|",
        *(f"| `{option}` | `{argument}` |" for option, argument in _OTHER_NAMES.items()),
        "",
        "What takes a plan, a profile, a cluster or a run also takes the path of its file or folder. Values have "
        "`to_rows()`, `to_dict()` and `to_pandas()`, and show themselves as text and in a notebook. "
        "[Python by example](../by-example.md) uses every name once.\n",
    ]
    for name in shardwright.__all__:
        value = getattr(shardwright, name)
        signature = _signature(value)
        parts += [f"## sw.{name}\n", *([f"```text\n{name}{signature}\n```\n"] if signature else [])]
        parts.append(_doc(value))
        if inspect.isclass(value) and not issubclass(value, Exception):
            parts += list(_methods(value))
    return "\n".join(parts)


def _doc(value: object) -> str:
    if inspect.isclass(value) and value.__name__ in _TOLD:
        return _TOLD[value.__name__] + "\n"
    own = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    return f"{inspect.cleandoc(own)}\n" if own else ""


def _signature(value: object) -> str:
    if inspect.isclass(value):
        return ""
    found = inspect.signature(value)  # type: ignore[arg-type]
    shown = _plain(str(found))
    return shown if len(shown) < 90 else _plain(f"(\n    {_lines(found)},\n){_returns(found)}")


def _lines(found: inspect.Signature) -> str:
    rows = [str(parameter) for parameter in found.parameters.values()]
    named = [i for i, x in enumerate(found.parameters.values()) if x.kind is x.KEYWORD_ONLY]
    if named:
        rows.insert(named[0], "*")
    return ",\n    ".join(rows)


def _returns(found: inspect.Signature) -> str:
    return "" if found.return_annotation is inspect.Signature.empty else f" -> {found.return_annotation!r}"


def _plain(signature: str) -> str:
    """Annotations come as text, in quotes."""
    return re.sub(r"""(: |-> )(['"])(.*?)\2(?=,| = |\)|\n|$)""", r"\1\3", signature)


def _methods(value: type) -> Iterator[str]:
    ours = [base for base in reversed(value.__mro__) if base.__module__.startswith(("planner", "runtime"))]
    methods = {name: method for base in ours if base is not Shown for name, method in vars(base).items()}
    for name, method in methods.items():
        plain = method.__func__ if isinstance(method, classmethod | staticmethod) else method
        if name.startswith(("_", "model_post_init")) or not (
            inspect.isfunction(plain) or isinstance(method, property)
        ):
            continue
        about = " ".join((inspect.getdoc(method) or "").split())
        called = "" if isinstance(method, property) else _plain(str(inspect.signature(plain)))
        yield f"- `{name}{re.sub(r'^[(](self|cls)(, )?', '(', called)}`{': ' + about if about else ''}"
    yield ""


def fields(name: str, about: str) -> str:
    schema = json.loads(text(MODELS[f"{name}.schema.json"]))
    parts = [f"# {name}.yaml\n", about + " Editors that know JSON Schema complete and check it by the line "]
    parts[1] += f"`# yaml-language-server: $schema={name}.schema.json`.\n"
    for title, part in {name.capitalize(): schema, **schema.get("$defs", {})}.items():
        if "properties" not in part:
            continue
        parts += [f"## {title}\n"]
        if part.get("description"):
            parts.append(" ".join(part["description"].split()) + "\n")
        parts += ["| field | holds | |", "|---|---|---|"]
        parts += [
            _field(key, row, key in part.get("required", ())) for key, row in part["properties"].items()
        ]
        parts.append("")
    return "\n".join(parts)


def _field(name: str, row: Mapping[str, Any], required: bool) -> str:
    about = " ".join(row.get("description", "").split())
    if not required and row.get("default") not in (None, [], {}):
        about += f" Default: {json.dumps(row['default'])}."
    elif not required:
        about += " May be left out."
    return f"| `{name}` | {_cell(_type(row))} | {_cell(about)} |"


def _type(row: Mapping[str, Any]) -> str:
    if "$ref" in row:
        target = row["$ref"].rpartition("/")[2]
        return f"[{target}](#{target.lower()})"
    if "enum" in row or "const" in row:
        return ", ".join(f"`{x}`" for x in row.get("enum", [row.get("const")]))
    options = row.get("anyOf") or row.get("oneOf")
    if options:
        return " or ".join(_type(x) for x in options if x.get("type") != "null")
    if row.get("type") == "array":
        inner = row.get("items") or (row.get("prefixItems") or [{}])[0]
        return f"list of {_type(inner)}"
    if row.get("type") == "object":
        inner = row.get("additionalProperties")
        return f"mapping to {_type(inner)}" if isinstance(inner, dict) else "mapping"
    return str(row.get("type", "anything"))


def schedules() -> str:
    parts = [
        "# Schedules\n",
        f"Every family, as generated for {WORKERS} workers and {MICROS} micro-batches, with equal stages whose "
        "backward takes twice as long as the forward, each half of it once, and messages that take no time. One row a "
        "worker; digits are micro-batches; blanks are bubbles. The solver prices them with your costs instead.\n",
        "A list of actions is all that a schedule is: `0F3` is the forward of micro-batch 3 through stage 0, B its "
        "backward, I and W the halves of it, R a recomputation; a letter behind the number names a second pipe. "
        "`--schedule LIST` names the families to choose from, `--fix` pins one with its `pairs` and `chunks`; what "
        "else it has is for `planner.schedule.generate`.\n",
        "Any family also takes the settings of out-of-order backprop, which change the order of the same work "
        "(`docs/out-of-order.md`):\n",
        *(f"- `{name}`: {meaning}" for name, meaning in OPTIONS.items()),
        "",
    ]
    for name, family in FAMILIES.items():
        parts += [
            f"## {name}\n",
            f"{family.about[0].upper()}{family.about[1:]}.\n",
            _settings(family),
            _drawn(name),
        ]
    return "\n".join(parts)


def _settings(family: Family) -> str:
    rows = [f"- `{name}`: {meaning}" for name, meaning in family.settings.items()]
    if family.paired:
        rows.append("- `pairs`: pipelines in each direction")
    if family.chunks != (1,):
        least = family.default_chunks
        allowed = (
            f"{least} or more" if isinstance(family.chunks, int) else " or ".join(map(str, family.chunks))
        )
        rows.append(f"- `chunks`: stages a worker and pipe, {allowed}")
    return "\n".join(rows) + "\n" if rows else ""


def _drawn(name: str) -> str:
    try:
        schedule = generate(name, workers=WORKERS, micros=MICROS)
    except BadInput as refused:
        return f"Not for {WORKERS} workers and {MICROS} micro-batches: {refused}\n"
    hops = neighbour_hops(schedule.stages)
    times = (UNIT,) * schedule.stages
    timeline = simulate(compile(schedule, hops), duration_vector(times, hops))
    return f"```text\n{terminal(timeline, width=100, colour=False).rstrip()}\n```\n"


def operations() -> str:
    parts = [
        "# Operations on split samples\n",
        "A stage whose samples are split over several ranks may hold these operations. Each is exact: output, "
        "gradients of inputs and of parameters equal those of one process, for uneven parts and odd sizes too.\n",
        "Where one of them cannot be done on parts, its tensors are gathered, and every rank computes all of it. "
        "The next operation that slides over space cuts samples again. The same holds for every operation that is "
        "not in the list. Where ranks share samples, such an operation is refused by name when the plan is made. "
        "So is a write into a part of a tensor.\n",
        "| operations | gathered |",
        "|---|---|",
    ]
    by_rule: dict[str, list[str]] = {}
    about = {rule.__name__: _refused(rule) for rule in RULES.values()}
    for operation, rule in RULES.items():
        by_rule.setdefault(rule.__name__, []).append(operation.removeprefix("aten."))
    for name, found in by_rule.items():
        parts.append(f"| {', '.join(f'`{x}`' for x in sorted(found))} | {_cell(about[name])} |")
    return "\n".join(parts) + "\n"


def _refused(rule: Callable[..., object]) -> str:
    """Returns what a rule refuses: the words after "Raises: NoRule" in its docstring."""
    found = re.search(r"^Raises: NoRule (.*)\.\Z", inspect.getdoc(rule) or "", re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def main() -> None:
    for name, body in pages().items():
        (HERE / name).write_text(body, encoding="utf-8")


if __name__ == "__main__":
    main()
