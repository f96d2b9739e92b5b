"""The workers of a replica act on news together, whoever has heard of them first."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from worker.checkpoints import PATIENCE_SECONDS
from worker.together import Meeting, Sibling

from unicorn_mgr.messages import GiveUp
from unicorn_mgr.model import Epoch
from unicorn_mgr.worker.membership import Alone, GivenUp
from unicorn_mgr.worker.reports import Reports
from unicorn_mgr.worker.siblings import Single, place_of
from unicorn_mgr.worker.unison import Unison


class Hearing(Alone):
    """What one worker has heard, as the test says."""

    def __init__(
        self,
        word: GiveUp | None = None,
        epoch: Epoch | None = None,
        *,
        asked: bool = False,
        excluded: bool = False,
    ) -> None:
        super().__init__()
        self.changed = threading.Condition()
        self.word = word
        self.epoch = epoch
        self.waits = threading.Event()
        self.asked = asked
        self.excluded = excluded

    def newer(self) -> Epoch | None:
        return self.epoch

    def given_up(self) -> GiveUp | None:
        return self.word

    def asked_to_leave(self) -> bool:
        return self.asked

    def leave(self, applied: int) -> bool:
        assert applied == 4
        return self.excluded

    def hear(self, word: GiveUp) -> None:
        with self.changed:
            self.word = word
            self.changed.notify_all()

    def wait_out(self, ready: Callable[[], bool]) -> None:
        self.waits.set()
        with self.changed:
            assert self.changed.wait_for(ready, PATIENCE_SECONDS)


def replica(*hearings: Hearing) -> tuple[Meeting, list[Unison]]:
    meeting = Meeting(len(hearings))
    places = [place_of({"shard": len(hearings)}, i) for i in range(len(hearings))]
    return meeting, [
        Unison(heard, Sibling(meeting, place), Reports(heard, lambda: 0))
        for heard, place in zip(hearings, places, strict=True)
    ]


def test_nobody_has_heard_anything() -> None:
    meeting, both = replica(Hearing(), Hearing())
    assert meeting.at_once([unison.newer for unison in both]) == [None, None]


@pytest.mark.parametrize("first", [0, 1])
def test_a_membership_that_one_has_heard_of_is_gone_over_to_by_all(first: int) -> None:
    hearings = [Hearing(epoch=Epoch(1, 3)), Hearing(epoch=Epoch(1, 2))]
    meeting, both = replica(*(hearings if first == 0 else reversed(hearings)))
    assert meeting.at_once([unison.newer for unison in both]) == [Epoch(1, 3)] * 2


@pytest.mark.parametrize("first", [0, 1])
def test_the_end_of_a_job_that_one_has_heard_of_ends_all_at_the_same_place(first: int) -> None:
    """Each by its own word: not all of them may be told to save."""
    words = [GiveUp("poison", save=True), GiveUp("poison", save=False)]
    hearings = [Hearing(), Hearing()]
    hearings[first].hear(words[first])
    meeting, both = replica(*hearings)

    def ends(unison: Unison) -> bool:
        try:
            unison.newer()
        except GivenUp as why:
            return why.save
        raise AssertionError("it goes on")

    def hear_late() -> None:
        other = hearings[1 - first]
        assert other.waits.wait(PATIENCE_SECONDS)
        other.hear(words[1 - first])

    late = threading.Thread(target=hear_late)
    late.start()
    assert meeting.at_once([lambda u=unison: ends(u) for unison in both]) == [True, False]  # type: ignore[misc]  # a bound lambda
    late.join()


@pytest.mark.parametrize(
    ("asked", "excluded", "leaves"),
    [
        ([True, False], [True, True], False),
        ([True, True], [False, False], False),
        ([True, True], [True, False], True),
        ([True, True], [False, True], True),
    ],
)
def test_a_replica_leaves_as_a_whole(asked: list[bool], excluded: list[bool], leaves: bool) -> None:
    """The epoch without it, which one has heard of, may have reached the other behind one with it."""
    hearings = [Hearing(asked=a, excluded=x) for a, x in zip(asked, excluded, strict=True)]
    meeting, both = replica(*hearings)
    assert meeting.at_once([lambda u=unison: u.leave(4) for unison in both]) == [leaves] * 2  # type: ignore[misc]  # a bound lambda


@pytest.mark.parametrize("value", [300.0, 0.0001], ids=["large", "small"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_a_norm_is_that_of_the_gradients_however_few_bits_they_have(dtype: torch.dtype, value: float) -> None:
    p = nn.Parameter(torch.ones(4, dtype=dtype))
    p.grad = torch.full((4,), value, dtype=dtype)
    exact = 2 * abs(p.grad[0].item())
    heard = Hearing()
    unison = Unison(heard, Single(), Reports(heard, lambda: 0))
    assert unison.clip([p], exact / 4, 2.0) == pytest.approx(exact, rel=1e-6)
    torch.testing.assert_close(p.grad, torch.full((4,), value / 4, dtype=dtype), rtol=0.02, atol=0.0)
