"""Members of an epoch meet: all hear all, once everybody has published, and nobody of another epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr.coordinator.rendezvous import Rendezvous
from unicorn_mgr.messages import Formed, Published
from unicorn_mgr.model import Epoch

NEWEST = Epoch(2, 5)
MEMBERS = ("gpt/0.0", "gpt/2.1", "gpt/1.0")


def note(worker: str, epoch: Epoch = NEWEST, port: int = 1) -> Published:
    return Published(epoch, worker=worker, port=port)


def opened() -> Rendezvous:
    rendezvous = Rendezvous()
    rendezvous.open("gpt", NEWEST, MEMBERS)
    return rendezvous


@given(st.permutations(MEMBERS))
def test_the_last_to_publish_completes_the_meeting(order: list[str]) -> None:
    rendezvous = opened()
    for worker in order[:-1]:
        assert rendezvous.publish("gpt", note(worker)) == (None, (), False)
    formed, told, completed = rendezvous.publish("gpt", note(order[-1]))
    assert formed == Formed(NEWEST, tuple(note(m) for m in MEMBERS)), "in the order of the membership"
    assert (told, completed) == (MEMBERS, True)


def test_a_repeated_note_of_a_complete_meeting_is_answered_to_its_sender_alone() -> None:
    rendezvous = opened()
    for worker in MEMBERS:
        rendezvous.publish("gpt", note(worker))
    formed, told, completed = rendezvous.publish("gpt", note("gpt/2.1"))
    assert formed is not None
    assert (told, completed) == (("gpt/2.1",), False)


def test_a_repeated_note_does_not_complete_a_meeting() -> None:
    rendezvous = opened()
    for _ in range(5):
        assert rendezvous.publish("gpt", note("gpt/0.0"))[0] is None


def test_notes_of_other_epochs_and_strangers_are_dropped() -> None:
    rendezvous = opened()
    for stale in (Epoch(2, 4), Epoch(1, 9), Epoch(3, 1)):
        for worker in MEMBERS:
            assert rendezvous.publish("gpt", note(worker, stale)) == (None, (), False)
    assert rendezvous.publish("gpt", note("gpt/9.0")) == (None, (), False)
    assert rendezvous.publish("other", note("gpt/0.0")) == (None, (), False)
    assert rendezvous.meetings["gpt"].published == {}


def test_a_newer_epoch_ends_the_meeting_of_the_one_before() -> None:
    rendezvous = opened()
    rendezvous.publish("gpt", note("gpt/0.0"))
    newer = Epoch(2, 6)
    rendezvous.open("gpt", newer, ("gpt/0.0",))
    assert rendezvous.publish("gpt", note("gpt/2.1")) == (None, (), False)
    assert rendezvous.publish("gpt", note("gpt/0.0", newer))[2]


def test_an_ended_job_has_no_meeting() -> None:
    rendezvous = opened()
    rendezvous.close("gpt")
    rendezvous.close("gpt")
    assert rendezvous.publish("gpt", note("gpt/0.0")) == (None, (), False)
