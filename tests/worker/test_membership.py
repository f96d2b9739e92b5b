"""A membership that can't be formed: somebody has to be told why."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from unicorn_mgr.messages import Fact, Formed, Granted, Published, Symptom
from unicorn_mgr.model import Epoch, Holdings
from unicorn_mgr.ring import SIZE_BYTES, RingWriter
from unicorn_mgr.worker import membership as module
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.groups.gloo import Builder, GlooGroup
from unicorn_mgr.worker.link import Link
from unicorn_mgr.worker.membership import Clustered

MEMBERS = ("test/0.0", "test/1.0")
EPOCH = Epoch(1, 1)
PATIENCE_SECONDS = 20.0


class Bench:
    """The first of two members, and what it tells."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[Fact] = []
        self.link = Link(path, MEMBERS[0], "")
        monkeypatch.setattr(self.link, "tell", self.tell)
        self.membership = Clustered(self.link, "127.0.0.1", RingWriter(bytearray(SIZE_BYTES)), Drills())
        self.link._hear(Granted(EPOCH, MEMBERS))

    def tell(self, fact: Fact) -> None:
        with self.link.changed:
            self.told.append(fact)
            self.link.changed.notify_all()

    def form_until_symptom(self) -> str:
        """Form; when a symptom has been told, a newer epoch frees it."""
        former = threading.Thread(target=self.membership.form, args=(EPOCH, Holdings()), daemon=True)
        former.start()
        symptoms: list[Symptom] = []

        def seen() -> bool:
            symptoms[:] = [f for f in self.told if isinstance(f, Symptom)]
            return bool(symptoms)

        with self.link.changed:
            assert self.link.changed.wait_for(seen, PATIENCE_SECONDS), "nobody was told"
        self.link._hear(Granted(Epoch(1, 2), MEMBERS))
        former.join(PATIENCE_SECONDS)
        assert not former.is_alive()
        assert symptoms[0].epoch == EPOCH
        return symptoms[0].error


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path / "agent", monkeypatch)
    yield made
    made.membership.donor._listener.close()


def test_a_builder_that_fails_before_anybody_has_published_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def construct(_: Builder) -> GlooGroup:
        raise RuntimeError("no such interface")

    monkeypatch.setattr(Builder, "_construct", construct)
    assert bench.form_until_symptom() == "no such interface"


def test_a_builder_that_fails_after_the_probe_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    probed = threading.Event()

    def answers(*_: object) -> bool:
        probed.set()
        return True

    def construct(builder: Builder) -> GlooGroup:
        builder._peers = frozenset({("127.0.0.1", 1)})
        assert probed.wait(PATIENCE_SECONDS)
        raise RuntimeError("the connection broke")

    monkeypatch.setattr(module, "PROBE_AFTER_SECONDS", 0.01)
    monkeypatch.setattr(module, "answers_probe", answers)
    monkeypatch.setattr(Builder, "_construct", construct)
    bench.link._hear(Formed(EPOCH, tuple(Published(EPOCH, worker=m) for m in MEMBERS)))
    assert bench.form_until_symptom() == "the connection broke"
