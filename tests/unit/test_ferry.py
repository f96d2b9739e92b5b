"""Snapshots from node to node: every byte, again after a fault, and for nobody without the right to it."""

from __future__ import annotations

import datetime
import errno
import os
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from unit.sealed import PART, content, mark, memory, sealed

from unicorn_mgr import seal
from unicorn_mgr.agent import ferry, stripes
from unicorn_mgr.agent.copies import Copies
from unicorn_mgr.agent.ferry import Denied, Ferry, Pace, Pier
from unicorn_mgr.agent.stripes import Stripes
from unicorn_mgr.cli.certs import make
from unicorn_mgr.effects.agent import SendBackup
from unicorn_mgr.messages import Holder
from unicorn_mgr.model import Mark, Run
from unicorn_mgr.pieces import Come, size_of
from unicorn_mgr.tls import agent_context
from unicorn_mgr.tokens import token

SECRET = "the other node's"
CHUNK_BYTES = 1000
Secure = Callable[[bool], ssl.SSLContext] | None


class Node:
    """Where copies go."""

    def __init__(self, secure: Secure = None, bytes_max: int = 1 << 20) -> None:
        self.copies = Copies(bytes_max)
        self.pier = Pier(self.copies, secure)
        self.pier.key = SECRET
        self.port = self.pier.open("127.0.0.1")

    def holder(self, shown: str | None = None) -> Holder:
        return Holder("b", "127.0.0.1", self.port, token(SECRET, PART, "a") if shown is None else shown)

    def steps(self) -> list[int]:
        return sorted(found.mark.step for found in self.copies.look(PART))


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    for module in (ferry, stripes):
        monkeypatch.setattr(module, "CHUNK_BYTES", CHUNK_BYTES)
    made = Node()
    yield made
    made.pier.close()


def push(node: Node, data: bytes, shown: str | None = None, secure: Secure = None, base: Mark | None = None) -> None:
    file = memory(data)
    found = seal.find(file)
    assert found is not None
    Ferry("a", secure).push(sent(node, shown, base), found, file, threading.Event())


def sent(node: Node, shown: str | None = None, base: Mark | None = None) -> SendBackup:
    return SendBackup("gpt/1.0", PART, mark(7), base or Mark(), node.holder(shown))


def pull(node: Node, step: int, into: int, shown: str | None = None, secure: Secure = None) -> Stripes:
    coming = Stripes(into, threading.Event())
    Ferry("a", secure).pull(node.holder(shown), PART, mark(step), coming)
    return coming


@pytest.mark.parametrize("body", [0, 1, 500, 1000, 1001, 2500, 2999, 3000, 4999, 5000, 7500])
def test_every_byte_there_and_back_whatever_the_number_of_chunks(other: Node, body: int) -> None:
    data = sealed(mark(7), body=os.urandom(body))
    push(other, data)
    into = memory()
    pull(other, 7, into)
    assert content(into) == data
    ((seen,),) = Ferry("a", None).look([(PART, other.holder())])
    assert seen == (mark(7), True, len(data) - body)


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "wrong",
        *(token(SECRET, replace(PART, **other), "a") for other in ({"position": 2}, {"shape": "shard=4"})),
        token(SECRET, PART, "c"),
        token("", PART, "a"),
    ],
)
def test_nobody_else_leaves_or_takes_anything(other: Node, shown: str) -> None:
    """Of another part, of one of another shape, for another node, or made with no key."""
    data = sealed(mark(7))
    with pytest.raises(Denied, match="token"):
        push(other, data, shown)
    push(other, data)
    with pytest.raises(Denied, match="token"):
        pull(other, 7, memory(), shown=shown)
    other.pier.key = ""
    with pytest.raises(Denied, match="token"):
        push(other, data, token("", PART, "a"))


def visitors_gone() -> None:
    """Until the other side has read all that it will read."""
    for thread in threading.enumerate():
        if thread.name == "unicorn-visitor":
            thread.join()


def test_a_push_that_was_cut_goes_on_where_it_was(other: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    data = sealed(mark(7), body=os.urandom(7_500))
    file = memory(data)
    found = seal.find(file)
    assert found is not None
    sender, stop = Ferry("a", None), threading.Event()
    asked = 0

    def wait(chunk: int) -> float:
        nonlocal asked
        asked += 1
        if asked == 4:
            stop.set()
        return 0.0

    monkeypatch.setattr(sender.pace, "seconds_for", wait)
    with pytest.raises(Denied, match="not wanted any more"):
        sender.push(sent(other), found, file, stop)
    visitors_gone()
    assert other.steps() == []
    stop.clear()
    sender.push(sent(other), found, file, stop)
    assert other.steps() == [7]
    assert asked == 4 + 8 - 3, "three chunks had come"


@pytest.mark.parametrize(("length", "checksum"), [(600, 1), (0, 0), (2_000, None), (900, None)])
def test_a_chunk_that_is_not_what_it_should_be_ends_it(other: Node, length: int, checksum: int | None) -> None:
    """A wrong checksum, an empty one, one that is too long, and one beyond the end."""
    data = sealed(mark(7), body=b"")[:600]
    about = {
        **asdict(PART),
        "by": "a",
        "token": other.holder().token,
        "op": "push",
        "base": [-1, 0, 0, 0],
        "source": "gpt/1.0",
    }
    with socket.create_connection(("127.0.0.1", other.port)) as line:
        ferry._say(line, {**about, "mark": ferry._plain(mark(7)), "checksum": 0, "size": 600})
        assert ferry._answer(line) == {"at": 0}
        chunk = data.ljust(length, b"x")[:length]
        line.sendall(ferry._CHUNK.pack(length, zlib.crc32(chunk) if checksum is None else checksum) + chunk)
        with pytest.raises((ConnectionError, Denied)):
            ferry._answer(line)
    visitors_gone()
    (copy,) = other.copies._kept[PART]
    assert copy.received == 0


@pytest.mark.parametrize(
    "said", [b"", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00[]", b"\x02\x00\x00\x00{}", b"\x01\x00\x00\x00{"]
)
def test_nonsense_does_it_no_harm(other: Node, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", other.port)) as line:
        line.sendall(said)
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b""
    push(other, sealed(mark(7)))
    assert other.steps() == [7]


def test_a_pull_that_was_cut_goes_on_and_nothing_is_put_together_of_two(other: Node) -> None:
    """The same step of another replica has other bytes."""
    data, another = (sealed(mark(7), body=os.urandom(5_000)) for _ in range(2))
    push(other, data)
    into, sender, reached = memory(), Ferry("a", None), 0

    class Cut(Stripes):
        def put(self, seal: str, at: int, chunk: memoryview, node: str) -> None:
            nonlocal reached
            reached += 1
            if reached == 3:
                raise ConnectionError("cut")
            super().put(seal, at, chunk, node)

    coming = Cut(into, threading.Event())
    with pytest.raises(ConnectionError):
        sender.pull(other.holder(), PART, mark(7), coming)
    assert (coming.came, coming.complete) == ({"b": 2 * CHUNK_BYTES}, False)
    assert seal.find(into) is None, "half of it does not look like all of it"
    with_another = Node()
    push(with_another, another)
    with pytest.raises(Denied, match="another one"):
        sender.pull(with_another.holder(), PART, mark(7), coming)
    with_another.pier.close()
    sender.pull(other.holder(), PART, mark(7), coming)
    assert (coming.came, coming.complete) == ({"b": len(data)}, True), "each byte once"
    assert content(into) == data


@pytest.mark.parametrize("how", ["given up", "written over"])
def test_one_that_goes_while_it_is_sent_ends_the_transfer_and_nothing_else(
    other: Node, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its template may empty an own snapshot at any moment, and its worker write the next one there."""
    file = memory(sealed(mark(7), body=bytes(4_000)))
    other.copies.add_own("gpt/0.0", "id", (os.dup(file),))
    real = ferry._send_chunks

    def send_chunks(*args: Any) -> None:
        if how == "given up":
            os.ftruncate(file, 0)
        else:
            os.pwrite(file, bytes(8), 0)
        real(*args)

    monkeypatch.setattr(ferry, "_send_chunks", send_chunks)
    with pytest.raises(OSError, match=r"(?i)connection"):
        pull(other, 7, memory())
    visitors_gone()
    push(other, sealed(mark(8)))
    assert other.steps() == [8]


@pytest.mark.parametrize("wanted", [(0, 2_000), (1 << 40, 10), (900, 1_000)])
def test_chunks_that_there_are_not_are_not_sent(other: Node, wanted: tuple[int, int]) -> None:
    push(other, sealed(mark(7), body=b""))
    about = {**asdict(PART), "by": "a", "token": other.holder().token, "op": "pull", "mark": ferry._plain(mark(7))}
    with socket.create_connection(("127.0.0.1", other.port)) as line:
        ferry._say(line, about)
        assert ferry._answer(line)["size"] < CHUNK_BYTES
        line.sendall(ferry._WANTED.pack(*wanted))
        assert line.recv(1) == b""


def test_what_is_not_there_is_denied(other: Node) -> None:
    push(other, sealed(mark(7)))
    with pytest.raises(Denied, match="not here"):
        pull(other, 8, memory())


def test_copies_of_a_state_that_most_do_not_have_are_denied(other: Node) -> None:
    push(other, sealed(mark(7)))
    other.copies.disown("id", "gpt/1.0")
    assert other.steps() == []
    with pytest.raises(Denied, match="its parameters are not those of most replicas"):
        push(other, sealed(mark(8)))


def test_no_room_is_an_answer_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Node(bytes_max=100)
    with pytest.raises(Denied, match="--snapshot-bytes"):
        push(small, sealed(mark(7)))
    small.pier.close()


def test_a_visitor_that_is_gone_at_once_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, failures = socket.socket.accept, iter([ConnectionAbortedError(), OSError(errno.EMFILE, "files")] * 50)

    def accept(self: socket.socket) -> tuple[socket.socket, Any]:
        for failed in failures:
            raise failed
        return plain(self)

    monkeypatch.setattr(ferry, "ACCEPT_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(socket.socket, "accept", accept)
    made = Node()
    push(made, sealed(mark(7)))
    assert made.steps() == [7]
    made.pier.close()


def test_the_pace_is_kept_by_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("unicorn_mgr.agent.ferry.time.monotonic", lambda: now)
    pace = Pace()
    assert pace.seconds_for(1000) == 0.0
    pace.bytes_per_second = 100.0
    assert [pace.seconds_for(50) for _ in range(3)] == [0.0, 0.5, 1.0]
    now = 110.0
    assert pace.seconds_for(50) == 0.0


# -- certificates ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "theirs"):
        make(folder / name, ["127.0.0.1"], datetime.timedelta(days=1))
    return folder


def test_agents_know_each_other_by_their_certificates(certificates: Path) -> None:
    secure = partial(agent_context, certificates / "ours" / "agent")
    node, data = Node(secure), sealed(mark(7), body=os.urandom(10_000))
    push(node, data, secure=secure)
    into = memory()
    pull(node, 7, into, secure=secure)
    assert content(into) == data
    node.pier.close()


@pytest.mark.parametrize("who", ["ours/operator", "ours/submitter", "ours/coordinator", "theirs/agent", ""])
def test_nobody_else_is_let_in_whatever_the_token(certificates: Path, who: str) -> None:
    node = Node(partial(agent_context, certificates / "ours" / "agent"))
    with pytest.raises((Denied, OSError)):
        push(node, sealed(mark(7)), secure=partial(agent_context, certificates / who) if who else None)
    visitors_gone()
    assert node.steps() == []
    node.pier.close()


def test_an_agent_believes_no_other_node_either(certificates: Path) -> None:
    node = Node(partial(agent_context, certificates / "theirs" / "agent"))
    with pytest.raises((Denied, OSError)):
        push(node, sealed(mark(7)), secure=partial(agent_context, certificates / "ours" / "agent"))
    node.pier.close()


def test_what_there_is_of_several_parts_is_told_to_whoever_may_have_each(other: Node) -> None:
    """All in one errand; that somebody may have one part is no right to another."""
    first, second, third = (replace(PART, position=position) for position in (1, 2, 3))
    for part in (first, second, third):
        other.copies.add_own(f"gpt/{part.position}.0", "id", (memory(sealed(mark(part.position), part)),))
    allowed = [(part, Holder("b", "127.0.0.1", other.port, token(SECRET, part, "a"))) for part in (first, second)]
    found = Ferry("a", None).look([*allowed, (third, allowed[0][1])])
    assert [[seen.mark for seen in of_part] for of_part in found] == [[mark(1)], [mark(2)], []]


# -- pieces ---------------------------------------------------------------------------------


@pytest.fixture
def picked(other: Node, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A snapshot that the other node has, of several blocks."""
    monkeypatch.setattr(seal, "BLOCK_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(ferry, "RUNS_MAX", 3)
    data = sealed(mark(7), body=os.urandom(10 * CHUNK_BYTES), piecewise=True)
    push(other, data)
    return data


def fingerprint(data: bytes) -> int:
    return seal.read_head(data).fingerprint


def pick(node: Node, runs: list[Run], of: int, come: Come | None = None, secure: Secure = None) -> bytes:
    into = bytearray(size_of(runs))
    come = come or Come()
    with memoryview(into) as room:
        Ferry("a", secure).pick(node.holder(), PART, mark(7), of, runs, room, come, threading.Event())
    assert come.at == len(into)
    return bytes(into)


def wanted(data: bytes) -> tuple[list[Run], bytes]:
    """Some of all blocks, in more lines than one."""
    start = seal.read_head(data).body_at
    runs = [Run(start + 900 * i, 300, 2, 500) for i in range(10)] + [Run(start, 9000)]
    return runs, b"".join(data[r.at + i * r.stride :][: r.length] for r in runs for i in range(r.count))


def test_pieces_come_as_they_are_wanted(other: Node, picked: bytes) -> None:
    runs, expected = wanted(picked)
    assert pick(other, runs, fingerprint(picked)) == expected
    assert pick(other, runs, 0) == expected
    assert pick(other, [Run(0, 64)], 0) == picked[:64]


def test_pieces_come_with_tls(other: Node, picked: bytes, certificates: Path) -> None:
    del other
    secure = partial(agent_context, certificates / "ours" / "agent")
    node = Node(secure)
    push(node, picked, secure=secure)
    runs, expected = wanted(picked)
    assert pick(node, runs, fingerprint(picked), secure=secure) == expected
    node.pier.close()


def test_what_has_come_of_one_is_not_asked_of_another(other: Node, picked: bytes) -> None:
    """The first one's memory has gone bad behind its fourth block."""
    runs, expected = wanted(picked)
    spoilt, come = bytearray(picked), Come()
    spoilt[seal.read_head(picked).body_at + 4500] ^= 1
    bad = Node()
    push(bad, bytes(spoilt))
    into = bytearray(len(expected))
    with memoryview(into) as room:
        args = (PART, mark(7), fingerprint(picked), runs, room, come, threading.Event())
        with pytest.raises(Denied, match="its body is not as it was written"):
            Ferry("a", None).pick(bad.holder(), *args)
        assert 0 < come.at < len(expected)
        assert into[: come.at] == expected[: come.at]
        into[: come.at] = bytes(come.at)  # to see that it does not come again
        had = come.at
        Ferry("a", None).pick(other.holder(), *args)
    assert into == bytes(had) + expected[had:]
    bad.pier.close()


@pytest.mark.parametrize("runs", [[Run(0, 1 << 20)], [Run(-8, 8)], [Run(5000, 100, 2, 1 << 20)]])
def test_nothing_comes_from_behind_its_end(other: Node, picked: bytes, runs: list[Run]) -> None:
    with pytest.raises(Denied, match="there is another one here"):
        pick(other, runs, fingerprint(picked))


def test_no_pieces_come_of_another_one(other: Node, picked: bytes) -> None:
    with pytest.raises(Denied, match="there is another one here"):
        pick(other, [Run(0, 64)], fingerprint(picked) ^ 1)
