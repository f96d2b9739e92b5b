"""The journal: what was written is there, what is damaged is named, and nothing is half there."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from random import Random
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import pytest
from unit.world import World, new_core

from unicorn_mgr.coordinator import store as store_module
from unicorn_mgr.coordinator.store import JOURNAL, SCHEMA, Store, StoreError, dump_event, load_event
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Slot

Lines = list[tuple[float, float, e.Event]]


@pytest.fixture
def lived() -> World:
    """A story with most kinds of events."""
    world = World(nodes=3)
    world.train()
    world.die("gpt/1.0", step=4, micro_batch=2)
    world.regroup()
    world.tell(e.NodeSilent("n0", 2.6), e.JobHalted("gpt", 1.2))
    world.wait(60.0)
    return world


def lines(world: World) -> Lines:
    return [(at, 1_000.0 + at, entry) for at, entry in world.journal]


@pytest.fixture
def data(tmp_path: Path, lived: World) -> Path:
    """A data directory that has been lived in, and closed."""
    store = Store(tmp_path / "data")
    store.append(lines(lived))
    store.close()
    return tmp_path / "data"


@pytest.fixture
def opened(data: Path) -> Iterator[Store]:
    store = Store(data)
    yield store
    store.close()


def alter(data: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(data / JOURNAL) as db:
        assert db.execute(statement, values).rowcount != 0
    db.close()


def recovered(data: Path) -> list[e.Event]:
    store = Store(data)
    try:
        return [x.event for x in store.recover().entries]
    finally:
        store.close()


def refused(data: Path) -> str:
    """The one line with which a data directory is refused."""
    with pytest.raises(StoreError) as error:
        recovered(data)
    assert str(error.value).startswith("data: ")
    assert "\n" not in str(error.value)
    return str(error.value)


# -- what was written is there --------------------------------------------------------------


def test_every_event_comes_back_as_it_was(opened: Store, lived: World) -> None:
    found = opened.recover()
    assert [(x.number, x.at, x.wall, x.event) for x in found.entries] == [
        (number, *line) for number, line in enumerate(lines(lived), 1)
    ]
    assert found.at == lived.journal[-1][0]


def test_the_journal_alone_leads_to_the_state(opened: Store, lived: World) -> None:
    core = new_core(lived.settings)
    for entry in opened.recover().entries:
        core.replay(entry.event, entry.at)
    assert core.state == lived.state


@pytest.mark.parametrize("at", [1, 17, -1])
def test_a_snapshot_and_the_tail_lead_to_the_same_state(tmp_path: Path, lived: World, at: int) -> None:
    store = Store(tmp_path / "data")
    core = new_core(lived.settings)
    everything = lines(lived)
    for line in everything[:at]:
        core.replay(line[2], line[0])
    store.append(everything[:at])
    store.snapshot(core.state, everything[:at][-1][0])
    store.append(everything[at:])
    store.close()
    again = Store(tmp_path / "data")
    found = again.recover()
    assert [x.event for x in found.entries] == [line[2] for line in everything[at:]]
    recovered = new_core(lived.settings)
    recovered.state = found.state
    for entry in found.entries:
        recovered.replay(entry.event, entry.at)
    assert recovered.state == lived.state
    assert found.at == everything[-1][0]
    again.close()


def test_core_time_goes_on_from_a_snapshot_without_a_tail(opened: Store, lived: World) -> None:
    opened.snapshot(lived.state, 12_345.0)
    found = opened.recover()
    assert (found.entries, found.at) == ([], 12_345.0)


def test_each_term_is_higher_than_all_before(data: Path) -> None:
    terms = []
    for _ in range(3):
        store = Store(data)
        terms += [store.next_term(), store.next_term()]
        store.close()
    assert terms == [1, 2, 3, 4, 5, 6]


def test_cluster_and_secret_are_the_directorys_own(data: Path, tmp_path: Path) -> None:
    first, again, other = Store(data), Store(data, read_only=True), Store(tmp_path / "other")
    assert (first.cluster, first.secret) == (again.cluster, again.secret)
    assert first.cluster != other.cluster
    assert first.secret != other.secret
    assert len(first.secret) == 32
    for store in (first, again, other):
        store.close()


def test_nobody_else_can_read_the_secret(data: Path) -> None:
    assert data.stat().st_mode & 0o077 == 0
    assert (data / JOURNAL).stat().st_mode & 0o077 == 0


def test_every_kind_of_event_can_be_written(lived: World) -> None:
    for _, entry in lived.journal:
        assert load_event(*dump_event(entry)) == entry


def made(hint: Any, number: float) -> Any:
    """A value of a type, with this number wherever one of its fields is a float."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return made(next(a for a in arguments if a is not NoneType), number)
    if origin is tuple:
        return tuple(made(argument, number) for argument in arguments if argument is not ...)
    if origin is dict:
        return {made(arguments[0], number): made(arguments[1], number)}
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        fields: dict[str, Any] = {f.name: made(hints[f.name], number) for f in dataclasses.fields(hint)}
        return cast("type[Any]", hint)(**fields)
    if issubclass(hint, Enum):
        return next(iter(hint))
    return number if hint is float else hint()


EVENTS = (*get_args(e.Fact), *get_args(e.Decision))
TOLD = get_args(get_type_hints(e.WorkerTold)["fact"])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_with_any_number_can_be_read_again(kind: type[Any], number: float) -> None:
    event = made(kind, number)
    assert repr(load_event(*dump_event(event))) == repr(event)


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.__name__)
def test_what_a_worker_told_with_any_number_can_be_read_again(told: type[Any]) -> None:
    event = e.WorkerTold("gpt/0.0", made(told, float("nan")))
    assert repr(load_event(*dump_event(event))) == repr(event)


def test_a_snapshot_with_any_number_can_be_read_again(opened: Store, lived: World) -> None:
    lived.job().step_seconds = float("inf")
    lived.job().lost_seconds = float("-inf")
    opened.snapshot(lived.state, 1.0)
    assert opened.recover().state == lived.state


# -- bounds ---------------------------------------------------------------------------------


def test_snapshots_bound_what_a_recovery_reads(opened: Store, lived: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SNAPSHOT_EVERY_ENTRIES", 10)
    monkeypatch.setattr(store_module, "ENTRIES_KEPT", 25)
    opened.snapshot(lived.state, 1.0)
    for n in range(100):
        opened.append([(float(n), float(n), e.JobProgressed("gpt", n, 0.1))])
        if opened.wants_snapshot:
            opened.snapshot(lived.state, float(n))
    assert len(opened.recover().entries) < 10
    kept = [x.number for x in opened.entries()]
    assert len(kept) < 25 + 10
    assert kept[-1] == opened.number


def test_numbers_go_on_when_old_entries_are_dropped(data: Path, lived: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "ENTRIES_KEPT", 0)
    store = Store(data)
    newest = store.number
    store.snapshot(lived.state, 1.0)
    assert list(store.entries()) == []
    store.close()
    again = Store(data)
    assert again.append([(2.0, 2.0, e.TimePassed())]) == newest + 1
    assert [x.number for x in again.recover().entries] == [newest + 1]
    again.close()


def test_archives_that_no_job_wants_make_way(opened: Store) -> None:
    opened.keep_file("old", b"1", 0.0, ())
    opened.keep_file("running", b"2", 0.0, ())
    opened.keep_file("recent", b"3", 9_000.0, {"running"})
    opened.keep_file("new", b"4", 10_000.0, {"running"})
    assert [opened.file(d) for d in ("old", "running", "recent", "new")] == [None, b"2", b"3", b"4"]


def test_an_archive_that_is_submitted_again_is_new_again(opened: Store) -> None:
    opened.keep_file("again", b"1", 0.0, ())
    opened.keep_file("again", b"1", 9_000.0, ())
    opened.keep_file("other", b"2", 10_000.0, ())
    assert opened.file("again") == b"1"


# -- one writer -----------------------------------------------------------------------------


def test_a_directory_that_another_process_uses_is_refused(data: Path) -> None:
    holder = (
        f"import pathlib, sys; from unicorn_mgr.coordinator.store import Store; Store(pathlib.Path({str(data)!r}))\n"
        "print('holds', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "holds\n"
        assert refused(data) == f"data: {data}: another coordinator uses it; stop that one first"
        Store(data, read_only=True).close()
        other.kill()
    Store(data).close()  # a killed one holds nothing


def test_a_directory_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refused(tmp_path / "file" / "data").endswith("Not a directory; choose another --data")


# -- damage ---------------------------------------------------------------------------------


def test_a_newer_schema_is_refused(data: Path) -> None:
    alter(data, "UPDATE meta SET value=? WHERE key='schema'", str(SCHEMA + 1))
    assert refused(data) == (
        f"data: {data}: its schema is {SCHEMA + 1}, this program knows {SCHEMA}; install the newer program"
    )


def test_agents_of_older_journals_have_told_of_no_domain() -> None:
    kind, body = dump_event(e.NodeAttached("n0", "1", (Slot(),), "10.0.0.1", (), domain="rack-7"))
    written = json.loads(body)
    assert written.pop("domain") == "rack-7"
    assert load_event(kind, json.dumps(written)) == e.NodeAttached("n0", "1", (Slot(),), "10.0.0.1", ())


def test_an_older_schema_is_refused(data: Path) -> None:
    alter(data, "UPDATE meta SET value='0' WHERE key='schema'")
    assert "its schema is 0" in refused(data)


def test_a_damaged_entry_is_named_with_what_can_still_be_read(data: Path) -> None:
    alter(data, "UPDATE entries SET body = body || ' ' WHERE number = 9")
    says = refused(data)
    assert "entry 9 is damaged; restore a backup" in says
    assert f"unicorn replay {data} --until 8" in says
    store = Store(data, read_only=True)
    assert [x.number for x in store.entries(until=8)] == list(range(1, 9))
    store.close()


def test_a_missing_entry_is_named(data: Path) -> None:
    alter(data, "DELETE FROM entries WHERE number = 9")
    assert "entry 9 is missing" in refused(data)


def test_a_damaged_snapshot_is_named(data: Path, lived: World) -> None:
    store = Store(data)
    store.snapshot(lived.state, 1.0)
    number = store.number
    store.close()
    alter(data, "UPDATE snapshots SET state = replace(state, 'gpt', 'gpu')")
    assert f"snapshot {number} is damaged" in refused(data)


def test_an_entry_of_a_newer_program_is_refused(data: Path) -> None:
    kind, body = "SomethingNew", "{}"
    values = (kind, body, store_module._checksum(kind, body))
    alter(data, "UPDATE entries SET kind = ?, body = ?, checksum = ? WHERE number = 9", *values)
    with pytest.raises(
        StoreError, match="an entry of kind SomethingNew is not known to this program; install the newer"
    ):
        Store(data).recover()


def test_a_torn_tail_loses_whole_transactions_and_never_half_of_one(tmp_path: Path, lived: World) -> None:
    """A machine that loses power tears the end of the write-ahead log."""
    store = Store(tmp_path / "data")
    everything = lines(lived)
    ends = []
    for at in range(0, len(everything), 7):
        store.append(everything[at : at + 7])
        ends.append(store.number)
    log = (tmp_path / "data" / f"{JOURNAL}-wal").read_bytes()
    random, seen = Random(7), set()
    for turn in range(25):
        copy = tmp_path / f"copy-{turn}"
        copy.mkdir()
        shutil.copy(tmp_path / "data" / JOURNAL, copy)
        (copy / f"{JOURNAL}-wal").write_bytes(log[: random.randrange(len(log) // 2, len(log))])
        again = Store(copy)
        assert [x.event for x in again.recover().entries] == [line[2] for line in everything[: again.number]]
        assert again.number in (0, *ends)
        seen.add(again.number)
        again.append([(1.0, 1.0, e.TimePassed())])
        again.close()
    store.close()
    assert len(seen) > 3


def test_whatever_is_damaged_is_refused_in_one_line_or_read_as_it_was(data: Path, lived: World, tmp_path: Path) -> None:
    whole = (data / JOURNAL).read_bytes()
    events = [line[2] for line in lines(lived)]
    random, refusals = Random(11), list[str]()
    for turn in range(60):
        copy = tmp_path / f"copy-{turn}"
        copy.mkdir()
        torn = bytearray(whole)
        for _ in range(random.choice((1, 8, 64))):
            torn[random.randrange(len(torn))] ^= 1 << random.randrange(8)
        (copy / JOURNAL).write_bytes(torn[: random.choice((len(torn), len(torn) // 2))])
        try:
            found = recovered(copy)
        except StoreError as refusal:
            refusals.append(str(refusal))
        else:
            assert found == events[: len(found)]
    assert len(refusals) > 10
    assert not [line for line in refusals if "\n" in line]


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("this is no database, but it is long enough to be looked at" * 20)
    assert "file is not a database; restore it from a backup or choose another --data" in refused(tmp_path)


def test_a_refused_directory_is_let_go(data: Path, tmp_path: Path) -> None:
    """Whoever mends it need not end this process first."""
    whole = (data / JOURNAL).read_bytes()
    (data / JOURNAL).write_bytes(whole[:3000])
    refused(data)
    (data / JOURNAL).unlink()
    (data / JOURNAL).mkdir()
    assert "unable to open database file; restore it from a backup" in refused(data)
    (data / JOURNAL).rmdir()
    (data / JOURNAL).write_bytes(whole)
    assert recovered(data)


# -- a full disk ----------------------------------------------------------------------------


def fill_disk(store: Store) -> None:
    """The database may not grow by another page."""
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_loses_nothing_that_was_acknowledged(data: Path, lived: World) -> None:
    store = Store(data)
    before = store.number
    fill_disk(store)
    big = [(1.0, 1.0, e.JobGivenUp("gpt", 1, "x" * 100_000))]
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
            store.append(big)
    with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
        store.keep_file("digest", b"x" * 100_000, 1.0, ())
    assert store.number == before
    assert [x.event for x in store.recover().entries] == [line[2] for line in lines(lived)]
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.append(big) == before + 1, "somebody has made room"
    store.close()
