"""One part of a checkpoint on its way to storage: written, waited for, published.

The same for both who do it: a thread of the worker, and the process that it leaves its part to.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from unicorn_mgr.messages import CheckpointFailed, CheckpointPublished, Fact
from unicorn_mgr.worker.attempts import FAILURES, Superseded, attempts, one_line
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.folder import write_folder
from unicorn_mgr.worker.state import Packed
from unicorn_mgr.worker.storage import Manifest, Storage, part_name


@dataclass(frozen=True, slots=True)
class Waybill:
    """What is brought, and where to."""

    bare: Manifest
    """Of the checkpoint, without files."""
    position: int
    """Of the worker whose part it is, in its replica."""
    keep: int
    """So many checkpoints stay."""


class Carrier:
    """Brings one part.  What fails is tried again for ever, unless `overtaken()`."""

    def __init__(
        self,
        storage: Storage,
        bill: Waybill,
        tell: Callable[[Fact], None],
        drills: Drills,
        overtaken: Callable[[], bool],
    ) -> None:
        self._storage = storage
        self._bill = bill
        self._tell = tell
        self._drills = drills
        self._overtaken = overtaken
        self._manifest = bill.bare

    def write(self, packed: Packed) -> int:
        """All of it is in storage when this returns; bytes.  Raises `Superseded`."""
        for attempt in attempts(self._failed):
            with attempt:
                self._check()
                self._manifest = self._write(packed)
        self._drills.reach("checkpoint", self._bill.bare.step)
        return sum(int(f["bytes"]) for f in self._manifest.files.values())

    def publish(self) -> None:
        """All parts are there, as the coordinator has noted: the first of them makes it a checkpoint.

        Raises `Superseded`.
        """
        if self._overtaken():
            self.discard()
        self._check()
        if self._bill.position != 0:
            return
        self._drills.reach("publish_checkpoint", self._bill.bare.step)
        for attempt in attempts(self._failed):
            with attempt:
                self._publish()
        self._prune()
        self._tell(CheckpointPublished(self._bill.bare.step, self._storage.url))

    def discard(self) -> None:
        """If it can't be: without a manifest it is no checkpoint, and a later one removes it."""
        with contextlib.suppress(*FAILURES):
            self._storage.discard(self._folder)

    def _check(self) -> None:
        if self._overtaken():
            raise Superseded(f"lineage {self._bill.bare.lineage} is not the newest any more")

    def _failed(self, why: str) -> None:
        step = self._bill.bare.step
        sys.stderr.write(f"unicorn: checkpoint of step {step} in {self._storage.url}: {why}; trying again\n")
        self._tell(CheckpointFailed(step, why))

    @property
    def _folder(self) -> str:
        bare = self._bill.bare
        return f"{bare.name}/{part_name(self._bill.position)}" if bare.axes else bare.name

    def _write(self, packed: Packed) -> Manifest:
        manifest = self._bill.bare
        try:
            with self._storage.staging(self._folder) as folder:
                write_folder(folder, packed)
                manifest = replace(manifest, files=self._storage.upload(self._folder, folder))
            if manifest.axes:
                self._storage.publish_part(manifest, self._bill.position)
        except FAILURES:
            self.discard()
            raise
        return manifest

    def _publish(self) -> None:
        manifest, storage = self._manifest, self._storage
        for _, other in storage.manifests():
            if isinstance(other, Manifest) and other.lineage.order > manifest.lineage.order:
                self.discard()
                raise Superseded(f"lineage {manifest.lineage} is older than {other.lineage} in {storage.url}")
        storage.publish(storage.merged(manifest) if manifest.axes else manifest)

    def _prune(self) -> None:
        """Old checkpoints go.  One that can't be removed is no reason to hold up a new one."""
        try:
            self._storage.prune(self._bill.keep, self._manifest.lineage)
        except FAILURES as failed:
            sys.stderr.write(f"unicorn: {self._storage.url}: old checkpoints stay: {one_line(failed)}\n")
