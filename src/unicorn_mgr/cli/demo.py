"""`unicorn demo`: a cluster on this machine trains a GPT, three things break, and nothing is lost."""

from __future__ import annotations

import contextlib
import dataclasses
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

import unicorn_mgr
from unicorn_mgr import messages
from unicorn_mgr.cli import demo_view
from unicorn_mgr.cli.archive import pack
from unicorn_mgr.cli.common import EXIT_INTERRUPTED, Client, Problem, interrupted_by
from unicorn_mgr.cli.demo_proof import Check, Cost, Records, cost, counted_once, healed, same_weights
from unicorn_mgr.cli.demo_view import View
from unicorn_mgr.cli.local import LocalCluster, running
from unicorn_mgr.cli.run import passed_environment, submit
from unicorn_mgr.cli.shapes import of_incident
from unicorn_mgr.model import Drill, JobSpec

JOB = "gpt"
LOSE_NODE = "lose-node"
MICRO_BATCHES = 8
STEPS_MAX = 4000
"""More than there is time for: the job is asked to stop when everything has healed."""
CALM_STEPS = 20
"""Steps before each fault, and before the end."""
LOOK_SECONDS = 0.2
PATH_CHARACTERS_MAX = 70
PATIENCE_SECONDS = 90.0
"""Nothing that is waited for takes longer, even on a busy machine."""

TRAINING = (
    *("--layers", "2", "--width", "64", "--context", "64", "--batch-size", "2", "--dtype", "float64"),
    *("--micro-batches", str(MICRO_BATCHES), "--learning-rate", "0.003"),
)


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
        nodes: int = typer.Option(4, "--nodes", help="How many agents, each with one slot."),
        no_live: bool = typer.Option(False, "--no-live", help="Plain lines instead of a live picture."),
        data: Path | None = typer.Option(None, "--data", metavar="DIR", help="Where logs, records and weights go."),
    ) -> None:
        """Train a GPT on a cluster here while a worker is killed, one hangs and a node is lost.

        Takes about a minute, and ends with what the faults cost and the proof that nothing was lost.
        """
        if not 3 <= nodes <= 16:
            raise Problem(f"nodes: {nodes}: want 3 to 16")
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
    """A cluster, a job, scenes, and the proof."""

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
        self._records = Records(folder / "records")
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
                costs = self._costs(cluster)
                self._keep_what_is_known(cluster)
                if not keep:
                    stack.close()
                reference = self._undisturbed()
            checks = self._checks(cluster, reference)
            self._report(costs, checks)
            if keep:
                self._stay(view)
        return all(check.holds for check in checks)

    # -- the disturbed run ---------------------------------------------------------------

    def _train(self) -> messages.ClusterView:
        self._client = Client(self._local.address, None)
        self._until("all nodes are up", lambda c: len(c.nodes) == self._nodes)
        self._submit()
        self._view.note(f"job {JOB}: a GPT in float64 on {self._nodes} workers, {MICRO_BATCHES} micro-batches a step")
        for scene in self._scenes:
            self._until_calm("the job trains on all nodes", self._nodes)
            self._play(scene)
            if scene.drill.fault == LOSE_NODE:
                self._until_calm("the job trains on the nodes that are left", self._nodes - 1)
                self._return_nodes()
        self._until_calm("the job trains on all nodes again", self._nodes)
        self._view.note("all has healed: the job is asked to stop")
        (self.folder / "stop").touch()
        cluster = self._until("the job has ended", lambda c: c.jobs[0].state == "ended")
        job = cluster.jobs[0]
        if job.exit_code:
            raise Problem(f"demo: the job ended with {job.exit_code}: {job.reason}; logs in {self.folder}", 1)
        self._view.note(f"the job has ended after step {self._records.read().newest_step}, its last on all workers")
        return cluster

    def _submit(self) -> None:
        digest, archive = pack(self._script.parent)
        folders = {"--out": "weights", "--records": "records", "--stop-file": "stop"}
        options = [x for name, folder in folders.items() for x in (name, str(self.folder / folder))]
        spec = JobSpec(
            name=JOB,
            command=(sys.executable, self._script.name, "--steps", str(STEPS_MAX), *TRAINING, *options),
            environment={**passed_environment(os.environ, []), "OMP_NUM_THREADS": "1"},
            directory=str(self._script.parent),
            snapshot=digest,
            size_min=1,
            size_max=self._nodes,
        )
        submit(self._client, spec, archive)

    def _play(self, scene: Scene) -> None:
        before = self._client.look()
        worker = next(w for w in before.jobs[0].workers if w.worker.startswith(f"{JOB}/{scene.seat}."))
        self._view.note(scene.text.format(worker=worker.worker, node=worker.node), "yellow")
        drill = scene.drill if scene.drill.step < 0 else dataclasses.replace(scene.drill, step=before.jobs[0].step + 3)
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

    def _until_calm(self, what: str, size: int) -> None:
        """Until a job of that size has made some steps in one epoch."""
        since: dict[object, int] = {}

        def calm(cluster: messages.ClusterView) -> bool:
            job = cluster.jobs[0]
            if job.state != "running" or job.size != size:
                return False
            return job.step >= since.setdefault(job.epoch, job.step) + self._calm_steps

        self._until(what, calm)

    def _until(self, what: str, holds: Callable[[messages.ClusterView], bool]) -> messages.ClusterView:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._local.tend()
            cluster = self._client.look()
            self._view.show(cluster, self._records.read())
            self._tell_news(cluster)
            if holds(cluster):
                return cluster
            job = cluster.jobs[0] if cluster.jobs else None
            if job is not None and job.state == "ended":
                raise Problem(f"demo: the job ended with {job.exit_code}: {job.reason}; logs in {self.folder}", 1)
            if time.monotonic() > deadline:
                raise Problem(f"demo: waited {PATIENCE_SECONDS:.0f} s until {what}; logs in {self.folder}", 1)
            time.sleep(LOOK_SECONDS)

    def _tell_news(self, cluster: messages.ClusterView) -> None:
        """Incidents as they are detected and healed, and nodes as they come and go."""
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
            found.append(cost(story, self._records.last_at.get(victim, incident.opened_at)))
        return found

    def _keep_what_is_known(self, cluster: messages.ClusterView) -> None:
        """Incidents and metrics outlive the cluster."""
        incidents = json.dumps([of_incident(i) for i in cluster.incidents], indent=2)
        (self.folder / "incidents.json").write_text(f"{incidents}\n")
        with urllib.request.urlopen(f"http://{self._local.metrics}/metrics", timeout=10) as page:
            (self.folder / "metrics.txt").write_bytes(page.read())

    def _undisturbed(self) -> Path:
        """The same training to the same step, alone; returns the folder of its weights."""
        steps = self._records.newest_step + 1
        out, records = self.folder / "undisturbed", Records(self.folder / "undisturbed" / "records")
        self._view.note(f"for comparison: the same {steps} steps in one process, undisturbed")
        options = ["--steps", str(steps), "--decay-steps", str(STEPS_MAX), "--out", str(out)]
        command = [sys.executable, str(self._script), *TRAINING, *options, "--records", str(records.folder)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("UNICORN_")} | {"OMP_NUM_THREADS": "1"}
        out.mkdir(parents=True)
        with (out / "log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while process.poll() is None:
                self._view.advance("undisturbed", records.read().newest_step + 1, steps)
                time.sleep(LOOK_SECONDS)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise Problem(f"demo: the undisturbed run ended with {process.returncode}; see {out / 'log'}", 1)
        return out

    def _checks(self, cluster: messages.ClusterView, reference: Path) -> list[Check]:
        records = self._records.read()
        weights = sorted((self.folder / "weights").glob("*.pt"))
        return [
            healed(list(cluster.incidents), [scene.cause for scene in self._scenes]),
            counted_once(records, records.newest_step + 1, MICRO_BATCHES),
            same_weights(self._script, reference / "alone.pt", weights, self._nodes),
        ]

    def _report(self, costs: list[Cost], checks: list[Check]) -> None:
        console = self._view.console
        demo_view.summary(console, costs, self._records)
        demo_view.checked(console, checks)
        console.print(f"\nEverything is kept in {self.folder}")
        for where, what in (
            (f"node-*/logs/{JOB}/*.log", "output of the workers"),
            ("*.log", "of the coordinator and the agents"),
            ("records/*.jsonl", "what each worker has computed and applied"),
            ("weights/*.pt", "at the end, and in undisturbed/ those to compare with"),
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
            "  unicorn nodes\n"
            f"  unicorn run --name mine --max {self._nodes} --workdir {folder} -- {sys.executable} train.py\n"
            "  unicorn inject --job mine --worker 1 --fault kill\n"
            f"  curl http://{self._local.metrics}/metrics"
        )
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                self._local.tend()
                time.sleep(LOOK_SECONDS)
