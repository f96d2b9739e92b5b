"""Snapshots of the state in memory, taken between steps: what a job without any member begins with again.

Every so many steps each worker copies its state into one of two buffers, which the template
process keeps when the worker dies and hands to the next one in its slot.  The loop waits for
the copy alone; a thread takes the checksums that make the snapshot whole.  How often is decided
by what one costs: together they may take a given share of the step time.

The workers of a replica take them after the same steps, and none writes over an older one
before all have the newer: at any moment there is a committed step of which all have a whole one.

Where they are found: `Files.found` is all memory in which snapshots of this job are kept on this
node, whoever took them; what other nodes have of this worker's part its agent has asked them
before it was started, and brings into the worker's own memory once it has been chosen.  Each
worker without state publishes what it can read or have brought; `deal` finds the newest committed
step of which every part is with somebody.  What a replica of another shape has left is
read by those of this one, each what it needs of it, from this node and from others.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from unicorn_mgr.messages import Attached, PieceWanted, SnapshotsStopped
from unicorn_mgr.model import Holdings, Lineage, Mark, axes_of
from unicorn_mgr.phases import Phase
from unicorn_mgr.seal import Snapshot, Torn, find
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.engine import Engine
from unicorn_mgr.worker.errands import Errands
from unicorn_mgr.worker.exchange import Broken
from unicorn_mgr.worker.gathering import Desk, Left, gathered
from unicorn_mgr.worker.loop import Origin
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.siblings import Siblings
from unicorn_mgr.worker.snapshot import Buffer, Draft, load
from unicorn_mgr.worker.state import Packed, Progress, StateError, unpack
from unicorn_mgr.worker.training import Checkpoints

SNAPSHOTS = "UNICORN_SNAPSHOT_FDS"

COPIES = 2
"""One is written while the other is whole."""

Stored = Callable[[Replica], "tuple[Progress | None, int]"]
"""Loads the newest stored state, if there is one, and says this job's generation."""


@dataclass(frozen=True, slots=True)
class Files:
    """Memory that outlives this process."""

    own: tuple[int, ...] = ()
    """To write to; there may be what the one before in this slot has left."""
    found: tuple[int, ...] = ()
    """To read: all that is kept of this job on this node."""

    @staticmethod
    def inherited() -> Files:
        """As the template has left them open."""
        said = inherited()
        return Files(*(tuple(said.get(kind, ())) for kind in ("own", "found")))


def inherited() -> dict[str, Any]:
    """What the template has left open for this process."""
    found: dict[str, Any] = json.loads(os.environ.get(SNAPSHOTS, "{}"))
    return found


class Pace:
    """After how many steps the next one is due."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        """The share of the step time that they may cost."""
        self._cost_seconds = 0.0

    def begin(self) -> None:
        """One is taken: what is paid from here on is for it."""
        self._cost_seconds = 0.0

    def pay(self, seconds: float) -> None:
        """So much longer training takes."""
        self._cost_seconds += seconds

    def interval(self, since: int, step_seconds: float) -> int:
        """Steps from the newest, which is `since` steps old, to the next."""
        if self._cost_seconds == 0:
            return 1
        allowed = self._budget * step_seconds
        return max(1, math.ceil(self._cost_seconds / allowed)) if allowed > 0 else since + 1

    def left(self, since: int, step_seconds: float) -> float:
        """Seconds that may still be spent on one that is `since` steps old, if the next one is to be taken now."""
        return max(0.0, since * self._budget * step_seconds - self._cost_seconds)


class Memory:
    """One worker's snapshots: those it takes, and those it can read."""

    def __init__(
        self, welcome: Attached, files: Files, siblings: Siblings, drills: Drills, errands: Errands | None = None
    ) -> None:
        place = siblings.place
        self._shape: dict[str, Any] = {"position": place.position, "axes": dict(place.axes)}
        self._of: dict[str, Any] = {"job": welcome.job_id, **self._shape}
        self._bytes_max = welcome.snapshot_bytes
        self._piecewise = welcome.reshapes
        self._files = files
        self._siblings = siblings
        self._drills = drills
        self._errands = errands
        self._buffers = [Buffer(file) for file in files.own]
        """The next one is written to the first."""
        self._pace = Pace(welcome.snapshot_budget)
        self._sealing: threading.Thread | None = None
        self._seal_seconds = 0.0
        self._taken = self._due = -1
        self._on, self._begun = True, False
        self._readable: dict[Mark, list[Snapshot]] = {}
        self._left: dict[Mark, Left] = {}
        """What replicas of other shapes have left, where that is all of it."""
        self._refused: set[tuple[int, Mark]] = set()

    def set_fingerprint(self, fingerprint: Mapping[str, str]) -> None:
        """What this job's model is."""
        self._of["model"] = [fingerprint["parameters"], fingerprint["buffers"]]

    # -- taking them ---------------------------------------------------------------------

    def at_head(self, engine: Engine) -> None:
        """A step has been applied: copy the state, if it is time to."""
        step = engine.applied
        if not self._on or step < 0 or self._taken <= step < self._due:
            return
        if step < self._taken:
            self._go_back()
        began = time.monotonic()
        engine.ring.write(Phase.SNAPSHOT)
        if self._is_due(step, engine.watch.step_seconds):
            self._take(engine)
        self._pace.pay(time.monotonic() - began)

    def at_standstill(self, engine: Engine) -> None:
        """All stand still, perhaps to go on in another shape: the last one is of the very step that is applied."""
        step = engine.applied
        if not self._on or step < 0:
            return
        engine.ring.write(Phase.SNAPSHOT)
        self._sealed()
        if step != self._taken:
            if step < self._taken:
                self._go_back()
            self._take(engine)
            self._sealed()
        self.committed(step)

    def committed(self, step: int) -> None:
        """A collective of a step after `step` has completed."""
        for buffer in self._buffers:
            if buffer.mark is not None and buffer.mark.step <= step:
                buffer.commit()
        if self._errands is not None:
            self._errands.committed(step)

    def disown(self, engine: Engine) -> None:
        """This replica's state is not what most have: whoever comes in its place must not begin with it."""
        if self._on:
            self._sealed()
            self._turn_off(engine, "its parameters differ from those of most replicas")

    def _is_due(self, step: int, step_seconds: float) -> bool:
        """All workers of the replica find the same: the slowest of them decides."""
        since = step - self._taken
        sealed = self._sealed(self._pace.left(since, step_seconds))
        (every,) = self._siblings.largest(self._pace.interval(since, step_seconds) if sealed else since + 1)
        self._due = self._taken + every
        return step >= self._due

    def _take(self, engine: Engine) -> None:
        formation = engine.membership.formation
        assert formation is not None, "a step without a membership"
        mark = Mark(engine.applied, Lineage(engine.generation, formation.epoch))
        if not self._begun:
            self._begun = True
            self._keep_inherited()
        draft, why = self._drafted(engine, mark)
        waits, failed = (self._errands.waits, self._errands.failed) if self._errands is not None else (True, False)
        # From here on all have sealed the one before.
        unable, any_waits, any_failed = self._siblings.largest(draft is None, waits, failed)
        if unable or draft is None:
            self._turn_off(engine, why or "another worker of this replica can take none")
            return
        self._taken, self._due = mark.step, mark.step + 1
        self._pace.begin()
        buffer = self._buffers[0]
        buffer.write(draft, lambda: self._drills.reach("memory", mark.step))
        self._buffers.reverse()
        if self._errands is not None and not any_waits:
            self._errands.next(draft.mark, succeeded=not any_failed)
        self._sealing = threading.Thread(
            target=self._seal, args=(buffer, _on_host(draft.packed)), name="unicorn-snapshot", daemon=True
        )
        self._sealing.start()

    def _seal(self, buffer: Buffer, beside_training: bool) -> None:
        """In a thread.  Where training has the same processors, it is slower for as long as this computes."""
        began = time.thread_time()
        buffer.seal()
        used = (time.thread_time() - began) * torch.get_num_threads()
        self._seal_seconds = used if beside_training else 0.0

    def _sealed(self, seconds_max: float | None = None) -> bool:
        """Whether the newest one is whole; waits for it for so long."""
        if self._sealing is not None:
            self._sealing.join(seconds_max)
            if self._sealing.is_alive():
                return False
            self._sealing = None
            self._pace.pay(self._seal_seconds)
        return True

    def _go_back(self) -> None:
        """The job has begun again before the newest: that one never counts, and what there was before may be all."""
        self._taken, self._begun = -1, False
        for buffer in self._buffers:
            buffer.mark = None

    def _keep_inherited(self) -> None:
        """Of what another life has left in this slot, the newest that counts stays until there is a newer one."""
        found = [(self._read(buffer.file), buffer) for buffer in self._buffers]
        here = [(snapshot.mark, buffer) for snapshot, buffer in found if snapshot is not None and snapshot.committed]
        newest = max((mark for mark, _ in here), key=lambda mark: mark.order, default=Mark())
        # Not every worker of the replica has seen the same step committed when it died.
        (oldest,) = self._siblings.largest(-newest.step)
        kept = [b for m, b in here if m.step == -oldest] or [b for m, b in here if m == newest]
        self._buffers.sort(key=lambda buffer: buffer in kept)

    def _drafted(self, engine: Engine, mark: Mark) -> tuple[Draft | None, str]:
        """What is to be written, for which there is room; or why there is none."""
        if not self._buffers:
            return None, "the agent's templates are of an older version; end them to have new ones"
        try:
            draft = Draft(mark, self._of, engine.packed(), self._piecewise)
            needed = COPIES * draft.size_bytes
            if needed > self._bytes_max:
                return None, (
                    f"{COPIES} copies of this state need {needed} bytes, and a slot of this node may have "
                    f"{self._bytes_max}; give its agent more by --snapshot-bytes"
                )
            self._buffers[0].make_room(draft)
        except StateError as wrong:
            return None, str(wrong)
        except OSError as failed:
            return None, f"no {draft.size_bytes} bytes: {failed.strerror}"
        return draft, ""

    def _turn_off(self, engine: Engine, why: str) -> None:
        self._on = False
        sys.stderr.write(f"unicorn: no snapshots in memory from here on: {why}\n")
        engine.membership.tell(SnapshotsStopped(engine.applied, why))
        for buffer in self._buffers:
            buffer.release()

    # -- reading them --------------------------------------------------------------------

    def offer(self, holdings: Holdings) -> Holdings:
        """Holdings of a worker without state, with the snapshots that it can read."""
        self._sealed()
        committed: dict[Mark, None] = {}
        self._readable, left = {}, self._left_elsewhere()
        for file in dict.fromkeys((*self._files.own, *self._files.found)):
            found = self._read(file)
            if found is None or found.of | self._shape != self._of:
                continue
            if found.of == self._of:
                self._readable.setdefault(found.mark, []).append(found)
            elif found.of["axes"] != self._of["axes"]:
                left.setdefault(found.mark, Left(found.of["axes"])).here[found.of["position"]] = found
            else:
                continue  # another worker's of this shape
            committed |= {found.mark: None} if found.committed else {}
        self._left = {mark: of for mark, of in left.items() if of.whole}
        committed |= {mark: None for mark, of in self._left.items() if of.committed}
        elsewhere = self._elsewhere()
        committed |= {mark: None for mark, is_committed in elsewhere.items() if is_committed}
        here = (*self._readable, *(mark for mark, of in self._left.items() if of.all_here))
        return replace(
            holdings,
            snapshots=here,
            committed=tuple(committed),
            elsewhere=tuple(mark for mark in (*elsewhere, *self._left) if mark not in here),
        )

    def has(self, mark: Mark) -> bool:
        """Whether it has been offered."""
        return mark in self._readable or mark in self._left or mark in self._elsewhere()

    def _left_elsewhere(self) -> dict[Mark, Left]:
        """By other shapes, on other nodes."""
        found: dict[Mark, Left] = {}
        for part in self._errands.former if self._errands is not None else ():
            found.setdefault(part.mark, Left(axes_of(part.shape))).away[part.position] = part
        return found

    def _elsewhere(self) -> Mapping[Mark, bool]:
        return self._errands.elsewhere if self._errands is not None else {}

    def _read(self, file: int) -> Snapshot | None:
        """What is in it, if that is of any use."""
        try:
            found = find(file)
        except Torn as why:
            sys.stderr.write(f"unicorn: a snapshot in memory is not used: {why}\n")
            return None
        return found if found is not None and (file, found.mark) not in self._refused else None

    def load(self, replica: Replica, mark: Mark) -> Origin:
        """Put a snapshot that was offered in place.

        Raises `Broken`, and `Overtaken` while it is brought from another node; then what is in place may be torn.
        """
        why, source = "there is none any more", "memory"
        if mark not in self._readable and mark not in self._left:
            self._bring(mark)
            source = "peer"
        for found in (*self._readable.get(mark, ()), *([self._left[mark]] if mark in self._left else [])):
            try:
                if isinstance(found, Left):
                    source = "memory" if found.all_here else "peer"
                    tree = gathered(found, self._of, self._desk(mark), self._siblings.place, replica.state)
                else:
                    tree = unpack(load(found, replica.state.homes()))
                progress = replica.state.adopt_tree(tree)
            except (Torn, StateError) as damaged:
                why = str(damaged)
                sys.stderr.write(f"unicorn: the snapshot of step {mark.step} in memory is not used: {why}\n")
                self._refuse(mark, found)
            else:
                return Origin(progress, progress.generation, source)
        raise Broken(f"the snapshot of step {mark.step} in memory: {why}")

    def _refuse(self, mark: Mark, found: Snapshot | Left) -> None:
        """It is not offered again."""
        parts = found.here.values() if isinstance(found, Left) else [found]
        self._refused |= {(part.file, mark) for part in parts}
        if isinstance(found, Left) and self._errands is not None:
            self._errands.former = tuple(part for part in self._errands.former if part.mark != mark)

    def _spare(self, mark: Mark) -> Buffer:
        """The one to write over: what it has is not of this mark, and of an older one than what the other has."""
        here = [(found.mark if (found := self._read(b.file)) is not None else Mark(), b) for b in self._buffers]
        _, buffer = min(here, key=lambda of: (of[0] == mark, of[0].order))
        buffer.mark = None
        return buffer

    def _desk(self, mark: Mark) -> Desk | None:
        """Where pieces of a snapshot on other nodes are brought to."""
        errands = self._errands
        if errands is None or not self._buffers:
            return None
        buffer = self._spare(mark)
        at = self._files.own.index(buffer.file)

        def bring(pieces: Sequence[PieceWanted], to: int) -> None:
            if any(piece.fingerprint for piece in pieces):
                self._drills.reach("pieces", mark.step)
            errands.bring_pieces(mark, at, pieces, to)

        return Desk(buffer.file, self._bytes_max, bring)

    def _bring(self, mark: Mark) -> None:
        """From another node into memory of this worker."""
        assert self._errands is not None, "it was offered by nobody else"
        buffer = self._spare(mark)
        self._errands.bring(mark, self._files.own.index(buffer.file))
        self._errands.elsewhere.pop(mark, None)  # if it is of no use here, it will be of none when it is brought again
        self._refused.discard((buffer.file, mark))
        found = self._read(buffer.file)
        if found is None or found.mark != mark or found.of != self._of:
            raise Broken(f"the snapshot of step {mark.step} from another node is torn, or of something else")
        self._readable[mark] = [found]


class Nearest:
    """What a job without any state begins with: from memory, or from storage."""

    def __init__(self, memory: Memory | None, stored: Stored, newest: Mark, siblings: Siblings) -> None:
        self._memory = memory
        self._stored = stored
        self._newest = newest
        """In storage, as far as was known when this process began."""
        self._siblings = siblings

    def offer(self, holdings: Holdings) -> Holdings:
        """With what can be read here."""
        held = replace(holdings, stored=self._newest)
        return self._memory.offer(held) if self._memory is not None else held

    def restore(self, replica: Replica, mark: Mark | None, from_storage: bool) -> Origin:
        """The snapshot that was dealt; or what is stored, unless that can't be read and memory has a newer one."""
        memory = self._memory
        if mark is not None and memory is not None and not from_storage:
            return memory.load(replica, mark)
        progress, generation = self._stored(replica)
        if mark is not None and (progress is None or progress.applied < mark.step):
            (lacking,) = self._siblings.largest(memory is None or not memory.has(mark))
            if memory is not None and not lacking:
                return memory.load(replica, mark)
        return Origin(progress, generation)


class WithMemory:
    """Checkpoints, and snapshots in memory beside."""

    def __init__(self, memory: Memory, checkpoints: Checkpoints) -> None:
        self._memory = memory
        self._checkpoints = checkpoints
        self.at_end = checkpoints.at_end
        self.rescue = checkpoints.rescue

    def at_head(self, engine: Engine) -> None:
        """Each as often as it is due."""
        self._memory.at_head(engine)
        self._checkpoints.at_head(engine)

    def at_standstill(self, engine: Engine) -> None:
        """First where it is quickest."""
        self._memory.at_standstill(engine)
        self._checkpoints.at_standstill(engine)


def _on_host(packed: Packed) -> bool:
    return all(tensor.device.type == "cpu" for tensor in packed.tensors)
