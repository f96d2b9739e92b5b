"""What other nodes have of a worker's part of the state, or of parts that are made into it: told when it attaches.

They are asked before a worker is started.  An agent that finds workers of one before it asks when they attach: they
may be about to begin with what is there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from unicorn_mgr.agent.backups import Backups, Found
from unicorn_mgr.agent.core import part_of
from unicorn_mgr.messages import Attached, FormerSnapshot, StartWorker
from unicorn_mgr.model import StatePart


@dataclass(frozen=True, slots=True)
class _Seen:
    own: Found
    former: tuple[FormerSnapshot, ...]


class Elsewhere:
    """Of all workers of one agent."""

    def __init__(self, backups: Backups) -> None:
        self._backups = backups
        self._seen: dict[str, _Seen] = {}

    async def look(self, order: StartWorker) -> None:
        """Ask whoever may have something, once."""
        if order.worker not in self._seen and (order.holders or order.former):
            own, former = await asyncio.gather(
                self._backups.look(part_of(order), order.holders), self._look_for_former(order)
            )
            self._seen[order.worker] = _Seen(own, former)

    async def _look_for_former(self, order: StartWorker) -> tuple[FormerSnapshot, ...]:
        """What other nodes have of parts that workers of other shapes had."""
        holders = {StatePart(order.welcome.job_id, of.shape, of.position): of.holders for of in order.former}
        found = await self._backups.survey(holders)
        return tuple(
            FormerSnapshot(part.shape, part.position, seen.mark, seen.committed, seen.head_bytes)
            for part, of_part in found.items()
            for seen in of_part.values()
        )

    def tell(self, worker: str, welcome: Attached) -> Attached:
        """Its welcome, with that."""
        seen = self._seen.get(worker)
        if seen is None:
            return welcome
        committed = tuple(mark for mark, of in seen.own.items() if of.committed)
        return replace(welcome, elsewhere=tuple(seen.own), elsewhere_committed=committed, former=seen.former)

    def forget(self, worker: str) -> None:
        """It is no more."""
        self._seen.pop(worker, None)
