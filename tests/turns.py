"""Which process runs which tests where there are several (`pytest -n 3`): a file is run by one, the longest first.

So what the tests of a file share is made once. All tests of SLURM are run by the process that has the cluster, and
pages and notebooks, which share nothing, go one by one. Measured durations: `pytest --durations=0`.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/slurm/",)
APART = ("tests/docs/test_code_blocks.py", "tests/docs/test_notebooks.py")
LONGEST = (
    "tests/slurm/",
    "tests/docs/test_notebooks.py",
    "tests/runtime/test_memory_model.py",
    "tests/test_wheel.py",
    "tests/docs/test_code_blocks.py",
    "tests/runtime/local/",
    "tests/runtime/infer/",
    "tests/runtime/kept/",
    "tests/runtime/sharding/",
    "tests/planner/milp/test_solve_oracle.py",
    "tests/planner/milp/test_space_oracle.py",
    "tests/runtime/spatial/test_networks.py",
    "tests/planner/measure/test_measure.py",
    "tests/runtime/checkpoint/",
    "tests/runtime/layout/",
    "tests/runtime/rehearse/",
    "tests/runtime/spatial/",
    "tests/runtime/",
    "tests/planner/milp/",
    "tests/planner/cuts/",
    "tests/planner/proof/",
    "tests/planner/report/test_browser.py",
    "tests/planner/capture/",
    "tests/planner/measure/",
    "tests/planner/choose/",
    "tests/planner/notebook/",
    "tests/test_layers.py",
    "tests/test_hostile.py",
)


def unit(test: str) -> str:
    """What is run by one process; `test` is what pytest calls it."""
    if together := next((folder for folder in TOGETHER if test.startswith(folder)), ""):
        return together
    file = test.split("::")[0]
    return test if file in APART else file


def place(unit: str) -> int:
    return next((i for i, start in enumerate(LONGEST) if unit.startswith(start)), len(LONGEST))


class Turns(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
