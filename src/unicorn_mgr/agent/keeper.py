"""Copies of snapshots outlive the agent that has received them.

A template process has them open, too, as it has the memory of its workers' own: of all templates the one that has
imported nothing, since a node that keeps copies may have no worker.  It gets a copy when that is whole, before the
sender hears that it is kept, and hands it to the next agent of its node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Mapping

import structlog

from unicorn_mgr.agent.copies import Copies
from unicorn_mgr.agent.templates import TemplateError, TemplatePool

KEEP_SECONDS = 5.0
"""A template that has not taken a copy by then stands still; the copy is of use nevertheless."""

log = structlog.get_logger()


class Keeper:
    """Between the threads that receive copies, and the event loop that talks to templates."""

    def __init__(self, copies: Copies, templates: TemplatePool, environment: Mapping[str, str]) -> None:
        self._copies = copies
        self._templates = templates
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def adopt(self) -> None:
        """Take what an agent before this one has left."""
        for name, file in self._templates.take_kept():
            if not self._copies.adopt(name, file):
                self._templates.drop(name)

    def keep_again(self) -> None:
        """A template has died, perhaps the one that had them."""
        for name, file in self._copies.whole().items():
            if self._templates.keeps(name):
                os.close(file)
            else:
                self._begin(name, file, threading.Event())

    def close(self) -> None:
        """What is under way is not waited for."""
        for task in self._tasks:
            task.cancel()

    # -- in any thread -------------------------------------------------------------------

    def keep(self, name: str, file: int) -> None:
        """Have a copy kept: when this returns it is in safe hands, if it can be."""
        done = threading.Event()
        try:
            self._loop.call_soon_threadsafe(self._begin, name, file, done)
        except RuntimeError:  # the agent is about to end
            os.close(file)
        else:
            done.wait(KEEP_SECONDS)

    def drop(self, name: str) -> None:
        """Nobody needs it any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._templates.drop, name)

    # -- in the event loop ---------------------------------------------------------------

    def _begin(self, name: str, file: int, done: threading.Event) -> None:
        task = self._loop.create_task(self._keep(name, file, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, name: str, file: int, done: threading.Event) -> None:
        try:
            await self._templates.keep(name, file, self._environment)
            if not self._copies.has(name):  # it has been dropped meanwhile
                self._templates.drop(name)
        except TemplateError as failed:
            log.warning("a copy of a snapshot will go with this agent", why=str(failed))
        finally:
            os.close(file)
            done.set()
