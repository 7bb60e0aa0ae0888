"""What of a parametrised test is run: as many of its cases as take half a second or so, drawn by seed.

`seconds.json` says what one case takes on the wall clock, of tests whose cases take longer together. SHARDWRIGHT_TEST_SEED
draws others, and `all` runs every case, as `make bench` does. Renew it from a run of all tests:

    make test PYTEST_ADDOPTS=--junitxml=junit.xml
    python -m tests.budget junit.xml
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from tests import draws

MOST_S = 0.5  # of one parametrised test
LEAST_S = 0.01  # of one case
TABLE = Path(__file__).parent / "seconds.json"


def function(test: str) -> str:
    """What the cases of a parametrised test have in common; `test` is what pytest calls one of them."""
    return test.split("[")[0]


def file(test: str) -> str:
    return test.split("::")[0]


def known() -> dict[str, float]:
    """Seconds of one case, by test."""
    return dict(json.loads(TABLE.read_text()))


def left_out(tests: Iterable[str], seconds: Mapping[str, float]) -> set[str]:
    """The cases that are not drawn; `tests` are all that pytest has collected."""
    cases: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        if function(test) in seconds:
            cases[function(test)].append(test)
    found: set[str] = set()
    for name, own in cases.items():
        found |= set(own).difference(draws.part(own, max(1, int(MOST_S / seconds[name]))))
    return found


def measured(junit: Path, before: Mapping[str, float]) -> dict[str, float]:
    """Seconds of one case of tests with several cases that take too long together.

    Args: `junit` is of a run; of tests that stood in the table `before`, it may have drawn a single case.
    """
    cases: dict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(junit).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '')}"
        cases[function(name)].append(float(case.get("time", 0)))
    return {
        name: max(LEAST_S, round(sum(took) / len(took), 2))
        for name, took in sorted(cases.items())
        if name in before or (len(took) > 1 and sum(took) > MOST_S)
    }


if __name__ == "__main__":
    rows = [f"{json.dumps(name)}: {cost}" for name, cost in measured(Path(sys.argv[1]), known()).items()]
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
