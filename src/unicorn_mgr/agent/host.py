"""The agent's hands: start processes, watch them, end them.

Everything that happens to a process becomes an event of the agent's core; `emit` takes it,
in the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import os
import secrets
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from unicorn_mgr.agent import logs, processes
from unicorn_mgr.agent.copies import Copies
from unicorn_mgr.agent.keeper import Keeper
from unicorn_mgr.agent.processes import Process
from unicorn_mgr.agent.pycommand import PythonCommand, parse
from unicorn_mgr.agent.tcpstore import STORE_ADDRESS, StoreFront
from unicorn_mgr.agent.templates import Found, TemplateError, TemplatePool
from unicorn_mgr.codec import WireError, decoder, encode
from unicorn_mgr.effects.agent import Adopted, AgentEvent, Dying, Gone, NotSpawned, Spawned, WorkerSaid
from unicorn_mgr.messages import CheckpointComplete, Mistake, Sample, StartWorker, StoreCall, WorkerMessage
from unicorn_mgr.model import Slot
from unicorn_mgr.ring import is_exiting

STOP_SECONDS = 5.0
"""Between asking a process to end and ending it."""

ORPHAN_POLL_SECONDS = 0.05

_PR_SET_CHILD_SUBREAPER = 36
_NOT_INHERITED = ("UNICORN_",)

log = structlog.get_logger()
_read_order = decoder(StartWorker)
_read_fact = decoder(WorkerMessage)

Emit = Callable[[AgentEvent], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostConfig:
    """Where an agent keeps what."""

    node: str
    slots: tuple[Slot, ...]
    address: str
    """Where workers of this node listen for those of others."""
    data: Path
    """Logs and submitted files."""
    socket: Path
    """Where workers find this agent."""
    templates: Path
    """Sockets of template processes; agents of one machine may share it."""


class Host:
    """All workers of one node."""

    def __init__(
        self, config: HostConfig, emit: Emit, store_call: Callable[[StoreCall], None], copies: Copies | None = None
    ) -> None:
        self.config = config
        self._copies = copies if copies is not None else Copies(0)
        self.processes: dict[str, Process] = {}
        self.stores: dict[str, StoreFront] = {}
        self._spawning: dict[str, asyncio.Event] = {}
        self._emit = emit
        self._store_call = store_call
        self._templates = TemplatePool(
            config.templates, config.node, config.socket, self._ended, self._orphaned, self._told
        )
        self._keeper: Keeper | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Find workers of an earlier incarnation, and end what belongs to none."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        statuses: dict[str, int] = {}
        ports: dict[str, int] = {}
        for found in await self._templates.adopt_all():  # nothing is awaited within: an end would be told of nobody
            ports[found.worker] = self._adopt(found)
            if found.status is not None:
                statuses[found.worker] = found.status
        self._keeper = self._copies.keeper = Keeper(self._copies, self._templates, _inherited())
        self._keeper.adopt()
        for pid in processes.strays(self.config.socket, self.processes):
            log.warning("a stray process of an earlier agent is ended", pid=pid)
            with_suppressed_kill(pid)
        for worker, status in statuses.items():
            self._ended(worker, status)
        for worker, port in ports.items():
            if worker in self.processes and not self.processes[worker].ended:
                await self._open_again(worker, port)

    async def close(self) -> None:
        """Leave the workers running."""
        for task in list(self._tasks):
            task.cancel()
        if self._keeper is not None:
            self._keeper.close()
        self._templates.close()
        for front in self.stores.values():
            front.close()

    # -- starting ------------------------------------------------------------------------

    def spawn(self, order: StartWorker, snapshot: Path | None) -> None:
        """Start a worker; `Spawned` or `NotSpawned` follows."""
        self._run(self._spawn(order, snapshot))

    async def started(self, worker: str) -> None:
        """Until a process that is being started is known: it may attach before its template has answered."""
        spawning = self._spawning.get(worker)
        if spawning is not None:
            await spawning.wait()

    async def _spawn(self, order: StartWorker, snapshot: Path | None) -> None:
        known = self._spawning[order.worker] = asyncio.Event()
        try:
            await self._spawn_known(order, snapshot)
        except Exception as failed:  # our bug: it is told as what it is, since nothing else would start this worker
            log.exception("a worker could not be started", worker=order.worker)
            self._emit(NotSpawned(order.worker, f"internal error: {failed!r}"))
        finally:
            del self._spawning[order.worker]
            known.set()

    async def _spawn_known(self, order: StartWorker, snapshot: Path | None) -> None:
        token = secrets.token_hex(16)
        try:
            logfile = logs.begin(self.config.data, order.worker, order.welcome.job_id)
            front = StoreFront(order.worker, self._store_call)
            await front.open()
            self.stores[order.worker] = front
            environment = self._environment(order, token, front.port)
            python = parse(order.command)
            interpreter = self._interpreter(python, environment)
            request = self._request(order, python if interpreter else None, snapshot, environment, logfile)
            request["note"] = _note(token, front.port, order)
            found = await self._templates.spawn(
                request, interpreter or "", python.flags if python and interpreter else (), environment
            )
        except Mistaken as wrong:
            self._emit(NotSpawned(order.worker, str(wrong.mistake), wrong.mistake))
            return
        except (TemplateError, OSError) as failed:
            self._emit(NotSpawned(order.worker, str(failed)))
            return
        self._watch(Process(order, found.pid, processes.map_ring(found.ring), found.words, logfile, token))
        self._own_snapshots(order, found)
        self._emit(Spawned(order.worker, found.pid))

    def _environment(self, order: StartWorker, token: str, store_port: int) -> dict[str, str]:
        """The job's environment over this agent's own, and what torchrun would set."""
        slot = next((s for s in self.config.slots if s.index == order.slot), Slot())
        visible = ",".join(
            s.device.partition(":")[2]
            for i in order.local_slots
            for s in self.config.slots
            if s.index == i and s.device.startswith("cuda")
        )
        local_rank = order.local_slots.index(order.slot) if order.slot in order.local_slots else 0
        local_size = len(order.local_slots) or 1
        ours = {
            "UNICORN_AGENT": str(self.config.socket),
            "UNICORN_WORKER": order.worker,
            "UNICORN_TOKEN": token,
            "UNICORN_NODE": self.config.node,
            "RANK": str(order.rank),
            "WORLD_SIZE": str(order.world_size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_size),
            "GROUP_RANK": str(order.rank // local_size),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(order.rank),
            "ROLE_WORLD_SIZE": str(order.world_size),
            "MASTER_ADDR": STORE_ADDRESS,
            "MASTER_PORT": str(store_port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(order.restarts),
            "TORCHELASTIC_RUN_ID": order.job,
        }
        if slot.device.startswith("cuda"):
            ours["CUDA_VISIBLE_DEVICES"] = visible
        environment = {**_inherited(), **order.environment, **ours}
        environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does with several workers on a node
        return environment

    def _interpreter(self, python: PythonCommand | None, environment: dict[str, str]) -> str:
        """The job's interpreter; empty: start by exec."""
        if python is None:
            return ""
        found = shutil.which(python.interpreter, path=environment.get("PATH"))
        if found is None:
            raise Mistaken(Mistake("command", python.interpreter, f"not found in PATH on node {self.config.node}"))
        return found

    def _request(
        self,
        order: StartWorker,
        python: PythonCommand | None,
        snapshot: Path | None,
        environment: dict[str, str],
        logfile: Path,
    ) -> dict[str, object]:
        folder = Path(order.directory) if Path(order.directory).is_dir() else snapshot
        if folder is None:
            raise Mistaken(
                Mistake("workdir", order.directory, f"there is no such directory on node {self.config.node}")
            )
        request: dict[str, object] = {
            "worker": order.worker,
            "cwd": str(folder),
            "env": environment,
            "log": str(logfile),
            "original": list(order.command),
            "job": order.welcome.job_id,
            "slot": order.slot,
        }
        if python is None:
            _check_program(order.command[0], folder, environment, self.config.node)
            return {**request, "kind": "exec", "argv": list(order.command)}
        target, first = python.target, str(folder)
        argv = ["-c" if python.kind == "code" else python.target, *python.arguments]
        if python.kind == "script":
            target = str(_script(python.target, folder, snapshot, self.config.node))
            first = str(Path(target).resolve().parent)
        elif python.kind == "module":
            first = str(snapshot or folder)
        else:
            first = ""
        return {**request, "kind": python.kind, "target": target, "first": first, "argv": argv}

    # -- watching ------------------------------------------------------------------------

    def _adopt(self, found: Found) -> int:
        """Take a worker over; returns the port that it looks for its store at."""
        token, port, order = _read_note(found.note)
        logfile = logs.file_of(self.config.data, order.worker)
        process = Process(order, found.pid, processes.map_ring(found.ring), found.words, logfile, token)
        self._emit(Adopted(order, found.pid))
        self._watch(process)
        self._own_snapshots(order, found)
        for fact in found.told:
            self._told(found.worker, fact)
        return port

    def _own_snapshots(self, order: StartWorker, found: Found) -> None:
        self._copies.add_own(order.worker, order.welcome.job_id, found.snapshots, found.part)

    async def _open_again(self, worker: str, port: int) -> None:
        """The coordinator holds what was stored, and the process will look for it where it was told to."""
        front = self.stores[worker] = StoreFront(worker, self._store_call)
        try:
            await front.open(port)
        except OSError as failed:
            log.warning("a worker's store can't be served again", worker=worker, port=port, why=str(failed))

    def _watch(self, process: Process) -> None:
        self.processes[process.order.worker] = process
        loop = asyncio.get_running_loop()

        def dying(witness: str) -> None:
            loop.call_soon_threadsafe(self.dying, process, witness)

        process.watch(dying)

    def dying(self, process: Process, witness: str) -> None:
        """A witness says that the kernel tears it down."""
        if not process.ended:
            self._emit(Dying(process.order.worker, witness, process.sample()))

    def _ended(self, worker: str, status: int, witness: str = "pidfd") -> None:
        process = self.processes.get(worker)
        if process is None or process.ended:
            return
        process.ended = True
        raised, stacks, last = None, "", None
        try:
            raised, stacks = process.last_words()
            last = process.sample()
        except Exception:  # whatever a process has left behind, its end is told
            log.exception("a worker's last words can't be read", worker=worker)
        if raised is not None and last is not None:
            raised = replace(raised, step=last.step, micro_batch=last.micro_batch)
        self._emit(Gone(worker, status, raised, stacks, last, witness))

    def _orphaned(self, workers: list[str]) -> None:
        """Their template has died: they are this agent's children now, or nobody's."""
        if self._keeper is not None:
            self._keeper.keep_again()
        for worker in workers:
            if worker in self.processes and not self.processes[worker].ended:
                self._run(self._wait_for_orphan(worker))

    async def _wait_for_orphan(self, worker: str) -> None:
        process = self.processes[worker]
        while not process.ended:
            try:
                ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                if is_exiting(process.pid):
                    self._ended(worker, -signal.SIGKILL, "its parent has died")
                    return
            else:
                if ended is not None:
                    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                    self._ended(worker, code, "waitid")
                    return
            await asyncio.sleep(ORPHAN_POLL_SECONDS)

    def samples(self) -> tuple[Sample, ...]:
        """The newest record of every living worker."""
        found = [p.sample() for _, p in sorted(self.processes.items()) if not p.ended]
        return tuple(s for s in found if s is not None)

    # -- ending --------------------------------------------------------------------------

    def kill(self, worker: str, gently: bool) -> None:
        """End a worker's whole session; gently: it is asked first."""
        process = self.processes.get(worker)
        if process is None or process.ended:
            return
        if gently and not process.stopping:
            process.stopping = True
            processes.signal_session(process.pid, signal.SIGTERM)
            self._run(self._kill_later(process))
        else:
            processes.signal_session(process.pid, signal.SIGKILL)

    async def _kill_later(self, process: Process) -> None:
        await asyncio.sleep(STOP_SECONDS)
        if not process.ended:
            processes.signal_session(process.pid, signal.SIGKILL)

    def sweep(self, worker: str) -> None:
        """A worker has ended: end what it has left in its session."""
        process = self.processes.get(worker)
        if process is not None:
            processes.signal_session(process.pid, signal.SIGKILL)
            front = self.stores.pop(worker, None)
            if front is not None:
                front.close()

    def forget(self, worker: str) -> None:
        """Let go of an ended worker."""
        process = self.processes.pop(worker, None)
        if process is not None:
            self._templates.forget(worker)
            process.close()
            self._copies.end_own(worker)

    def complete(self, worker: str, word: CheckpointComplete) -> None:
        """For whoever stores what this worker has handed over."""
        epoch = word.lineage.epoch
        self._templates.word(worker, (word.step, word.lineage.generation, epoch.term, epoch.number))

    def _told(self, worker: str, fact: bytes) -> None:
        try:
            self._emit(WorkerSaid(worker, _read_fact(fact).body))
        except WireError as wrong:
            log.warning("what was said of a checkpoint's part is not understood", worker=worker, why=str(wrong))

    def release(self, job_ids: tuple[str, ...]) -> None:
        """Snapshots in memory of all other jobs may go."""
        self._templates.release(job_ids)

    def strike(self, worker: str, number: int) -> None:
        """A drill from outside."""
        process = self.processes.get(worker)
        if process is not None and not process.ended:
            os.kill(process.pid, number)

    def signal_all(self, number: int) -> None:
        """Freeze or thaw every worker."""
        for process in self.processes.values():
            if not process.ended:
                processes.signal_session(process.pid, number)

    def _run(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the host failed", error=repr(task.exception()))
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a task of the host failed", "exception": task.exception()}
            )


class Mistaken(Exception):
    """The order can't be carried out because of what the user asked for."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(str(mistake))
        self.mistake = mistake


def _inherited() -> dict[str, str]:
    """What templates and workers have of this agent's environment."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}


def _note(token: str, port: int, order: StartWorker) -> str:
    """What a template keeps of a worker for the agent's next incarnation."""
    return f"{token} {port} {base64.b64encode(encode(replace(order, environment={}))).decode()}"


def _read_note(note: str) -> tuple[str, int, StartWorker]:
    """Inverse of `_note`."""
    token, port, order = note.split(" ")
    return token, int(port), _read_order(base64.b64decode(order))


def _script(target: str, folder: Path, snapshot: Path | None, node: str) -> Path:
    """The script's file, or a folder or archive that can be run: from the submitted files if it is among them."""
    if snapshot is not None and not Path(target).is_absolute() and (snapshot / target).exists():
        return snapshot / target
    path = folder / target
    if not path.exists():
        raise Mistaken(Mistake("command", target, f"there is no such script on node {node}"))
    return path


def _check_program(program: str, folder: Path, environment: dict[str, str], node: str) -> None:
    """A program that is not there is the user's mistake: starting it again would not help."""
    where = str(folder / program) if "/" in program else program
    if shutil.which(where, path=environment.get("PATH")) is None:
        raise Mistaken(Mistake("command", program, f"there is no such program on node {node}"))


def with_suppressed_kill(pid: int) -> None:
    """Kill a process that may be gone by now."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
