"""A flood of output blocks nobody and fills nothing."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from unicorn_mgr.agent import logs

LIMIT_BYTES = 1 << 20
FLOOD_BYTES = 48 << 20
LINE = b"the loss is not a number any more\n"


@pytest.fixture(params=["a file system with holes", "one without"])
def _file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "one without":
        libc = SimpleNamespace(fallocate=lambda *_: -1)
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: libc)


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.mark.usefixtures("_file_system")
def test_a_flood_is_written_to_its_end_and_takes_no_room(tmp_path: Path) -> None:
    path = tmp_path / "0.0.log"
    with path.open("ab") as output:
        command = ["sh", "-c", f"yes '{LINE.decode().strip()}' | head -c {FLOOD_BYTES}"]
        writer = subprocess.Popen(command, stdout=output)
    punched = 0
    while writer.poll() is None:
        punched = logs.bound(path, LIMIT_BYTES, punched)
    assert writer.returncode == 0
    punched = logs.bound(path, LIMIT_BYTES, punched)
    assert on_disk(path) <= LIMIT_BYTES + 2 * logs.BLOCK_BYTES
    with path.open("rb") as file:
        file.seek(punched)
        kept = file.read()
    assert set(kept.split(b"\n")[1:-1]) <= {LINE.strip()}


def test_the_newest_is_kept_and_readers_keep_their_place(tmp_path: Path) -> None:
    path = tmp_path / "0.0.log"
    written = b"".join(b"%08d\n" % i for i in range(100_000))
    path.write_bytes(written)
    punched = logs.bound(path, 100_000, 0)
    assert len(written) - 100_000 - logs.BLOCK_BYTES < punched <= len(written) - 100_000
    assert path.stat().st_size == len(written)
    with path.open("rb") as file:
        file.seek(punched)
        assert file.read() == written[punched:]


def test_what_is_within_its_bound_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "0.0.log"
    path.write_bytes(b"x" * 10_000)
    assert logs.bound(path, 10_000, 0) == 0
    assert logs.bound(path, 0, 0) == 0  # no bound at all
    assert path.read_bytes() == b"x" * 10_000


def test_a_file_that_can_not_be_opened_disturbs_nobody(tmp_path: Path) -> None:
    assert logs.bound(tmp_path / "nosuch.log", 1, 7) == 7
    assert logs.bound(tmp_path, 1, 7) == 7


@pytest.mark.usefixtures("_file_system")
def test_a_writer_goes_on_behind_what_was_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "0.0.log"
    with path.open("ab", buffering=0) as output:
        output.write(b"a" * 50_000)
        punched = logs.bound(path, 10_000, 0)
        output.write(b"last words")
    with path.open("rb") as file:
        file.seek(punched)
        assert file.read().endswith(b"last words")
    assert on_disk(path) <= 10_000 + 3 * logs.BLOCK_BYTES
