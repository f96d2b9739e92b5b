"""Stories of the core: commands, and exactly what the coordinator then hears, decides and says.

A story is a text file.  Blocks of commands are followed by a line of dashes and by what happens; `#` begins a
comment, which is where a story says what it teaches.

    # A worker dies while it computes.

    quietly
    cluster node-0 node-1 node-2
    submit gpt min=1 max=3 steps=100000 micro_batches=6 micro_batch_seconds=1
    run 30

    at 31.2 kill gpt/1
    run 35
    ----
        31.203  < gpt/1.0 is dying (mutex)
        31.203  = inc-1 opened: gpt/1.0, process_died, SEV2, by process supervision
        31.223  > gpt/0.0 on node-0: epoch 1.2 is gpt/0.0, gpt/2.0

`<` is told to the coordinator, `=` is what it decides, `>` is what it says to agents and workers, and `*` is what
workers of a job that is watched really do.  A block that begins with `quietly` tells nothing.  The clusters are
those of the simulator: only time, network, machines, processes and storage are imitated, and its checkers watch.

    python -m pytest tests/stories              compares
    python -m pytest tests/stories --rewrite    writes what happens now into the files
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.describe import describe
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import NO_STATE, Holdings, JobSpec
from unicorn_mgr.simulator.checkers import ALL, Applied, Commanded, Decided, Happened
from unicorn_mgr.simulator.machine import Machine
from unicorn_mgr.simulator.trainer import Trainer
from unicorn_mgr.simulator.workload import Workload
from unicorn_mgr.simulator.world import World

MESSAGE_SECONDS = 0.001
PLAN_SECONDS = 0.05
LOOK_SECONDS = 0.01
"""Between two looks at what workers do."""

UNTOLD_EVENTS = (e.WorkerStarted, e.WorkerAttached, e.JobProgressed, e.PaceChanged, e.WorkerDismissed)
"""Of no interest in any story: they come with each worker, or every ten seconds."""

UNTOLD_MESSAGES = (m.LiveJobs, m.Synced, m.ForgetWorker, m.CheckpointComplete)

FIELDS = {f.name for f in dataclasses.fields(JobSpec)}


class Unreadable(Exception):
    """A story has a line that means nothing."""


@dataclass
class Block:
    """Some commands, and what was written down about what they lead to."""

    line: int
    lines: list[str] = field(default_factory=list)
    """Comments and commands."""
    told: list[str] = field(default_factory=list)

    def text(self) -> str:
        """As it is in the file."""
        return "\n".join([*self.lines, *(["----", *self.told] if self.told else [])])


def blocks_of(text: str) -> list[Block]:
    """A story's, in order: they have empty lines between them."""
    found: list[Block] = []
    block, told = Block(0), False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if not line.strip():
            if block.lines:
                found.append(block)
            block, told = Block(number + 1), False
        elif told:
            block.told.append(line)
        elif line == "----":
            told = True
        else:
            block.lines.append(line)
    return found


class Teller:
    """Lives through one story."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._quiet = False
        self._watched = ""
        """The job whose steps are told."""
        self._formed: set[str] = set()
        self._world: World | None = None

    def retell(self, story: Path) -> str:
        """The story with what happens now.  Raises `Unreadable`."""
        found = blocks_of(story.read_text())
        for block in found:
            self._told = []
            self._quiet = False
            for number, line in enumerate(block.lines, block.line):
                try:
                    self._do(line.partition("#")[0].strip())
                except (AttributeError, IndexError, KeyError, TypeError, ValueError, StopIteration) as why:
                    raise Unreadable(f"{story}:{number}: {line}: {type(why).__name__}: {why}") from why
            block.told = self._told
        return "\n\n".join(block.text() for block in found) + "\n"

    @property
    def world(self) -> World:
        if self._world is None:
            raise ValueError("a story begins with: cluster NODE...")
        return self._world

    # -- what happens --------------------------------------------------------------------

    def see(self, world: World, what: Happened) -> None:
        """As the checkers do."""
        match what:
            case Decided(entry) if not isinstance(entry, UNTOLD_EVENTS):
                self._note("=" if isinstance(entry, e.Decision) else "<", describe(entry))
            case Commanded(e.SendToAgent(node, body)):
                for said in self._said(node, body):
                    self._note(">", said)
            case Applied(trainer, step, sums) if trainer.job == self._watched:
                self._applied(trainer, step, sums[0])

    def _note(self, mark: str, text: str) -> None:
        if self._quiet:
            return
        text = text.partition(", fence ")[0].partition(" url=")[0]  # what workers measure, which here is nothing
        self._told.append(f"{self.world.timeline.now:10.3f}  {mark} {first_line(text)}")

    def _applied(self, trainer: Trainer, step: int, summed: tuple[int, ...]) -> None:
        """One line for all who do so at once."""
        what = f" step {step}, the sum of micro-batches {', '.join(map(str, sorted(summed)))}"
        before = f"{self.world.timeline.now:10.3f}  * "
        if not self._quiet and self._told and self._told[-1].startswith(before) and self._told[-1].endswith(what):
            others = self._told.pop().removeprefix(before).removesuffix(what)
            self._note("*", f"{others.removesuffix(' applies').removesuffix(' apply')}, {trainer.name} apply{what}")
        else:
            self._note("*", f"{trainer.name} applies{what}")

    def _said(self, node: str, body: m.ToAgent) -> Iterator[str]:
        match body:
            case m.WorkerDirective(worker, m.Formed(epoch, members)):
                meeting = f"{epoch} {worker.partition('/')[0]}"
                if meeting not in self._formed:  # the same to all
                    self._formed.add(meeting)
                    yield f"to all of epoch {epoch}: " + "; ".join(f"{p.worker} {held(p.holdings)}" for p in members)
            case m.WorkerDirective(worker, directive) if not isinstance(directive, UNTOLD_MESSAGES):
                yield f"{worker} on {node}: {directed(directive)}"
            case m.StartWorker(worker):
                yield f"{node}: start {worker} on slot {body.slot}"
            case m.StopWorker(worker, reason, gently):
                yield f"{node}: {'ask' if gently else 'force'} {worker} to end: {reason}"
            case _ if not isinstance(body, (m.WorkerDirective, *UNTOLD_MESSAGES)):
                yield f"{node}: {type(body).__name__}"

    # -- commands ------------------------------------------------------------------------

    def _do(self, line: str) -> None:
        if not line:
            return
        word, *rest = shlex.split(line)
        if word == "at":
            self._run(float(rest[0]))
            word, *rest = rest[1:]
        asked = [text for text in rest if "=" not in text]
        options = {key: value for key, _, value in (text.partition("=") for text in rest if "=" in text)}
        found: Callable[..., None] | None = getattr(self, f"_do_{word.replace('-', '_')}", None)
        if found is None:
            raise ValueError(f"there is no command {word}")
        found(*asked, **options)

    def _run(self, until: float) -> None:
        if until < self.world.timeline.now:
            raise ValueError(f"it is {self.world.timeline.now:g} already")
        timeline, watched = self.world.timeline, self.world.trainings.get(self._watched)
        while watched is not None and timeline.now + LOOK_SECONDS < until:
            timeline.run(timeline.now + LOOK_SECONDS)
            watched.advance()
        timeline.run(until)

    def _do_cluster(self, *nodes: str, slots: str = "1", **settings: str) -> None:
        """Begin with these nodes, and let their agents attach."""
        self._world = World(1, Settings.model_validate(settings), (*(kind() for kind in ALL), self))
        self._world.delay_seconds = (MESSAGE_SECONDS, MESSAGE_SECONDS)
        self._world.plan_delay_seconds = (PLAN_SECONDS, PLAN_SECONDS)
        for node in nodes:
            self._world.add_node(node, int(slots))
        quiet, self._quiet = self._quiet, True
        self._world.start()
        self._world.timeline.run(2.0)
        self._quiet = quiet

    def _do_node(self, name: str, slots: str = "1", domain: str = "") -> None:
        self.world.add_node(name, int(slots), domain).start_agent()

    def _do_submit(self, name: str, **options: str) -> None:
        """The keys are those of `JobSpec` and of `Workload`; min and max are its sizes."""
        numbers = {key: number(value) for key, value in options.items()}
        wishes = {SHORT.get(key, key): value for key, value in numbers.items() if SHORT.get(key, key) in FIELDS}
        work = {
            key: value for key, value in numbers.items() if (key not in SHORT and key not in wishes) or key == "steps"
        }
        wishes.pop("steps", None)
        if "checkpoint_every_steps" in wishes:
            wishes["checkpoint_url"] = "storage"
        self.world.submit(JobSpec(name, ("train.py",), **wishes), Workload(**work))

    def _do_quietly(self) -> None:
        """What this block leads to is of no interest."""
        self._quiet = True

    def _do_run(self, until: str) -> None:
        self._run(float(until))

    def _do_watch(self, job: str) -> None:
        self._watched = job

    # -- faults --------------------------------------------------------------------------

    def _trainer(self, text: str) -> Trainer:
        """The living process on a seat, written job/seat."""
        job, _, seat = text.partition("/")
        alive = [t for t in self.world.training(job).trainers.values() if t.alive and t.seat == int(seat)]
        if not alive:
            raise ValueError(f"nobody is alive on {text}")
        return alive[-1]

    def _machine(self, name: str) -> Machine:
        return self.world.machines[name]

    def _do_kill(self, *who: str) -> None:
        for trainer in [self._trainer(text) for text in who]:
            self.world.kill(trainer)

    def _do_kill_whoever_computes(self, job: str, number: str) -> None:
        """A micro-batch that its worker does not survive."""
        training = self.world.training(job)
        while True:
            for trainer in training.trainers.values():
                if trainer.acts and trainer.machine.sample(trainer).micro_batch == int(number):
                    self.world.kill(trainer)
                    return
            self._run(self.world.timeline.now + LOOK_SECONDS)

    def _do_throw(self, who: str, line: str = "1") -> None:
        self.world.throw(self._trainer(who), int(line))

    def _do_hang(self, who: str) -> None:
        self.world.hang(self._trainer(who))

    def _do_sever(self, job: str) -> None:
        self.world.training(job).sever()

    def _do_power_off(self, *nodes: str) -> None:
        for node in nodes:
            self._machine(node).power_off()

    def _do_power_on(self, node: str) -> None:
        self._machine(node).power_on()

    def _do_freeze(self, *nodes: str) -> None:
        for node in nodes:
            self._machine(node).freeze()

    def _do_thaw(self, node: str) -> None:
        self._machine(node).thaw()

    def _do_part(self, *nodes: str) -> None:
        """Nothing comes through between these nodes and the coordinator."""
        for node in nodes:
            self.world.lines[node].part()

    def _do_heal(self, *nodes: str) -> None:
        for node in nodes:
            self.world.lines[node].heal()

    def _do_kill_agent(self, node: str) -> None:
        self._machine(node).kill_agent()

    def _do_coordinator(self, what: str, when: str = "", seconds: str = "1") -> None:
        control = self.world.control
        match what, when:
            case "begins", _:
                control.start()
            case "stalls", _:
                control.stall(float(seconds))
            case "dies", "torn":
                control.tear(float(seconds))
            case "dies", "before" | "between":
                control.dies_next = when
            case "dies", "":
                control.die()
            case _:
                raise ValueError(f"{what} {when}?")

    def _do_planner(self, what: str) -> None:
        self.world.plan_failures = {"fails": 1.0, "works": 0.0}[what]

    # -- operators -----------------------------------------------------------------------

    def _do_drain(self, node: str) -> None:
        self.world.tell(e.NodeDrained(self.world.request(), node))

    def _do_undrain(self, node: str) -> None:
        self.world.tell(e.NodeUndrained(self.world.request(), node))

    def _do_pause(self) -> None:
        self.world.tell(e.PauseSet(self.world.request(), paused=True))

    def _do_unpause(self) -> None:
        self.world.tell(e.PauseSet(self.world.request(), paused=False))

    def _do_observe(self, job: str = "") -> None:
        self.world.tell(e.ObserveSet(self.world.request(), job, observe=True))

    def _do_act(self, job: str = "") -> None:
        self.world.tell(e.ObserveSet(self.world.request(), job, observe=False))

    def _do_cancel(self, job: str) -> None:
        self.world.tell(e.JobCancelled(self.world.request(), job))


SHORT = {"min": "size_min", "max": "size_max"}


def number(text: str) -> Any:
    """As it is written."""
    try:
        return int(text)
    except ValueError:
        return {"yes": True, "no": False}[text] if text in ("yes", "no") else float(text)


def directed(directive: m.Directive) -> str:
    """What a worker is told."""
    match directive:
        case m.Granted(epoch, members):
            standing = ", and it stands still then" if directive.suspends else ""
            without = "".join(f", never again micro-batch {p.number} of step {p.step}" for p in directive.poison)
            return f"epoch {epoch} is {', '.join(members)}{without}{standing}"
        case m.Attached():
            return "welcome"
        case m.Retire(reason):
            return f"leave: {reason}"
        case m.GiveUp(reason, save):
            return f"give up{', and save the state' if save else ''}: {reason}"
        case _:
            return type(directive).__name__


def first_line(text: str) -> str:
    """Of a reason with a traceback in it."""
    first, *rest = text.splitlines() or [""]
    return f"{first} [...]" if rest else first


def held(holdings: Holdings) -> str:
    """What a member has of the open step."""
    if holdings.applied == NO_STATE:
        return "has no state"
    numbers = " ".join(map(str, holdings.held)) or "nothing"
    reduced = sum(holdings.reduced)
    return f"has applied {holdings.applied}, holds {numbers}" + (f", {reduced} buckets reduced" if reduced else "")
