from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.cluster import catalogue as devices
from planner.errors import BadInput
from planner.profile import CostKey, SampleCost
from planner.profile import yaml as profile_yaml
from tests.planner.graphs import chain, cost, profile
from tests.planner.rooflines import from_graph


@pytest.fixture
def text() -> str:
    return profile_yaml.dumps(profile(chain(), {"a1": cost(own=5, inputs=(0,), aliases=((0, -1),))}))


def test_a_profile_comes_back_as_it_went(tmp_path: Path) -> None:
    graph = chain(3, skips={"a0": ("a2",)})
    found = from_graph(graph, devices.find("V100-16GB"), micros=(1, 4), arguments={"size": 3})
    key = CostKey("s-a1", 8, (), "fp32", "eager")
    larger = {key._replace(signature=f"s-{x}"): cost() for x in ("a0", "a2", "loss")}
    found = replace(found, costs={**found.costs, **larger}, failures={key: "out of memory"})
    path = tmp_path / "profile.yaml"
    profile_yaml.save(found, path)
    again = profile_yaml.load(path)
    assert again == found
    assert profile_yaml.dumps(again) == path.read_text()
    assert [x.name for x in tmp_path.iterdir()] == ["profile.yaml"]


def test_a_file_of_before_forwards_had_a_workspace_of_their_own_comes_back_as_it_was(text: str) -> None:
    assert "forward_workspace_bytes" not in text
    found = profile_yaml.loads(text)
    assert {row.forward_workspace_bytes for row in found.costs.values()} == {None}
    assert profile_yaml.dumps(found) == text
    known = {
        key: replace(row, workspace_bytes=9, forward_workspace_bytes=7) for key, row in found.costs.items()
    }
    measured = replace(found, costs=known)
    assert profile_yaml.loads(profile_yaml.dumps(measured)) == measured


def test_it_is_yaml_of_one_row_a_line(text: str) -> None:
    data = yaml.safe_load(text)
    assert [row["name"] for row in data["graph"]["layers"]] == ["a0", "a1", "a2", "a3", "loss"]
    assert sum('"own_saved_bytes"' in line for line in text.splitlines()) == len(data["costs"])


def test_it_may_be_written_by_hand_in_another_style_of_yaml(text: str) -> None:
    by_hand = yaml.safe_dump(yaml.safe_load(text))
    assert profile_yaml.loads(by_hand) == profile_yaml.loads(text)


def test_nothing_is_left_behind_when_it_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(BadInput, match="cannot be written"):
        profile_yaml.save(profile(chain(), {}), path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_bad_number_is_not_even_written() -> None:
    with pytest.raises(BadInput, match="forward"):
        profile_yaml.dumps(profile(chain(), {"a1": cost(forward=float("nan"))}))


def test_loading_does_not_import_torch(text: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    program = (
        "import sys; from planner.profile import load; load(sys.argv[1]); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=Path(__file__).parents[3])
    assert done.returncode == 0


CASES = [
    ("not YAML", "{", "{]", r"file:\d+: not YAML"),
    ("YAML that is no mapping", None, "- 1\n", "holds a list"),
    ("an empty file", None, "", "holds nothing"),
    ("no version", '"version": 1,', "", "is no profile"),
    ("a version from the future", '"version": 1', '"version": 2', "version: 2 is not known"),
    ("a version in words", '"version": 1', '"version": "one"', "version: 'one' is not known"),
    ("an unknown key", '"workload"', '"workloud"', "workloud: unknown key.*workload"),
    ("an unknown key in a row", '"micro"', '"mikro"', r"costs\[0\].mikro: unknown key"),
    ("a missing key", '"device": "cpu",', "", "key 'device' is missing"),
    ("a key twice", '"device": "cpu",', '"device": "cpu", "device": "gpu",', "'device' stands twice"),
    ("an unknown source", '"measured"', '"guessed"', "unknown source 'guessed'.*measured, roofline"),
    ("an unknown precision", '"fp32"', '"fp31"', "fp31.*fp32"),
    ("text for a number", '"median": 1.0', '"median": "1"', "forward.median: '1' is not a number"),
    ("a fraction of a byte", '"held_bytes": 0', '"held_bytes": 0.5', "0.5 is not an integer"),
    ("NaN", '"median": 1.0', '"median": NaN', "NaN.*is not a number"),
    ("NaN in YAML", '"median": 1.0', '"median": .nan', "nan is no number"),
    ("infinity", '"median": 1.0', '"median": .inf', "inf is no number"),
    ("a number beyond all others", '"median": 1.0', '"median": 1e999', "inf is no number"),
    ("negative seconds", '"median": 1.0', '"median": -1.0', r"costs\[0\].forward: .*'a0'.*-1.0"),
    ("negative bytes", '"own_saved_bytes": 0', '"own_saved_bytes": -1', "own_saved_bytes is -1"),
    ("a micro-batch of nothing", '"micro": 1', '"micro": 0', "micro-batch 0"),
    (
        "a position beyond the inputs",
        '"kept_inputs": [0]',
        '"kept_inputs": [9]',
        "kept_inputs has position 9",
    ),
    ("a list that is none", '"kept_inputs": []', '"kept_inputs": 3', "3 is not a list"),
    ("a flag that is none", '"trainable": true', '"trainable": 1', "1 is not true or false"),
    ("a layer twice", '"name": "a1"', '"name": "a0"', "'a0' is there twice"),
    ("a value of nobody", '"producer": "a1"', '"producer": "b1"', "differ on whether"),
    ("a model that was edited", '"shape": [1, 25]', '"shape": [1, 24]', "fingerprint"),
    ("a row twice", '"signature": "s-a1", "micro"', '"signature": "s-a0", "micro"', "there twice"),
    ("a row of a stranger", '"signature": "s-a1", "micro"', '"signature": "s", "micro"', "signature s"),
    ("no workload", '"workload": "chain"', '"workload": ""', "names no workload"),
    ("code", '"workload": "chain"', '"workload": !!python/name:os.system', "tag"),
    ("negative state", '"state_bytes_per_parameter": 8.0', '"state_bytes_per_parameter": -8', "-8"),
    ("arguments that nest", '"size": "small"', '"size": {"a": 1}', "arguments.size.*plain"),
]


@pytest.mark.parametrize(
    ("old", "new", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_is_wrong_is_named(text: str, old: str | None, new: str, words: str) -> None:
    assert old is None or old in text
    bad = new if old is None else text.replace(old, new, 1)
    with pytest.raises(BadInput, match=words) as caught:
        profile_yaml.loads(bad, "file")
    assert str(caught.value).startswith("file")


def test_the_line_is_named(text: str) -> None:
    line = next(i for i, row in enumerate(text.splitlines(), 1) if '"own_saved_bytes": 5' in row)
    with pytest.raises(BadInput, match=f"^file:{line}: "):
        profile_yaml.loads(text.replace('"own_saved_bytes": 5', '"own_saved_bytes": -5'), "file")


def test_a_missing_row_is_named(text: str) -> None:
    rows = [row for row in text.splitlines() if not ('"s-a2"' in row and "own_saved" in row)]
    with pytest.raises(BadInput, match=r"'a2'.*there is no row"):
        profile_yaml.loads("\n".join(rows), "file")


@pytest.mark.parametrize(
    ("make", "words"),
    [(None, "cannot read"), (b"\xff\xfe\x00", "not text")],
    ids=["no file", "no text"],
)
def test_a_file_that_cannot_be_read_is_named(make: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    if make is not None:
        path.write_bytes(make)
    with pytest.raises(BadInput, match=words) as caught:
        profile_yaml.load(path)
    assert str(path) in str(caught.value)


def test_what_reading_samples_takes_comes_back_and_is_checked(text: str) -> None:
    cost = SampleCost(cold_s=0.25, warm_s=0.125, collate_s=0.0, sample_bytes=7)
    found = replace(profile_yaml.loads(text), samples=cost)
    said = profile_yaml.dumps(found)
    assert profile_yaml.loads(said) == found and len(said.splitlines()) == len(text.splitlines()) + 1
    with pytest.raises(BadInput, match=r"profile:\d+: samples.cold_s: cold_s is -1"):
        profile_yaml.loads(said.replace("0.25", "-1"))
