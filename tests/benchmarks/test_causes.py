"""A benchmark that gave no result says why: in its own last words, or by what ended it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from benchmarks import __main__ as every
from benchmarks.harness import Result

SCRIPT = "import os, sys\nprint('second part', file=sys.stderr, flush=True)\n"
WHOLE = '{"name": "probe", "claim": "", "tables": [], "machine": {}, "seconds": 1.0, "quick": false}'


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `benchmarks.probe`, whose words are to be written."""
    package = tmp_path / "benchmarks"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(every, "HERE", package)
    return package / "probe.py"


def test_one_that_was_killed_tells_the_signal_and_the_last_that_it_said(
    script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(f"{SCRIPT}os.kill(os.getpid(), {int(signal.SIGKILL)})\n")
    found = every.result_of("probe", quick=False)
    assert isinstance(found, str)
    assert "SIGKILL" in found and "memory" in found and found.endswith("second part")
    assert "second part" in capfd.readouterr().err


def test_one_that_raised_tells_the_error_and_leaves_the_whole_of_it_on_standard_error(
    script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(f"{SCRIPT}raise ValueError('two ranks disagree')\n")
    assert every.result_of("probe", quick=False) == "probe failed: ValueError: two ranks disagree"
    assert "Traceback" in capfd.readouterr().err


def test_one_that_ends_badly_without_a_word_tells_its_status(script: Path) -> None:
    script.write_text("import sys\nsys.exit(3)\n")
    assert every.result_of("probe", quick=False) == "probe failed: exit status 3; it said nothing"


def test_a_script_is_given_the_options_that_it_alone_has(script: Path) -> None:
    script.write_text("import sys\nsys.exit(' '.join(sys.argv[1:]))\n")
    assert every.result_of("probe", quick=True, own=["--seed=3"]) == "probe failed: --json --quick --seed=3"


def test_workers_that_outlive_a_killed_one_do_not_keep_its_end_from_being_known(script: Path) -> None:
    lasting = "import subprocess\nworker = subprocess.Popen(['sleep', '1000'])\n"
    script.write_text(
        f"{lasting}{SCRIPT}print(worker.pid, file=sys.stderr, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    found = str(every.result_of("probe", quick=False))
    os.kill(int(found.rsplit(" ", 1)[-1]), signal.SIGKILL)
    assert "SIGKILL" in found


def test_what_is_said_beside_a_result_is_no_part_of_it(script: Path) -> None:
    script.write_text(f"{SCRIPT}print({WHOLE!r})\n")
    assert isinstance(every.result_of("probe", quick=False), Result)


def test_one_that_fails_leaves_what_others_found_before_and_in_the_meantime(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = script.parent / "RESULTS.md"
    monkeypatch.setattr(every, "RESULTS", results)
    results.write_text("# Results\n\n## earlier\n\nfour\n")
    script.with_name("earlier.py").touch()
    beside = script.with_name("beside.py")
    beside.touch()
    script.write_text(
        f"open({str(results)!r}, 'a').write('\\n## beside\\n\\nfive\\n')\n{SCRIPT}raise OSError('full')\n"
    )
    monkeypatch.setattr("sys.argv", ["benchmarks", "probe"])
    assert every.main() == 1
    written = results.read_text()
    assert "four" in written and "five" in written and "probe failed: OSError: full" in written
