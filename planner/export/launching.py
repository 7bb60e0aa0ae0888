"""Writes what somebody else's launcher starts a run by: torchrun by hand, a JobSet of Kubernetes, a task of SkyPilot.

The text does two things on the first node: it prepares the run folder, and starts the ranks. Other nodes wait for the
first one to open the store that torchrun makes. Nothing is applied here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.errors import BadInput
from planner.plan import Plan

TASK = "runtime.slurm.task"  # of one rank
PORT = 29500
CLAIM = "shared"  # volume that all nodes mount; the run folder lies on it
GPU = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class LaunchText:
    """Everything that a launcher's text is made from, besides the plan."""

    name: str
    launch: tuple[str, ...]  # words that prepare the run folder
    run: str  # the folder
    image: str = ""
    cuda: bool = False
    directory: str = ""  # that the words are meant from


def torchrun_text(plan: Plan, given: LaunchText) -> str:
    """Writes the commands of every node, with the number and the address of nodes as variables.

    Args: `plan` fills its nodes alike; `given` says what is run where.
    Raises: BadInput where nodes give unequal numbers of devices.
    """
    nodes, ranks = _nodes(plan)
    if nodes == 1:
        return "\n".join([*_head(given), _torchrun(given, 1, ranks, "0", "127.0.0.1"), ""])
    told = f"# On each of {nodes} nodes, with NODE_RANK=0 to {nodes - 1} and HEAD the address of node 0:"
    start = _torchrun(given, nodes, ranks, '"$NODE_RANK"', '"$HEAD"')
    return "\n".join([told, *_head(given, first='[ "$NODE_RANK" = 0 ]'), start, ""])


def jobset_text(plan: Plan, given: LaunchText) -> str:
    """Writes a JobSet of Kubernetes: one pod a node, each with its devices.

    Args: as of `torchrun_text`; an image is needed.
    Raises: BadInput without an image, or for nodes of unequal numbers of devices.
    """
    if not given.image:
        raise BadInput("a pod needs an image", where="--print k8s", allowed="--image NAME")
    nodes, ranks = _nodes(plan)
    name, number = _label(given.name), "$JOB_COMPLETION_INDEX"
    first = _torchrun(given, nodes, ranks, f'"{number}"', f"{name}-ranks-0-0.{name}")
    script = "\n".join([*_head(given, first=f'[ "{number}" = 0 ]'), f"exec {first}"])
    amount = {GPU: ranks} if given.cuda else {"cpu": ranks}
    memory = {"name": "memory", "emptyDir": {"medium": "Memory"}}
    volumes = [{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}, memory]
    mounts = [{"name": CLAIM, "mountPath": f"/{CLAIM}"}, {"name": "memory", "mountPath": "/dev/shm"}]
    container = {
        "name": "ranks",
        "image": given.image,
        "workingDir": given.directory or f"/{CLAIM}",
        "command": ["bash", "-c", script],
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": amount},
        "volumeMounts": mounts,
    }
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    job = {
        "parallelism": nodes,
        "completions": nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    data: Mapping[str, object] = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": {"maxRestarts": 3},  # all pods start again, and go on from the last checkpoint
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": [{"name": "ranks", "replicas": 1, "template": {"spec": job}}],
        },
    }
    return _yaml(data, f"kubectl apply -f; the volume claim '{CLAIM}' is mounted at /{CLAIM} by all pods")


def skypilot_text(plan: Plan, given: LaunchText) -> str:
    """Writes a task of SkyPilot.

    Args: as of `torchrun_text`; the kind of device is the profile's.
    Raises: BadInput for nodes of unequal numbers of devices.
    """
    nodes, ranks = _nodes(plan)
    kind = plan.provenance.profile.partition(" ")[0]
    start = _torchrun(
        given, nodes, ranks, '"$SKYPILOT_NODE_RANK"', '"$(echo "$SKYPILOT_NODE_IPS" | head -n1)"'
    )
    script = "\n".join([*_head(given, first='[ "$SKYPILOT_NODE_RANK" = 0 ]'), start])
    resources: dict[str, object] = (
        {"accelerators": f"{kind}:{ranks}"} if given.cuda else {"cpus": f"{ranks}+"}
    )
    if given.image:
        resources["image_id"] = f"docker:{given.image}"
    data: Mapping[str, object] = {
        "name": _label(given.name),
        "num_nodes": nodes,
        "resources": resources,
        "workdir": ".",
        "run": script + "\n",
    }
    return _yaml(data, "sky launch; the run folder must lie on storage that all nodes mount")


FORMS: Mapping[str, Callable[[Plan, LaunchText], str]] = {
    "torchrun": torchrun_text,
    "k8s": jobset_text,
    "skypilot": skypilot_text,
}


def _nodes(plan: Plan) -> tuple[int, int]:
    """Returns the number of nodes and of the ranks on each."""
    counts: dict[int, int] = {}
    for place in plan.places:
        counts[place.node] = counts.get(place.node, 0) + 1
    if len(set(counts.values())) > 1:
        told = ", ".join(map(str, counts.values()))
        raise BadInput(
            f"nodes with {told} ranks", where="--print", allowed="as many on each node; or --print slurm"
        )
    return len(counts), next(iter(counts.values()))


def _head(given: LaunchText, first: str = "") -> Sequence[str]:
    prepare = " ".join(map(shlex.quote, given.launch))
    return ("set -e", f"if {first}; then {prepare}; fi" if first else prepare)


def _torchrun(given: LaunchText, nodes: int, ranks: int, number: str, head: str) -> str:
    """Returns the command of one node; ranks are numbered by nodes, as in the plan."""
    words = f"torchrun --nnodes={nodes} --nproc-per-node={ranks} --node-rank={number}"
    return f"{words} --master-addr={head} --master-port={PORT} -m {TASK} {shlex.quote(given.run)}"


def _label(name: str) -> str:
    """Returns a name as Kubernetes and SkyPilot allow it."""
    found = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return found if found[:1].isalpha() else f"run-{found}".strip("-")


def _yaml(data: Mapping[str, object], about: str) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes scripts as blocks of lines."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    body: str = yaml.dump(dict(data), Dumper=Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    return f"# Written by shardwright: {about}.\n{body}"
