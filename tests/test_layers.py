"""The rooms keep their order, their doors and their walls: who may import whom, checked on the source.

ORDER is the list of ARCHITECTURE.md: a room imports those above it and nothing below.
The rules are in `tests/layer_rules.py`. This file asks them of the real tree, and breaks each in a small tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import layer_rules as rules

ROOT = Path(__file__).parents[1]
ORDER = (
    "planner.errors",
    "planner.arrays",
    "planner.doors",
    "planner.units",
    "planner.shown",
    "planner.terminal",
    "planner.files",
    "planner.model",
    "planner.kept",
    "planner.workload",
    "planner.recipes",
    "planner.schedule",
    "planner.timeline",
    "planner.spatial",
    "planner.layout",
    "planner.sums",
    "planner.cluster",
    "planner.named",
    "planner.profile",
    "planner.device_types",
    "planner.plan",
    "planner.export",
    "planner.simulate",
    "planner.program",
    "planner.trace",
    "planner.capture",
    "planner.measure",
    "planner.group",
    "planner.cost",
    "planner.choose",
    "planner.limits",
    "planner.configurations",
    "planner.cuts",
    "planner.proof",
    "planner.milp",
    "planner.scavenge",
    "planner.verify",
    "planner.explore",
    "planner.calibrate",
    "planner.show",
    "planner.advice",
    "planner.report",
    "planner.notebook",
    "planner.cli",
    "runtime.runfolder",
    "runtime.leases",
    "runtime.backend",
    "runtime.world",
    "runtime.messages",
    "runtime.execute",
    "runtime.draws",
    "runtime.stage",
    "runtime.data",
    "runtime.dedup",
    "runtime.same_bits",
    "runtime.spatial",
    "runtime.layout",
    "runtime.sums",
    "runtime.update",
    "runtime.kept",
    "runtime.store",
    "runtime.sharding",
    "runtime.checkpoint",
    "runtime.rank",
    "runtime.loop",
    "runtime.trackers",
    "runtime.train",
    "runtime.local",
    "runtime.rehearse",
    "runtime.slurm",
    "runtime.probe",
    "runtime.infer",
    "runtime.islands",
    "runtime.launch",
    "runtime.scavenge",
    "runtime.bridges",
    "runtime.cli",
)
WALLS = {
    "planner": ("runtime", "models", "shardwright", "torch.distributed"),
    "runtime": (
        "planner.milp",
        "planner.limits",
        "planner.configurations",
        "planner.cuts",
        "planner.proof",
        "planner.cost",
        "planner.explore",
        "planner.show",
        "planner.report",
        "planner.notebook",
        "pulp",
        "highspy",
        "models",
        "shardwright",
    ),
    "models": ("planner", "runtime", "shardwright"),
}
USES_TORCH = ("planner.capture", "planner.measure", "planner.workload")  # and all of runtime
DRAWS = ("planner.shown", "planner.notebook")
VIEWS = ("_repr_html_", "plot")
MOST_LINES = 300
MOST_FILES = 300  # in the rooms of the house as it was built
LATER_ROOMS = (
    "planner.advice",
    "planner.choose",
    "runtime.bridges",
    "planner.device_types",
    "planner.export",
    "planner.group",
    "planner.kept",
    "planner.layout",
    "planner.named",
    "planner.recipes",
    "planner.scavenge",
    "planner.sums",
    "planner.trace",
    "runtime.dedup",
    "runtime.draws",
    "runtime.infer",
    "runtime.islands",
    "runtime.kept",
    "runtime.layout",
    "runtime.leases",
    "runtime.loop",
    "runtime.scavenge",
    "runtime.same_bits",
    "runtime.sharding",
    "runtime.store",
    "runtime.sums",
    "runtime.trackers",
)
SPLIT_ROOMS = (
    "planner.configurations",
    "planner.cuts",
    "planner.proof",
)  # of a first room that was too large
MOST_IN_A_ROOM = 12


# The real tree


def test_a_room_imports_only_rooms_above_it() -> None:
    assert rules.upwards(ROOT, ORDER) == []


def test_every_room_is_in_the_list() -> None:
    assert rules.unlisted(ROOT, ORDER) == []


def test_a_room_is_entered_by_its_door() -> None:
    assert rules.side_doors(ROOT) == []


def test_a_door_says_what_lies_behind_it_and_lists_all_that_it_exports() -> None:
    assert rules.doors(ROOT) == []


def test_files_of_a_room_import_each_other_by_full_path() -> None:
    assert rules.through_own_door(ROOT) == []


def test_imports_are_absolute_and_name_what_they_import() -> None:
    assert rules.relative_imports(ROOT) == []


@pytest.mark.parametrize("wing", WALLS)
def test_a_wing_keeps_to_its_walls(wing: str) -> None:
    assert rules.crossings(ROOT, wing, WALLS[wing]) == []


def test_of_the_measurements_the_runtime_knows_only_types() -> None:
    assert rules.more_than_types(ROOT, "runtime", "planner.measure") == []


def test_only_capture_measure_and_workload_use_torch_in_the_planner() -> None:
    assert rules.outside_of(ROOT, "torch", "planner", USES_TORCH) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert rules.circles(ROOT) == []


def test_no_rooms_import_each_other_in_a_circle() -> None:
    assert rules.circles_of_rooms(ROOT) == []


def test_data_draws_nothing() -> None:
    assert rules.definitions_of(ROOT, VIEWS, DRAWS) == []


def test_a_public_class_name_is_used_once() -> None:
    assert rules.shared_class_names(ROOT) == []


def test_no_file_is_longer_than_300_lines() -> None:
    assert rules.long_files(ROOT, MOST_LINES) == []


def test_at_most_300_files_hold_code_in_the_first_rooms_and_12_in_each_small_one() -> None:
    files = rules.files_with_code(ROOT)
    small = {
        room: [x for x in files if x.startswith(room.replace(".", "/") + "/")]
        for room in (*LATER_ROOMS, *SPLIT_ROOMS)
    }
    first = len(files) - sum(len(small[room]) for room in LATER_ROOMS)
    assert first <= MOST_FILES, f"{first} files hold code"
    for room, own in small.items():
        assert 0 < len(own) <= MOST_IN_A_ROOM, f"{len(own)} files of {room} hold code"


def test_the_architecture_has_a_line_for_every_room_in_the_order_of_the_rooms_and_no_other() -> None:
    told, wing = [], ""
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        if line.startswith("## "):
            wing = line[3:].partition(":")[0]
        elif line.startswith("| ") and not line.startswith("| room |"):
            told += [f"{wing}.{name.strip()}" for name in line.split("|")[1].split(",")]
    assert tuple(told) == ORDER


# Every room can be imported alone: libraries are loaded first, each room is then imported in its own fork
LIBRARIES = (
    "networkx", "numpy.typing", "pydantic.json_schema", "pydantic.main", "rich.console", "statistics", "typer", "yaml",
)  # fmt: skip
OF_TORCH = ("sympy", "torch.distributed", "torch.export", "torch.fx.experimental.symbolic_shapes")

IMPORT_ALONE = """
import gc, json, os, sys, traceback, warnings

gc.disable()  # whoever looks for garbage walks through all of torch

def attempt(room):
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries may have started threads
        pid = os.fork()
    if not pid:
        try:
            __import__(room)
            error = ""
        except BaseException:
            error = traceback.format_exc(limit=-3)
        with open(writer, "w") as pipe:
            pipe.write(error)
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        error = pipe.read()
    return error or ("" if os.waitpid(pid, 0)[1] == 0 else "died")

libraries, rooms = json.loads(sys.argv[1])
for library in libraries:
    __import__(library)
print(json.dumps({room: attempt(room) for room in rooms}))
"""


def import_errors() -> Mapping[str, str]:
    """Returns why each room of ORDER cannot be imported first, with warnings as errors; empty where it can."""
    heavy = [room for room in ORDER if room in USES_TORCH or room.startswith("runtime.")]
    light = [room for room in ORDER if room not in heavy]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def attempted(asked: tuple[tuple[str, ...], list[str]]) -> dict[str, str]:
        program = [sys.executable, "-W", "error", "-c", IMPORT_ALONE, json.dumps(asked)]
        done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    with ThreadPoolExecutor() as side_by_side:
        first, second = side_by_side.map(attempted, [(LIBRARIES, light), ((*LIBRARIES, *OF_TORCH), heavy)])
    return first | second


def test_every_room_can_be_imported_alone_and_without_a_warning() -> None:
    """One test of all rooms: as cases of one test, all but one would be left out for the time that they share."""
    found = import_errors()
    assert sorted(found) == sorted(ORDER)
    assert {room: error for room, error in found.items() if error} == {}


# Each rule is broken once, in a small tree


Files = Mapping[str, str]
DOOR = '"""Says what comes in."""\nfrom planner.cluster.links import Link\n__all__ = ["Link"]\n'
AT_DOOR = "planner/cluster/__init__.py"
CLUSTER = {
    "planner/__init__.py": "",
    AT_DOOR: DOOR,
    "planner/cluster/links.py": "class Link: ...\ndef transfer(): ...\n",
}


def build(root: Path, *parts: Files) -> Path:
    """Writes files below a root folder, with text by path, and returns that folder."""
    for files in parts:
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from planner.plan import Plan\n", 1),
        ("def f():\n    from planner.plan import Plan\n", 2),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from planner.plan import Plan\n", 3),
    ],
)
def test_an_import_upwards_is_found_wherever_it_stands(tmp_path: Path, text: str, line: int) -> None:
    root = build(tmp_path, {"planner/cluster/links.py": text, "planner/plan/plan.py": "class Plan: ...\n"})
    said = f"planner/cluster/links.py:{line} imports planner.plan.Plan"
    assert rules.upwards(root, ORDER) == [f"{said}, but planner.cluster stands above planner.plan"]


def test_an_import_down_the_list_is_allowed_across_the_wings(tmp_path: Path) -> None:
    root = build(tmp_path, CLUSTER, {"runtime/world/mesh.py": "from planner.cluster import Link\n"})
    assert rules.upwards(root, ORDER) == []


def test_an_import_by_a_call_and_one_of_an_unlisted_room_are_found(tmp_path: Path) -> None:
    called = 'import importlib\nimportlib.import_module("planner.plan")\n'
    root = build(tmp_path, {"planner/model/a.py": called, "planner/plan/b.py": "import planner.odd\n"})
    assert rules.upwards(root, ORDER) == [
        "planner/model/a.py:2 imports planner.plan, but planner.model stands above planner.plan",
        "planner/plan/b.py:1 imports planner.odd, and planner.odd is not in the list",
    ]


def test_a_room_that_is_not_in_the_list_is_found(tmp_path: Path) -> None:
    root = build(tmp_path, {"planner/odd/a.py": "", "runtime/odd.py": "", "planner/__init__.py": ""})
    assert rules.unlisted(root, ORDER) == [
        "planner/odd is not in the list",
        "runtime/odd is not in the list",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("from planner.cluster.links import Link", "links.Link: planner.cluster.links is a file inside of"),
        ("import planner.cluster.links", "links: planner.cluster.links is a file inside of"),
        ("from planner.cluster import links", "links: planner.cluster.links is a file inside of"),
        ("from planner.cluster import transfer", "transfer: transfer is not in __all__ of"),
    ],
)
@pytest.mark.parametrize(
    "path", ["planner/plan/plan.py", "runtime/backend.py", "models/a.py", "shardwright.py"]
)
def test_a_side_door_is_found(tmp_path: Path, path: str, text: str, fault: str) -> None:
    root = build(tmp_path, CLUSTER, {path: text})
    assert rules.side_doors(root) == [f"{path}:1 imports planner.cluster.{fault} planner.cluster"]


def test_a_side_door_is_found_behind_a_module_that_was_imported_whole(tmp_path: Path) -> None:
    text = "from planner import cluster as clusters\nclusters.Link\nclusters.links.transfer()\n"
    root = build(tmp_path, CLUSTER, {"planner/plan/plan.py": text})
    fault = "planner.cluster.links is a file inside of planner.cluster"
    assert rules.side_doors(root) == [f"planner/plan/plan.py:3 reads planner.cluster.links: {fault}"]


@pytest.mark.parametrize(
    "text",
    [
        "from planner.cluster import Link",
        "from planner import cluster as clusters\nclusters.Link",
        "from planner import cluster\ndef f(cluster): return cluster.nodes",
    ],
)
def test_the_door_is_open(tmp_path: Path, text: str) -> None:
    root = build(tmp_path, CLUSTER, {"planner/plan/plan.py": text})
    assert rules.side_doors(root) == []


def test_a_function_may_have_the_name_of_its_file(tmp_path: Path) -> None:
    door = '"""Simulates."""\nfrom planner.simulate.simulate import simulate\n__all__ = ["simulate"]\n'
    inside = {"planner/simulate/__init__.py": door, "planner/simulate/simulate.py": "def simulate(): ...\n"}
    root = build(tmp_path, inside, {"planner/verify/a.py": "from planner.simulate import simulate\n"})
    assert rules.side_doors(root) == []


def test_files_inside_of_a_folder_of_a_room_belong_to_the_room(tmp_path: Path) -> None:
    door = {"planner/milp/__init__.py": '"""Solves."""\n'}
    cut = {
        "planner/milp/cut/problem.py": "A = 1\n",
        "planner/milp/solve.py": "from planner.milp.cut import problem\n",
    }
    root = build(tmp_path, door, cut, {"planner/cli/a.py": "from planner.milp.cut.problem import A\n"})
    said = "planner/cli/a.py:1 imports planner.milp.cut.problem.A"
    assert rules.side_doors(root) == [f"{said}: planner.milp.cut.problem is a file inside of planner.milp"]


def test_what_a_single_file_keeps_private_is_not_imported(tmp_path: Path) -> None:
    root = build(
        tmp_path, {"planner/errors.py": "_x = 1\n", "planner/units.py": "from planner.errors import _x\n"}
    )
    assert rules.side_doors(root) == ["planner/units.py:1 imports planner.errors._x: _x is private"]


@pytest.mark.parametrize(
    ("door", "faults"),
    [
        ("", [f"{AT_DOOR}:1 has no docstring"]),
        (
            '"""A."""\nfrom planner.cluster.links import Link\n',
            [f"{AT_DOOR}:1 exports names and has no __all__"],
        ),
        (
            '"""A."""\nfrom planner.cluster.links import Link, transfer\n__all__ = ["Link"]\n',
            [f"{AT_DOOR}:2 imports planner.cluster.links.transfer, which is not in its __all__"],
        ),
        (
            '"""A."""\n__all__ = ["Link"]\n',
            [f"{AT_DOOR}:1 lists Link in __all__ and does not import it"],
        ),
    ],
)
def test_a_door_that_says_too_little_is_found(tmp_path: Path, door: str, faults: list[str]) -> None:
    root = build(tmp_path, CLUSTER, {AT_DOOR: door})
    assert rules.doors(root) == faults


def test_a_room_without_a_door_is_found(tmp_path: Path) -> None:
    root = build(tmp_path, {"planner/plan/plan.py": "", "planner/errors.py": ""})
    assert rules.doors(root) == ["planner/plan has no __init__.py"]


@pytest.mark.parametrize("text", ["from planner.cluster import Link", "import planner.cluster"])
def test_a_file_that_leaves_its_room_and_comes_back_by_the_door_is_found(tmp_path: Path, text: str) -> None:
    root = build(tmp_path, CLUSTER, {"planner/cluster/cluster.py": text})
    fault = "through the __init__.py of planner.cluster, its own package"
    said = f"planner/cluster/cluster.py:1 imports {text.split()[1]}{'.Link' if 'Link' in text else ''}"
    assert rules.through_own_door(root) == [f"{said} {fault}"]


def test_a_file_may_be_imported_by_its_folder_inside_of_its_room(tmp_path: Path) -> None:
    root = build(tmp_path, CLUSTER, {"planner/cluster/cluster.py": "from planner.cluster import links\n"})
    assert rules.through_own_door(root) == []


@pytest.mark.parametrize("text", ["from .links import Link", "from planner.cluster.links import *"])
def test_a_relative_import_and_a_star_are_found(tmp_path: Path, text: str) -> None:
    root = build(tmp_path, CLUSTER, {"planner/cluster/cluster.py": text})
    assert rules.relative_imports(root) == [f"planner/cluster/cluster.py:1 has `{text}`"]


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        ("planner/plan/a.py", "from runtime.world import World", "runtime.world.World"),
        ("planner/capture/a.py", "import torch.distributed as dist", "torch.distributed"),
        ("planner/capture/a.py", "from torch import distributed", "torch.distributed"),
        ("runtime/rank/a.py", "from planner import milp", "planner.milp"),
        ("runtime/rank/a.py", "import pulp", "pulp"),
        ("models/a.py", "from planner.errors import BadInput", "planner.errors.BadInput"),
    ],
)
def test_a_crossed_wall_is_found(tmp_path: Path, path: str, text: str, name: str) -> None:
    wing = path.split("/")[0]
    root = build(tmp_path, {path: f"def f():\n    {text}\n"})
    assert rules.crossings(root, wing, WALLS[wing]) == [f"{path}:2 imports {name}"]


def test_a_wall_is_not_crossed_by_a_name_that_begins_alike(tmp_path: Path) -> None:
    root = build(tmp_path, {"runtime/launch/a.py": "from planner.shown import register\n"})
    assert rules.crossings(root, "runtime", WALLS["runtime"]) == []


def test_a_measurement_in_the_runtime_is_found(tmp_path: Path) -> None:
    root = build(tmp_path, {"runtime/cli/a.py": "from planner.measure import Options, profile\n"})
    said = "runtime/cli/a.py:1 imports planner.measure.profile, which is no type"
    assert rules.more_than_types(root, "runtime", "planner.measure") == [said]


def test_torch_in_a_room_that_plans_is_found(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import nn\n"
    root = build(
        tmp_path, {"planner/plan/a.py": text, "planner/capture/b.py": text, "runtime/rank/c.py": text}
    )
    found = rules.outside_of(root, "torch", "planner", USES_TORCH)
    assert found == ["planner/plan/a.py:3 imports torch.nn"]


def test_a_circle_of_files_is_found_in_functions_and_through_a_door(tmp_path: Path) -> None:
    back = {"planner/cluster/links.py": "class Link: ...\ndef f():\n    from planner.plan.plan import Plan\n"}
    plan = {"planner/plan/plan.py": "from planner.cluster import Link\nclass Plan: ...\n"}
    root = build(tmp_path, CLUSTER, back, plan)
    there = "planner/cluster/links.py:3 imports planner.plan.plan.Plan"
    assert rules.circles(root) == [
        f"circle among 2: {there}; planner/plan/plan.py:1 imports planner.cluster.Link"
    ]


def test_files_that_use_the_same_door_are_no_circle(tmp_path: Path) -> None:
    door = '"""A."""\nfrom planner.plan.a import A\nfrom planner.plan.b import B\n__all__ = ["A", "B"]\n'
    files = {"planner/plan/__init__.py": door, "planner/plan/a.py": "class A: ...\n"}
    root = build(tmp_path, files, {"planner/plan/b.py": "from planner.plan.a import A\nclass B: ...\n"})
    assert rules.circles(root) == []


def test_a_circle_of_rooms_is_found_where_its_files_make_none(tmp_path: Path) -> None:
    one = {"planner/a/x.py": "from planner.b.x import X\n", "planner/b/x.py": "X = 1\n"}
    other = {"planner/b/y.py": "from planner.a.y import Y\n", "planner/a/y.py": "Y = 1\n"}
    root = build(tmp_path, one, other)
    assert rules.circles(root) == []
    said = "planner/a/x.py:1 imports planner.b.x.X; planner/b/y.py:1 imports planner.a.y.Y"
    assert rules.circles_of_rooms(root) == [f"circle among 2: {said}"]


def test_data_that_draws_is_found(tmp_path: Path) -> None:
    text = "class Plan:\n    def plot(self): ...\n    def _repr_html_(self): ...\n"
    paths = ("planner/plan/a.py", "planner/notebook/b.py", "planner/shown.py")
    root = build(tmp_path, dict.fromkeys(paths, text))
    assert rules.definitions_of(root, VIEWS, DRAWS) == [
        "planner/plan/a.py:2 defines plot",
        "planner/plan/a.py:3 defines _repr_html_",
    ]


def test_a_class_name_that_is_used_twice_is_found(tmp_path: Path) -> None:
    twice = {
        "planner/plan/a.py": "class Row: ...\nclass _Own: ...\n",
        "runtime/rank/b.py": "class Row: ...\n",
    }
    root = build(
        tmp_path, twice, {"runtime/rank/c.py": "class _Own: ...\n", "models/d.py": "class Row: ...\n"}
    )
    said = "planner/plan/a.py:1 defines Row, as runtime/rank/b.py:1 does"
    assert rules.shared_class_names(root) == [said]


def test_a_long_file_is_found(tmp_path: Path) -> None:
    root = build(tmp_path, {"planner/plan/a.py": "\n" * 301, "models/b.py": "\n" * 300})
    assert rules.long_files(root, MOST_LINES) == ["planner/plan/a.py:301 is over 300 lines"]


def test_a_door_that_defines_nothing_is_no_file_with_code(tmp_path: Path) -> None:
    door = {"planner/odd/__init__.py": "def f(): ...\n", "planner/plan/a.py": "", "models/b.py": ""}
    root = build(tmp_path, CLUSTER, door)
    files = ["planner/cluster/links.py", "planner/odd/__init__.py", "planner/plan/a.py"]
    assert rules.files_with_code(root) == files
