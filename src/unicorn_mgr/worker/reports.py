"""What the loop tells the coordinator of itself: symptoms, how it resumed, replicas that differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from unicorn_mgr.messages import ChecksumsDiffer, Resumed, Symptom
from unicorn_mgr.model import INITIAL, Epoch, WorkerName
from unicorn_mgr.worker.membership import Formation, Membership
from unicorn_mgr.worker.stopwatch import Stopwatch


class Reports:
    """One worker's news, each told once."""

    def __init__(self, membership: Membership, held_bytes: Callable[[], int]) -> None:
        self.source = "own"
        """Where the state in use has come from since the last report: own, initial, live, memory, peer, or storage."""
        self.restored_step = INITIAL
        self.state_bytes = 0
        self._membership = membership
        self._held_bytes = held_bytes
        self._unreported: Formation | None = None
        self._voided = ""
        self._symptom_told = Epoch()

    def formed(self, formation: Formation, voided: tuple[str, ...]) -> None:
        """A membership is there that the coordinator waits to hear a finished step from."""
        self._unreported = formation
        self._voided = voided[0] if voided else ""

    def restored(self, source: str, step: int, size_bytes: int) -> None:
        """A state that nobody had any more has been loaded."""
        self.source, self.restored_step, self.state_bytes = source, step, size_bytes

    def symptom(self, error: str) -> None:
        """A collective or a transfer has failed; once per epoch."""
        formation = self._membership.formation
        if formation is not None and formation.epoch != self._symptom_told:
            self._symptom_told = formation.epoch
            self._membership.tell(Symptom(formation.epoch, error))

    def resumed(self, step: int, recomputed: list[int], watch: Stopwatch, exact: bool) -> None:
        """The first step, or the end, has been reached in a new membership."""
        formation, self._unreported = self._unreported, None
        if formation is None:
            return
        self._membership.tell(
            Resumed(
                epoch=formation.epoch,
                step=step,
                source=self.source,
                restored_step=self.restored_step,
                recomputed=tuple(recomputed),
                fence_seconds=self._membership.fence_seconds,
                regroup_seconds=self._membership.regroup_seconds,
                restore_seconds=watch.restore_seconds,
                recompute_seconds=watch.recompute_seconds,
                added_seconds=watch.added_seconds,
                state_bytes=self.state_bytes,
                voided=self._voided,
                exact=exact,
                held_bytes=self._held_bytes(),
            )
        )
        self.source, self.state_bytes = "own", 0

    def checksums(self, step: int, odd: Collection[int], replica: int = 1) -> None:
        """Parameters differ between replicas, of so many workers: name the minority, if there is a majority."""
        formation = self._membership.formation
        if formation is None or formation.rank != 0:
            return
        minority = tuple(m for m in formation.members if WorkerName.parse(m).seat // replica in odd)
        self._membership.tell(ChecksumsDiffer(formation.epoch, step, minority))


def odd_among(checksums: Mapping[int, int]) -> set[int]:
    """Replicas whose checksum is not that of most; none if no checksum is."""
    sums = list(checksums.values())
    common = max(set(sums), key=sums.count)
    if sums.count(common) * 2 <= len(sums):
        return set()
    return {number for number, value in checksums.items() if value != common}
