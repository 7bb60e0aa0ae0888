"""The options of SLURM jobs: a site's defaults from a file, the rest from the command line.

Every text is one line of printable characters, so that nothing in it can become a line of a script.
`script.py` quotes texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from planner import files
from planner.errors import BadInput
from planner.files import Natural, Part

OPTIONS_VERSION: Final = 1
LONGEST = 4096
MOST = 1_000_000

_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_TIME = re.compile(r"\d{1,6}|\d{1,6}:[0-5]\d|\d{1,5}:[0-5]\d:[0-5]\d|\d{1,4}-\d{1,2}(:[0-5]\d){0,2}")
_MEMORY = re.compile(r"\d{1,12}[KMGT]?")
_KEY = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_LIST = re.compile(r"[A-Za-z0-9_.+,-]+")
# Options of sbatch that the script sets itself, or that would make another job of it, with what to say instead.
OURS: Mapping[str, str] = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "tasks-per-node"), "the plan's places"),
    **dict.fromkeys(("gpus", "gres", "gpus-per-node", "gpus-per-task"), "the plan's places, and gpu_flag"),
    **dict.fromkeys(("chdir", "output", "error", "input", "open-mode"), "the run folder"),
    **dict.fromkeys(("wrap", "parsable", "test-only", "wait", "quiet", "clusters"), "the command launch"),
    **dict.fromkeys(("signal", "requeue", "no-requeue"), "signal_s and requeues"),
    "cpus-per-task": "cpus_per_task",
    "export": "env",
}
_NAMED = ("job-name", "partition", "account", "qos", "time", "mem", "constraint", "reservation", "dependency")
NAMED: Mapping[str, str] = {key: key.replace("-", "_") for key in (*_NAMED, "nodelist", "exclude")}


def one_line(text: str) -> str:
    """Returns the text if it is one line of printable characters.

    Raises: a validation error for other characters, blanks around it, or more than 4096 characters.
    """
    if found := _HIDDEN.search(text):
        raise files.wrong(
            f"holds the character U+{ord(found[0]):04X}", allowed="one line of printable characters"
        )
    if len(text) > LONGEST:
        raise files.wrong(f"is {len(text)} characters long", allowed=f"at most {LONGEST}")
    if text != text.strip():
        raise files.wrong("begins or ends with a blank", allowed="text without blanks around it")
    return text


def _fits(pattern: re.Pattern[str], allowed: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(one_line(text)):
            raise files.wrong(f"'{text}' does not fit", allowed=allowed)
        return text

    return AfterValidator(check)


def _whole(text: str) -> str:
    if one_line(text).endswith("\\"):
        raise files.wrong(
            "ends with a backslash, which would take in the next line", allowed="whole commands"
        )
    return text


Line = Annotated[str, Field(min_length=1), AfterValidator(one_line)]
Value = Annotated[str, AfterValidator(one_line)]
Command = Annotated[str, Field(min_length=1), AfterValidator(_whole)]
Name = Annotated[str, _fits(_NAME, "letters, digits and _ . + -")]
Names = Annotated[str, _fits(_LIST, "names with commas between them")]
Time = Annotated[str, _fits(_TIME, "minutes, MM:SS, HH:MM:SS, D-HH or D-HH:MM:SS")]
Amount = Annotated[str, _fits(_MEMORY, "a number with K, M, G or T, such as 64G; 0 is all of a node")]
Variable = Annotated[str, _fits(_VARIABLE, "a name of letters, digits and _")]
Key = Annotated[str, _fits(_KEY, "the long name of an option of sbatch, such as mail-type")]
Less = Annotated[int, Field(ge=1, le=MOST, strict=True)]


class Container(Part):
    """The container that ranks run inside. The batch script and its supervisor run outside."""

    runtime: Literal["pyxis", "apptainer"]
    image: Line
    mounts: tuple[Line, ...] = ()


class Options(Part):
    """The options of one job, as a site file has them."""

    version: Literal[1] = OPTIONS_VERSION
    job_name: Line | None = Field(default=None, description="the plan's name when left out")
    partition: Names | None = None
    account: Name | None = None
    qos: Name | None = None
    time: Time | Less | None = Field(default=None, description="limit; a number is minutes")
    mem: Amount | None = Field(
        default=None, description="of a node; some sites refuse it, so left out unless said"
    )
    constraint: Line | None = None
    nodelist: Line | None = None
    exclude: Line | None = None
    reservation: Name | None = None
    dependency: Line | None = None
    cpus_per_task: Less | None = Field(
        default=None, description="the threads and readers of a rank when left out"
    )
    gpu_flag: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    sbatch: dict[Key, Value] = Field(default_factory=dict, description="any further option of sbatch")
    env: dict[Variable, Value] = Field(default_factory=dict)
    modules: tuple[Line, ...] = Field(default=(), description="for `module load`")
    prologue: tuple[Command, ...] = Field(
        default=(), description="shell lines of the site, run as they stand"
    )
    container: Container | None = None
    python: Line | None = Field(default=None, description="interpreter of the ranks; this one when left out")
    signal_s: Annotated[int, Field(ge=1, le=65535, strict=True)] = Field(
        default=120, description="how long before the limit a checkpoint is begun"
    )
    requeues: Natural = Field(default=3, description="how often a job may begin anew")
    restarts: Natural = Field(default=3, description="how often ranks are started anew within one job")

    @model_validator(mode="after")
    def _check(self) -> Options:
        for key, value in self.sbatch.items():
            if key in OURS:
                own = f"`{OURS[key]}` of a site file, which --site names"
                allowed = own if OURS[key] in Options.model_fields else "other options"
                raise files.wrong(f"sets what comes from {OURS[key]}", allowed=allowed, key=("sbatch", key))
            if key in NAMED:
                raise files.wrong(
                    "has a key of its own beside sbatch",
                    allowed=f"{NAMED[key]}: {value}",
                    key=("sbatch", key),
                )
            if key == "array" and not re.fullmatch(r"[\d,:-]+%1", value):
                raise files.wrong(
                    f"'{value}' would train in one run folder at once",
                    allowed="tasks one after another, which go on from each other: such as 1-5%1",
                    key=("sbatch", key),
                )
        return self


def site_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the path of the site file, which need not exist.

    Args: `environment` may name it by SHARDWRIGHT_SLURM; otherwise it is in the user's folder of settings.
    """
    if named := environment.get("SHARDWRIGHT_SLURM"):
        return Path(named)
    base = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "shardwright" / "slurm.yaml"


def load(path: Path | None = None) -> Options:
    """Returns the site's options.

    Args: `path` is a file that must exist; without it, the site file counts where there is one.
    Raises: BadInput with file and line where the file is wrong.
    """
    chosen = path or site_file()
    if path is None and not chosen.exists():
        return Options()
    return files.load(Options, chosen, version=OPTIONS_VERSION)


def over(defaults: Options, given: Mapping[str, object]) -> Options:
    """Returns options with given values laid over them. Mappings are joined key by key.

    Args: `given` has fields of Options by name.
    Raises: BadInput for a value that is not allowed.
    """
    data = defaults.model_dump()
    for name, value in given.items():
        joined = isinstance(value, Mapping) and isinstance(data.get(name), dict)
        data[name] = {**data[name], **value} if joined else value  # type: ignore[dict-item]
    try:
        return Options.model_validate(data)
    except ValidationError as error:
        found = files.bad_input(Options, error, text=files.render(data, header=""), name="")
        shown = "".join(x if x.isprintable() else f"U+{ord(x):04X}" for x in found.what)
        raise BadInput(shown, where="launch", allowed=found.allowed) from None


def pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """Returns `KEY=VALUE` words as a dictionary; `KEY` alone has an empty value.

    Args: `option` is the option that errors name.
    Raises: BadInput for a word without a key, and for a key given twice.
    """
    found: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if not key:
            raise BadInput(f"'{word}' is no KEY=VALUE", where=option, allowed="such as mail-type=END")
        if key in found:
            raise BadInput(f"'{key}' is given twice", where=option)
        found[key] = value
    return found
