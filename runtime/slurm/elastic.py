"""A plan for the nodes that are there: solved anew from the run's own profile, for the same samples a step.

The solver is a program of its own to the runtime: it is asked by its command, with files of the run folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner import cluster as clusters
from planner import plan as plans
from planner.cluster import Cluster
from planner.errors import BadInput, Infeasible
from planner.files import write_whole
from planner.plan import Plan
from runtime.runfolder import Paths


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """How few and how many nodes a run may have, and what it is planned from."""

    fewest: int
    most: int
    profile: Path
    cluster: Path
    fix: Mapping[str, str]

    def check(self, old: Plan) -> None:
        """Solves for the fewest nodes, since what is wrong with the files should not be known only when nodes are lost."""
        cluster = clusters.load(self.cluster)
        with tempfile.TemporaryDirectory() as folder:
            _solved(Path(folder), self.profile, cluster, self.fix, old, self.fewest)

    def write(self, paths: Paths) -> None:
        """All that a later plan needs, beside the run."""
        write_whole(paths.profile, self.profile.read_text())
        write_whole(paths.cluster, self.cluster.read_text())
        write_whole(paths.fixed, json.dumps(dict(self.fix)))


def parse(text: str) -> tuple[int, int]:
    fewest, _, most = text.partition(":")
    try:
        found = int(fewest), int(most)
    except ValueError:
        raise BadInput(
            f"'{text}' is no range of nodes", where="--elastic", allowed="MIN:MAX, such as 3:4"
        ) from None
    if not 1 <= found[0] <= found[1]:
        raise BadInput(f"'{text}' is empty", where="--elastic", allowed="1 or more, and MIN not above MAX")
    return found


def plan_for(paths: Paths, old: Plan, nodes: int) -> Plan:
    """Solves for so many nodes; the run folder holds the new plan when this returns, and the old one beside it."""
    fixed = json.loads(paths.fixed.read_text())
    plan = _solved(paths.root, paths.profile, clusters.load(paths.cluster), fixed, old, nodes)
    write_whole(paths.plan.with_name(f"plan-{len({p.node for p in old.places})}-nodes.yaml"), plans.dump(old))
    write_whole(paths.plan, plans.dump(plan))
    return plan


def _solved(
    folder: Path, profile: Path, cluster: Cluster, fixed: Mapping[str, str], old: Plan, nodes: int
) -> Plan:
    """Beside its cluster in the folder."""
    there, found = folder / f"cluster-{nodes}.yaml", folder / f"plan-{nodes}.yaml"
    write_whole(there, clusters.dump(clusters.with_nodes(cluster, nodes)))
    words = [f"--profile={profile}", f"--cluster={there}", f"--batch={old.batch.samples}"]
    words += [f"--output={found}", "--force", *(f"--fix={key}={value}" for key, value in fixed.items())]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shardwright", "plan", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Infeasible(f"no plan for {nodes} nodes: {done.stderr.strip().rpartition('error: ')[2]}")
    plan = plans.load(found)
    if plan.model.fingerprint != old.model.fingerprint:
        raise BadInput("is of another model", where=str(profile), allowed="a profile of the plan's")
    # The profile knows the model by its fingerprint; which file it is in, and with what arguments, the old plan knows.
    return plan.model_copy(update={"model": old.model})
