"""`unicorn demo`: two jobs share a cluster on this machine, three things break, and nothing is lost."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import typer

import unicorn_mgr
from unicorn_mgr import messages
from unicorn_mgr.cli import demo_view
from unicorn_mgr.cli.archive import pack
from unicorn_mgr.cli.common import EXIT_INTERRUPTED, Client, Problem, interrupted_by
from unicorn_mgr.cli.demo_proof import (
    Change,
    Check,
    Cost,
    Records,
    changes,
    cost,
    counted_once,
    given_and_got_back,
    healed,
    same_weights,
)
from unicorn_mgr.cli.demo_view import View
from unicorn_mgr.cli.local import LocalCluster, running
from unicorn_mgr.cli.run import passed_environment, submit
from unicorn_mgr.cli.shapes import of_incident
from unicorn_mgr.model import Drill, JobSpec

JOB = "gpt"
LIGHTER = "tiny"
LIGHTER_SIZE = 2
LOSE_NODE = "lose-node"
STEPS_MAX = 4000
"""More than there is time for: the job is asked to stop when everything has healed."""
CALM_STEPS = 20
"""Steps before each fault, and before the end."""
LOOK_SECONDS = 0.2
PATH_CHARACTERS_MAX = 70
PATIENCE_SECONDS = 90.0
"""Nothing that is waited for takes longer, even on a busy machine."""

SHAPES = {
    JOB: ("--layers", "2", "--width", "64", "--context", "64", "--batch-size", "2"),
    LIGHTER: ("--layers", "1", "--width", "32", "--context", "64", "--batch-size", "4"),
}


@dataclass(frozen=True, slots=True)
class Training:
    """One of the jobs."""

    name: str
    weight: float
    size: int
    """Slots that it can use."""
    folder: Path
    records: Records

    @classmethod
    def of(cls, name: str, weight: float, size: int, folder: Path) -> Training:
        """In a folder of its own."""
        return cls(name, weight, size, folder / name, Records(folder / name / "records"))

    @property
    def micro_batches(self) -> int:
        """In a step: so many that each slot makes it shorter."""
        return 2 * self.size

    @property
    def options(self) -> tuple[str, ...]:
        """Of the script, wherever it runs."""
        return (*SHAPES[self.name], *("--micro-batches", str(self.micro_batches), "--dtype", "float64"))


@dataclass(frozen=True, slots=True)
class Scene:
    """A fault, and what it must be called by whoever detects it."""

    text: str
    seat: int
    drill: Drill
    cause: str


SCENES = (
    Scene("kill -9 of {worker}, in the middle of a micro-batch", 1, Drill("kill", 0, "backward"), "process_killed"),
    Scene("{worker} hangs: it sleeps for ever in its own code", 2, Drill("hang", 0, "backward"), "task_hang"),
    Scene("{node} is lost: its agent and {worker} are gone at once", 0, Drill(LOSE_NODE), "lost_connection"),
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def demo(
        keep: bool = typer.Option(False, "--keep", help="Leave the cluster up at the end, until Ctrl-C."),
        nodes: int = typer.Option(5, "--nodes", help="How many agents, each with one slot."),
        no_live: bool = typer.Option(False, "--no-live", help="Plain lines instead of a live picture."),
        data: Path | None = typer.Option(None, "--data", metavar="DIR", help="Where logs, records and weights go."),
    ) -> None:
        """Train two models on a cluster here while a worker is killed, one hangs and a node is lost.

        Takes about a minute, and ends with what the faults cost, who gave slots to whom, and the proof
        that nothing was lost.
        """
        if not 5 <= nodes <= 16:
            raise Problem(f"nodes: {nodes}: want 5 to 16")
        script = training_script()
        if data is not None and data.exists() and not (data.is_dir() and not any(data.iterdir())):
            raise Problem(f"data: {data}: it is not an empty directory; choose another")
        folder = (data or Path(tempfile.mkdtemp(prefix="unicorn-demo-"))).resolve()
        if len(str(folder)) > PATH_CHARACTERS_MAX:
            raise Problem(
                f"data: {folder}: too long for the sockets in it; want at most {PATH_CHARACTERS_MAX} characters"
            )
        try:
            with interrupted_by(signal.SIGTERM, signal.SIGHUP):
                sys.exit(0 if Demo(script, folder, nodes, SCENES).perform(keep, live=not no_live) else 1)
        except KeyboardInterrupt:
            sys.stderr.write(f"unicorn: interrupted; what there is lies in {folder}\n")
            sys.exit(EXIT_INTERRUPTED)


def training_script() -> Path:
    """`examples/gpt/train.py` of the checkout this package runs from."""
    script = Path(unicorn_mgr.__file__).resolve().parents[2] / "examples" / "gpt" / "train.py"
    if not script.is_file():
        raise Problem(f"demo: {script}: not there; run it in a clone of the repository, by make demo")
    if importlib.util.find_spec("torch") is None:
        raise Problem("demo: torch: it is not installed; pip install 'unicorn-mgr[torch]', or run make demo")
    return script


class Demo:
    """A cluster, two jobs, scenes, and the proof."""

    def __init__(
        self,
        script: Path,
        folder: Path,
        nodes: int,
        scenes: tuple[Scene, ...],
        calm_steps: int = CALM_STEPS,
        templates: Path | None = None,
    ) -> None:
        self.folder = folder
        self._script = script
        self._nodes = nodes
        self._scenes = scenes
        self._calm_steps = calm_steps
        self._templates = templates or folder / "templates"
        self._heavier = Training.of(JOB, 2.0, nodes - LIGHTER_SIZE, folder)
        self._lighter = Training.of(LIGHTER, 1.0, LIGHTER_SIZE, folder)
        self._trainings = (self._heavier, self._lighter)
        self._told: dict[str, str] = {}
        """What the notes have said of incidents and nodes."""
        self._victims: dict[str, str] = {}
        """Per incident, the worker that its fault struck."""
        self._view = View(live=False)
        self._local: LocalCluster
        self._client: Client

    def perform(self, keep: bool, live: bool) -> bool:
        """The whole demo.  True if everything that must hold does."""
        with contextlib.ExitStack() as stack:
            view = View(live=live and sys.stdout.isatty())
            self._view = view
            view.note(f"a coordinator and {self._nodes} agents start, as processes of this machine")
            view.note(f"everything they write goes to {self.folder}")
            with view:
                self._local = stack.enter_context(
                    running(self.folder, self._nodes, 1, "127.0.0.1:0", templates=self._templates)
                )
                cluster = self._train()
                costs, moves = self._costs(cluster), self._moves()
                self._keep_what_is_known(cluster)
                if not keep:
                    stack.close()
                self._undisturbed()
            checks = self._checks(cluster, moves)
            self._report(costs, moves, checks)
            if keep:
                self._stay(view)
        return all(check.holds for check in checks)

    # -- the disturbed run ---------------------------------------------------------------

    def _train(self) -> messages.ClusterView:
        self._client = Client(self._local.address, None)
        self._until("all nodes are up", lambda c: len(c.nodes) == self._nodes)
        for training in self._trainings:
            self._submit(training)
        for scene in self._scenes:
            self._until_calm("all slots train")
            self._play(scene)
            if scene.drill.fault == LOSE_NODE:
                self._until_calm(f"{LIGHTER} has given a slot to {JOB}", given=1)
                self._return_nodes()
        self._until_calm("all slots train again")
        self._view.note("all has healed: the jobs are asked to stop")
        for training in self._trainings:
            (training.folder / "stop").touch()
        cluster = self._until("the jobs have ended", lambda c: all(j.state == "ended" for j in c.jobs))
        for training in self._trainings:
            step = training.records.read().newest_step
            self._view.note(f"{training.name} has ended after step {step}, its last on all workers")
        return cluster

    def _submit(self, training: Training) -> None:
        digest, archive = pack(self._script.parent)
        folders = {"--out": "weights", "--records": "records", "--stop-file": "stop"}
        options = [x for name, folder in folders.items() for x in (name, str(training.folder / folder))]
        spec = JobSpec(
            name=training.name,
            command=(sys.executable, self._script.name, "--steps", str(STEPS_MAX), *training.options, *options),
            environment={**passed_environment(os.environ, []), "OMP_NUM_THREADS": "1"},
            directory=str(self._script.parent),
            snapshot=digest,
            size_min=1,
            size_max=training.size,
            weight=training.weight,
        )
        submit(self._client, spec, archive)
        self._view.note(
            f"job {training.name}, weight {training.weight:g}: a GPT in float64 on 1 to {training.size} slots, "
            f"{training.micro_batches} micro-batches a step"
        )

    def _play(self, scene: Scene) -> None:
        before = self._client.look()
        job = next(j for j in before.jobs if j.job == JOB)
        worker = next(w for w in job.workers if w.worker.startswith(f"{JOB}/{scene.seat}."))
        self._view.note(scene.text.format(worker=worker.worker, node=worker.node), "yellow")
        drill = scene.drill if scene.drill.step < 0 else replace(scene.drill, step=job.step + 3)
        inject = messages.Inject(JOB, scene.seat, drill)
        self._client.call("Command", messages.OperatorCommand(uuid.uuid4().hex, inject), messages.CommandDone)
        known = {i.id for i in before.incidents}

        def over(cluster: messages.ClusterView) -> bool:
            new = [i for i in cluster.incidents if i.id not in known and i.cause == scene.cause]
            return bool(new) and all(i.state == "closed" for i in cluster.incidents)

        after = self._until(f"{scene.cause} is detected and healed", over)
        self._victims.update({i.id: worker.worker for i in after.incidents if i.id not in known})

    def _return_nodes(self) -> None:
        """Somebody has repaired what was lost."""
        self._view.note("the lost node is repaired: its agent starts again", "yellow")
        for agent in self._local.agents:
            agent.due = 0.0

    def _until_calm(self, what: str, given: int = 0) -> None:
        """Until both have made some steps in one epoch, the lighter one with so many slots less."""
        since: dict[object, int] = {}
        sizes = {JOB: self._heavier.size, LIGHTER: self._lighter.size - given}

        def calm(job: messages.JobView) -> bool:
            if job.state != "running" or job.size != sizes[job.job]:
                return False
            return job.step >= since.setdefault((job.job, job.epoch), job.step) + self._calm_steps

        def all_calm(cluster: messages.ClusterView) -> bool:
            return [calm(j) for j in cluster.jobs] == [True] * len(self._trainings)

        self._until(what, all_calm)

    def _until(self, what: str, holds: Callable[[messages.ClusterView], bool]) -> messages.ClusterView:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._local.tend()
            cluster = self._client.look()
            self._view.show(cluster, {t.name: t.records.read() for t in self._trainings})
            self._tell_news(cluster)
            for job in (j for j in cluster.jobs if j.state == "ended" and (j.exit_code or not self._stopping(j.job))):
                text = f"{job.job} ended with {job.exit_code}: {job.reason}"
                raise Problem(f"demo: {text}; logs in {self.folder}", 1)
            if holds(cluster):
                return cluster
            if time.monotonic() > deadline:
                raise Problem(f"demo: waited {PATIENCE_SECONDS:.0f} s until {what}; logs in {self.folder}", 1)
            time.sleep(LOOK_SECONDS)

    def _stopping(self, job: str) -> bool:
        return (self.folder / job / "stop").exists()

    def _tell_news(self, cluster: messages.ClusterView) -> None:
        """Incidents as they are detected and healed, nodes as they come and go, slots as they are given."""
        for job in cluster.jobs:
            # With a colon: what has changed, and what that is worth.
            if job.state != "ended" and ":" in job.reason and self._is_news(f"slots of {job.job}", job.reason):
                self._view.note(f"plan: {job.job} {job.reason}", "cyan")
        for incident in cluster.incidents:
            who = incident.worker or incident.node
            sign = "it is " if f"cause of {incident.id}" in self._told else ""
            if self._is_news(f"cause of {incident.id}", incident.cause):
                text = f"{sign}{incident.cause} of {who}, by {incident.detected_by}"
                self._view.note(f"{incident.id}: {text}", "red")
            if incident.state == "closed" and self._is_news(f"end of {incident.id}", "closed"):
                self._view.note(f"{incident.id}: healed: {incident.story[-1].partition('closed: ')[2]}", "green")
        for node in cluster.nodes:
            if self._is_news(f"state of {node.node}", node.state):
                self._view.note(f"{node.node} is {node.state}" + (f": {node.reason}" if node.reason else ""))

    def _is_news(self, what: str, value: str) -> bool:
        changed = self._told.get(what) != value
        self._told[what] = value
        return changed

    # -- the proof -----------------------------------------------------------------------

    def _costs(self, cluster: messages.ClusterView) -> list[Cost]:
        found = []
        for incident in cluster.incidents:
            story = self._client.call("FindIncident", messages.IncidentRequest(incident.id), messages.IncidentStory)
            victim = self._victims.get(incident.id, incident.worker)
            found.append(cost(story, self._heavier.records.last_at.get(victim, incident.opened_at)))
        return found

    def _moves(self) -> list[Change]:
        return changes(self._client.follow("FollowEvents", messages.FollowEventsRequest(), messages.EventLine))

    def _keep_what_is_known(self, cluster: messages.ClusterView) -> None:
        """Incidents and metrics outlive the cluster."""
        incidents = json.dumps([of_incident(i) for i in cluster.incidents], indent=2)
        (self.folder / "incidents.json").write_text(f"{incidents}\n")
        with urllib.request.urlopen(f"http://{self._local.metrics}/metrics", timeout=10) as page:
            (self.folder / "metrics.txt").write_bytes(page.read())

    def _undisturbed(self) -> None:
        """The same trainings to the same steps, each alone in one process."""
        steps = sum(t.records.newest_step + 1 for t in self._trainings)
        self._view.note("for comparison: the same steps of both, each in one process, undisturbed")
        with contextlib.ExitStack() as stack:
            processes = [stack.enter_context(self._alone(t)) for t in self._trainings]
            records = [Records(t.folder / "undisturbed" / "records") for t in self._trainings]
            while any(process.poll() is None for process in processes):
                self._view.advance("undisturbed", sum(r.read().newest_step + 1 for r in records), steps)
                time.sleep(LOOK_SECONDS)
        for training, process in zip(self._trainings, processes, strict=True):
            if process.returncode:
                log = training.folder / "undisturbed" / "log"
                raise Problem(f"demo: the undisturbed run ended with {process.returncode}; see {log}", 1)

    @contextlib.contextmanager
    def _alone(self, training: Training) -> Iterator[subprocess.Popen[bytes]]:
        out = training.folder / "undisturbed"
        steps = ["--steps", str(training.records.newest_step + 1), "--decay-steps", str(STEPS_MAX)]
        folders = ["--out", str(out), "--records", str(out / "records")]
        command = [sys.executable, str(self._script), *training.options, *steps, *folders]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("UNICORN_")} | {"OMP_NUM_THREADS": "1"}
        out.mkdir(parents=True)
        with (out / "log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _checks(self, cluster: messages.ClusterView, moves: list[Change]) -> list[Check]:
        found = [healed(list(cluster.incidents), [scene.cause for scene in self._scenes])]
        if any(scene.drill.fault == LOSE_NODE for scene in self._scenes):
            found.append(given_and_got_back(moves, LIGHTER, JOB))
        for training in self._trainings:
            records = training.records.read()
            weights = sorted((training.folder / "weights").glob("*.pt"))
            reference = training.folder / "undisturbed" / "alone.pt"
            own = (
                counted_once(records, records.newest_step + 1, training.micro_batches),
                same_weights(self._script, reference, weights, training.size),
            )
            found += [replace(check, text=f"{training.name}: {check.text}") for check in own]
        return found

    def _report(self, costs: list[Cost], moves: list[Change], checks: list[Check]) -> None:
        console = self._view.console
        demo_view.summary(console, costs, self._heavier.records)
        demo_view.shared(console, moves)
        demo_view.checked(console, checks)
        console.print(f"\nEverything is kept in {self.folder}")
        for where, what in (
            ("node-*/logs/*/*.log", "output of the workers"),
            ("*.log", "of the coordinator and the agents"),
            ("*/records/*.jsonl", "what each worker has computed and applied"),
            ("*/weights/*.pt", "at the end, and in */undisturbed/ those to compare with"),
            ("incidents.json", "as unicorn incidents --json tells them"),
            ("metrics.txt", "as Prometheus read them at the end"),
        ):
            console.print(f"  {where:<24}{what}")

    def _stay(self, view: View) -> None:
        """Until Ctrl-C."""
        folder = shlex.quote(str(self._script.parent))
        view.console.print(
            "\nThe cluster is up until Ctrl-C.  In another terminal:\n"
            f"  export UNICORN_COORDINATOR={self._local.address}\n"
            "  unicorn incidents\n"
            "  unicorn plan\n"
            "  unicorn nodes\n"
            f"  unicorn run --name mine --max {self._nodes} --workdir {folder} -- {sys.executable} train.py\n"
            "  unicorn inject --job mine --worker 1 --fault kill\n"
            f"  curl http://{self._local.metrics}/metrics"
        )
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                self._local.tend()
                time.sleep(LOOK_SECONDS)
