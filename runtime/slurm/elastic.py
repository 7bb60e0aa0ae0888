"""Plans anew for the nodes that a job has got, from the run's own profile and for the same samples a step.

The solver is another program to the runtime. It is called by its command, with files of the run folder.
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
    """The range of nodes that a run may have, and the files from which it is planned."""

    fewest: int
    most: int
    profile: Path
    cluster: Path
    fix: Mapping[str, str]

    def check(self, old: Plan) -> None:
        """Solves for the fewest nodes, so that wrong files are found before any node is lost.

        Args: `old` is the plan that the run begins with.
        Raises: Infeasible or BadInput where there is no plan for the fewest nodes.
        """
        cluster = clusters.load(self.cluster)
        with tempfile.TemporaryDirectory() as folder:
            _solved(Path(folder), self.profile, cluster, self.fix, old, self.fewest)

    def write(self, paths: Paths) -> None:
        """Copies into the run folder all that a later plan is made from."""
        write_whole(paths.profile, self.profile.read_text())
        write_whole(paths.cluster, self.cluster.read_text())
        write_whole(paths.fixed, json.dumps(dict(self.fix)))


def parse(text: str) -> tuple[int, int]:
    """Returns the fewest and the most nodes of a text such as `3:4`.

    Raises: BadInput where the text is no range.
    """
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
    """Solves for a number of nodes and replaces the plan in the run folder.

    Args: `old` is kept beside it, named by its number of nodes.
    Returns: the new plan.
    Raises: Infeasible where there is no plan for so many nodes.
    """
    fixed = json.loads(paths.fixed.read_text())
    plan = _solved(paths.root, paths.profile, clusters.load(paths.cluster), fixed, old, nodes)
    write_whole(paths.plan.with_name(f"plan-{len({p.node for p in old.places})}-nodes.yaml"), plans.dump(old))
    write_whole(paths.plan, plans.dump(plan))
    return plan


def _solved(
    folder: Path, profile: Path, cluster: Cluster, fixed: Mapping[str, str], old: Plan, nodes: int
) -> Plan:
    """Returns the plan for a number of nodes. Plan and cluster are files in `folder`."""
    there, found = folder / f"cluster-{nodes}.yaml", folder / f"plan-{nodes}.yaml"
    write_whole(there, clusters.dump(clusters.with_nodes(cluster, nodes)))
    words = [f"--profile={profile}", f"--cluster={there}", f"--batch={old.batch.samples}"]
    words += [f"--output={found}", "--force", f"--precision={old.precision}", f"--execution={old.execution}"]
    if old.kept is not None:
        masks = Paths(folder).kept
        words.append(f"--kept={masks if masks.exists() else old.kept.share}")
    fixed = {**({"weights": old.weights} if old.weights != "same" else {}), **fixed}
    words += [f"--fix={key}={value}" for key, value in fixed.items()]
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
