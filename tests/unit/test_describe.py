"""The journal in words: each kind of event has its own."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator import describe as module
from unicorn_mgr.coordinator.describe import describe
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch
from unicorn_mgr.phases import Phase

KINDS = [kind for kind in get_args(e.Event) if kind is not e.TimePassed]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_event_is_shown_raw(kind: type) -> None:
    assert f"case e.{kind.__name__}(" in inspect.getsource(module)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (e.InquiryOpened("gpt", 2), "job gpt: inquiry 2 is opened: all members' rings are read, twice"),
        (
            e.ReadingTaken("gpt", 2, (m.Sample("gpt/0.0", step=7, phase=Phase.COMPUTE),)),
            "job gpt: a reading for inquiry 2: gpt/0.0 in compute of step 7",
        ),
        (e.ReadingTaken("gpt", 2, ()), "job gpt: a reading for inquiry 2: nobody has answered"),
        (e.InquiryClosed("gpt", 2, "gpt/0.0 is stopped"), "job gpt: inquiry 2 is closed: gpt/0.0 is stopped"),
        (
            e.PoisonFound("gpt", 7, 3, skip=True),
            "job gpt: micro-batch 3 of step 7, on which workers have died, is skipped from now on",
        ),
        (
            e.WorkerTold("gpt/0.0", m.Resumed(Epoch(1, 2), 7, recomputed=(3, 4))),
            (
                "gpt/0.0 goes on in epoch 1.2 with step 7, micro-batches 3, 4 recomputed, "
                "fence 0.000 s, regroup 0.000 s, restore 0.000 s, recompute 0.000 s, added 0.000 s"
            ),
        ),
        (e.WorkerOverstayed("gpt/0.0", "it has left"), "gpt/0.0 does not end by itself, so it is ended: it has left"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_words(event: e.Event, words: str) -> None:
    assert describe(event) == words
