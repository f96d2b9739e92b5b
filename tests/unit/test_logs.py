"""Workers' output: bounded on disk, thinned out for followers, whole for whoever asks what there is."""

from __future__ import annotations

from pathlib import Path

from unicorn_mgr.agent import logs
from unicorn_mgr.agent.logs import TURN_BYTES_MAX, Follower
from unicorn_mgr.coordinator.logbook import LogBook
from unicorn_mgr.messages import LogChunk, ToAgent, WatchLogs

BLOCKS = 3 * TURN_BYTES_MAX


def follower(folder: Path) -> Follower:
    return Follower("watch-1", "gpt", "first", logs.begin(folder, "gpt/0.0", "first").parent)


def write(tmp_path: Path, name: str, data: bytes) -> None:
    with (logs.begin(tmp_path, "gpt/0.0", "first").parent / name).open("ab") as file:
        file.write(data)


def output(chunks: list[LogChunk]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for chunk in chunks:
        found[chunk.worker] = found.get(chunk.worker, b"") + chunk.data
    return found


def test_every_turn_brings_what_is_new_worker_by_worker(tmp_path: Path) -> None:
    following = follower(tmp_path)
    write(tmp_path, "10.0.log", b"ten\n")
    write(tmp_path, "2.1.log", b"two\n")
    assert [c.worker for c in following.turn()] == ["gpt/2.1", "gpt/10.0"]
    write(tmp_path, "2.1.log", b"more\n")
    assert output(list(following.turn())) == {"gpt/2.1": b"more\n"}
    assert list(following.turn()) == []


def test_a_follower_who_skips_sees_only_what_comes(tmp_path: Path) -> None:
    write(tmp_path, "0.0.log", b"old\n")
    following = follower(tmp_path)
    following.skip()
    write(tmp_path, "0.0.log", b"new\n")
    write(tmp_path, "0.1.log", b"another\n")
    assert output(list(following.turn())) == {"gpt/0.0": b"new\n", "gpt/0.1": b"another\n"}


def test_a_flood_is_thinned_out_and_counted(tmp_path: Path) -> None:
    write(tmp_path, "0.0.log", b"x" * BLOCKS)
    chunks = list(follower(tmp_path).turn())
    assert sum(len(c.data) for c in chunks) == TURN_BYTES_MAX
    assert chunks[0].offset == BLOCKS - TURN_BYTES_MAX


def test_who_asks_what_there_is_gets_all_of_it_and_no_more(tmp_path: Path) -> None:
    write(tmp_path, "0.0.log", b"x" * BLOCKS)
    following = follower(tmp_path)
    following.stop_here()
    write(tmp_path, "0.0.log", b"later")
    write(tmp_path, "0.1.log", b"later")
    chunks: list[LogChunk] = []
    while not following.finished:
        chunks += following.turn()
    assert output(chunks) == {"gpt/0.0": b"x" * BLOCKS}
    assert [c.offset for c in chunks] == list(range(0, BLOCKS, logs.CHUNK_BYTES))


def test_what_was_punched_out_is_counted_and_not_sent_as_zeros(tmp_path: Path) -> None:
    path = logs.file_of(tmp_path, "gpt/0.0")
    write(tmp_path, path.name, b"x" * 100_000)
    kept = path.stat().st_size - logs.bound(path, 10_000, 0)
    assert 10_000 <= kept < 10_000 + logs.BLOCK_BYTES
    (chunk,) = follower(tmp_path).turn()
    assert (len(chunk.data), chunk.offset) == (kept, 100_000 - kept)
    assert b"\0" not in chunk.data


def test_a_file_that_begins_anew_is_read_anew(tmp_path: Path) -> None:
    following = follower(tmp_path)
    write(tmp_path, "0.0.log", b"a long line\n")
    assert list(following.turn())
    logs.file_of(tmp_path, "gpt/0.0").write_bytes(b"short\n")
    (chunk,) = following.turn()
    assert (chunk.data, chunk.offset) == (b"short\n", len(b"a long line\n"))


def test_logs_of_an_earlier_job_of_the_same_name_make_way(tmp_path: Path) -> None:
    for seat in ("gpt/0.0", "gpt/0.1"):
        logs.begin(tmp_path, seat, "first").write_text("old")
    again = logs.begin(tmp_path, "gpt/0.2", "first")
    assert [p.name for p in sorted(again.parent.glob("*.log"))] == ["0.0.log", "0.1.log"]
    fresh = logs.begin(tmp_path, "gpt/0.0", "second")
    assert not list(fresh.parent.glob("*.log"))
    assert fresh == logs.file_of(tmp_path, "gpt/0.0")


def test_output_of_an_earlier_job_of_the_same_name_is_not_shown(tmp_path: Path) -> None:
    following = follower(tmp_path)
    write(tmp_path, "0.0.log", b"first\n")
    logs.begin(tmp_path, "gpt/0.0", "second").write_bytes(b"second\n")
    assert list(following.turn()) == []


def test_a_watch_is_complete_when_every_node_has_said_so() -> None:
    book, said = LogBook(), list[ToAgent]()
    watch = book.open_until_now("gpt", ["node-0", "node-1"], said.append)
    assert said == [WatchLogs(watch.name, "gpt", from_start=True, until_now=True)]
    for node in ("node-0", "node-1"):
        assert watch.waits_for
        book.hear(node, LogChunk(watch.name, end=True))
    assert watch.waits_for == set()


def test_an_agent_that_comes_back_is_reminded_that_the_end_is_wanted() -> None:
    book, said = LogBook(), list[ToAgent]()
    watch = book.open("gpt", False, lambda _: None)
    book.remind(said.append)
    book.finish(watch, ["node-0"], lambda _: None)
    book.remind(said.append)
    assert [w.until_now for w in said if isinstance(w, WatchLogs)] == [False, True]
