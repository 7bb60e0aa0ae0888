"""A run sent to trackers: every step once, the plan's decisions, the predicted step beside the measured one."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import shardwright as sw
from planner.errors import BadInput
from planner.plan import load
from runtime.launch import handle_of
from runtime.runfolder import Paths, losses_of
from runtime.trackers import TRACKERS, send
from tests.runtime.runfolder.test_metrics import line
from tests.warm_python import WarmPython

pytestmark = pytest.mark.usefixtures("warm_starts")

PLAN = Path(__file__).parents[3] / "plans" / "mlp-two-stages.yaml"


class Kept:
    """In the place of a tracker's run."""

    made: list[Kept] = []

    def __init__(self, paths: Paths, project: str, facts: Mapping[str, object]) -> None:
        self.project, self.facts = project, facts
        self.steps: dict[int, Mapping[str, float]] = {}
        self.files: list[str] = []
        Kept.made.append(self)

    def step(self, number: int, values: Mapping[str, float]) -> None:
        assert number not in self.steps
        self.steps[number] = values

    def file(self, path: Path) -> None:
        self.files.append(path.name)

    def end(self) -> str:
        return "kept"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Kept]:
    monkeypatch.setitem(TRACKERS, "kept", Kept)  # type: ignore[arg-type]
    monkeypatch.setattr(sys.modules["runtime.trackers.send"], "EVERY_S", 0.0)
    Kept.made.clear()
    return Kept.made


def folder(root: Path) -> Paths:
    paths = Paths(root / "run").make()
    shutil.copy(PLAN, paths.plan)
    return paths


def test_steps_are_sent_once_with_the_plan_and_its_prediction(kept: list[Kept], tmp_path: Path) -> None:
    paths, report = folder(tmp_path), tmp_path / "report.html"
    report.write_text("page")
    rows = [line(1, {0: 1.0, 1: 2.0}), line(2, {0: 3.0, 1: 4.0}), line(2, {0: 5.0, 1: 4.0}, generation=1)]
    paths.rank_metrics(0).write_text("\n".join([*rows, ""]))
    assert send(paths.root, "kept", project="mine", files=lambda: [report]) == (2, "kept")
    found, plan = kept[0], load(PLAN)
    assert (
        {step: values["loss"] for step, values in found.steps.items()} == losses_of(paths) == {1: 1.5, 2: 4.5}
    )
    assert {values["predicted/step_seconds"] for values in found.steps.values()} == {
        plan.prediction.step_ns / 1e9
    }
    assert (found.project, found.facts["pipeline"], found.facts["schedule"]) == ("mine", 2, "1f1b")
    assert found.files == ["plan.yaml", "report.html"]
    assert "gradient_norm" not in found.steps[1]  # what no rank told of is no number


def test_a_run_is_followed_while_it_goes_on(kept: list[Kept], tmp_path: Path) -> None:
    paths = folder(tmp_path)
    told = iter(range(1, 4))

    def going() -> bool:
        step = next(told, None)
        if step is not None:
            with paths.rank_metrics(0).open("a") as file:
                print(line(step, {0: float(step), 1: float(step)}), file=file)
        return step is not None

    assert send(paths.root, "kept", going=going) == (3, "kept")
    assert [values["loss"] for values in kept[0].steps.values()] == [1.0, 2.0, 3.0]


def test_what_cannot_be_sent_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="no tracker is called"):
        send(tmp_path, "comet")
    with pytest.raises(BadInput, match="is no run folder"):
        send(tmp_path, "wandb")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BadInput, match=r"wandb is not installed here.*shardwright\[wandb\]"):
        send(folder(tmp_path).root, "wandb")


def test_ranks_import_no_tracker() -> None:
    program = "import runtime.train, sys; print([x for x in ('wandb', 'mlflow') if x in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


# The trackers themselves, where they are installed


@pytest.fixture(scope="module")
def ran(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, float]]:
    """A training of ten steps on two ranks, and the losses of the same training in one process."""
    root = tmp_path_factory.mktemp("tracked")
    plan = sw.load_plan(PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm_python.python))
        sw.launch(plan, root / "run", steps=10, on="local").wait().check()
    from runtime.launch import launch_inline

    return root / "run", launch_inline(plan, root / "one", steps=10).losses


def test_pandas_has_the_losses_of_one_process(ran: tuple[Path, dict[int, float]]) -> None:
    pytest.importorskip("pandas")
    run, losses = ran
    frame = handle_of(run).metrics().to_pandas()
    assert dict(zip(frame["step"], frame["loss"], strict=True)) == losses


def sent(to: str, run: Path, reader: str) -> dict[str, object]:
    """Returns what a tracker has kept of a run, as its own library reads it.

    Args: `reader` prints an object as its last line, of the folder `run`.
    """
    if importlib.util.find_spec(to) is None:
        pytest.skip(f"needs {to}: the extra `test` has it")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment = {
        key: value for key, value in environment.items() if not key.startswith(("WANDB", "MLFLOW"))
    }
    track = f"import sys, shardwright as sw; sys.exit(sw.run(['track', sys.argv[1], '--to', {to!r}]))"
    read = f"import json, sys\nfrom pathlib import Path\nrun = Path(sys.argv[1]){reader}"
    for program in (track, read):  # a tracker may write its last bytes when the process ends that sent them
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, str(run)],
            cwd=run.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


MLFLOW = """
import os
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=(run / "mlflow").absolute().as_uri())
found = client.search_runs([client.get_experiment_by_name("shardwright").experiment_id])[0]
history = lambda name: {row.step: row.value for row in client.get_metric_history(found.info.run_id, name)}
print(json.dumps({
    "loss": history("loss"),
    "predicted": history("predicted/step_seconds"),
    "parameters": found.data.params,
    "files": sorted(file.path for file in client.list_artifacts(found.info.run_id)),
}))
"""


def test_mlflow_keeps_a_run_whose_losses_are_those_of_one_process(ran: tuple[Path, dict[int, float]]) -> None:
    run, losses = ran
    found = sent("mlflow", run, MLFLOW)
    assert found["loss"] == {str(step): loss for step, loss in losses.items()}
    assert set(found["predicted"].values()) == {load(PLAN).prediction.step_ns / 1e9}  # type: ignore[attr-defined]
    assert found["parameters"]["pipeline"] == "2"  # type: ignore[index]
    assert found["files"] == ["plan.yaml", "report.html"]


WANDB = """
from wandb.proto import wandb_internal_pb2 as records
losses, files, config, predicted = {}, [], {}, set()
data, at, parts, whole = next(run.glob("wandb/offline-run-*/*.wandb")).read_bytes(), 7, [], []
while at + 7 <= len(data):  # blocks of 32 KiB, with records in parts: checksum, length, kind
    if -at % 32768 < 7 and at % 32768:
        at += -at % 32768
        continue
    size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
    parts.append(data[at + 7 : at + 7 + size])
    at += 7 + size
    if kind in (1, 4):  # whole, or the last part
        whole.append(b"".join(parts))
        parts = []
for each in whole:
    record = records.Record()
    record.ParseFromString(each)
    if record.WhichOneof("record_type") == "history":
        row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        losses[row["_step"]] = row["loss"]
        predicted.add(row["predicted/step_seconds"])
    if record.WhichOneof("record_type") == "artifact":
        files = [entry.path for entry in record.artifact.manifest.contents]
    for request in [record.request] if record.WhichOneof("record_type") == "request" else []:
        if request.WhichOneof("request_type") == "log_artifact":
            files = [entry.path for entry in request.log_artifact.artifact.manifest.contents]
    if record.WhichOneof("record_type") == "run":
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
print(json.dumps({"loss": losses, "files": sorted(files), "config": config, "predicted": sorted(predicted)}))
"""


def test_wandb_keeps_a_run_offline_whose_losses_are_those_of_one_process(
    ran: tuple[Path, dict[int, float]],
) -> None:
    run, losses = ran
    found = sent("wandb", run, WANDB)
    assert found["loss"] == {str(step): loss for step, loss in losses.items()}
    assert found["predicted"] == [load(PLAN).prediction.step_ns / 1e9]
    assert found["config"]["pipeline"] == 2  # type: ignore[index]
    assert found["files"] == ["plan.yaml", "report.html"]
