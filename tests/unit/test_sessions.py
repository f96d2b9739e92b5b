"""The door for agents: who may attach, and whose word about a worker counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from unit.test_driver import attached, run, running, submitted, until

from unicorn_mgr import messages as m
from unicorn_mgr.codec import decoder
from unicorn_mgr.coordinator.authority import Authority
from unicorn_mgr.coordinator.driver import Driver
from unicorn_mgr.coordinator.logbook import LogBook
from unicorn_mgr.coordinator.sessions import Agents
from unicorn_mgr.effects.coordinator import WorkerQuiet
from unicorn_mgr.model import PROTOCOL, Slot

decode = decoder(m.CoordinatorMessage)


class Stream:
    """One agent's end of its stream to the coordinator."""

    def __init__(self, agents: Agents, hello: m.Hello) -> None:
        self.heard: list[Any] = []
        self._says: asyncio.Queue[m.AgentMessage] = asyncio.Queue()
        self.say(hello)
        self.ended = asyncio.create_task(self._listen(agents))

    def say(self, body: Any) -> None:
        self._says.put_nowait(m.AgentMessage(body))

    async def _listen(self, agents: Agents) -> None:
        async for data in agents.attach(self._saying(), cast("Any", None)):
            self.heard.append(decode(data).body)

    async def _saying(self) -> AsyncIterator[m.AgentMessage]:
        while True:
            yield await self._says.get()

    async def hears(self, kind: type[Any]) -> Any:
        """Until it has been told something of a kind."""
        await until(lambda: any(isinstance(body, kind) for body in self.heard))
        return next(body for body in self.heard if isinstance(body, kind))

    async def hang_up(self) -> None:
        self.ended.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.ended


def hello(node: str = "n0", incarnation: str = "1", **more: Any) -> m.Hello:
    return m.Hello(node=node, incarnation=incarnation, slots=(Slot(),), address="10.0.0.1", **more)


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Driver, Agents]]:
    agents: Agents

    def send(node: str, body: m.ToAgent) -> None:
        agents.send(node, body)

    async with running(folder, send) as driver:
        agents = Agents(driver, LogBook(), Authority(secured=False))
        yield driver, agents


def test_an_agent_is_welcomed_and_told_when_it_knows_everything(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (driver, agents):
            stream = Stream(agents, hello(domain="rack-7"))
            welcome = await stream.hears(m.Welcome)
            assert (welcome.cluster, welcome.term) == (driver.store.cluster, 1)
            await stream.hears(m.Synced)
            node = driver.core.state.nodes["n0"]
            assert (node.slots, node.domain) == ((Slot(),), "rack-7")
            await stream.hang_up()
            assert agents.sessions == {}

    run(test())


@pytest.mark.parametrize(
    ("said", "says", "final"),
    [
        (
            hello(protocol=PROTOCOL + 1),
            f"protocol: {PROTOCOL + 1}: this coordinator speaks {PROTOCOL}; update the",
            True,
        ),
        (hello(protocol=0), f"protocol: 0: this coordinator speaks {PROTOCOL}; update the agent", True),
        (hello("no/name"), "node: 'no/name': want 1 to 63 letters, digits, - and _", True),
        (hello(domain="rack/7"), "domain: 'rack/7': want 1 to 63 letters, digits, - and _", True),
        (hello(cluster="another"), "cluster: another: this coordinator is of cluster ", True),
        (hello(term=7), "term: agent n0 has obeyed term 7, newer than 1", False),
    ],
)
def test_an_agent_that_does_not_belong_here_is_refused_in_one_line(
    tmp_path: Path, said: m.Hello, says: str, final: bool
) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (driver, agents):
            stream = Stream(agents, said)
            refused = await stream.hears(m.Refused)
            assert refused.reason.startswith(says)
            assert "\n" not in refused.reason
            assert refused.final == final
            await stream.ended
            assert driver.core.state.nodes == {}
            assert agents.outdated.done() == (said.term > 1), "a newer term means that our data is not the newest"

    run(test())


def test_the_second_agent_of_a_name_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (_, agents):
            first = Stream(agents, hello(incarnation="first"))
            await first.hears(m.Synced)

            async def beat() -> None:
                while True:
                    first.say(m.Beat())
                    await asyncio.sleep(0.02)

            beating = asyncio.create_task(beat())
            second = Stream(agents, hello(incarnation="second"))
            refused = await second.hears(m.Refused)
            assert refused.reason == "node: n0: another agent of this name is attached; choose another --node"
            assert agents.sessions["n0"].incarnation == "first"
            beating.cancel()
            await first.hang_up()

    run(test())


def test_an_agent_whose_predecessor_is_dead_takes_its_place(tmp_path: Path) -> None:
    """The machine was switched off: its stream has not ended yet."""

    async def test() -> None:
        async with serving(tmp_path) as (_, agents):
            first = Stream(agents, hello(incarnation="first"))
            await first.hears(m.Synced)
            second = Stream(agents, hello(incarnation="second"))
            await second.hears(m.Synced)
            await first.ended
            assert agents.sessions["n0"].incarnation == "second"
            await second.hang_up()

    run(test())


def test_a_worker_at_a_place_that_there_is_not_is_not_believed(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (driver, agents):
            stream = Stream(agents, hello())
            await stream.hears(m.Synced)
            await driver.submit(submitted())
            driver._readings["gpt#1.1"], driver._reading_done["gpt#1.1"] = {}, asyncio.Event()
            known = m.Sample("gpt/0.0", counter=7)
            for phase in (-1, 99, 2**31 - 1):
                unknown = m.Sample("gpt/0.0", phase=phase)
                stream.say(m.WorkerQuiet(unknown, 10.0))
                stream.say(m.Beat(1, (known, unknown)))
                stream.say(m.Reading("gpt#1.1", (known, unknown)))
            await until(driver._reading_done["gpt#1.1"].is_set)
            assert driver._readings["gpt#1.1"] == {"n0": (known,)}
            assert driver.liveness.samples["gpt/0.0"][1] == known
            stream.say(m.WorkerQuiet(known, 10.0))
            await until(lambda: driver.core.state.jobs["gpt"].quiet is not None)
            quiet = [x.event for x in driver.store.entries() if isinstance(x.event, WorkerQuiet)]
            assert quiet == [WorkerQuiet(known, 10.0)]
            await stream.hang_up()

    run(test())


def test_a_process_of_an_earlier_job_of_the_name_is_stopped_and_not_believed(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (driver, agents):
            await driver.submit(attached("n0"))
            await driver.submit(submitted())
            leftover = m.WorkerTruth("gpt/0.0", pid=77, attached=True, exited=m.Exited("gpt/0.0", -9))
            stream = Stream(agents, hello("n1", workers=(leftover,)))
            await stream.hears(m.Synced)
            stream.say(m.WorkerStarted("gpt/0.0", 78))
            stream.say(m.Exited("gpt/0.0", -9))
            stream.say(m.WorkerQuiet(m.Sample("gpt/0.0"), 10.0))
            assert (await stream.hears(m.StopWorker)).reason == "the worker of this name is on node n0"
            await until(lambda: sum(isinstance(b, m.ForgetWorker) for b in stream.heard) == 4)
            worker = driver.core.state.worker("gpt/0.0")
            assert worker is not None
            assert (worker.pid, worker.exited) == (0, None)
            await stream.hang_up()

    run(test())


def test_a_call_of_an_earlier_start_is_kept_from_the_store_of_the_next(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (driver, agents):
            stream = Stream(agents, hello("n0"))
            await stream.hears(m.Synced)
            await driver.submit(submitted())
            job = driver.core.state.jobs["gpt"]
            (worker,) = job.workers.values()
            job.gang_restarts = worker.start + 1
            stream.say(m.StoreCall(1, worker.name, "set", ("address",), (b"10.0.0.1",)))
            stream.say(m.Beat(1, (m.Sample(worker.name, counter=1),)))
            await until(lambda: worker.name in driver.liveness.samples)
            worker.start = job.gang_restarts
            stream.say(m.StoreCall(2, worker.name, "check", ("address",)))
            assert await stream.hears(m.StoreAnswer) == m.StoreAnswer(2, worker.name, number=0)
            await stream.hang_up()

    run(test())
