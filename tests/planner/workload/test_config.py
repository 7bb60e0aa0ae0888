"""`--config FILE`: arguments of a workload from YAML, which `--set` goes before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import shardwright as sw
from planner.errors import BadInput
from planner.profile import load as load_profile
from planner.workload import arguments_of


def written(folder: Path, text: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(text)
    return path


def test_arguments_are_plain_values_and_set_goes_before_them(tmp_path: Path) -> None:
    path = written(tmp_path, "width: 32\nrate: 0.5\nname: xl\ndeep: true\n")
    assert arguments_of(path, []) == {"width": "32", "rate": "0.5", "name": "xl", "deep": "true"}
    assert arguments_of(path, ["width=64"])["width"] == "64"
    assert arguments_of(None, ["width=64"]) == {"width": "64"}


def test_a_profile_has_the_arguments_of_the_file(tmp_path: Path) -> None:
    path, out = written(tmp_path, "width: 32\nlayers: 3\n"), tmp_path / "profile.yaml"
    words = ["profile", "mlp", "--device=roofline:cpu", "--micro=1", f"--config={path}", "--set=layers=2"]
    assert sw.run([*words, "-o", str(out)]) == 0
    assert dict(load_profile(out).arguments) == {"width": 32, "layers": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model:\n  width: 3\n", "'model' is dict.*plain values"),
        ("width: [1, 2]\n", "'width' is list"),
        ("width:\n", "'width' is empty"),
        ("two words: 3\n", "'two words'"),
        ("- 1\n", "x.yaml"),
    ],
)
def test_what_is_no_argument_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        arguments_of(written(tmp_path, text), [])


def test_interpolations_need_omegaconf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "width: 32\ndepth: ${width}\n")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "omegaconf", None)
        with pytest.raises(BadInput, match=r"OmegaConf is not installed.*shardwright\[omegaconf\]"):
            arguments_of(path, [])
    pytest.importorskip("omegaconf")
    assert arguments_of(path, []) == {"width": "32", "depth": "32"}
    with pytest.raises(BadInput, match="nothing"):
        arguments_of(written(tmp_path, "depth: ${nothing}\n"), [])
