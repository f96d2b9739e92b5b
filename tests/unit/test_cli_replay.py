"""`unicorn replay`: a journal alone tells what its coordinator knew, and is not touched by being read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import unicorn
from unit.world import World

from unicorn_mgr import messages as m
from unicorn_mgr.cli.replay import read
from unicorn_mgr.coordinator import store as stores
from unicorn_mgr.coordinator.store import Store
from unicorn_mgr.effects import coordinator as e

WALL = 1_800_000_000.0


@pytest.fixture
def lived(world: World) -> World:
    """A job that lost a worker and healed, and one that is still waiting."""
    world.train(environment={"API_TOKEN": "hush"})
    world.wait(5.0)
    raised = m.Raised("ValueError", "planted", "Traceback\n  File train.py\nValueError: planted", 4, 2)
    world.die("gpt/1.0", code=1, raised=raised, step=4, micro_batch=2)
    world.regroup()
    world.submit("late", size_min=2, size_max=2)
    return world


@pytest.fixture
def store(lived: World, tmp_path: Path) -> Iterator[Store]:
    """Its journal, which a coordinator holds open."""
    store = Store(tmp_path / "data")
    store.append([(at, WALL + at, entry) for at, entry in lived.journal])
    yield store
    store.close()


@pytest.fixture
def data(store: Store) -> Path:
    return store.folder


def replay(*words: str) -> str:
    said = unicorn("replay", *words)
    assert (said.code, said.err) == (0, "")
    return said.out


def replayed(*words: str) -> Any:
    return json.loads(replay(*words, "--json"))


def test_everything_is_as_it_was(data: Path, lived: World) -> None:
    found = replayed(str(data))
    assert (found["entries"], found["last_entry"]) == (len(lived.journal), len(lived.journal))
    assert [(n["node"], n["state"], n["slots_used"]) for n in found["nodes"]] == [
        (name, "up", 1) for name in ("n0", "n1", "n2")
    ]
    assert [(j["job"], j["state"], j["size"], j["epoch"]) for j in found["jobs"]] == [
        ("gpt", "running", 3, str(lived.job().epoch)),
        ("late", "waiting", 0, None),
    ]
    (incident,) = found["incidents"]
    assert (incident["id"], incident["cause"], incident["worker"]) == ("inc-1", "exception", "gpt/1.0")
    assert read(data, None).state == lived.state
    listed = [line.split()[0] for line in replay(str(data)).splitlines() if line]
    assert listed[2:] == ["NODE", "n0", "n1", "n2", "JOB", "gpt", "late", "INCIDENT", "inc-1"]


def test_a_file_a_directory_and_a_local_cluster_are_all_found(data: Path) -> None:
    (data.parent / "coordinator").symlink_to(data)
    assert replay(str(data / "journal.sqlite"), "--json") == replay(str(data), "--json")
    assert replayed(str(data.parent))["entries"] == replayed(str(data))["entries"]


def test_the_story_of_a_job_is_of_that_job(data: Path, lived: World) -> None:
    story = replayed(str(data), "--job", "gpt")
    assert story["job"] == "gpt"
    kinds = [line["kind"] for line in story["events"]]
    expected = [
        type(entry).__name__ for _, entry in lived.journal if "late" not in repr(entry) and "Node" not in repr(entry)
    ]
    assert [kind.partition("/")[0] for kind in kinds] == [k for k in expected if k != "TermStarted"]
    assert kinds.count("IncidentClosed") == 1
    assert "gpt/1.0" in replay(str(data), "--job", "gpt")


def test_the_story_of_a_node(data: Path) -> None:
    story = replayed(str(data), "--node", "n1")
    assert (story["node"], story["state"]) == ("n1", "up")
    texts = [line["text"] for line in story["events"]]
    assert texts[0] == "node n1 attached with 1 slot at 10.0.0.1"
    assert not any("n2" in text for text in texts)


def test_the_story_of_an_incident_has_its_evidence(data: Path) -> None:
    story = replay(str(data), "--incident", "inc-1")
    for words in ("inc-1: exception of gpt/1.0, SEV2, closed", "ValueError: planted", "last seen in step 4"):
        assert words in story
    assert replayed(str(data), "--incident", "inc-1")["events"]


def test_secrets_stay_in_the_journal(data: Path) -> None:
    story = replay(str(data), "--job", "gpt", "--json")
    assert "API_TOKEN" in story
    assert "hush" not in story


def test_it_stops_where_it_is_told(data: Path, lived: World) -> None:
    opened = next(i for i, (_, entry) in enumerate(lived.journal, 1) if isinstance(entry, e.IncidentOpened))
    assert replayed(str(data), "--until", str(opened - 1))["incidents"] == []
    (incident,) = replayed(str(data), "--until", str(opened))["incidents"]
    assert incident["state"] == "open"
    assert replayed(str(data), "--until", "100000") == replayed(str(data))


def test_a_snapshot_leads_to_the_same(data: Path, lived: World, store: Store) -> None:
    before = replayed(str(data))
    store.snapshot(lived.state, lived.now)
    assert replayed(str(data)) == before
    with sqlite3.connect(data / "journal.sqlite") as database:
        database.execute("DELETE FROM entries WHERE number <= 10")
    database.close()
    assert replayed(str(data))["jobs"] == before["jobs"]
    problem = unicorn("replay", str(data), "--until", "20").problem
    assert problem.startswith(f"until: 20: entries before {len(lived.journal)} are not all kept any more")


def test_reading_changes_nothing_while_a_coordinator_writes(data: Path, lived: World, store: Store) -> None:
    before = contents(data)
    assert "journal.sqlite-wal" in before
    replay(str(data))
    assert contents(data) == before
    store.append([(lived.now, WALL, e.NodeHeard("n0"))])
    assert replayed(str(data))["entries"] == len(lived.journal) + 1


def test_reading_changes_nothing_after_it_has_ended(lived: World, tmp_path: Path) -> None:
    ended = Store(tmp_path / "data")
    ended.append([(at, WALL + at, entry) for at, entry in lived.journal])
    ended.close()
    before = contents(ended.folder)
    assert sorted(before) == ["journal.sqlite", "lock"]
    replay(str(ended.folder))
    assert contents(ended.folder) == before


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the index of the write-ahead log, which is memory that readers share."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if not p.name.endswith("-shm")}


def test_what_is_not_there_is_named_with_what_is(data: Path) -> None:
    assert unicorn("replay", str(data), "--job", "gtp").problem == "job: gtp: there is no such job; known: gpt, late"
    assert unicorn("replay", str(data), "--node", "n9").problem == "node: n9: there is no such node; known: n0, n1, n2"
    said = unicorn("replay", str(data), "--incident", "inc-9").problem
    assert said == "incident: inc-9: there is no such incident; known: inc-1"


def test_a_damaged_entry_is_named_and_what_stands_before_it_can_be_read(data: Path) -> None:
    with sqlite3.connect(data / "journal.sqlite") as database:
        database.execute("UPDATE entries SET body = replace(body, 'gpt', 'gtp') WHERE number = 12")
    database.close()
    problem = unicorn("replay", str(data)).problem
    assert problem.startswith(f"data: {data / 'journal.sqlite'}: entry 12 is damaged; ")
    assert problem.endswith(f"`unicorn replay {data} --until 11`")
    assert replayed(str(data), "--until", "11")["entries"] == 11


def test_an_entry_of_a_newer_program_is_named(data: Path) -> None:
    with sqlite3.connect(data / "journal.sqlite") as database:
        checksum = stores._checksum("NodeUpgraded", "{}")
        database.execute("UPDATE entries SET kind='NodeUpgraded', body='{}', checksum=? WHERE number = 9", (checksum,))
    database.close()
    said = "journal: an entry of kind NodeUpgraded is not known to this program; install the newer one"
    assert unicorn("replay", str(data)).problem == said


def test_a_torn_file(data: Path) -> None:
    """Cut in the middle, as an interrupted copy is."""
    torn = data.parent / "torn.sqlite"
    with sqlite3.connect(data / "journal.sqlite") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    whole = (data / "journal.sqlite").read_bytes()
    torn.write_bytes(whole[: len(whole) // 2])
    assert unicorn("replay", str(torn)).problem.startswith(f"journal: {torn}: ")
