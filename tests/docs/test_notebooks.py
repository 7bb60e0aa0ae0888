"""The example notebooks run from top to bottom in a kernel of their own."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.draws import WHOLE

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALLER = {  # what takes a minute is run whole where all of each matrix is
    "gpt2-on-2048-gpus.ipynb": {'size="chimera", seq=632': 'size="tiny"', "batch=2048": "batch=256"},
}


@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.ipynb")))
def test_an_example_notebook_runs(name: str) -> None:
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    if not WHOLE:
        replace(notebook, SMALLER.get(name, {}))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code if not cell.outputs] == []


def replace(notebook: nbformat.NotebookNode, settings: dict[str, str]) -> None:
    for whole, small in settings.items():
        (cell,) = (cell for cell in notebook.cells if whole in cell.source)
        cell.source = cell.source.replace(whole, small)
