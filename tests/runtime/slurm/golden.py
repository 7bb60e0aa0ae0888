"""Representative jobs and the scripts they give. Renew with `python -m tests.runtime.slurm.golden`."""

from __future__ import annotations

from pathlib import Path

from runtime.slurm import Options, text
from runtime.slurm.measure_jobs import Measurement, NodeKind
from runtime.slurm.measure_jobs import text as measured
from runtime.slurm.options import Container
from runtime.slurm.script import JobRequest
from runtime.slurm.task_layout import TaskLayout

FOLDER = Path(__file__).parent / "golden"
MEASURED = Path(__file__).parent / "golden-profile"


def request(
    *,
    name: str = "gpt2-plan",
    tasks: tuple[int, ...] = (2, 2),
    cuda: bool = False,
    folder: str = "/home/ada/runs/a",
    nodes: tuple[int, int] | None = None,
) -> JobRequest:
    return JobRequest(
        name=name,
        folder=Path(folder),
        directory=Path("/home/ada/project"),
        layout=TaskLayout(tasks, max(tasks)),
        threads=1,
        cuda=cuda,
        nodes=nodes,
        python="/opt/venv/bin/python",
    )


CASES: dict[str, tuple[JobRequest, Options]] = {
    "plain": (request(), Options()),
    "one-node": (request(tasks=(4,)), Options(partition="debug", time=30)),
    "gpus": (
        request(tasks=(8,) * 4, cuda=True),
        Options(
            partition="h100,h200", account="lab-7", qos="high", time="1-12:00:00", cpus_per_task=12, mem="0"
        ),
    ),
    "gres": (
        request(tasks=(4, 4), cuda=True),
        Options(gpu_flag="gres", constraint="a100&ib", reservation="course"),
    ),
    "uneven": (request(tasks=(4, 4, 2)), Options(nodelist="n[1-3]", exclude="n7")),
    "modules": (
        request(),
        Options(
            prologue=("source /etc/profile.d/modules.sh",),
            modules=("cuda/12.4", "gcc"),
            env={"NCCL_SOCKET_IFNAME": "ib0", "GREETING": "it's $HOME"},
        ),
    ),
    "pyxis": (
        request(tasks=(8, 8), cuda=True),
        Options(
            container=Container(
                runtime="pyxis", image="nvcr.io#nvidia/pytorch:25.10", mounts=("/data:/data:ro",)
            ),
            python="/usr/bin/python3",
        ),
    ),
    "apptainer": (
        request(tasks=(1, 1), cuda=True),
        Options(container=Container(runtime="apptainer", image="/images/torch.sif"), python="python3"),
    ),
    "chain": (
        request(),
        Options(
            dependency="afterok:41", requeues=0, signal_s=300, sbatch={"array": "1-5%1", "mail-type": "END"}
        ),
    ),
    "elastic": (request(nodes=(3, 4)), Options(time=60)),
    "awkward-names": (
        request(name='it\'s "a" #1 plan', folder="/home/a b/it's #2 $HOME/`x`;y"),
        Options(job_name="50% done; rm -rf $HOME #now"),
    ),
}


def measurement(kind: NodeKind) -> Measurement:
    return Measurement(
        kind=kind,
        words=("--micro=1,2", "it's mine.py", "--device=cuda"),
        folder=Path("/home/ada/a b/.profile-x"),
        directory=Path("/home/ada/project"),
        python="/opt/venv/bin/python",
    )


MEASURED_CASES: dict[str, tuple[Measurement, Options]] = {
    "cpu": (
        measurement(NodeKind("cpu-4-old", others="n[4-5]")),
        Options(partition="main", exclude="n7", time=30),
    ),
    "gpu": (
        measurement(NodeKind("a100", "gpu:a100:1")),
        Options(
            time=5,
            modules=("cuda/12.4",),
            container=Container(runtime="apptainer", image="/images/torch.sif"),
            python="python3",
            sbatch={"exclusive": ""},
        ),
    ),
    "gres": (measurement(NodeKind("gpu", "gpu:1")), Options(gpu_flag="gres")),
}


def main() -> None:
    for folder, cases in (
        (FOLDER, {name: text(*case) for name, case in CASES.items()}),
        (MEASURED, {name: measured(*case) for name, case in MEASURED_CASES.items()}),
    ):
        folder.mkdir(exist_ok=True)
        for name, script in cases.items():
            (folder / f"{name}.sbatch").write_text(script)


if __name__ == "__main__":
    main()
