"""`unicorn agent`: one on every node."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import typer

from unicorn_mgr.cli.common import (
    CoordinatorOption,
    Problem,
    TlsOption,
    agent_socket,
    host_and_port,
    runtime_folder,
    set_up_logging,
    state_folder,
)
from unicorn_mgr.coordinator.admission import NAME
from unicorn_mgr.model import Slot

SnapshotBytesOption = typer.Option(
    None,
    "--snapshot-bytes",
    metavar="N",
    help="Memory for snapshots of workers' state; half of what is available now if not given.",
)
CGROUPS = Path("/sys/fs/cgroup")
GPU_FOLDER = Path("/proc/driver/nvidia/gpus")


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def agent(
        coordinator: str | None = CoordinatorOption,
        node: str = typer.Option(
            socket.gethostname().partition(".")[0],
            "--node",
            metavar="NAME",
            help="This node's name in the cluster.",
        ),
        slots: str = typer.Option("auto", "--slots", metavar="N|auto", help="How many workers may run here."),
        device: str = typer.Option("", "--device", metavar="cpu|cuda", help="What a slot is; found out if not given."),
        address: str = typer.Option(
            "",
            "--address",
            metavar="IP",
            help="Where workers of other nodes reach this one; found out if not given.",
        ),
        domain: str = typer.Option(
            "",
            "--domain",
            metavar="NAME",
            envvar="UNICORN_DOMAIN",
            help="What fails as one with this node, e.g. its rack; it fails alone if not given.",
        ),
        data: Path | None = typer.Option(None, "--data", metavar="DIR", help="Logs and submitted files."),
        templates: Path | None = typer.Option(
            None, "--templates", metavar="DIR", help="Template processes; agents of one machine may share it."
        ),
        snapshot_bytes: int | None = SnapshotBytesOption,
        tls: Path | None = TlsOption,
        allow_drills: bool = typer.Option(False, "--allow-drills", help="Faults may be injected here."),
        json_logs: bool = typer.Option(False, "--json-logs", help="Log JSON."),
        verbose: bool = typer.Option(False, "--verbose", help="Log more."),
    ) -> None:
        """Run the agent of this node.  Workers outlive it."""
        set_up_logging(json_logs, verbose)
        if not NAME.fullmatch(node):
            raise Problem(f"node: {node}: want 1 to 63 letters, digits, - and _")
        if domain and not NAME.fullmatch(domain):
            raise Problem(f"domain: {domain}: want 1 to 63 letters, digits, - and _")
        if not coordinator:
            raise Problem("coordinator: not given: say --coordinator HOST:PORT or set UNICORN_COORDINATOR")
        _serve(
            coordinator=host_and_port("coordinator", coordinator),
            node=node,
            slots=find_slots(slots, device),
            address=address,
            data=data or state_folder() / "agents" / node,
            socket_path=agent_socket(data or state_folder() / "agents" / node, node),
            templates=templates or runtime_folder() / "templates",
            tls=tls,
            drills=allow_drills,
            domain=domain,
            snapshot_bytes=find_snapshot_bytes(snapshot_bytes),
        )


def find_snapshot_bytes(asked: int | None) -> int:
    """What is asked for, or half of what can be had without swapping, and without breaking a container's limit."""
    if asked is None:
        return min((_available(), *limits(Path("/proc/self/cgroup"), CGROUPS))) // 2
    if asked < 0:
        raise Problem(f"snapshot-bytes: {asked}: want at least 0")
    return asked


def _available() -> int:
    """As the kernel reckons."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def limits(groups: Path, root: Path) -> Iterator[int]:
    """Of memory, for the control groups of this process and those around them, of both versions."""
    for line in groups.read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            top = root / controllers
            innermost = top / name.lstrip("/")
            for group in (innermost, *innermost.parents):
                file = group / ("memory.limit_in_bytes" if controllers else "memory.max")
                if group.is_relative_to(top) and file.is_file() and (said := file.read_text().strip()).isdecimal():
                    yield int(said)


def find_slots(count: str, device: str) -> tuple[Slot, ...]:
    """The slots of this node."""
    gpus = len(list(GPU_FOLDER.iterdir())) if GPU_FOLDER.is_dir() else 0
    kind = device or ("cuda" if gpus else "cpu")
    if kind not in ("cpu", "cuda"):
        raise Problem(f"device: {device}: want cpu or cuda")
    if count == "auto":
        number = gpus if kind == "cuda" else len(os.sched_getaffinity(0))
        if number == 0:
            raise Problem("slots: auto: no GPU was found under /proc/driver/nvidia/gpus; give --slots N")
    elif count.isdecimal() and 0 < int(count) <= 1024:
        number = int(count)
    else:
        raise Problem(f"slots: {count}: want 1 to 1024, or auto")
    return tuple(Slot(i, f"cuda:{i}" if kind == "cuda" else "cpu") for i in range(number))


def _serve(
    *,
    coordinator: str,
    node: str,
    slots: tuple[Slot, ...],
    address: str,
    data: Path,
    socket_path: Path,
    templates: Path,
    tls: Path | None,
    drills: bool,
    domain: str,
    snapshot_bytes: int,
) -> None:
    # The other commands need nothing of the agent.
    from unicorn_mgr.agent.service import AgentConfig, AgentError, AgentService  # noqa: PLC0415 - see above

    config = AgentConfig(
        coordinator=coordinator,
        node=node,
        slots=slots,
        data=data,
        socket=socket_path,
        templates=templates,
        address=address,
        tls=tls,
        drills=drills,
        domain=domain,
        snapshot_bytes=snapshot_bytes,
    )

    async def serve() -> None:
        await AgentService(config).run()

    try:
        asyncio.run(serve())
    except AgentError as failed:
        raise Problem(str(failed)) from failed
    except OSError as failed:
        raise Problem(f"data: {failed.filename or data}: {failed.strerror}; choose another --data") from failed
