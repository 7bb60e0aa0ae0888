"""A warm program is to whoever starts it what a cold one is."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_python import WarmPython

WORDS = "import os, sys; print(sys.argv, os.getcwd(), os.environ['HERE'], sys.stdin.read()); print(2, file=sys.stderr)"
PARENT = "import os; print(os.getppid())"
NESTED = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'import os; os._exit(9)']).returncode)"


def ran(python: str | Path, *words: str, **how: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *words], capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit(-1)", 255),
        ("import sys; sys.exit('why')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
        (NESTED, 9),
    ],
)
def test_it_ends_as_the_program_does(code: str, status: int, warm_python: WarmPython) -> None:
    assert ran(warm_python.python, "-c", code).returncode == status


def test_it_has_the_same_words_streams_folder_and_environment(
    warm_python: WarmPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "there")
    warm, cold = (
        ran(python, "-c", WORDS, "a b", "-P", cwd=tmp_path, input="typed")
        for python in (warm_python.python, sys.executable)
    )
    assert (warm.stdout, warm.stderr) == (cold.stdout, cold.stderr)
    assert ran(warm_python.python, "-c", PARENT).stdout == ran(sys.executable, "-c", PARENT).stdout


def test_a_module_a_file_and_a_command_run(warm_python: WarmPython, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("word = 'found'\n")
    (tmp_path / "main.py").write_text("import beside, sys\nprint(beside.word, __name__, sys.argv)\n")
    said = f"found __main__ ['{tmp_path / 'main.py'}', 'x']\n"
    assert ran(warm_python.python, str(tmp_path / "main.py"), "x").stdout == said
    assert ran(warm_python.python, "-m", "main", "x", cwd=tmp_path).stdout == said
    assert ran(warm_python.python, "-P", "-m", "main", "x", cwd=tmp_path).returncode == 1
    assert "rehearse" in ran(warm_python.bin / "shardwright", "--help").stdout


def test_a_signal_reaches_the_program(warm_python: WarmPython) -> None:
    code = """
import signal
try:
    print("ready", flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("heard")
"""
    process = subprocess.Popen([warm_python.python, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "heard\n" and process.returncode == 0
