"""Files, folders and names of strangers: every command ends in one message of ours or rightly works, in bounded time
and memory, prints nothing that steers a terminal, and touches nothing that is not its own.

The table is in `tests/hostile_cases.py`. Commands run in this process; SIGALRM guards each.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fuzz import fuzzed
from benchmarks.mutants import EVIL, Seeds, judged, seeds
from planner.files import parse_document
from planner.profile import Profile
from tests import hostile_cases as hostile
from tests import hostile_rooms as rooms
from tests import hostile_trained as trained
from tests.draws import SEED, numbers
from tests.planner import plan_examples

KINDS = ("plan", "cluster", "profile", "calibration")
Facts = dict[str, tuple[int, int, int, bytes]]


def costs() -> Profile:
    from dataclasses import replace

    return replace(plan_examples.profile((1, 2)), workload="tiny.py")


def _right(folder: Path) -> Seeds:
    folder.mkdir(parents=True, exist_ok=True)
    return seeds(folder, costs())


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    return _right(tmp_path_factory.mktemp("right"))


@pytest.fixture
def place(right: Seeds, tmp_path: Path) -> hostile.Place:
    made = hostile.Place(tmp_path, right)
    assert made.foreign.is_dir()
    return made


def facts(folder: Path) -> Facts:
    """Mode, owner, time and content of whatever lies in a folder; links are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        small = stat.S_ISREG(seen.st_mode) and seen.st_size < 2**20
        content = path.read_bytes() if small else b""
        found[os.fsencode(path).hex()] = (seen.st_mode, seen.st_uid, seen.st_mtime_ns, content)
    return found


def check(
    words: list[str], place: hostile.Place, *, may_work: bool = True, names: tuple[str, ...] = ()
) -> None:
    own = tuple(os.fsencode(place.folder / name).hex() for name in ("x.html", "out", *names))
    before = {key: fact for key, fact in facts(place.folder).items() if not key.startswith(own)}
    found = judged(words)
    assert not found.fault, found.output[-2000:]
    if found.status:
        assert found.output.count("error: ") >= 1
    assert may_work or found.status in (2, 4), found.output
    assert {key: fact for key, fact in facts(place.folder).items() if not key.startswith(own)} == before


def test_the_table_holds_what_it_should(right: Seeds) -> None:
    table = _table(right)
    assert len(table) > 600
    assert len({case.name for case in table}) == len(table)


def _table(right: Seeds) -> list[hostile.Case]:
    data = {kind: parse_document((right.folder / f"{kind}.yaml").read_text(), name=kind) for kind in KINDS}
    return [*hostile.cases(data), *_share(rooms.cases()), *_share(trained.cases())]


def _share(cases: Iterator[hostile.Case]) -> list[hostile.Case]:
    return list(cases)[SEED % ROOMS_SHARE :: ROOMS_SHARE]


GROUPS = 24
ROOMS_SHARE = 4  # of the rows that capture or launch a model, one in so many by seed


@pytest.mark.parametrize("group", range(GROUPS))
def test_hostile_input_ends_in_one_message_or_rightly_works(
    group: int, right: Seeds, tmp_path: Path, subtests_of: list[str]
) -> None:
    for number, case in enumerate(_table(right)[group::GROUPS]):
        place = hostile.Place(tmp_path / str(number), right)
        place.folder.mkdir()
        assert place.foreign.is_dir()
        try:
            check(case.make(place), place, may_work=case.may_work, names=case.own)
        except AssertionError as error:
            subtests_of.append(f"{case.name}: {error}")
    assert not subtests_of, "\n\n".join(subtests_of)


@pytest.fixture
def subtests_of() -> Iterator[list[str]]:
    yield []


def test_inputs_by_seed_show_no_fault(tmp_path: Path) -> None:
    """`benchmarks.fuzz` has thousands."""
    right = _right(tmp_path / "right")
    (tmp_path / "spoilt").mkdir()
    _, faults = fuzzed(right, tmp_path / "spoilt", numbers(150))
    assert faults == []


def test_a_fault_is_seen(place: hostile.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)  # where the traceback of an unforeseen error is kept
    monkeypatch.setattr("planner.terminal.console.printable", str)
    monkeypatch.setattr("planner.shown.printable", str)
    file = place.file(json.dumps(hostile.at_key(place.data("cluster"), ("name",), EVIL)))
    assert judged(["show", str(file)]).fault == "prints characters that steer a terminal"
    monkeypatch.setattr("planner.cluster.load", lambda path: 1 // 0)
    assert "ZeroDivisionError" in judged(["show", str(file)]).fault


def test_labels_that_a_model_does_not_have_are_told_with_their_step(place: hostile.Place) -> None:
    words = trained.labelled(place, 7)
    found = judged(words)
    assert found.status == 2
    assert (
        "step 1: a sample has an index that the model does not have: Target 7 is out of bounds"
        in found.output
    )


def test_state_that_an_optimizer_cannot_use_is_told_with_its_checkpoint(place: hostile.Place) -> None:
    found = judged(trained.without_state(place, "exp_avg_sq"))
    assert (found.status, found.fault) == (2, "")
    assert "the optimizer cannot go on from its state there: KeyError: 'exp_avg_sq'" in found.output


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("lr", {}, "TypeError: float"), ("capturable", True, "AssertionError: If capturable=True")],
)
def test_options_that_an_optimizer_cannot_use_are_told_with_their_checkpoint(
    place: hostile.Place, key: str, value: object, said: str
) -> None:
    found = judged(trained.with_option(place, key, value))
    assert (found.status, found.fault) == (2, "")
    assert f"the optimizer cannot go on from its state there: {said}" in found.output
