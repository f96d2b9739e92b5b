"""A cluster of hosts on this machine: one network namespace a node, joined by a bridge.

Its addresses exist in these namespaces alone.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from e2e.harness import Cluster

from unicorn_mgr.cli.certs import make
from unicorn_mgr.cli.common import Client
from unicorn_mgr.cli.local import LocalCluster, agent_command, coordinator_command

SUBNET = "10.77.31"
COORDINATOR = f"{SUBNET}.1"
STOP_SECONDS_MAX = 10.0


def sh(command: str) -> None:
    subprocess.run(command, shell=True, check=True, capture_output=True)


@dataclass(eq=False)
class Network:
    """A bridge in this namespace, and a namespace per node."""

    nodes: int
    name: str = field(default_factory=lambda: f"u{os.getpid() % 100000}")

    def namespace(self, node: int) -> str:
        return f"{self.name}n{node}"

    def address(self, node: int) -> str:
        return f"{SUBNET}.{10 + node}"

    def up(self) -> None:
        sh(f"ip link add {self.name} type bridge && ip addr add {COORDINATOR}/24 dev {self.name}")
        sh(f"ip link set {self.name} up")
        for node in range(self.nodes):
            space, inner, outer = self.namespace(node), "eth0", f"{self.name}v{node}"
            sh(f"ip netns add {space}")
            sh(f"ip link add {outer} type veth peer name {inner} netns {space}")
            sh(f"ip link set {outer} master {self.name} && ip link set {outer} up")
            sh(f"ip netns exec {space} ip addr add {self.address(node)}/24 dev {inner}")
            sh(f"ip netns exec {space} ip link set {inner} up && ip netns exec {space} ip link set lo up")

    def down(self) -> None:
        for node in range(self.nodes):
            with contextlib.suppress(subprocess.CalledProcessError):
                sh(f"ip netns del {self.namespace(node)}")
        with contextlib.suppress(subprocess.CalledProcessError):
            sh(f"ip link del {self.name}")

    def cut(self, node: int) -> None:
        """A black hole: the node reaches nobody, and nobody reaches it; nothing is refused."""
        sh(f"ip link set {self.name}v{node} nomaster")

    def cut_control(self, node: int) -> None:
        """Only the way to the coordinator is gone."""
        self._drop(node, f"ip daddr {COORDINATOR}")

    def cut_data(self, node: int) -> None:
        """Only the ways to other nodes are gone."""
        self._drop(node, f"ip daddr {SUBNET}.0/24 ip daddr != {COORDINATOR}")

    def _drop(self, node: int, match: str) -> None:
        run = f"ip netns exec {self.namespace(node)} nft"
        sh(f"{run} add table inet cut && {run} add chain inet cut out '{{ type filter hook output priority 0; }}'")
        sh(f"{run} add rule inet cut out {match} drop")

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        for node in range(self.nodes):
            sh(f"ip link set {self.name}v{node} master {self.name}")
            with contextlib.suppress(subprocess.CalledProcessError):
                sh(f"ip netns exec {self.namespace(node)} nft delete table inet cut")


@contextlib.contextmanager
def hosts(folder: Path, nodes: int) -> Iterator[tuple[Network, Cluster]]:
    """A coordinator here and an agent in every namespace, talking mutual TLS."""
    network = Network(nodes)
    certificates = folder / "certs"
    make(certificates, [COORDINATOR], datetime.timedelta(days=1))
    network.up()
    command = coordinator_command(folder, f"{COORDINATOR}:7077", tls=certificates / "coordinator")
    local = LocalCluster(folder, command)
    try:
        local.start_coordinator()
        for i in range(nodes):
            node = f"node-{i}"
            command = agent_command(
                folder, node, local.address, tls=certificates / "agent", templates=folder / node / "templates"
            )
            local.start_agent(node, ["ip", "netns", "exec", network.namespace(i), *command])
        found = Cluster(local, folder, Client(local.address, certificates / "operator"))
        found.wait_for("all agents attached", lambda _: len(found.look().nodes) == nodes)
        yield network, found
    finally:
        network.heal()
        local.stop()
        _end_templates(folder)
        network.down()


def _end_templates(folder: Path) -> None:
    """Templates of these namespaces would keep them alive."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"unicorn_mgr.worker.template" in words and any(str(folder).encode() in w for w in words):
                _end(int(entry.name))


def _end(pid: int) -> None:
    """Until it has ended."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        ended, _, _ = select.select([process], [], [], STOP_SECONDS_MAX)
        assert ended, f"process {pid} does not end"
    finally:
        os.close(process)
