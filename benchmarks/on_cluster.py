"""The comparison of `fidelity` on machines of yours: probe, profile, plans of several families, runs, and the table.

    python -m benchmarks.on_cluster --slurm --ranks 8 --device cuda --micro 1,2,4 --batch 64 --workload gpt2

Everything goes through the commands that a user types; `make bench-cluster ARGS="..."` is the same. What follows a
second `--` goes to `launch`, such as `--sbatch partition=gpu`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.fidelity import COLUMNS, Case, Subject, notes, row, shown
from benchmarks.harness import Result, Table, markdown
from planner.calibrate import fit as calibrate
from planner.cluster import corrections as fitted
from planner.errors import Infeasible, ShardwrightError
from planner.plan import yaml as plan_yaml
from runtime.launch import observation


def command(*words: str) -> None:
    print("$ shardwright", *words, file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "shardwright", *words], check=True, stdout=sys.stderr)


def decisions(ranks: int) -> Iterator[dict[str, object]]:
    """Ways to use all ranks: replicas alone, a pipeline alone, and half of each."""
    yield {"data": ranks, "pipeline": 1}
    for family in ("1f1b", "zb-h1", "chimera"):
        yield {"data": 1, "pipeline": ranks, "schedule": family}
        if ranks >= 4:
            yield {"data": ranks // 2, "pipeline": 2, "schedule": family}


def measured(options: argparse.Namespace, extra: Sequence[str]) -> list[Case]:
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    where = "--slurm" if options.slurm else "--local"
    cluster = options.cluster or folder / "cluster.yaml"
    if not cluster.exists():
        command("probe", where, "--ranks", str(options.ranks), "-o", str(cluster))
    cases = []
    for workload in options.workload:
        profile = folder / f"{Path(workload).stem}-profile.yaml"
        if not profile.exists():
            command(
                "profile",
                workload,
                "--device",
                options.device,
                "--micro",
                options.micro,
                "-o",
                str(profile),
                *_set(options),
            )
        micros = tuple(map(int, options.micro.split(",")))
        subject = Subject(workload=Path(workload).stem, arguments={}, micros=micros, batch=options.batch)
        for fix in decisions(options.ranks):
            case = _ran(
                Case(subject=subject, fix=fix, ranks=options.ranks, content="layers"),
                profile,
                cluster,
                where,
                options,
                extra,
            )
            cases.append(case)
    return cases


def _set(options: argparse.Namespace) -> list[str]:
    return [word for setting in options.set for word in ("--set", setting)]


def _ran(
    case: Case, profile: Path, cluster: Path, where: str, options: argparse.Namespace, extra: Sequence[str]
) -> Case:
    """Planned and run, or left out where it does not fit or did not end well."""
    name = "-".join([case.subject.workload, *(f"{key}{value}" for key, value in case.fix.items())])
    plan, run = options.folder / f"{name}.yaml", options.folder / name
    fixed = [word for key, value in case.fix.items() for word in ("--fix", f"{key}={value}")]
    try:
        if not run.exists():
            asked = ["--profile", str(profile), "--cluster", str(cluster), "--batch", str(case.subject.batch)]
            command("plan", *asked, *fixed, "--force", "-o", str(plan))
            device = "cuda" if options.device == "cuda" else "cpu"
            words = [str(plan), where, "--steps", str(options.steps), "--device", device, "--run", str(run)]
            command("launch", *words, "--wait", *extra)
        return replace(case, plan=plan_yaml.load(plan), runs=[observation(run)])
    except (subprocess.CalledProcessError, Infeasible, ShardwrightError) as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return case


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slurm", action="store_true", help="as jobs; else in processes of this machine")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--device", default="cpu", help="cpu, cuda")
    parser.add_argument("--micro", default="1,2", help="micro-batch sizes")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--workload", action="append", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--cluster", type=Path, help="a cluster.yaml; probed where left out")
    parser.add_argument("--folder", type=Path, default=Path("bench-cluster"), help="for all that is made")
    options, extra = parser.parse_known_args(argv)
    cases = measured(options, [word for word in extra if word != "--"])
    done = [case for case in cases if case.runs]
    if len(done) < 2:
        print("fewer than two runs ended well: nothing to compare", file=sys.stderr)
        return 1
    found = calibrate.fit([run for case in done for run in case.runs])
    (options.folder / "calibration.yaml").write_text(fitted.dump_corrections(found))
    rows = [row(case, done) for case in done]
    table = Table(
        title="Predicted against measured",
        columns=COLUMNS,
        rows=[shown(row) for row in rows],
        notes=tuple(notes(rows)),
    )
    print(markdown(Result(name="cluster", claim=f"{options.ranks} ranks, {options.device}.", tables=[table])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
