"""Workload files: found, bound to what --set gave, and refused by file and function."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from planner.errors import BadInput
from planner.workload import evaluable, load, parse_settings

GOOD = """
import torch
from torch import nn

def build(width: int = 4, name="a", scale: float = 1.0, bias=True, kind=None):
    made = nn.Linear(width, 2, bias=bias)
    made.facts = (width, name, scale, bias, kind)
    return made

def batch(n, width=4):
    return torch.ones(n, width), torch.zeros(n, 2)

def loss(outputs, targets):
    return ((outputs - targets) ** 2).mean()
"""


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str, name: str = "mine.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return written


def test_values_go_to_every_function_that_names_them_in_the_type_of_the_default(write) -> None:
    workload = load(write(GOOD), {"width": "6", "scale": "2", "bias": "false", "kind": "x"})
    assert workload.build().facts == (6, "a", 2.0, False, "x")
    assert workload.batch(3)[0].shape == (3, 6)
    assert workload.arguments == {"width": 6, "scale": 2.0, "bias": False, "kind": "x"}


def test_a_bare_name_is_a_model_of_ours_wherever_the_user_stands(tmp_path: Path) -> None:
    code = "from planner.workload import load; print(load('mlp').where)"
    command = [sys.executable, "-c", code]
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("models/mlp.py")


def test_a_package_module_is_imported_by_its_name(write, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "parcel").mkdir()
    write(GOOD, "parcel/work.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("parcel.work").batch(2)[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("argument", "text", "value"),
    [
        ("side: int | None = None", "192", 192),
        ("side: float | None = None", "2", 2.0),
        ("side: str | None = None", "192", "192"),
        ("side: bool | None = None", "false", False),
        ("side=None", "192", 192),
        ("side=None", "1e-3", 0.001),
        ("side=None", "large", "large"),
    ],
)
def test_where_the_default_is_none_the_annotation_or_the_text_tells_the_type(
    write, argument: str, text: str, value: object
) -> None:
    kind = load(write(GOOD.replace("kind=None", argument + ", kind=None")), {"side": text})
    assert kind.arguments == {"side": value}
    assert type(kind.arguments["side"]) is type(value)


def test_what_lies_beside_a_file_is_imported_as_for_a_script_and_ours_stays_ours(
    write, tmp_path: Path
) -> None:
    """A folder `models` of the user's is theirs to their file, at once and in a function; ours is back for us."""
    import runtime
    from planner import profile

    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.py").write_text("WIDTH = 5")
    (tmp_path / "runtime.py").write_text("SCALE = 3.0")
    (tmp_path / "beside_late.py").write_text("NAME = 'late'")
    text = "from models.net import WIDTH\nimport runtime\n" + GOOD.replace(
        "width: int = 4", "width: int = WIDTH"
    )
    text = text.replace("scale: float = 1.0", "scale: float = runtime.SCALE")
    text = text.replace("    made.facts", "    from beside_late import NAME as name\n    made.facts")
    workload = load(write(text))
    assert workload.build().facts == (5, "late", 3.0, True, None)
    assert sys.modules["runtime"] is runtime
    assert sys.modules["planner.profile"] is profile
    assert load("mlp").where.endswith("models/mlp.py")


def test_two_files_of_one_name_are_two_workloads(write, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one = load(write(GOOD))
    two = load(write(GOOD.replace("width=4", "width=5"), "other/mine.py"))
    assert one.batch(1)[0].shape == (1, 4) and two.batch(1)[0].shape == (1, 5)


def test_adamw_and_no_dataset_are_the_defaults(write) -> None:
    workload = load(write(GOOD))
    made = workload.optimizer(workload.build().named_parameters())
    assert isinstance(made, torch.optim.AdamW)
    assert workload.dataset() is None
    samples = [(torch.ones(2), torch.zeros(1))] * 3
    assert workload.collate(samples)[0].shape == (3, 2)


def test_optimizer_dataset_and_collate_of_the_user_are_used(write) -> None:
    more = """
def optimizer(named, lr=0.1):
    return torch.optim.SGD([p for _, p in named], lr=lr)

def dataset(size=3):
    return [(torch.ones(4), torch.zeros(2))] * size

def collate(samples):
    return "inputs", len(samples)
"""
    workload = load(write(GOOD + more), {"lr": "0.5", "size": "7"})
    made = workload.optimizer(workload.build().named_parameters())
    assert isinstance(made, torch.optim.SGD) and made.defaults["lr"] == 0.5
    assert len(workload.dataset()) == 7
    assert workload.collate([1, 2]) == ("inputs", 2)


def test_steps_that_ask_for_more_than_gradients_are_refused_by_name(write) -> None:
    more = """
from torch.optim.lr_scheduler import ReduceLROnPlateau

def optimizer(named, lbfgs=True):
    of = torch.optim.LBFGS if lbfgs else torch.optim.SGD
    return of([p for _, p in named], lr=0.1)

def lr_schedule(optimizer):
    return ReduceLROnPlateau(optimizer)
"""
    workload = load(write(GOOD + more))
    with pytest.raises(
        BadInput, match=r"optimizer\(\) returned an? LBFGS, whose step\(\) asks for 'closure'"
    ):
        workload.optimizer(workload.build().named_parameters())
    workload = load(write(GOOD + more, "other.py"), {"lbfgs": "false"})
    made = workload.optimizer(workload.build().named_parameters())
    with pytest.raises(
        BadInput, match=r"ReduceLROnPlateau, whose step\(\) asks for 'metrics'.*number of steps"
    ):
        workload.lr_schedule(made)


BAD = {
    "no build": (GOOD.replace("def build", "def built"), {}, "has no function 'build'"),
    "no batch": (GOOD.replace("def batch", "def other"), {}, "has no function 'batch'"),
    "no loss": (GOOD.replace("def loss", "def other"), {}, "has no function 'loss'"),
    "not callable": (GOOD + "\noptimizer = 3\n", {}, "'optimizer' is an int"),
    "a syntax error": (GOOD + "\ndef broken(:\n", {}, "mine.py:16: cannot be imported: SyntaxError"),
    "an import that fails": ("import torhc\n" + GOOD, {}, "mine.py:1: cannot be imported"),
    "an error on import": (GOOD + "\nx = 1 / 0\n", {}, "mine.py:16: cannot be imported: ZeroDivisionError"),
    "an unknown argument": (GOOD, {"depth": "3"}, "no function of the workload has an argument 'depth'"),
    "not an integer": (GOOD, {"width": "six"}, "'six' is not an integer"),
    "not a number": (GOOD, {"scale": "much"}, "'much' is not a number"),
    "no number that a file could hold": (GOOD, {"scale": "nan"}, "'nan' is not finite"),
    "an infinite number": (GOOD, {"scale": "-inf"}, "'-inf' is not finite"),
    "an exit on import": (GOOD + "\nraise SystemExit(0)\n", {}, "mine.py:16: cannot be imported: SystemExit"),
    "no source code": (GOOD + "\0", {}, "mine.py:1: cannot be imported: SyntaxError"),
    "not a truth value": (GOOD, {"bias": "perhaps"}, "'perhaps' is not a truth value"),
    "a default that is not plain": (GOOD.replace("kind=None", "kind=(1,)"), {"kind": "1"}, "plain default"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_by_name(write, case: str) -> None:
    text, settings, words = BAD[case]
    path = write(text)
    with pytest.raises(BadInput) as caught:
        load(path, settings)
    assert words in str(caught.value) and "mine.py" in str(caught.value)


LATER = {
    "build gives no module": ("made = nn.Linear(width, 2, bias=bias)", "made = torch.ones(1)", "build"),
    "build exits": ("made = nn", "raise SystemExit(0); made = nn", "build"),
    "build raises": ("made = nn", "made = missing", "build"),
    "batch gives one tensor": (
        "return torch.ones(n, width), torch.zeros(n, 2)",
        "return torch.ones(n)",
        "batch",
    ),
    "batch raises": ("return torch.ones(n, width)", "return torch.one(n, width)", "batch"),
}


@pytest.mark.parametrize("case", LATER)
def test_a_function_that_fails_is_named_with_its_line(write, case: str) -> None:
    old, new, name = LATER[case]
    workload = load(write(GOOD.replace(old, new)))
    with pytest.raises(BadInput, match=rf"mine\.py(:\d+)?: {name}\(\)"):
        getattr(workload, name)(*([2] if name == "batch" else []))


@pytest.mark.parametrize("name", ["nowhere.py", "no.such.module", "nosuch", "a/b", "", "a b"])
def test_what_is_no_workload_is_refused_with_what_would_be(name: str) -> None:
    with pytest.raises(BadInput, match=r"file\.py, package\.module, a model's folder, or one of .*gpt2"):
        load(name)


def test_settings_are_read_from_their_text() -> None:
    assert parse_settings(["size=xl", "text=a=b", "empty="]) == {"size": "xl", "text": "a=b", "empty": ""}


@pytest.mark.parametrize("texts", [["size"], ["=3"], ["a-b=3"], ["a=1", "a=2"]])
def test_settings_that_set_nothing_are_refused(texts: list[str]) -> None:
    with pytest.raises(BadInput, match="--set"):
        parse_settings(texts)


def test_a_dataset_without_indices_cannot_be_evaluated_even_where_it_has_a_length() -> None:
    from torch.utils.data import IterableDataset

    class Counted(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

        def __len__(self) -> int:
            return 3

    with pytest.raises(BadInput, match="map-style"):
        evaluable(Counted(), "valid_dataset()")
    assert evaluable([1, 2], "valid_dataset()") == [1, 2]
