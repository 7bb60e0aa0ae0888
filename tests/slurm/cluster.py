"""A SLURM cluster on this machine, of the distribution's own daemons: each node a process tree with its own host
name, process numbers and network, joined by a bridge that leads nowhere else.

    with Cluster(folder, nodes=4) as cluster: ...
    python -m tests.slurm.cluster --nodes 4        # for a person: prints what to type, runs until Ctrl-C

CPUs and memory are declared and not real. Ending a node's first process ends all on it at once, as a machine dies.
Every process is a child that dies with this one; nothing is left but the folder. Needs root for the namespaces.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.slurm.conf import CONF, GRACE_S, NODE
from tests.slurm.folders import own

APT = "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge iproute2"
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "mungekey", "ip", "unshare", "nsenter", "setpriv")
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
SUBNET = "10.99.0"  # inside the namespaces only
UP_S = 120.0

CLIENTS = ("sbatch", "srun", "salloc", "squeue", "sinfo", "scancel", "scontrol", "sacct")


def missing() -> str:
    """Why no cluster can be made here; empty where one can."""
    absent = [tool for tool in NEEDED if shutil.which(tool, path=SEARCH) is None]
    if absent:
        return f"no {', '.join(absent)}: {APT}"
    if os.geteuid() != 0:
        return "nodes of their own need root"
    probe = ["unshare", "--uts", "--mount", "--pid", "--net", "--fork", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no namespaces: {done.stderr.strip()}"


def clean_environment() -> dict[str, str]:
    """Ours without what another cluster or job may have left in it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH_", "SRUN_"))}
    return kept | {"PATH": SEARCH, "LC_ALL": "C.UTF-8"}


@dataclass
class Cluster:
    root: Path
    nodes: int = 4
    cpus: int = 4
    gpus: int = 0
    min_job_age_s: int = 300
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Cluster:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def names(self) -> list[str]:
        return [f"n{i}" for i in range(1, self.nodes + 1)]

    @property
    def environment(self) -> dict[str, str]:
        return clean_environment() | {"SLURM_CONF": str(self.root / "slurm.conf")}

    @property
    def variables(self) -> dict[str, str]:
        """With these a program outside finds the cluster's clients."""
        return {"SLURM_CONF": str(self.root / "slurm.conf"), "PATH": f"{self.root}/bin:{SEARCH}"}

    @property
    def inside(self) -> tuple[str, ...]:
        """Put before a command, it runs where the controller can be reached."""
        return self._at("hub")

    def _at(self, name: str) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{self._running[name].pid}/ns/net")

    def run(self, *command: str, timeout_s: float = 60.0) -> str:
        """Output of a command among the clients; raises where it fails."""
        done = subprocess.run(
            [*self.inside, *command],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr or done.stdout}"
        return done.stdout.strip()

    def up(self) -> None:
        for name in ("log", "spool", "ctld", "dev", "bin", "empty"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self._write_files()
        self._start_hub()
        self._start_munge()
        self.start_controller()
        for number in range(1, self.nodes + 1):
            self.start_node(number)
        self.await_nodes()

    def _write_files(self) -> None:
        hosts = ["127.0.0.1 localhost", f"{SUBNET}.1 hub"]
        rows, gres = [], ["AutoDetect=off"]
        for number, name in enumerate(self.names, 1):
            hosts.append(f"{SUBNET}.{number + 10} {name}")
            devices = f" Gres=gpu:fake:{self.gpus}" if self.gpus else ""
            feature = "new" if number % 4 == 0 else "old"
            rows.append(
                f"NodeName={name} NodeHostname={name} NodeAddr={SUBNET}.{number + 10} CPUs={self.cpus}{devices} "
                f"Feature={feature}"
            )
        if self.gpus:
            for number in range(self.gpus):  # the scheduler wants character devices, and never opens them
                (self.root / f"dev/gpu{number}").symlink_to("/dev/null")
            last = f"[0-{self.gpus - 1}]" if self.gpus > 1 else "0"
            gres.append(f"NodeName=n[1-{self.nodes}] Name=gpu Type=fake File={self.root}/dev/gpu{last}")
        (self.root / "hosts").write_text("\n".join([*hosts, ""]))
        (self.root / "gres.conf").write_text("\n".join([*gres, ""]))
        (self.root / "plugstack.conf").touch()
        version = tuple(int(x) for x in self._output("slurmctld", "-V").split()[1].split(".")[:2])
        (self.root / "cgroup.conf").write_text("CgroupPlugin=disabled\n" if version >= (23, 11) else "")
        conf = CONF.format(
            subnet=SUBNET,
            root=self.root,
            nodes="\n".join(rows),
            first=self.names[0],
            four=min(4, self.nodes),
            min_job_age=self.min_job_age_s,
            grace_s=GRACE_S,
        )
        (self.root / "slurm.conf").write_text(conf)

    def _output(self, *command: str) -> str:
        return subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, check=True
        ).stdout

    def _start(self, name: str, command: Sequence[str]) -> int:
        """A daemon that holds none of our pipes and dies when we do."""
        with (self.root / "log" / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running[name] = process
        return process.pid

    def _start_hub(self) -> None:
        pid = self._start("hub", ["unshare", "--net", "sleep", "infinity"])
        self._await_namespace(pid)
        self._network("hub", "ip link set lo up", "ip link add br0 type bridge")
        self._network("hub", f"ip addr add {SUBNET}.1/24 dev br0", "ip link set br0 up")
        for name in CLIENTS:
            client = self.root / "bin" / name
            real = shutil.which(name, path=SEARCH)
            client.write_text(f'#!/bin/sh\nexec {shlex.join(self.inside)} {real} "$@"\n')
            client.chmod(0o755)

    def _network(self, name: str, *lines: str) -> None:
        subprocess.run([*self._at(name), "sh", "-ec", "\n".join(lines)], env=clean_environment(), check=True)

    def _await_namespace(self, pid: int) -> None:
        ours = os.readlink("/proc/self/ns/net")
        self._until(lambda: os.readlink(f"/proc/{pid}/ns/net") != ours, "a network namespace")

    def _start_munge(self) -> None:
        key, socket = self.root / "munge" / "key", self.root / "munge.sock"
        if not key.exists():
            key.parent.mkdir(mode=0o700)
            self._output("mungekey", "--create", f"--keyfile={key}")
        files = (f"--{word}-file={self.root}/munge/{word}" for word in ("pid", "log", "seed"))
        self._start(
            "munged",
            ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}", *files],
        )
        self._until(socket.exists, "munged")

    def start_controller(self) -> None:
        conf = str(self.root / "slurm.conf")
        hub = ("unshare", "--uts", "sh", "-c", f"hostname hub && exec slurmctld -D -f {shlex.quote(conf)}")
        self._start("slurmctld", [*self.inside, *hub])
        self._until(lambda: "is UP" in self.run("scontrol", "ping"), "slurmctld")

    def stop_controller(self) -> None:
        """In order, so that it remembers what it knew."""
        process = self._running.pop("slurmctld")
        process.terminate()
        process.wait()

    def start_node(self, number: int) -> None:
        name = f"n{number}"
        (self.root / "spool" / name).mkdir(exist_ok=True)
        apart = [
            "--uts",
            "--mount",
            "--propagation=slave",
            "--pid",
            "--net",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
        ]
        text = NODE.format(name=name, root=self.root)
        pid = self._start(name, ["unshare", *apart, "bash", "-c", text])
        self._await_namespace(pid)
        self._network(
            "hub",
            f"ip link del v{number} 2>/dev/null || true",
            f"ip link add v{number} type veth peer name eth0 netns {pid}",
            f"ip link set v{number} master br0 up",
        )
        self._network(
            name,
            "ip link set lo up",
            f"ip addr add {SUBNET}.{number + 10}/24 dev eth0",
            "ip link set eth0 up",
        )
        (self.root / f"{name}.net").touch()

    def start_slurmd(self, number: int) -> None:
        """On a node that is up, whose daemon has ended."""
        first, name = self.first_process(number), f"n{number}"
        there = ("nsenter", f"--target={first}", "--mount", "--uts", "--net", "--pid")
        self._start(f"{name}-slurmd", [*there, "slurmd", "-D", "-N", name, "-f", f"{self.root}/slurm.conf"])

    def kill_node(self, number: int) -> None:
        """The machine is gone, with everything on it."""
        self._stop(f"n{number}")
        (self.root / f"n{number}.net").unlink()

    def first_process(self, number: int) -> int:
        """Of a node, as this machine numbers it."""
        pid = self._running[f"n{number}"].pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def await_nodes(self) -> None:
        up = ("idle", "planned", "mixed", "allocated", "completing")

        def ready() -> bool:
            states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()
            return sum(state in up for state in states) == self.nodes

        self._until(ready, "every node")

    def clear(self) -> None:
        """No job is left, and every node is there and idle."""
        if "slurmctld" not in self._running:
            self.start_controller()
        for number, name in enumerate(self.names, 1):
            if name not in self._running:
                self.start_node(number)

        def idle() -> bool:
            left = self.run("squeue", "-h", "-o", "%i").split()
            if left:
                self.run("scancel", *left)
            return not left and set(self.run("sinfo", "-h", "-o", "%T").split()) == {"idle"}

        self._until(idle, "every node, idle")

    def _until(self, ready: Callable[[], object], what: str) -> None:
        end = time.monotonic() + UP_S
        while True:
            try:
                if ready():
                    return
            except (AssertionError, OSError):
                pass
            if time.monotonic() > end:
                raise TimeoutError(f"{what} did not come up; see {self.root}/log")
            time.sleep(0.05)

    def _stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def down(self) -> None:
        for name in reversed(list(self._running)):
            self._stop(name)


def main() -> int:
    parser = argparse.ArgumentParser(description="A SLURM cluster on this machine until Ctrl-C.")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=0)
    given = parser.parse_args()
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    with (
        suppress(KeyboardInterrupt),
        own() as folder,
        Cluster(folder, given.nodes, given.cpus, given.gpus) as made,
    ):
        print(f"SLURM_CONF={folder}/slurm.conf {shlex.join(made.inside)} bash", flush=True)
        made._running["hub"].wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
