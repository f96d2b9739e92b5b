"""Checkpoints to storage, written beside training.

At the head of the loop the writers, the workers of the first replica, copy each its own part
of the state to host memory: that is all the loop waits for.  A thread writes the copy.  When
the step is committed, that is, when a collective of a later step has completed, the
coordinator is told that the part is written; when the coordinator has noted all parts as
complete, the first of the writers publishes the manifest.  Writing takes no collective: if a
writer dies, its replica goes with it and the next first one takes the next step at once.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from unicorn_mgr.messages import (
    CheckpointComplete,
    CheckpointFailed,
    CheckpointPublished,
    CheckpointWritten,
    Fact,
)
from unicorn_mgr.model import INITIAL, Epoch, Lineage
from unicorn_mgr.worker.attempts import FAILURES, Superseded, attempts, one_line
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.folder import write_folder
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.restoring import Restorer
from unicorn_mgr.worker.siblings import Siblings, Single
from unicorn_mgr.worker.state import Packed, Progress
from unicorn_mgr.worker.storage import Manifest, Storage, part_name

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
    ) -> None:
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
        copied = self._copy(packed)
        copy = _Copy(applied, epoch, generation, copied, time.monotonic() - began)
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
        bare = Manifest(copy.step, copy.lineage, self._settings.job_id, self._fingerprint, {}, dict(self._place.axes))
        began = time.monotonic()

        def failed(why: str) -> None:
            sys.stderr.write(f"unicorn: checkpoint of step {copy.step} in {self._storage.url}: {why}; trying again\n")
            self._tell(CheckpointFailed(copy.step, why))

        for attempt in attempts(failed):
            with attempt:
                manifest = self._write(copy.packed, bare)
        size = sum(int(f["bytes"]) for f in manifest.files.values())
        self._drills.reach("checkpoint", copy.step)
        copy.committed.wait()
        seconds = time.monotonic() - began
        self._tell(CheckpointWritten(copy.step, copy.lineage, self._storage.url, size, copy.blocked_seconds, seconds))
        if not self._alone:
            copy.complete.wait()
        if copy.overtaken:
            self._discard(manifest)
            raise Superseded(f"lineage {copy.lineage} is not the newest any more")
        if self._place.position == 0:
            self._drills.reach("publish_checkpoint", copy.step)
            for attempt in attempts(failed):
                with attempt:
                    self._publish(manifest)
            self._prune(manifest)
        self._newest_complete = max(self._newest_complete, copy.step)
        self._published = copy.step
        if self._place.position == 0:
            self._tell(CheckpointPublished(copy.step, self._storage.url))

    def _folder(self, manifest: Manifest) -> str:
        """Where this worker's files go."""
        return f"{manifest.name}/{part_name(self._place.position)}" if manifest.axes else manifest.name

    def _write(self, packed: Packed, manifest: Manifest) -> Manifest:
        """Returns the manifest with what this worker has written."""
        name = self._folder(manifest)
        try:
            with self._storage.staging(name) as folder:
                write_folder(folder, packed)
                manifest = replace(manifest, files=self._storage.upload(name, folder))
            if manifest.axes:
                self._storage.publish_part(manifest, self._place.position)
        except FAILURES:
            self._discard(manifest)
            raise
        return manifest

    def _discard(self, manifest: Manifest) -> None:
        """If it can't be: without a manifest it is no checkpoint, and a later one removes it."""
        with contextlib.suppress(*FAILURES):
            self._storage.discard(self._folder(manifest))

    def _publish(self, manifest: Manifest) -> None:
        for _, other in self._storage.manifests():
            if isinstance(other, Manifest) and other.lineage.order > manifest.lineage.order:
                self._discard(manifest)
                raise Superseded(f"lineage {manifest.lineage} is older than {other.lineage} in {self._storage.url}")
        self._storage.publish(self._storage.merged(manifest) if manifest.axes else manifest)

    def _prune(self, manifest: Manifest) -> None:
        """Old checkpoints go.  One that can't be removed is no reason to hold up a new one."""
        try:
            self._storage.prune(self._settings.keep, manifest.lineage)
        except FAILURES as failed:
            sys.stderr.write(f"unicorn: {self._storage.url}: old checkpoints stay: {one_line(failed)}\n")

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
