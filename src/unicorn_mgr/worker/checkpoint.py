"""Checkpoints to storage, written beside training.

At the head of the loop the writers, the workers of the first replica, copy each its own part
of the state to host memory: that is all the loop waits for.  The copy is left where it
outlives the worker, and another process of the node writes it (`handover`, `porter`); where there
is none, as without an agent, or no room, a thread of this one does.  When the step is
committed, that is, when a collective of a later step has completed, the
coordinator is told that the part is written; when the coordinator has noted all parts as
complete, whoever carries the first of them publishes the manifest.  Writing takes no collective: if a
writer dies before it has handed its part over, its replica goes with it and the next first one
takes the next step at once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from unicorn_mgr.messages import CheckpointComplete, CheckpointFailed, CheckpointWritten, Fact
from unicorn_mgr.model import INITIAL, PORTER_PLACES, Epoch, Lineage, Mark
from unicorn_mgr.worker.attempts import FAILURES, Superseded, one_line
from unicorn_mgr.worker.carrier import Carrier, Waybill
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.handover import STORED, SUPERSEDED, Handover
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.restoring import Restorer
from unicorn_mgr.worker.siblings import Siblings, Single
from unicorn_mgr.worker.snapshot import Draft
from unicorn_mgr.worker.state import Packed, Progress
from unicorn_mgr.worker.storage import Manifest, Storage

FINAL_SECONDS_MAX = 600.0
"""The end of a job waits for its last checkpoint for this long."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Where, how often, how many."""

    url: str
    every_steps: int
    """0: only the last step."""
    keep: int
    job_id: str
    newest: int = -1
    """The newest complete one, as far as was known when this process began."""


@dataclass(eq=False)
class _Copy:
    """A state in host memory, on its way to storage."""

    step: int
    epoch: Epoch
    generation: int
    packed: Packed
    blocked_seconds: float
    handed: bool = False
    """It is where it outlives this worker."""
    overtaken: bool = False
    """A newer lineage has completed a checkpoint: this one will never be published."""
    committed: threading.Event = field(default_factory=threading.Event)
    complete: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def lineage(self) -> Lineage:
        """Under which it is to be published."""
        return Lineage(self.generation, self.epoch)


class Checkpointer:
    """One worker's part: it writes while it is of the first replica."""

    def __init__(
        self,
        settings: CheckpointSettings,
        tell: Callable[[Fact], None],
        drills: Drills,
        alone: bool,
        wake: Callable[[], None] = lambda: None,
        siblings: Siblings | None = None,
        handover: Handover | None = None,
    ) -> None:
        self._handover = handover
        self._refused = ""
        """Why the newest one could not be handed over."""
        self._siblings = siblings or Single()
        self._place = self._siblings.place
        self._settings = settings
        self._tell = tell
        self._drills = drills
        self._alone = alone
        self._wake = wake
        self._storage = Storage(settings.url)
        self._newest_complete = settings.newest
        self._newest_taken = settings.newest
        self._published = INITIAL
        self._shelf: dict[str, torch.Tensor] = {}
        self._fingerprint: dict[str, str] = {}
        self._under_way: _Copy | None = None
        self._wanted = threading.Condition()
        self._thread: threading.Thread | None = None

    def set_fingerprint(self, fingerprint: dict[str, str]) -> None:
        """What this job's model is; stored with every checkpoint."""
        self._fingerprint = fingerprint

    # -- the main thread -----------------------------------------------------------------

    @property
    def is_periodic(self) -> bool:
        """Some are due before the end."""
        return self._settings.every_steps > 0

    def is_due(self, applied: int) -> bool:
        """So many steps have been applied since the newest complete checkpoint that the next is due."""
        every = self._settings.every_steps
        self._forget_later_than(applied)
        newest = max(self._newest_complete, self._newest_taken)
        return every > 0 and applied - newest >= every and self._under_way is None

    def is_stored(self, applied: int) -> bool:
        """The state after this step was copied here, or came from storage."""
        self._forget_later_than(applied)
        return applied <= self._newest_taken

    def is_idle(self) -> bool:
        """Nothing is under way.  `wake` is called when that may have changed."""
        return self._under_way is None

    def is_published(self, applied: int) -> bool:
        """The state after this step is in storage, as far as is known here; the initial one need not be."""
        return applied in (INITIAL, self._published)

    def _forget_later_than(self, applied: int) -> None:
        """One of a later step was of a life that is lost, and could not be read: the steps are done again."""
        if max(self._newest_complete, self._newest_taken) > applied:
            self._newest_complete = min(self._newest_complete, applied)
            self._newest_taken = -1 if self._newest_taken > applied else self._newest_taken

    def take(self, packed: Packed, applied: int, epoch: Epoch, generation: int) -> None:
        """Copy the state and hand it to the writing thread, which must be idle."""
        assert self._under_way is None, "a checkpoint is under way"
        began = time.monotonic()
        left = self._leave(packed, Mark(applied, Lineage(generation, epoch)))
        copied = left if left is not None else self._copy(packed)
        copy = _Copy(applied, epoch, generation, copied, time.monotonic() - began, handed=left is not None)
        self._drills.reach("snapshot", applied)
        self._newest_taken = applied
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="unicorn-checkpoint", daemon=True)
            self._thread.start()
        with self._wanted:
            self._under_way = copy
            self._wanted.notify_all()

    def committed(self, step: int) -> None:
        """A collective of a step after `step` has completed."""
        copy = self._under_way
        if copy is not None and copy.step <= step:
            copy.committed.set()
            if copy.handed and self._handover is not None:
                self._handover.commit()

    def completed(self, word: CheckpointComplete) -> None:
        """The coordinator has noted a checkpoint as complete; heard by every member."""
        self._newest_complete = max(self._newest_complete, word.step)
        copy = self._under_way
        if copy is None:
            return
        if word.lineage.order > copy.lineage.order:
            copy.overtaken = True
        if copy.overtaken or (copy.step == word.step and copy.lineage == word.lineage):
            copy.complete.set()
            copy.committed.set()

    def wait_until_idle(self) -> bool:
        """Until nothing is under way; False if that takes too long."""
        copy = self._under_way
        return copy is None or copy.done.wait(FINAL_SECONDS_MAX)

    def _leave(self, packed: Packed, mark: Mark) -> Packed | None:
        """Into memory that outlives this worker; None, and why, if there is none for it."""
        if self._handover is None:
            return None
        of = {"job": self._settings.job_id, "position": self._place.position, "axes": dict(self._place.axes)}
        left, why = self._handover.take(Draft(mark, of, packed))
        if why and why != self._refused:
            sys.stderr.write(f"unicorn: checkpoints are stored by this worker itself: {why}\n")
        self._refused = why
        return left

    def _copy(self, packed: Packed) -> Packed:
        """Into host memory that is used again and again: fresh pages would cost a third of the time."""
        tensors = []
        for name, t in zip(packed.names, packed.tensors, strict=True):
            place = self._shelf.get(name)
            if place is None or place.shape != t.shape or place.dtype != t.dtype:
                place = self._shelf[name] = torch.empty(t.shape, dtype=t.dtype)
            place.copy_(t)
            tensors.append(place)
        return Packed(packed.skeleton, packed.names, tuple(tensors))

    # -- the writing thread --------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._under_way is not None)
            copy = self._under_way
            assert copy is not None
            try:
                self._bring(copy)
            except Superseded as why:
                self._tell(CheckpointFailed(copy.step, str(why), superseded=True))
            except FAILURES as failed:  # the next checkpoint may go well, and needs this thread
                self._tell(CheckpointFailed(copy.step, one_line(failed)))
            with self._wanted:
                self._under_way = None
            copy.done.set()
            self._wake()

    def _bring(self, copy: _Copy) -> None:
        if copy.handed and self._is_carried(copy):
            return
        carrier = self._carrier(copy)
        began = time.monotonic()
        size = carrier.write(copy.packed)
        copy.committed.wait()
        seconds = time.monotonic() - began
        self._tell(CheckpointWritten(copy.step, copy.lineage, self._storage.url, size, copy.blocked_seconds, seconds))
        if not self._alone:
            copy.complete.wait()
        carrier.publish()
        self._is_stored_now(copy)

    def _carrier(self, copy: _Copy) -> Carrier:
        axes, job_id = dict(self._place.axes), self._settings.job_id
        bare = Manifest(copy.step, copy.lineage, job_id, self._fingerprint, {}, axes)
        bill = Waybill(bare, self._place.position, self._settings.keep)
        return Carrier(self._storage, bill, self._tell, self._drills, lambda: copy.overtaken)

    def _is_carried(self, copy: _Copy) -> bool:
        """Another process brings it; False if that can't."""
        assert self._handover is not None, "handed over by it"
        ended = self._handover.hand(self._order(copy))
        if ended == STORED:
            self._is_stored_now(copy)
        elif ended != SUPERSEDED:  # which has been told
            sys.stderr.write(f"unicorn: the checkpoint of step {copy.step} is stored by this worker itself: {ended}\n")
        return ended in (STORED, SUPERSEDED)

    def _order(self, copy: _Copy) -> dict[str, Any]:
        """All that a porter needs to know; who is not told so can't do it after this worker has died."""
        return {
            "step": copy.step,
            "url": self._storage.absolute,
            "keep": self._settings.keep,
            "fingerprint": self._fingerprint,
            "blocked": copy.blocked_seconds,
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "drills": [asdict(drill) for drill in self._drills.pass_on(PORTER_PLACES, copy.step)],
        }

    def _is_stored_now(self, copy: _Copy) -> None:
        self._newest_complete = max(self._newest_complete, copy.step)
        self._published = copy.step

    # -- restoring -----------------------------------------------------------------------

    def find(self, replica: Replica) -> tuple[Progress | None, int]:
        """When nobody has any state: load the newest usable one; returns it and this job's generation.

        As `Restorer.find`; all workers of the replica call it together.
        """
        restorer = Restorer(self._storage, self._settings.job_id, self._fingerprint, self._siblings)
        found, generation = restorer.find(replica)
        if found is None:
            self._newest_complete = self._newest_taken = -1
        else:
            self._newest_complete = self._newest_taken = self._published = found.applied
        return found, generation
