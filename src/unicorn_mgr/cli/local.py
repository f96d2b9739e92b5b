"""`unicorn local`: a whole cluster on this machine, as real processes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from unicorn_mgr.cli.common import Problem, agent_socket, host_and_port, ignoring, interrupted_by
from unicorn_mgr.cli.show import count, note, say

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0
RESTART_SECONDS = 0.5
LOST_NODE_SECONDS = 15.0
"""A node lost in a drill comes back after this long."""

TEND_SECONDS = 0.1
LOOK_SECONDS = 0.02

LOST_EXIT_CODE = 86
UNICORN = (sys.executable, "-m", "unicorn_mgr.cli")


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def local(
        nodes: int = typer.Option(4, "--nodes", help="How many agents."),
        slots: int = typer.Option(1, "--slots", help="Slots of each."),
        listen: str = typer.Option(
            "127.0.0.1:7077", "--listen", metavar="HOST:PORT", help="The coordinator's address."
        ),
        data: Path | None = typer.Option(
            None, "--data", metavar="DIR", help="Everything it writes; temporary if not given."
        ),
        setting: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="A setting of the coordinator."),
        no_drills: bool = typer.Option(False, "--no-drills", help="Refuse `unicorn inject`."),
    ) -> None:
        """Run a whole cluster here until Ctrl-C.

        Agents and coordinator that die are started again.
        """
        if nodes < 1 or nodes > 64:
            raise Problem(f"nodes: {nodes}: want 1 to 64")
        if slots < 1:
            raise Problem(f"slots: {slots}: want at least 1")
        with contextlib.ExitStack() as stack:
            folder = (
                data.resolve() if data else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unicorn-")))
            )
            cluster = stack.enter_context(
                running(
                    folder,
                    nodes,
                    slots,
                    host_and_port("listen", listen),
                    tuple(setting),
                    drills=not no_drills,
                )
            )
            say(f"{count(nodes, 'node')} with {count(slots, 'slot')} each run here until Ctrl-C")
            say(f"logs and journal: {folder}" + ("" if data else " (removed at the end)"))
            say(f"metrics: http://{cluster.metrics}/metrics")
            say(f"export UNICORN_COORDINATOR={cluster.address}")
            sys.stdout.flush()
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    for line in cluster.tend():
                        note(line)
                    time.sleep(TEND_SECONDS)
            say("stopping")


@dataclass(eq=False)
class Kept:
    """A process that is started again when it dies."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    due: float = 0.0

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def tend(self, now: float) -> str:
        """Start it again if it has died, a little later; returns what there is to say of it."""
        if self.process is None:
            if now >= self.due:
                self.start()
            return ""
        code = self.process.poll()
        if code is None:
            return ""
        self.process = None
        pause = LOST_NODE_SECONDS if code == LOST_EXIT_CODE else RESTART_SECONDS
        self.due = now + pause
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"{self.name} ended by {how} and is started again in {pause:g} s; see {self.log}"

    def ask_to_end(self) -> None:
        """It may take its time."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Until it has ended."""
        self.ask_to_end()
        if self.process is None:
            return
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class LocalCluster:
    """A coordinator and agents as children of this process."""

    def __init__(self, folder: Path, coordinator: list[str]) -> None:
        self.folder = folder
        self.coordinator = Kept("coordinator", coordinator, folder / "coordinator.log")
        self.agents: list[Kept] = []
        self.address = ""
        self.metrics = ""

    def tend(self) -> list[str]:
        """Start again what has died; returns what there is to say of it."""
        said = [kept.tend(time.monotonic()) for kept in (self.coordinator, *self.agents)]
        return [line for line in said if line]

    def start_coordinator(self) -> None:
        """Until it serves.  Raises `Problem` with its own words if it can't."""
        ready = _ready_file(self.folder)
        ready.unlink(missing_ok=True)
        self.coordinator.start()
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not ready.exists():
            assert self.coordinator.process is not None
            if self.coordinator.process.poll() is not None or time.monotonic() > deadline:
                words = self.coordinator.log.read_text(errors="replace").strip().splitlines()
                raise Problem((words[-1] if words else "the coordinator did not start").removeprefix("unicorn: "))
            time.sleep(LOOK_SECONDS)
        self.address, self.metrics = ready.read_text().split("\n")[:2]
        # A restarted coordinator must be found where it was.
        self.coordinator.command[self.coordinator.command.index("--listen") + 1] = self.address

    def start_agent(self, node: str, command: list[str]) -> None:
        """Start one more, and keep it running."""
        kept = Kept(node, command, self.folder / f"{node}.log")
        self.agents.append(kept)
        kept.start()

    def stop(self) -> None:
        """End everything, workers too."""
        for kept in self.agents:
            kept.ask_to_end()
        for kept in self.agents:
            kept.end()
        self.coordinator.end()
        _end_workers(self.folder)


def coordinator_command(
    folder: Path, listen: str, *, settings: tuple[str, ...] = (), drills: bool = True, tls: Path | None = None
) -> list[str]:
    """What starts the coordinator of the cluster in `folder`."""
    command = [*UNICORN, "coordinator", "--listen", listen, "--data", str(folder / "coordinator")]
    command += ["--metrics", "127.0.0.1:0", "--ready-file", str(_ready_file(folder))]
    command += ["--tls", str(tls)] if tls is not None else []
    command += ["--allow-drills"] if drills else []
    for pair in settings:
        command += ["--set", pair]
    return command


def agent_command(
    folder: Path,
    node: str,
    coordinator: str,
    *,
    slots: int = 1,
    drills: bool = True,
    tls: Path | None = None,
    templates: Path | None = None,
) -> list[str]:
    """What starts the agent of a node of the cluster in `folder`."""
    command = [*UNICORN, "agent", "--coordinator", coordinator, "--node", node, "--device", "cpu"]
    command += ["--slots", str(slots), "--data", str(folder / node)]
    command += ["--tls", str(tls)] if tls is not None else []
    command += ["--templates", str(templates)] if templates is not None else []
    command += ["--allow-drills"] if drills else []
    return command


@contextlib.contextmanager
def running(
    folder: Path,
    nodes: int,
    slots: int,
    listen: str,
    settings: tuple[str, ...] = (),
    drills: bool = True,
    templates: Path | None = None,
) -> Iterator[LocalCluster]:
    """A local cluster, ended when the block ends."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    cluster = LocalCluster(folder, coordinator_command(folder, listen, settings=settings, drills=drills))
    try:
        with interrupted_by(signal.SIGTERM, signal.SIGHUP):
            cluster.start_coordinator()
            for i in range(nodes):
                node = f"node-{i}"
                command = agent_command(folder, node, cluster.address, slots=slots, drills=drills, templates=templates)
                cluster.start_agent(node, command)
            yield cluster
    finally:
        with ignoring(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            cluster.stop()


def _ready_file(folder: Path) -> Path:
    return folder / "coordinator.ready"


def _end_workers(folder: Path) -> None:
    """Workers outlive their agents; those of this cluster are found by their agent's socket.

    Returns when they are gone: while one of them is still dying, it may write one more file into the folder.
    """
    # The other commands need nothing of the agent.
    from unicorn_mgr.agent.host import with_suppressed_kill  # noqa: PLC0415 - see above
    from unicorn_mgr.agent.processes import strays  # noqa: PLC0415 - see above

    sockets = [agent_socket(data, data.name) for data in sorted(folder.glob("node-*/"))]
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while left := [pid for socket in sockets for pid in strays(socket, ())]:
        for pid in left:
            with_suppressed_kill(pid)
        if time.monotonic() > deadline:
            raise Problem(f"processes {', '.join(map(str, left))} of this cluster do not die; {folder} is left behind")
        time.sleep(LOOK_SECONDS)
