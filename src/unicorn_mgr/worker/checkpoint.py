"""Checkpoints to storage, written beside training.

At the head of the loop the writer, the first member, copies its state to host memory: that
is all the loop waits for.  A thread writes the copy.  When the step is committed, that is,
when a collective of a later step has completed, the coordinator is told that it is written;
when the coordinator has noted it as complete, the manifest is published.  No collective is
done: if the writer dies the next first member takes the next step at once.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    stop_never,
    wait_exponential,
)
from tenacity.stop import stop_base
from torch.distributed.checkpoint import (  # type: ignore[attr-defined]
    CheckpointException,
    FileSystemWriter,
)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import save

from unicorn_mgr.messages import (
    CheckpointComplete,
    CheckpointFailed,
    CheckpointPublished,
    CheckpointWritten,
    Fact,
    Mistake,
)
from unicorn_mgr.model import INITIAL, Epoch, Lineage
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.mistake import MistakeError
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.state import Packed, Progress, StateError
from unicorn_mgr.worker.storage import Manifest, Storage, StorageError, plain_name

RETRY_SECONDS = 0.5
RETRY_SECONDS_MAX = 60.0
RESTORE_SECONDS_MAX = 120.0
"""Storage that can't be read for this long ends the job: to begin anew would give up what is stored."""

FINAL_SECONDS_MAX = 600.0
"""The end of a job waits for its last checkpoint for this long."""

# It says so at every save and load, and that is what is wanted here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")

_FAILURES = (Exception, CheckpointException)
"""Every file system raises what it likes, and torch something that is not even an `Exception`."""

_jitter = random.SystemRandom()
"""Not the module's generator, which is the script's."""

T = TypeVar("T")

_INDEX = "unicorn.json"
"""The file that holds everything that is not a tensor, and where the tensors are."""


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


class Checkpointer:
    """One worker's part: it writes while it is the first member."""

    def __init__(
        self,
        settings: CheckpointSettings,
        tell: Callable[[Fact], None],
        drills: Drills,
        alone: bool,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
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
        lineage = Lineage(copy.generation, copy.epoch)
        if word.lineage.order > lineage.order:
            copy.overtaken = True
        if copy.overtaken or (copy.step == word.step and lineage == word.lineage):
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
            except _FAILURES as failed:  # the next checkpoint may go well, and needs this thread
                self._tell(CheckpointFailed(copy.step, _one_line(failed)))
            with self._wanted:
                self._under_way = None
            copy.done.set()
            self._wake()

    def _bring(self, copy: _Copy) -> None:
        lineage = Lineage(copy.generation, copy.epoch)
        manifest = Manifest(copy.step, lineage, self._settings.job_id, self._fingerprint, {})
        began = time.monotonic()

        def failed(why: str) -> None:
            sys.stderr.write(f"unicorn: checkpoint of step {copy.step} in {self._storage.url}: {why}; trying again\n")
            self._tell(CheckpointFailed(copy.step, why))

        for attempt in _attempts(failed):
            with attempt:
                files = self._write(copy, manifest.name)
        manifest = Manifest(copy.step, lineage, self._settings.job_id, self._fingerprint, files)
        size = sum(int(f["bytes"]) for f in files.values())
        self._drills.reach("checkpoint", copy.step)
        copy.committed.wait()
        seconds = time.monotonic() - began
        self._tell(CheckpointWritten(copy.step, lineage, self._storage.url, size, copy.blocked_seconds, seconds))
        if not self._alone:
            copy.complete.wait()
        if copy.overtaken:
            self._discard(manifest.name)
            raise Superseded(f"lineage {lineage} is not the newest any more")
        self._drills.reach("publish_checkpoint", copy.step)
        for attempt in _attempts(failed):
            with attempt:
                self._publish(manifest)
        self._prune(manifest)
        self._newest_complete = max(self._newest_complete, copy.step)
        self._published = copy.step
        self._tell(CheckpointPublished(copy.step, self._storage.url))

    def _write(self, copy: _Copy, name: str) -> dict[str, dict[str, Any]]:
        packed = copy.packed
        tensors = dict(zip(packed.names, packed.tensors, strict=True))
        assert len(tensors) == len(packed.names), "two parts of the state have one name"
        try:
            with self._storage.staging(name) as folder:
                writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
                written = save(tensors, storage_writer=writer, no_dist=True)
                _write_index(folder, packed, written)
                return self._storage.upload(name, folder)
        except _FAILURES:
            self._discard(name)
            raise

    def _discard(self, name: str) -> None:
        """If it can't be: without a manifest it is no checkpoint, and a later one removes it."""
        with contextlib.suppress(*_FAILURES):
            self._storage.discard(name)

    def _publish(self, manifest: Manifest) -> None:
        for _, other in self._storage.manifests():
            if isinstance(other, Manifest) and other.lineage.order > manifest.lineage.order:
                self._discard(manifest.name)
                raise Superseded(f"lineage {manifest.lineage} is older than {other.lineage} in {self._storage.url}")
        self._storage.publish(manifest)

    def _prune(self, manifest: Manifest) -> None:
        """Old checkpoints go.  One that can't be removed is no reason to hold up a new one."""
        try:
            self._storage.prune(self._settings.keep, manifest.lineage)
        except _FAILURES as failed:
            sys.stderr.write(f"unicorn: {self._storage.url}: old checkpoints stay: {_one_line(failed)}\n")

    # -- restoring -----------------------------------------------------------------------

    def find(self, replica: Replica) -> tuple[Progress | None, int]:
        """Load the newest usable checkpoint into the replica; returns it and this job's generation.

        A torn or damaged one is skipped with a warning for the next older.  Raises
        `MistakeError` for one of another job, and if storage can't be read.
        """
        generation = 0
        for name, manifest in self._reading(lambda: list(self._storage.manifests())):
            if isinstance(manifest, Manifest):
                same_job = manifest.job_id == self._settings.job_id
                generation = max(generation, manifest.lineage.generation + (0 if same_job else 1))
                self._check_model(manifest)
                packed = self._reading(lambda m=manifest: self._load(m))  # type: ignore[misc]
                if isinstance(packed, StorageError):
                    _skip(self._storage.url, name, packed)
                    continue
                try:
                    found = replica.state.adopt(packed)
                except StateError as wrong:
                    fix = f"{manifest.name} is of another job ({wrong}); choose another --checkpoint"
                    raise MistakeError(Mistake("checkpoint", self._storage.url, fix)) from None
                self._newest_complete = self._newest_taken = self._published = found.applied
                # That an earlier job was told to stop is no word to this one.
                ends_after = found.ends_after if same_job else -1
                return Progress(found.applied, ends_after, generation), generation
            _skip(self._storage.url, name, manifest)
        self._newest_complete = self._newest_taken = -1
        return None, generation

    def _check_model(self, manifest: Manifest) -> None:
        for part in ("parameters", "buffers"):
            theirs, mine = manifest.fingerprint.get(part), self._fingerprint.get(part)
            if theirs != mine:
                fix = f"{manifest.name} is of another model ({part} {theirs}, here {mine}); choose another --checkpoint"
                raise MistakeError(Mistake("checkpoint", self._storage.url, fix))

    def _load(self, manifest: Manifest) -> Packed | StorageError:
        try:
            with self._storage.checked(manifest) as folder:
                return _load_intact(folder)
        except StorageError as damaged:
            return damaged

    def _reading(self, read: Callable[[], T]) -> T:
        """Read from storage, which may fail for a while."""

        def failed(why: str) -> None:
            sys.stderr.write(f"unicorn: {self._storage.url} can't be read: {why}; trying again\n")

        try:
            for attempt in _attempts(failed, stop_after_delay(RESTORE_SECONDS_MAX)):
                with attempt:
                    return read()
        except Exception as last:  # fsspec's file systems raise what they like: the user gets one line of it
            fix = f"it can't be read: {_one_line(last)}; mend it, or choose another --checkpoint"
            raise MistakeError(Mistake("checkpoint", self._storage.url, fix)) from last
        raise AssertionError("attempts end with a value or an exception")


class Superseded(Exception):
    """Another lineage has taken the place over."""


def _load_intact(folder: Path) -> Packed:
    """The files are as they were written: what goes wrong now goes wrong every time."""
    try:
        return load_folder(folder)
    except (RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as wrong:
        raise StorageError(f"it can't be loaded: {_one_line(wrong)}") from wrong


def _write_index(folder: Path, packed: Packed, written: Metadata) -> None:
    """Where each tensor lies in torch's files, so that nobody has to unpickle torch's own index."""
    places = {at.fqn: [said.relative_path, said.offset, said.length] for at, said in written.storage_data.items()}
    index = {"skeleton": packed.skeleton, "tensors": [[name, *places[name]] for name in packed.names]}
    with (folder / _INDEX).open("w") as file:
        json.dump(index, file)
        file.flush()
        os.fsync(file.fileno())


def load_folder(folder: Path) -> Packed:
    """A state from a checkpoint's files, of which nothing is unpickled but plain tensors."""
    if not (folder / _INDEX).exists():
        raise StorageError("it was not written by unicorn")
    index = json.loads((folder / _INDEX).read_text())
    names, tensors = [], []
    for name, file, offset, length in index["tensors"]:
        with (folder / plain_name(file)).open("rb") as data:
            data.seek(offset)
            part = io.BytesIO(data.read(length))
        names.append(name)
        tensors.append(torch.load(part, map_location="cpu", weights_only=True))
    if not all(isinstance(t, torch.Tensor) for t in tensors):
        raise StorageError("it holds something that is not a tensor")
    return Packed(index["skeleton"], tuple(names), tuple(tensors))


def _attempts(
    failed: Callable[[str], None], stop: stop_base = stop_never
) -> Iterator[contextlib.AbstractContextManager[object]]:
    """Attempts with growing pauses, while storage fails or is full."""
    backoff = wait_exponential(RETRY_SECONDS, RETRY_SECONDS_MAX)

    def tell(state: RetryCallState) -> None:
        failed(_one_line(state.outcome.exception() if state.outcome is not None else None))

    yield from Retrying(
        retry=retry_if_exception(lambda e: isinstance(e, _FAILURES) and not isinstance(e, Superseded)),
        wait=lambda state: backoff(state) + _jitter.uniform(0, RETRY_SECONDS),
        stop=stop,
        before_sleep=tell,
        reraise=True,
    )


def _one_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return (lines[-1].strip() if lines else type(error).__name__)[:500]


def _skip(url: str, name: str, why: object) -> None:
    sys.stderr.write(f"unicorn: {url}: checkpoint {name} is skipped: {why}\n")
