"""The journal: SQLite in WAL mode, one writer, batched commits.

Every entry carries a checksum, so that a damaged one is found and named.  A snapshot of the
state bounds what a recovery has to read; old entries are dropped beyond a limit, since the
journal is also the story that people ask for.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from unicorn_mgr.coordinator.state import ClusterState
from unicorn_mgr.effects import coordinator as e

SCHEMA = 1
SNAPSHOT_EVERY_ENTRIES = 5_000
ENTRIES_KEPT = 200_000

DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading a damaged file raises: what is wrong may be quoted, and be no text any more."""

FILE_SPARED_SECONDS = 3600.0
"""An archive this new may be of a job that is just being submitted."""

_EVENTS: dict[str, type[Any]] = {cls.__name__: cls for cls in (*get_args(e.Fact), *get_args(e.Decision))}
_TOLD: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(get_type_hints(e.WorkerTold)["fact"])}
_STATE = TypeAdapter(ClusterState)

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, wall REAL NOT NULL, kind TEXT NOT NULL,
    body TEXT NOT NULL, checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE snapshots (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, state TEXT NOT NULL, checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE files (digest TEXT PRIMARY KEY, data BLOB NOT NULL, added REAL NOT NULL) STRICT;
"""


class StoreError(Exception):
    """The data directory can't be used.  The message is one line and names the fix."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal.  `at` is core time, `wall` seconds since 1970."""

    number: int
    at: float
    wall: float
    event: e.Event


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a data directory holds."""

    state: ClusterState
    entries: list[Entry]
    """Those after the state was dumped."""
    at: float
    """Core time of the newest entry."""


JOURNAL = "journal.sqlite"


class Store:
    """A data directory.  Opened by one process at a time, and by any number read-only."""

    def __init__(self, folder: Path, read_only: bool = False, name: str = JOURNAL) -> None:
        self.folder = folder
        self._path = folder / name
        self._lock = threading.Lock()
        self._read_only = read_only
        if not read_only:
            self._claim()
        self._db = self._connect()
        try:
            self._prepare()
            self.cluster, self.secret = self._identify()
            self.number, snapshot = self._newest_numbers()
        except StoreError:
            self.close()
            raise
        self._since_snapshot = self.number - snapshot

    def _claim(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._claimed = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failed:
            raise StoreError(f"data: {self.folder}: {failed.strerror}; choose another --data") from failed
        try:
            fcntl.flock(self._claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failed:
            os.close(self._claimed)
            raise StoreError(f"data: {self.folder}: another coordinator uses it; stop that one first") from failed

    def _connect(self) -> sqlite3.Connection:
        try:
            return sqlite3.connect(self._uri(), uri=True, check_same_thread=False, isolation_level=None, timeout=10)
        except DAMAGE as failed:
            self._let_go()
            raise self._unusable(str(failed)) from failed

    def _let_go(self) -> None:
        if not self._read_only:
            os.close(self._claimed)

    def _prepare(self) -> None:
        db = self._db
        try:
            if not self._read_only:
                self._path.chmod(0o600)
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=FULL")
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name='meta'").fetchone():
                if self._read_only:
                    raise StoreError(f"journal: {self._path}: there is nothing in it that a coordinator has written")
                self._create(db)
        except DAMAGE as failed:
            raise self._unusable(str(failed)) from failed

    def _uri(self) -> str:
        where = self._path.absolute().as_uri()
        if not self._read_only:
            return where
        # Without a write-ahead log nobody has it open, and SQLite would make one even to read.
        quiet = not self._path.with_name(f"{self._path.name}-wal").exists()
        return f"{where}?mode=ro" + ("&immutable=1" if quiet else "")

    def _create(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN")
        for statement in _TABLES.strip().split(";\n"):
            db.execute(statement)
        made = {
            "schema": str(SCHEMA),
            "cluster": secrets.token_hex(8),
            "secret": secrets.token_hex(32),
            "term": "0",
        }
        db.executemany("INSERT INTO meta VALUES (?, ?)", made.items())
        db.execute("COMMIT")

    def _unusable(self, why: str) -> StoreError:
        why = " ".join(why.split())  # SQLite may quote a statement of several lines
        if self._read_only:
            return StoreError(f"journal: {self._path}: {why}; give the journal of a coordinator, or a backup of it")
        return StoreError(f"data: {self._path}: {why}; restore it from a backup or choose another --data")

    def _identify(self) -> tuple[str, bytes]:
        try:
            meta = dict(self._db.execute("SELECT key, value FROM meta"))
            found, cluster, secret = int(meta["schema"]), meta["cluster"], bytes.fromhex(meta["secret"])
        except (*DAMAGE, KeyError, ValueError) as failed:
            raise self._unusable(f"it is damaged ({failed})") from failed
        if found != SCHEMA:
            raise StoreError(
                f"data: {self.folder}: its schema is {found}, this program knows {SCHEMA}; "
                + ("install the newer program" if found > SCHEMA else "it is too old to be read")
            )
        return cluster, secret

    # -- writing -------------------------------------------------------------------------

    def next_term(self) -> int:
        """A term higher than any before, durable when this returns."""
        with self._transaction() as db:
            term = int(db.execute("SELECT value FROM meta WHERE key='term'").fetchone()[0]) + 1
            db.execute("UPDATE meta SET value=? WHERE key='term'", (str(term),))
        return term

    def append(self, lines: Sequence[tuple[float, float, e.Event]]) -> int:
        """Make (at, wall, event) lines durable, in one transaction; returns the number of the first."""
        rows = []
        first = self.number + 1
        for offset, (at, wall, event) in enumerate(lines):
            kind, body = dump_event(event)
            rows.append((first + offset, at, wall, kind, body, _checksum(kind, body)))
        with self._transaction() as db:
            db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", rows)
        self.number += len(rows)
        self._since_snapshot += len(rows)
        return first

    @property
    def wants_snapshot(self) -> bool:
        """So many entries have come since the last snapshot that a recovery would take long."""
        return self._since_snapshot >= SNAPSHOT_EVERY_ENTRIES

    def snapshot(self, state: ClusterState, at: float) -> None:
        """Dump the state as it is after the newest entry, and drop what is too old."""
        text = _dumped(_STATE, state)
        with self._transaction() as db:
            row = (self.number, at, text, _checksum("snapshot", text))
            db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", row)
            db.execute("DELETE FROM snapshots WHERE number < (SELECT max(number) FROM snapshots)")
            db.execute("DELETE FROM entries WHERE number <= ?", (self.number - ENTRIES_KEPT,))
        self._since_snapshot = 0

    def keep_file(self, digest: str, data: bytes, wall: float, wanted: Collection[str]) -> None:
        """Keep a submitted archive, under its digest; old ones that no job wants any more make way."""
        with self._transaction() as db:
            kept = "INSERT INTO files VALUES (?, ?, ?) ON CONFLICT (digest) DO UPDATE SET added = excluded.added"
            db.execute(kept, (digest, data, wall))
            old = db.execute("SELECT digest FROM files WHERE added < ?", (wall - FILE_SPARED_SECONDS,)).fetchall()
            db.executemany("DELETE FROM files WHERE digest = ?", [row for row in old if row[0] not in wanted])

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it is durable afterwards, or none of it has happened."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                # Even when interrupted: left open, the next transaction could not begin.  A full disk has ended it.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let another process have the directory."""
        with self._lock:
            self._db.close()
        self._let_go()

    # -- reading -------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """The newest snapshot, and every entry after it.  Raises `StoreError` for a damaged one."""
        state, after, at = ClusterState(), 0, 0.0
        row = self._newest_snapshot()
        if row is not None:
            after, at, text, checksum = row
            if checksum != _checksum("snapshot", text):
                raise StoreError(f"data: {self._path}: snapshot {after} is damaged; restore the journal from a backup")
            state = _STATE.validate_json(text)
        entries = list(self.entries(after))
        for expected, entry in enumerate(entries, after + 1):
            if entry.number != expected:
                raise StoreError(f"data: {self._path}: entry {expected} is missing; restore the journal from a backup")
        return Recovered(state, entries, entries[-1].at if entries else at)

    def recover_until(self, number: int) -> Recovered:
        """The same up to an entry, from the first one on.  Raises `StoreError` if that has been dropped."""
        entries = list(self.entries(0, until=number))
        if not entries or entries[0].number != 1:
            raise StoreError(
                f"until: {number}: entries before {self._newest_numbers()[1]} are not all kept any more; "
                "give a higher number, or leave --until out"
            )
        return Recovered(ClusterState(), entries, entries[-1].at)

    def entries(self, after: int = 0, limit: int = -1, until: int = (1 << 62)) -> Iterator[Entry]:
        """Entries with a higher number than `after`, up to `until`, in order."""
        query = (
            "SELECT number, at, wall, kind, body, checksum FROM entries "
            "WHERE number > ? AND number <= ? ORDER BY number LIMIT ?"
        )
        with self._lock:
            try:
                rows: Iterable[tuple[int, float, float, str, str, int]] = self._db.execute(
                    query, (after, until, limit)
                ).fetchall()
            except DAMAGE as failed:
                raise self._unusable(str(failed)) from failed
        for number, at, wall, kind, body, checksum in rows:
            if checksum != _checksum(kind, body):
                raise StoreError(
                    f"data: {self._path}: entry {number} is damaged; restore a backup, or read what stands before it "
                    f"with `unicorn replay {self.folder} --until {number - 1}`"
                )
            yield Entry(number, at, wall, load_event(kind, body))

    def _newest_snapshot(self) -> tuple[int, float, str, int] | None:
        try:
            row: tuple[int, float, str, int] | None = self._db.execute(
                "SELECT number, at, state, checksum FROM snapshots ORDER BY number DESC"
            ).fetchone()
        except DAMAGE as failed:
            raise self._unusable(str(failed)) from failed
        return row

    def file(self, digest: str) -> bytes | None:
        """A submitted archive."""
        with self._lock:
            row = self._db.execute("SELECT data FROM files WHERE digest=?", (digest,)).fetchone()
        return row[0] if row else None

    def _newest_numbers(self) -> tuple[int, int]:
        """Of the entries, and of the snapshots."""
        try:
            (entry,) = self._db.execute("SELECT max(number) FROM entries").fetchone()
            (snapshot,) = self._db.execute("SELECT max(number) FROM snapshots").fetchone()
        except DAMAGE as failed:
            raise self._unusable(str(failed)) from failed
        return max(entry or 0, snapshot or 0), snapshot or 0


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    if cls not in _adapters:
        _adapters[cls] = TypeAdapter(cls)
    return _adapters[cls]


def _dumped(adapter: TypeAdapter[Any], value: Any) -> str:
    # Not dump_json(): it writes what is not finite as null, which nothing could read again.
    return json.dumps(adapter.dump_python(value, mode="json"), ensure_ascii=False, separators=(",", ":"))


def dump_event(event: e.Event) -> tuple[str, str]:
    """An event as (kind, JSON).  What a worker told is of the kind `WorkerTold/<its class>`."""
    kind = type(event).__name__
    if isinstance(event, e.WorkerTold):
        told = type(event.fact)
        return f"{kind}/{told.__name__}", json.dumps([event.worker, _dumped(_adapter(told), event.fact)])
    return kind, _dumped(_adapter(type(event)), event)


def load_event(kind: str, body: str) -> e.Event:
    """Inverse of `dump_event`."""
    name, _, told = kind.partition("/")
    try:
        if told and told in _TOLD:
            worker, text = json.loads(body)
            return e.WorkerTold(worker, _adapter(_TOLD[told]).validate_json(text))
        if name in _EVENTS and not told:
            event: e.Event = _adapter(_EVENTS[name]).validate_json(body)
            return event
    except ValueError as wrong:
        raise StoreError(f"journal: an entry of kind {kind} does not fit this program: {wrong}") from wrong
    raise StoreError(f"journal: an entry of kind {kind} is not known to this program; install the newer one")


def _checksum(kind: str, body: str) -> int:
    return zlib.crc32(f"{kind} {body}".encode())
