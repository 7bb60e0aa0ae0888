"""A small notebook in a real kernel: each value displays itself, as a user of Jupyter sees it."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
CELLS = {  # what a cell returns, and what it must be displayed as
    "import warnings; warnings.simplefilter('ignore')\nimport shardwright as sw": (),
    "graph = sw.capture('mlp', layers=3).graph\ngraph": ("text/html", "data:image/svg+xml"),
    "graph.plot()": ("image/png", ""),
    "costs = sw.profile('mlp', device='roofline:cpu', micro=(1, 2), layers=3)\ncosts": (
        "text/html",
        "data:image/svg+xml",
    ),
    "cluster = sw.Cluster.load('plans/clusters/laptop.yaml')\ncluster": ("text/html", "devices"),
    "plan = sw.plan(costs, cluster, batch=8, schedule=['zb-h1'], fix={'pipeline': 2})\nplan": (
        "text/html",
        "gap 0.00 %",
    ),
    "other = plan.what_if(memory_gib=2, schedule='1f1b')\nother": ("text/html", "instead of"),
    "sw.compare(plan, other)": ("text/html", "micro-batches"),
    "plan.frontier()": ("text/html", "Pareto-optimal"),
    "plan.timeline()": ("text/html", "2 ranks over"),
    "plan.timeline().plot()": ("image/png", ""),
    "graph.plot(plan)": ("image/png", ""),
    "sw.verify(plan, costs=costs, cluster=cluster)": ("text/plain", "[]"),
    "sw.rehearse(plan, steps=1)": ("text/html", "rehearsed"),
    "run = sw.launch(plan, FOLDER, steps=4, on='local')\nrun.wait().check()\nrun": ("text/html", "done"),
    "run.plot()": ("image/png", ""),
    "run.metrics()": ("text/html", "loss"),
    "sw.runs(FOLDER)": ("text/html", "done"),
    "sw.record(FOLDER)": ("text/html", "measured"),
    "sw.report(plan, PAGE, run=FOLDER, costs=costs)": ("text/plain", "page.html"),
}

REFUSED = """import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(x)
model = lambda batch: sw.Workload(Net(), batch=(batch, torch.rand(2, 2)), loss=torch.nn.functional.mse_loss)
model(dict(x=torch.rand(2, 4), y=torch.rand(2, 4)))
"""


@pytest.mark.usefixtures("warm_starts")
def test_each_value_displays_itself(tmp_path: Path) -> None:
    names = {"FOLDER": repr(str(tmp_path / "run")), "PAGE": repr(str(tmp_path / "page.html"))}
    cells = []
    for source in CELLS:
        for name, value in names.items():
            source = source.replace(name, value)
        cells.append(nbformat.v4.new_code_cell(source))
    cells.append(nbformat.v4.new_code_cell(REFUSED, metadata={"tags": ["raises-exception"]}))
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT)}}).execute()
    (said,) = (output for output in notebook.cells.pop().outputs if output.output_type == "error")
    lines = [line for row in said.traceback for line in row.splitlines()]
    cell = any("model(dict(x=" in line or "ipykernel_" in line for line in lines)
    assert len(lines) < 8 and cell, "the line of the cell, or where it stands"
    assert lines[-1].startswith("BadInput: ") and "unexpected keyword argument 'y'" in lines[-1]
    for cell, wanted in zip(notebook.cells, CELLS.values(), strict=True):
        shown = [output.data for output in cell.outputs if output.output_type == "execute_result"]
        assert len(shown) == (1 if wanted else 0), (cell.source, cell.outputs)
        for data in shown:
            kind, words = wanted
            assert kind in data and words in data[kind], (cell.source, data)
            assert "text/plain" in data
        others = [output for output in cell.outputs if output.output_type == "display_data"]
        left = [output for output in others if output.data["text/plain"]]  # a bar ends empty
        assert left == [], "shown once, as the result"
    assert (tmp_path / "page.html").stat().st_size > 10_000
