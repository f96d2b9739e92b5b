"""The newest usable checkpoint becomes the state of a job in which nobody has any.

The workers of a replica load the same checkpoint, each its own part; from one that was written by replicas of
another shape, each puts its part together.  The first of them proposes one after the other, newest first, and
they take the first of which every one could load its part.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NoReturn, TypeVar

import torch
from tenacity import stop_after_delay

from unicorn_mgr.messages import Mistake
from unicorn_mgr.worker.attempts import attempts, one_line
from unicorn_mgr.worker.folder import INDEX, Extent, load_folder, load_tensor, read_index
from unicorn_mgr.worker.mistake import MistakeError
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.reshaping import Wanted, reshaped
from unicorn_mgr.worker.siblings import Siblings
from unicorn_mgr.worker.state import Progress, ReplicaState, StateError, Tree, unpack
from unicorn_mgr.worker.storage import Manifest, Storage, StorageError, part_name

RESTORE_SECONDS_MAX = 120.0
"""Storage that can't be read for this long ends the job: to begin anew would give up what is stored."""

RUN_BYTES_MAX = 64 << 20
"""So much of a file is read at once, or a whole tensor if that is larger."""

T = TypeVar("T")

_NONE_LEFT = (-1, -1, -1, -1)
"""No checkpoint has this order."""


class Restorer:
    """One worker's part in finding what is stored."""

    def __init__(self, storage: Storage, job_id: str, fingerprint: Mapping[str, str], siblings: Siblings) -> None:
        self._storage = storage
        self._job_id = job_id
        self._fingerprint = fingerprint
        self._siblings = siblings

    def find(self, replica: Replica) -> tuple[Progress | None, int]:
        """Load the newest usable checkpoint into the replica; returns it and this job's generation.

        One of which a part is torn or damaged is skipped with a warning for the next older.  Raises
        `MistakeError` for one of another job, and if storage can't be read.
        """
        generation, found, same_job = 0, None, True
        for manifest in self._proposed():
            tree = None
            if manifest is not None:
                same_job = manifest.job_id == self._job_id
                generation = max(generation, manifest.lineage.generation + (0 if same_job else 1))
                self._check(manifest)
                tree = self._load(manifest, replica.state)
            (lacking,) = self._siblings.largest(tree is None)
            if not lacking:
                assert manifest is not None
                found = self._adopt(manifest, tree, replica)
                break
        (generation,) = self._siblings.largest(generation)
        if found is None:
            return None, generation
        # That an earlier job was told to stop is no word to this one.
        return Progress(found.applied, found.ends_after if same_job else -1, generation), generation

    def _proposed(self) -> Iterator[Manifest | None]:
        """What the first of the replica finds in storage, newest first; None for what is not there from here."""
        listed = self._reading(lambda: list(self._storage.manifests()))
        here = {m.order: m for _, m in listed if isinstance(m, Manifest)}
        mine = iter(listed if self._siblings.place.position == 0 else ())
        while True:
            order = _NONE_LEFT
            for name, manifest in mine:
                if isinstance(manifest, Manifest):
                    order = manifest.order
                    break
                self._skip(name, manifest)
            proposed = self._siblings.largest(*order)
            if proposed == _NONE_LEFT:
                return
            yield here.get((proposed[0], proposed[1], proposed[2], proposed[3]))

    def _check(self, manifest: Manifest) -> None:
        for what in ("parameters", "buffers"):
            there, here = manifest.fingerprint.get(what), self._fingerprint.get(what)
            if there != here:
                self._refuse(f"{manifest.name} is of another model ({what} {there}, here {here})")

    def _refuse(self, why: str) -> NoReturn:
        raise MistakeError(Mistake("checkpoint", self._storage.url, f"{why}; choose another --checkpoint"))

    def _load(self, manifest: Manifest, state: ReplicaState) -> Tree | None:
        """What this worker needs of it; None if it is damaged, which is said."""
        alike = list(manifest.axes.items()) == list(self._siblings.place.axes.items())

        def load() -> Tree | StorageError | StateError:
            try:
                return self._load_own(manifest) if alike else self._load_reshaped(manifest, state)
            except (StorageError, StateError) as wrong:  # it stays so: no reason to read again
                return wrong

        found = self._reading(load)
        if isinstance(found, StateError):
            self._refuse_other(manifest, found)
        if isinstance(found, StorageError):
            self._skip(f"{manifest.name}.json", found)
            return None
        return found

    def _load_own(self, manifest: Manifest) -> Tree:
        part = _part(manifest, self._siblings.place.position)
        with _named(part), self._storage.checked(manifest, part) as folder:
            return unpack(load_folder(folder))

    def _load_reshaped(self, manifest: Manifest, state: ReplicaState) -> Tree:
        parts = [_part(manifest, position) for position in range(math.prod(manifest.axes.values()))]
        indexes = []
        for part in parts:
            with _named(part):
                indexes.append(read_index(self._storage.read(manifest, part, INDEX)))

        def read(wanted: Wanted) -> Iterator[tuple[int, str, None, torch.Tensor]]:
            for position, names in wanted.items():
                with _named(parts[position]):
                    for run in _runs([e for e in indexes[position].extents if e.name in names]):
                        first = run[0].offset
                        data = self._storage.read_range(manifest, parts[position], run[0].file, first, run[-1].end)
                        for extent in run:
                            tensor = load_tensor(data[extent.offset - first : extent.end - first], extent)
                            yield position, extent.name, None, tensor

        return reshaped([index.packed for index in indexes], manifest.axes, read, self._siblings.place, state)

    def _adopt(self, manifest: Manifest, tree: Tree, replica: Replica) -> Progress:
        try:
            return replica.state.adopt_tree(tree)
        except StateError as wrong:
            self._refuse_other(manifest, wrong)

    def _refuse_other(self, manifest: Manifest, wrong: StateError) -> NoReturn:
        self._refuse(f"{manifest.name} is of another job ({wrong})")

    def _reading(self, read: Callable[[], T]) -> T:
        """Read from storage, which may fail for a while."""

        def failed(why: str) -> None:
            sys.stderr.write(f"unicorn: {self._storage.url} can't be read: {why}; trying again\n")

        try:
            for attempt in attempts(failed, stop_after_delay(RESTORE_SECONDS_MAX)):
                with attempt:
                    return read()
        except Exception as last:  # fsspec's file systems raise what they like: the user gets one line of it
            fix = f"it can't be read: {one_line(last)}; mend it, or choose another --checkpoint"
            raise MistakeError(Mistake("checkpoint", self._storage.url, fix)) from last
        raise AssertionError("attempts end with a value or an exception")

    def _skip(self, name: str, why: object) -> None:
        sys.stderr.write(f"unicorn: {self._storage.url}: checkpoint {name} is skipped: {why}\n")


@contextlib.contextmanager
def _named(part: str) -> Iterator[None]:
    """Whatever is wrong is wrong with this part."""
    try:
        yield
    except StorageError as damaged:
        raise StorageError(f"{part}: {damaged}" if part else str(damaged)) from damaged


def _runs(extents: Iterable[Extent]) -> list[list[Extent]]:
    """What lies one behind the other is read at once."""
    runs: list[list[Extent]] = []
    for extent in sorted(extents, key=lambda e: (e.file, e.offset)):
        last = runs[-1] if runs else []
        follows = last and (last[-1].file, last[-1].end) == (extent.file, extent.offset)
        if follows and extent.end - last[0].offset <= RUN_BYTES_MAX:
            last.append(extent)
        else:
            runs.append([extent])
    return runs


def _part(manifest: Manifest, position: int) -> str:
    """The folder in it with what the worker at this position has written."""
    return part_name(position) if manifest.axes else ""
