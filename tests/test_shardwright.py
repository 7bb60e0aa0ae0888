"""The commands and the facade, as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import shardwright as sw
from planner.cluster import find
from planner.profile import yaml as profile_yaml
from tests.planner.rooflines import from_graph

ROOT = Path(__file__).parents[1]
LAPTOP = str(ROOT / "plans" / "clusters" / "laptop.yaml")
PLAN = str(ROOT / "plans" / "mlp-two-stages.yaml")
WATCHED = "import sys, shardwright; status = shardwright.run({arguments!r}); assert 'torch' not in sys.modules; sys.exit(status)"


def without_torch(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own, which fails if torch was imported."""
    code = WATCHED.format(arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture(scope="module")
def profile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profiles") / "mlp.yaml"
    captured = sw.capture("mlp", layers=3)
    found = from_graph(captured.graph, find("cpu"), workload="mlp", arguments={"layers": 3}, micros=(1, 2))
    profile_yaml.save(found, path)
    return path


def test_help_answers_without_importing_torch() -> None:
    done = without_torch("--help")
    assert done.returncode == 0, done.stderr
    for command in ("profile", "plan", "verify", "show", "simulate", "launch", "demo"):
        assert command in done.stdout


def test_a_plan_is_made_from_a_profile_file_without_importing_torch(
    profile_file: Path, tmp_path: Path
) -> None:
    arguments = (
        "plan",
        "--profile",
        str(profile_file),
        "--cluster",
        LAPTOP,
        "--batch",
        "4",
        "-o",
        "p.yaml",
        "--json",
    )
    done = without_torch(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["certificate"]["gap"] == 0.0
    assert sw.load_plan(tmp_path / "p.yaml").batch.samples == 4


def test_verify_show_and_simulate_import_no_torch() -> None:
    for arguments in (["verify", PLAN], ["show", PLAN], ["show", LAPTOP], ["simulate", PLAN]):
        done = without_torch(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert done.stdout.strip()


def test_every_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("profile", "plan", "verify", "show", "simulate", "launch", "demo"):
        assert sw.run([command, "--help"]) == 0
        assert "Example: shardwright" in capsys.readouterr().out


def test_nothing_is_overwritten_without_force(
    profile_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "p.yaml"
    arguments = [
        "plan",
        "--profile",
        str(profile_file),
        "--cluster",
        LAPTOP,
        "--batch",
        "4",
        "-o",
        str(target),
    ]
    assert sw.run(arguments) == 0
    before = target.read_bytes()
    assert sw.run(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert sw.run([*arguments, "--force"]) == 0
    assert target.read_bytes() == before, "the same input gives the same bytes"


def test_an_infeasible_plan_ends_with_status_3(
    profile_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tmp_path / "tiny.yaml"
    text = (ROOT / "plans/clusters/laptop.yaml").read_text().replace("4294967296", "4096")
    tiny.write_text(text.replace("1313785068", "0"))
    assert (
        sw.run(
            [
                "plan",
                "--profile",
                str(profile_file),
                "--cluster",
                str(tiny),
                "--batch",
                "4",
                "-o",
                str(tmp_path / "p.yaml"),
            ]
        )
        == 3
    )
    assert "bytes" in capsys.readouterr().err
    assert not (tmp_path / "p.yaml").exists()


def test_a_plan_that_violates_something_ends_with_status_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    text = Path(PLAN).read_text()
    lines = [line for line in text.splitlines() if not line.strip().startswith("- 0F0")]
    assert len(lines) < len(text.splitlines())
    wrong.write_text(text.replace("0F0 ", "", 1))
    assert sw.run(["verify", str(wrong)]) == 4
    assert "violation" in capsys.readouterr().err


WORKLOADS = {
    "without build": ("def batch(n): ...\ndef loss(o, t): ...\n", "build"),
    "that is no Python": ("def build(:\n", "syntax"),
    "that raises on import": ("raise RuntimeError('no weights here')\n", "no weights here"),
    "whose build returns no module": (
        "def build(): return 3\ndef batch(n): ...\ndef loss(o, t): ...\n",
        "Module",
    ),
    "with control flow that depends on data": (
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = torch.nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        return self.a(x) if x.sum() > 0 else x\n"
        "def build(): return M()\n"
        "def batch(n): return torch.randn(n, 4), torch.randn(n, 4)\n"
        "def loss(o, t): return ((o - t) ** 2).mean()\n",
        "line 7|:7",
    ),
    "whose batch sizes disagree": (
        "import torch\n"
        "def build(): return torch.nn.Linear(4, 4)\n"
        "def batch(n): return torch.randn(n, 4), torch.randn(n + 1, 4)\n"
        "def loss(o, t): return ((o - t) ** 2).mean()\n",
        "",
    ),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_that_cannot_be_read_ends_with_one_message(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = WORKLOADS[name]
    file = tmp_path / "mine.py"
    file.write_text(text)
    status = sw.run(["profile", str(file), "--device", "roofline:H100-80GB", "-o", str(tmp_path / "p.yaml")])
    err = capsys.readouterr().err
    assert status == 2, err
    assert "Traceback" not in err
    assert str(file) in err
    assert not said or any(word in err for word in said.split("|")), err


@pytest.mark.parametrize(
    "arguments",
    [
        ["profile", "gpt2", "--micro", "0"],
        ["profile", "gpt2", "--micro", "a,b"],
        ["profile", "gpt2", "--device", "abacus"],
        ["profile", "gpt2", "--set", "colour=red"],
        ["profile", "gpt2", "--set", "size=tiny", "--precision", "fp3"],
        ["profile", "no-such-model"],
        ["profile", "nowhere/file.py"],
        ["plan", "--cluster", LAPTOP, "--batch", "4"],
        ["plan", "mlp", "--cluster", "nowhere.yaml", "--batch", "4"],
        ["plan", "mlp", "--cluster", LAPTOP, "--batch", "0"],
        ["plan", "mlp", "--cluster", LAPTOP, "--batch", "many"],
        ["plan", "mlp", "--cluster", LAPTOP, "--batch", "4", "--schedule", "waltz"],
        ["plan", "mlp", "--cluster", LAPTOP, "--batch", "4", "--fix", "luck=7"],
        ["plan", "mlp", "--cluster", LAPTOP, "--batch", "4", "--fix", "data"],
        ["verify", "nowhere.yaml"],
        ["show", LAPTOP + ".not"],
        ["launch", PLAN, "--local", "--inline"],
        ["launch", PLAN, "--steps", "0"],
        ["dance"],
        [],
    ],
    ids=" ".join,
)
def test_a_slip_on_the_command_line_ends_with_status_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sw.run(arguments) == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    if arguments:
        assert [line[:7] for line in said.err.splitlines()].count("error: ") == 1, said.err
        assert sw.run([*arguments, "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["error"]["kind"] == "BadInput"
    else:
        assert "Commands" in said.out
    assert not list(tmp_path.rglob("*.yaml")), "nothing is written"


def test_what_verify_was_not_given_to_judge_by_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert sw.run(["verify", PLAN]) == 0
    assert "the model and its costs, or the machines: give --profile, --cluster" in capsys.readouterr().out
    assert sw.run(["verify", PLAN, "--cluster", LAPTOP]) == 0
    assert "not held against the model and its costs: give --profile\n" in capsys.readouterr().out
    assert sw.run(["verify", PLAN, "--cluster", LAPTOP, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_judged"] == ["--profile"]
    assert sw.run(["verify", PLAN, "--cluster", "laptop", "--nodes", "1"]) == 0
    assert sw.run(["verify", PLAN, "--nodes", "1"]) == 2
    assert "--nodes without --cluster" in capsys.readouterr().err


def test_a_run_folder_that_cannot_be_made_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert sw.run(["launch", PLAN, "--inline", "--steps", "1", "--run", str(file), "--json"]) == 2
    said = capsys.readouterr()
    assert str(file) in json.loads(said.out)["error"]["message"] and "Traceback" not in said.err


def test_an_error_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert sw.run(["verify", "nowhere.yaml", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "BadInput"


def test_what_a_workload_prints_is_no_part_of_the_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "talks.py"
    file.write_text(
        "import torch\nprint('at import')\n"
        "def build():\n    print('at build')\n    return torch.nn.Linear(2, 2)\n"
        "def batch(n):\n    return torch.randn(n, 2), torch.randn(n, 2)\n"
        "def loss(outputs, targets):\n    return ((outputs - targets) ** 2).mean()\n"
    )
    profile = str(tmp_path / "p.yaml")
    arguments = ["profile", str(file), "--device", "roofline:cpu", "--micro", "1", "-o", profile, "--json"]
    assert sw.run(arguments) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["profile"] == profile
    assert "at import" in said.err and "at build" in said.err


def test_run_is_there_and_imports_torch_only_when_asked_for() -> None:
    code = "import sys, shardwright as sw; assert 'torch' not in sys.modules; print(sw.Run.open.__name__)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "open", done.stderr


@pytest.mark.parametrize("row", ["times:\n", "stages:\n", "places:"])
def test_a_plan_with_a_row_missing_is_refused_and_not_drawn(
    row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Path(PLAN).read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith(row.strip()))
    (tmp_path / "broken.yaml").write_text("".join(lines[: at + 1] + lines[at + 2 :]))
    assert sw.run(["simulate", str(tmp_path / "broken.yaml")]) == 4
    said = capsys.readouterr()
    assert "broken.yaml" in said.err and not said.out
