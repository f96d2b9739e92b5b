"""What a worker has its agent do with snapshots: copy them to a second node, bring them from there.

The workers of a replica have the same snapshot copied, and the next only when none of them waits for its copy any
more.  So there is always one step of which all parts are on second nodes, once there has been any.
"""

from __future__ import annotations

from collections.abc import Sequence

from unicorn_mgr.messages import Attached, PieceWanted, SnapshotFetched, SnapshotTaken, SnapshotWanted
from unicorn_mgr.model import Mark
from unicorn_mgr.ring import RingWriter
from unicorn_mgr.worker.exchange import Broken, Overtaken
from unicorn_mgr.worker.link import Link
from unicorn_mgr.worker.membership import Membership


class Errands:
    """One worker's."""

    def __init__(self, link: Link, ring: RingWriter, welcome: Attached, membership: Membership) -> None:
        self._link = link
        self._ring = ring
        self._membership = membership
        self.elsewhere = dict.fromkeys(welcome.elsewhere, False) | dict.fromkeys(welcome.elsewhere_committed, True)
        """Snapshots that other nodes have, and whether each is known to be committed."""
        self.former = welcome.former
        """The same of parts that workers of other shapes had."""
        self._base = Mark()
        self._copying: Mark | None = None
        self._told = False

    # -- to a second node ----------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """The agent has not said yet what has become of the snapshot that it was to copy."""
        return self._copying is not None and self._outcome() is None

    @property
    def failed(self) -> bool:
        """That one is not on a second node."""
        return self._copying is not None and not self._outcome()

    def _outcome(self) -> bool | None:
        said = self._link.backup_ended
        return said.kept if said is not None and said.mark == self._copying else None

    def next(self, mark: Mark, succeeded: bool) -> None:
        """This snapshot is to be copied; all workers have, or not, had the one before copied."""
        if self._copying is not None and succeeded:
            self._base, self._ring.backed_up = self._copying, self._copying.step
        self._copying, self._told = mark, False

    def committed(self, step: int) -> None:
        """A step can't be lost by a fault any more, so it is worth a copy."""
        if self._copying is not None and not self._told and self._copying.step <= step:
            self._told = True
            self._link.tell(SnapshotTaken(self._copying, self._base))

    # -- from another node ---------------------------------------------------------------

    def bring(self, mark: Mark, buffer: int) -> None:
        """Until this snapshot is in that memory of this worker.  Raises `Broken` and `Overtaken`."""
        try:
            self._fetch(SnapshotWanted(mark, buffer))
        except Broken:
            self.elsewhere.pop(mark, None)
            raise
        self._base = mark

    def bring_pieces(self, mark: Mark, buffer: int, pieces: Sequence[PieceWanted], at: int) -> None:
        """Until these pieces are in that memory, one behind the other.  Raises `Broken` and `Overtaken`."""
        try:
            self._fetch(SnapshotWanted(mark, buffer, tuple(pieces), at))
        except Broken:
            self.former = tuple(found for found in self.former if found.mark != mark)
            raise

    def _fetch(self, wanted: SnapshotWanted) -> None:
        before = self._link.snapshot_fetched
        self._link.tell(wanted)

        def answer() -> SnapshotFetched | None:
            said = self._link.snapshot_fetched
            # No mark: an agent that has just come knows of nothing.
            return said if said is not before and said is not None and said.mark in (wanted.mark, Mark()) else None

        if not self._membership.wait(lambda: answer() is not None):
            # Nobody may write there any more before this goes on.
            self._link.tell(SnapshotWanted(Mark(), wanted.buffer))
            self._membership.wait_out(lambda: answer() is not None)
            self._link.tell_no_more(SnapshotWanted)
            raise Overtaken
        self._link.tell_no_more(SnapshotWanted)
        said = answer()
        assert said is not None, "it has been waited for"
        if said.failed:
            raise Broken(f"the snapshot of step {wanted.mark.step} on another node: {said.failed}")
