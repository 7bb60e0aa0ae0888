"""The example notebooks run from top to bottom in a kernel of their own, and are kept with what they show.

Renew what they show with `python -m tests.docs.test_notebooks`.
"""

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


NAMES = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("name", NAMES)
def test_an_example_notebook_runs(name: str) -> None:
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    if not WHOLE:
        replace(notebook, SMALLER.get(name, {}))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code if not cell.outputs] == []


@pytest.mark.parametrize("name", NAMES)
def test_an_example_notebook_is_kept_with_what_it_shows(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    code = [cell for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.source for cell in code if not cell.outputs] == [], (
        "renew it with `python -m tests.docs.test_notebooks`"
    )
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert len(text) < 2_000_000 and str(EXAMPLES.parent) not in text, "pictures, and no paths of a machine"


def replace(notebook: nbformat.NotebookNode, settings: dict[str, str]) -> None:
    for whole, small in settings.items():
        (cell,) = (cell for cell in notebook.cells if whole in cell.source)
        cell.source = cell.source.replace(whole, small)


def renew() -> None:
    """Runs every notebook whole and keeps what it shows, but what is said while it works and where it ran."""
    for name in NAMES:
        notebook = nbformat.read(EXAMPLES / name, as_version=4)
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        NotebookClient(
            notebook,
            timeout=900,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(EXAMPLES)}},
        ).execute()
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            told = [x for x in cell.outputs if x.output_type != "display_data" and x.get("name") != "stderr"]
            cell.outputs = told or cell.outputs
        notebook.metadata = nbformat.from_dict(
            {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
        )
        nbformat.write(notebook, EXAMPLES / name)


if __name__ == "__main__":
    renew()
