"""The simulated line between an agent and the coordinator: a stream that keeps its order, or breaks.

As with gRPC over TCP nothing inside a stream is lost, doubled or reordered; a stream that breaks loses what is under
way, and all that is true is told again in the next one's hello.  Between streams anything may overtake anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from unicorn_mgr.coordinator.hearing import News
from unicorn_mgr.effects import agent as a
from unicorn_mgr.messages import ToAgent

if TYPE_CHECKING:
    from unicorn_mgr.simulator.machine import Machine
    from unicorn_mgr.simulator.world import World

RETRY_SECONDS = (0.1, 1.0)
"""Between two attempts to open it."""

KEEPALIVE_SECONDS = 8.0
"""Until either end notices that the other can't be reached."""


class Line:
    """Between one agent and the coordinator."""

    def __init__(self, machine: Machine, world: World) -> None:
        self.machine = machine
        self.attached = False
        """The coordinator has heard the hello, and hears more."""
        self.parted = False
        """Nothing comes through, in either direction."""
        self._world = world
        self._stream = 0
        self._opening = False
        self._held: list[Callable[[], None]] = []
        self._arrives = [0.0, 0.0]
        """Of the newest message in each direction: nothing overtakes it."""

    @property
    def through(self) -> bool:
        """What is said is heard."""
        return self.attached and not self.parted and self.machine.agent_runs

    def begin(self) -> None:
        """A new agent knows nothing of its predecessor's stream."""
        self._break()
        self.open()

    def open(self) -> None:
        """Attach, again and again until that succeeds."""
        if self._opening or self.attached:
            return
        self._opening = True
        self._world.timeline.after(self._world.chance.uniform(*RETRY_SECONDS), self._attempt)

    def _attempt(self) -> None:
        self._opening = False
        agent = self.machine.agent
        if agent is None or not self.machine.power or self.attached:
            return
        if self.machine.frozen:
            self.open()
            return
        control = self._world.control
        if self.parted or not control.up or control.slow:
            self.machine.emit(a.LinkLost(answered=not self.parted and not control.up))
            self.open()
            return
        self._stream += 1
        self.attached = True
        hello = agent.say_hello("simulated", self.machine.term)
        self._send(0, lambda: control.greet(self, hello))

    def _send(self, direction: int, deliver: Callable[[], None]) -> None:
        stream = self._stream
        arrives = max(self._world.timeline.now + self._world.delay(), self._arrives[direction])
        self._arrives[direction] = arrives

        def come() -> None:
            if stream != self._stream:
                return
            if self.parted:
                self._held.append(come)
            else:
                deliver()

        self._world.timeline.at(arrives, come)

    def say(self, body: News) -> None:
        """From the agent."""
        if self.attached:
            self._send(0, lambda: self._world.control.hear(self, body))

    def tell(self, body: ToAgent) -> None:
        """From the coordinator."""
        if self.attached:
            self._send(1, lambda: self.machine.hears(body))

    def cut(self) -> None:
        """The stream breaks, and both ends notice."""
        if not self.attached:
            return
        self._break()
        self.machine.emit(a.LinkLost(answered=False))
        if self.machine.agent is not None:
            self.open()

    def _break(self) -> None:
        self._stream += 1
        self.attached = False
        self._held.clear()

    def lose(self) -> None:
        """The agent's end is gone, and the coordinator's notices nothing yet."""
        stream = self._stream
        self._world.timeline.after(KEEPALIVE_SECONDS, lambda: self._break() if stream == self._stream else None)

    def refuse(self) -> None:
        """The coordinator's end is gone."""
        if self.attached:
            self._break()
            if self.machine.agent is not None:
                self.machine.emit(a.LinkLost(answered=True))
                self.open()

    def part(self) -> None:
        """Nothing comes through any more."""
        self.parted = True
        stream = self._stream

        def noticed() -> None:
            if self.parted and stream == self._stream:
                self.cut()

        self._world.timeline.after(KEEPALIVE_SECONDS, noticed)

    def heal(self) -> None:
        """It comes through again, and what was held up, too."""
        self.parted = False
        held, self._held = self._held, []
        for come in held:
            come()
