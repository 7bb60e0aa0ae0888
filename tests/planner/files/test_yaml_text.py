"""Plain data in and out of YAML: nothing but what is written there, and the same bytes again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import BadInput
from planner.files import disk
from planner.files import yaml_text as yaml_files
from planner.files.yaml_text import Data, Position

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False), st.text(max_size=20)
)
trees = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    ),
    max_size=5,
)


@given(trees)
def test_what_is_written_is_read_back(data: dict[str, Data]) -> None:
    infinite = "inf" in repr(data)
    text = yaml_files.render(data, header="# a comment\n")
    if data and not infinite:
        again = yaml_files.parse_yaml(text, name="file")
        assert again == data
        assert repr(again) == repr(data)
        assert yaml_files.render(again, header="# a comment\n") == text


@given(trees)
def test_other_readers_of_yaml_understand_the_same(data: dict[str, Data]) -> None:
    if data and "inf" not in repr(data):
        assert yaml.safe_load(yaml_files.render(data, header="")) == data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e+11", 1e11),
        ("12", 12),
        ("-0", 0),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1:30:00", "1:30:00"),
        ("1_000", "1_000"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("", None),
        ("'12'", "12"),
        ("2026-11-20", "2026-11-20"),
        ("=", "="),
        ("<<", "<<"),
        (".inf", float("inf")),
    ],
)
def test_unquoted_words_mean_what_yaml_1_2_says(text: str, value: Data) -> None:
    found = yaml_files.parse_yaml(f"key: {text}", name="file")["key"]
    assert found == value
    assert type(found) is type(value)


def test_a_key_is_located_by_its_line() -> None:
    text = "a: 1\nb:\n  - x: 1\n  - y: 2\n    z: {w: 3}\n"
    assert yaml_files.locate(text, ("b", 1, "z", "w")) == Position(5, ("b", 1, "z", "w"))
    assert yaml_files.locate(text, ("b", "a type", 0, "gone")) == Position(3, ("b", 0))
    assert yaml_files.locate(text, ()) == Position(1, ())


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert yaml_files.parse_yaml(disk.read_text(path), name="file") == {"a": 1}


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("a: 1\n" * 100)
    with pytest.raises(BadInput, match=r"file.yaml: the file is too large \(allowed: at most 99 bytes\)"):
        disk.read_text(path, max_bytes=99)
    with pytest.raises(BadInput, match="is no regular file"):
        disk.read_text(Path("/dev/zero"), max_bytes=1000)


def test_a_bomb_of_aliases_is_refused_before_it_grows() -> None:
    layers = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    layers += [
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
    ]
    with pytest.raises(BadInput, match=r"file:1: an anchor or alias is not read"):
        yaml_files.parse_yaml("\n".join(layers), name="file")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused_and_not_followed(opening: str) -> None:
    with pytest.raises(BadInput, match="file:1"):
        yaml_files.parse_yaml(opening * 100_000, name="file")


def test_no_tag_of_python_is_obeyed(tmp_path: Path) -> None:
    spoor = tmp_path / "spoor"
    for tag in ("python/object/apply:os.system", "python/object/new:os.system", "python/name:os.system"):
        with pytest.raises(BadInput, match=r"the tag '.*' is not read"):
            yaml_files.parse_yaml(f"a: !!{tag} ['touch {spoor}']", name="file")
    assert not spoor.exists()


@given(st.text(alphabet="ab1.:-,[]{}&*!?|>'\"#%@ \n\t\\~é\x07\ud800", max_size=40) | st.text(max_size=40))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        assert isinstance(yaml_files.parse_yaml(text, name="file"), dict)
    except BadInput as refused:
        assert str(refused).startswith("file")
        assert "\n" not in str(refused)
        assert refused.allowed
