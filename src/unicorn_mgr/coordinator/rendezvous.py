"""Where the members of an epoch meet: everybody publishes, then everybody hears all.

Volatile on purpose: if the coordinator dies, the next one grants the epoch anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.messages import Formed, Published
from unicorn_mgr.model import Epoch


@dataclass(slots=True)
class _Meeting:
    epoch: Epoch
    members: tuple[str, ...]
    published: dict[str, Published] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.published) == len(self.members)


@dataclass(slots=True)
class Rendezvous:
    """The newest epoch of each job."""

    meetings: dict[str, _Meeting] = field(default_factory=dict)

    def open(self, job: str, epoch: Epoch, members: tuple[str, ...]) -> None:
        """A new epoch has been granted: older ones are over."""
        self.meetings[job] = _Meeting(epoch, members)

    def close(self, job: str) -> None:
        """The job has ended."""
        self.meetings.pop(job, None)

    def publish(self, job: str, note: Published) -> tuple[Formed | None, tuple[str, ...], bool]:
        """A member has published: what to tell, to whom, and whether this completed the meeting.

        A stale note is dropped.  A repeated one, from a member whose agent was away, is
        answered if all the others are there.
        """
        meeting = self.meetings.get(job)
        if meeting is None or note.epoch != meeting.epoch or note.worker not in meeting.members:
            return None, (), False
        was_complete = meeting.complete
        meeting.published[note.worker] = note
        if not meeting.complete:
            return None, (), False
        formed = Formed(meeting.epoch, tuple(meeting.published[m] for m in meeting.members))
        return (formed, (note.worker,), False) if was_complete else (formed, meeting.members, True)
