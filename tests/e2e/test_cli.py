"""The command line against a running cluster, as researchers, operators and SREs use it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from command_line import ran
from e2e.harness import PATIENCE_SECONDS, Undisturbed, finish
from e2e.shell import Shell, keys

from unicorn_mgr import messages
from unicorn_mgr.codec import decoder, encode
from unicorn_mgr.model import PROTOCOL

READY = "import sys, time\nprint('ready', flush=True)\ntime.sleep(1000)\n"

# -- researchers ------------------------------------------------------------------------------


def test_a_job_is_run_shown_and_ends_with_its_exit_code(shell: Shell, here: Path) -> None:
    (here / "hello.py").write_text("print('hello')\nprint('no end', end='', flush=True)\n")
    name = shell.name()
    ended = shell.ran("run", "--name", name, "--min", "2", "--", sys.executable, "hello.py")
    assert ended.code == 0, ended
    assert sorted(ended.out.splitlines()) == sorted(
        f"[{name}/{seat}.0] {text}" for seat in (0, 1) for text in ("hello", "no end")
    )
    notes = [line.removeprefix(f"unicorn: {name} ") for line in ended.err.splitlines()]
    assert notes[-1] == "ended with exit code 0: every process has ended well"
    assert sorted(shell("logs", name).out.splitlines()) == sorted(ended.out.splitlines())
    assert shell("logs", name, "--worker", "1").out == f"[{name}/1.0] hello\n[{name}/1.0] no end\n"
    assert sorted(shell("logs", name, "--follow").out.splitlines()) == sorted(ended.out.splitlines())
    assert shell("logs", name, "--worker", "2").problem == f"worker: 2: job {name} has seats 0 to 1"


def test_a_job_of_an_old_name_shows_nothing_of_the_old_one(shell: Shell, here: Path) -> None:
    name = shell.name()
    for text in ("first", "second"):
        (here / "say.py").write_text(f"print('{text}')\n")
        ended = shell.ran("run", "--name", name, "--", sys.executable, "say.py")
        assert ended.out == f"[{name}/0.0] {text}\n", ended


def test_a_program_with_a_fault_of_its_own_ends_with_its_traceback(shell: Shell, here: Path) -> None:
    (here / "wrong.py").write_text("raise ValueError('planted')\n")
    name = shell.name()
    ended = shell.ran("run", "--name", name, "--", sys.executable, "wrong.py")
    assert ended.code == 1
    assert "ValueError: planted" in ended.err
    listed = next(line for line in shell("jobs").out.splitlines() if line.startswith(f"{name} "))
    assert "exit code 1: every worker raised the same" in listed
    assert "ValueError: planted" in shell("jobs", name).out


def test_a_command_that_is_no_python_gives_the_job_its_exit_code(shell: Shell) -> None:
    ended = shell.ran("run", "--name", shell.name(), "--no-snapshot", "--", "sh", "-c", "echo working; exit 3")
    assert ended.code == 3
    assert ended.out.endswith("/0.0] working\n")


def test_what_is_missing_on_the_nodes_ends_the_job_at_once(shell: Shell, here: Path) -> None:
    ended = shell.ran("run", "--name", shell.name(), "--", str(here / "nowhere"))
    assert ended.code == 2
    assert ended.err.splitlines()[-1].endswith(f"command: {here}/nowhere: there is no such program on node node-0")


@dataclass(eq=False)
class Terminal:
    """`unicorn run` before a person at a terminal."""

    process: subprocess.Popen[str]
    screen: int
    shown: str = ""

    def until(self, text: str) -> None:
        """Read on until it is shown."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} was not shown: {self.shown!r}"
            readable, _, _ = select.select([self.screen], [], [], 0.1)
            with contextlib.suppress(OSError):  # of a screen that nobody writes to any more
                self.shown += os.read(self.screen, 4096).decode() if readable else ""

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)


@pytest.fixture
def terminal(shell: Shell, here: Path) -> Iterator[Terminal]:
    (here / "wait.py").write_text(READY)
    screen, behind = pty.openpty()
    words = ("run", "--name", shell.name(), "--", sys.executable, "wait.py")
    started = Terminal(shell.start(*words, stdin=behind, stdout=behind, stderr=behind), screen)
    os.close(behind)
    started.until("ready")
    yield started
    os.close(screen)


def name_of(terminal: Terminal) -> str:
    (name,) = re.findall(r"\[(cli-\d+)/0\.0\] ready", terminal.shown)
    return str(name)


@pytest.mark.parametrize("answer", ["y\n", "\x03"], ids=["yes", "Ctrl-C again"])
def test_ctrl_c_asks_and_cancels(shell: Shell, terminal: Terminal, answer: str) -> None:
    terminal.ctrl_c()
    terminal.until(f"cancel {name_of(terminal)}? It goes on otherwise. [y/N]")
    if answer == "\x03":
        terminal.ctrl_c()
    else:
        terminal.type(answer)
    terminal.until("ended with exit code 130: cancelled")
    assert terminal.process.wait() == 130
    assert shell.json("jobs", name_of(terminal))[0]["state"] == "ended"


def test_ctrl_c_asks_and_leaves_it_running(shell: Shell, terminal: Terminal) -> None:
    terminal.ctrl_c()
    terminal.until("[y/N]")
    terminal.type("\n")
    terminal.until("goes on")
    assert terminal.process.wait() == 130
    name = name_of(terminal)
    assert shell.json("jobs", name)[0]["state"] == "running"
    assert shell("cancel", name).out == f"{name} is cancelled; its workers are being ended\n"
    ended = shell.cluster.wait_event("JobEnded", lambda e: e.job == name)
    assert ended.exit_code == 130
    assert shell("cancel", name).problem == f"job: {name}: it has ended"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_where_nobody_can_be_asked_it_is_cancelled(shell: Shell, here: Path, number: signal.Signals) -> None:
    (here / "wait.py").write_text(READY)
    running = shell.start("run", "--name", shell.name(), "--", sys.executable, "wait.py")
    assert running.stdout is not None
    assert running.stdout.readline().endswith("ready\n")
    running.send_signal(number)
    _, err = running.communicate()
    assert running.returncode == 130
    assert err.splitlines()[-1].endswith("ended with exit code 130: cancelled")


def test_detached_it_goes_on_and_its_logs_can_be_followed(shell: Shell, here: Path) -> None:
    (here / "wait.py").write_text(READY)
    name = shell.name()
    assert shell("run", "--name", name, "--detach", "--", sys.executable, "wait.py").out == f"{name}\n"
    following = shell.start("logs", name, "--follow")
    assert following.stdout is not None
    assert following.stdout.readline() == f"[{name}/0.0] ready\n"
    twice = shell("run", "--name", name, "--detach", "--", sys.executable, "wait.py").problem
    assert twice == f"name: {name}: a job of this name is running; cancel it or choose another name"
    shell("cancel", name)
    assert following.wait() == 0


# -- drills -----------------------------------------------------------------------------------

STEPS = 14


@pytest.mark.parametrize(
    ("fault", "when", "cause"),
    [
        ("kill", (), "process_killed"),
        ("kill", ("--at-step", "6"), "process_killed"),
        ("stop", (), "process_stopped"),
        ("exception", ("--at-step", "6"), "exception"),
        ("hang", ("--at-step", "6"), "task_hang"),
    ],
)
def test_an_injected_fault_heals(
    shell: Shell, undisturbed: Undisturbed, fault: str, when: tuple[str, ...], cause: str
) -> None:
    job = shell.cluster.submit(["--steps", str(STEPS)], drills=("0.0:gate:4:compute",), stall_seconds=1.5)
    job.at_gate("compute")
    said = shell("inject", "--job", job.name, "--worker", "1", "--fault", fault, *when)
    assert (said.code, said.err) == (0, ""), said
    assert said.out.startswith(f"{fault} is ordered for {job.name}/1.0" + (" in step 6" if when else ""))
    job.open_gate("compute")
    finish(job, undisturbed, STEPS)
    (incident,) = shell.json("incidents", "--job", job.name)
    assert (incident["cause"], incident["worker"]) == (cause, f"{job.name}/1.0")


def test_a_slow_worker_slows_every_step_down(shell: Shell, undisturbed: Undisturbed) -> None:
    job = shell.cluster.submit(["--steps", str(STEPS)], drills=("0.0:gate:4:compute",))
    job.at_gate("compute")
    slow = ("--fault", "slow", "--at-step", "6", "--seconds", "0.1")
    assert shell("inject", "--job", job.name, "--worker", "1", *slow).code == 0
    job.open_gate("compute")
    finish(job, undisturbed, STEPS)
    at = {h.kind: h.at for h in shell.cluster.events() if getattr(h.event, "job", "") == job.name}
    assert at["JobEnded"] - at["DrillOrdered"] >= 0.1 * (STEPS - 6)
    assert shell.json("incidents", "--job", job.name) == []


def test_a_lost_node_is_healed_and_its_story_is_told(shell: Shell, undisturbed: Undisturbed) -> None:
    """What an SRE sees of it: the listings, the story with its evidence, the events as they come."""
    shared = shell.cluster
    steps = 60
    job = shared.submit(["--steps", str(steps), "--pace", "0.05"], size=4)
    job.wait_step(2)
    node = next(w["node"] for w in shell.json("jobs", job.name)[0]["workers"] if w["worker"].endswith("/2.0"))
    following = shell.start("events", "--follow", "--job", job.name, "--json")
    assert shell("inject", "--job", job.name, "--worker", "2", "--fault", "lose-node", "--at-step", "4").code == 0
    shared.wait_event("NodeLost", lambda e: e.node == node)
    listed = next(line for line in shell("nodes").out.splitlines() if line.startswith(node))
    assert listed.split()[1] == "lost"
    (job.out / "hurry").touch()
    finish(job, undisturbed, steps)
    (incident,) = [i for i in shell.json("incidents", "--node", node) if i["job"] == job.name]
    assert (incident["cause"], incident["severity"], incident["node"]) == ("lost_connection", "SEV1", node)
    assert incident["steps_lost"] == 0

    story = shell.json("incident", incident["id"])
    assert {k: v for k, v in story.items() if k != "events"} == incident
    told = shell("incident", incident["id"]).out
    for words in (f"lost_connection of node {node}, SEV1, closed", "0 steps lost", *incident["evidence"].splitlines()):
        assert words in told
    around = shell("events", "--incident", incident["id"]).out.splitlines()
    assert len(around) == len(story["events"])

    assert following.stdout is not None
    followed = []
    for line in following.stdout:
        followed.append(json.loads(line))
        if followed[-1]["kind"] == "JobEnded":
            break
    following.send_signal(signal.SIGINT)
    assert following.wait() == 130
    numbers = [line["number"] for line in followed]
    listed_again = [json.loads(x) for x in shell("events", "--job", job.name, "--json").out.splitlines()]
    assert followed == [line for line in listed_again if line["number"] <= numbers[-1]]
    assert numbers == sorted(set(numbers))
    assert {line["number"] for line in story["events"]} & set(numbers)

    real = {
        "cluster": shell.json("status"),
        "node": shell.json("nodes")[0],
        "job": shell.json("jobs")[-1],
        "incident": incident,
        "event": followed[0],
        "setting": shell.json("settings")[0],
    }
    assert {name: sorted(shape) for name, shape in real.items()} == {name: keys(name) for name in real}
    assert sorted(story) == sorted([*keys("incident"), *keys("story")])


# -- operators --------------------------------------------------------------------------------


def test_modes_are_switched_and_shown(shell: Shell) -> None:
    for on, off, key, words in (
        (("pause",), ("resume",), "paused", "paused: failures are detected, nothing is done"),
        (("observe", "on"), ("observe", "off"), "observe", "observe mode: failures are detected, nothing is done"),
    ):
        assert shell(*on).code == 0
        assert shell.json("status")[key] is True
        assert words in shell("status").out
        assert shell(*off).code == 0
        assert shell.json("status")[key] is False
        assert words not in shell("status").out


def test_a_free_node_is_drained_and_given_back(shell: Shell) -> None:
    shell.cluster.wait_for("all nodes are up", lambda _: all(n["state"] == "up" for n in shell.json("nodes")))
    assert shell("drain", "node-3").out == "node node-3 is drained: empty: safe to power off\n"
    assert [n["state"] for n in shell.json("nodes")] == ["up", "up", "up", "drained"]
    assert shell("undrain", "node-3").out == "node node-3 is up\n"
    assert shell("undrain", "node-3").problem == "node: node-3: it is up, neither drained, quarantined nor isolated"


def test_a_running_coordinator_tells_its_settings(shell: Shell) -> None:
    values = {s["name"]: (s["value"], s["default"]) for s in shell.json("settings")}
    assert values["lease_seconds"] == (2.5, 2.5)
    assert all(value is not None for value, _ in values.values())


def test_a_running_coordinators_journal_is_replayed(shell: Shell, here: Path) -> None:
    (here / "say.py").write_text("print('hello')\n")
    name = shell.name()
    shell.ran("run", "--name", name, "--env", "MY_TOKEN=hush", "--", sys.executable, "say.py")
    folder = str(shell.cluster.folder)
    replayed = {j["job"]: j for j in json.loads(shell("replay", folder, "--json").out)["jobs"]}
    seen = {j["job"]: j for j in shell.json("jobs")}
    assert {n: (j["state"], j["exit_code"]) for n, j in replayed.items()} == {
        n: (j["state"], j["exit_code"]) for n, j in seen.items()
    }
    for story in (shell("replay", folder, "--job", name, "--json").out, shell("events", "--job", name, "--json").out):
        assert "MY_TOKEN" in story
        assert "hush" not in story


NO_JOB = "there is no such job; known: "
NO_NODE = "there is no such node; known: node-0, node-1, node-2, node-3"
UNKNOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "cancel": (("cancel", "gtp"), f"job: gtp: {NO_JOB}"),
    "logs": (("logs", "gtp"), f"job: gtp: {NO_JOB}"),
    "jobs": (("jobs", "gtp"), f"job: gtp: {NO_JOB}"),
    "observe": (("observe", "on", "--job", "gtp"), f"job: gtp: {NO_JOB}"),
    "inject": (("inject", "--job", "gtp", "--worker", "0", "--fault", "kill"), f"job: gtp: {NO_JOB}"),
    "events of a job": (("events", "--job", "gtp"), f"job: gtp: {NO_JOB}"),
    "incidents of a job": (("incidents", "--job", "gtp"), f"job: gtp: {NO_JOB}"),
    "drain": (("drain", "node-9"), f"node: node-9: {NO_NODE}"),
    "undrain": (("undrain", "node-9"), f"node: node-9: {NO_NODE}"),
    "events of a node": (("events", "--node", "node-9"), f"node: node-9: {NO_NODE}"),
    "incidents of a node": (("incidents", "--node", "node-9"), f"node: node-9: {NO_NODE}"),
    "incident": (("incident", "inc-999"), "incident: inc-999: there is no such incident; newest: "),
    "events of an incident": (("events", "--incident", "inc-999"), "incident: inc-999: there is no such incident; "),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_there_is_named_with_what_is(shell: Shell, case: str) -> None:
    words, says = UNKNOWN[case]
    before = len(shell.cluster.events())
    assert shell(*words).problem.startswith(says)
    assert not [h for h in shell.cluster.events()[before:] if h.kind.startswith(("Job", "Node", "Drill", "Observe"))]


def test_a_drill_that_could_not_strike_is_refused(shell: Shell, here: Path) -> None:
    (here / "wait.py").write_text(READY)
    name = shell.name()
    shell("run", "--name", name, "--detach", "--", sys.executable, "wait.py")
    shell.cluster.wait_event("WorkerStarted", lambda e: e.worker == f"{name}/0.0")
    inject = ("inject", "--job", name, "--fault", "exception", "--worker")
    assert shell(*inject, "3").problem == f"worker: 3: job {name} has workers 0"
    assert shell(*inject, "0").problem.startswith(f"fault: exception: {name}/0.0 has not called unicorn.attach() yet")
    assert shell("inject", "--job", name, "--worker", "0", "--fault", "kill").code == 0
    shell.cluster.wait_event("WorkerExited", lambda e: e.exited.worker == f"{name}/0.0" and e.exited.code == -9)
    shell("cancel", name)
    shell.cluster.wait_event("JobEnded", lambda e: e.job == name)


def test_two_agents_of_one_name(shell: Shell, here: Path) -> None:
    address = shell.cluster.local.address
    second = ran("agent", "--coordinator", address, "--node", "node-0", "--slots", "1", "--data", str(here))
    assert second.code == 2
    assert second.err.splitlines()[-1] == (
        "unicorn: node: node-0: another agent of this name is attached; choose another --node"
    )
    assert shell.json("nodes")[0]["state"] == "up"


def test_a_newer_protocol(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    says = f"protocol: {PROTOCOL + 1}: this coordinator speaks {PROTOCOL}; "
    monkeypatch.setattr("unicorn_mgr.cli.common._METADATA", (("unicorn-protocol", str(PROTOCOL + 1)),))
    for words in (("status",), ("cancel", "gpt"), ("events",), ("logs", "gpt")):
        assert shell(*words).problem == f"{says}use the same version of unicorn as it does"
    with grpc.insecure_channel(shell.cluster.local.address) as channel:
        attach = channel.stream_stream(
            "/unicorn.v1.AgentService/Attach",
            request_serializer=encode,
            response_deserializer=decoder(messages.CoordinatorMessage),
        )
        hello = messages.Hello(node="node-of-tomorrow", protocol=PROTOCOL + 1)
        (answer,) = attach(iter([messages.AgentMessage(hello)]))
    assert answer.body == messages.Refused(f"{says}update the coordinator", True)
