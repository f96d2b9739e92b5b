"""Coordinators and local clusters as commands of their own: how they start, what stops them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line import process, unicorn
from e2e.harness import PATIENCE_SECONDS


@contextlib.contextmanager
def coordinator(folder: Path, *words: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A coordinator without agents: (process, address)."""
    ready = folder / "ready"
    ready.unlink(missing_ok=True)
    data = ("--data", str(folder / "data"), "--ready-file", str(ready), "--listen", "127.0.0.1:0", "--metrics", "")
    with process("coordinator", *data, *words, **options) as started:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ready.exists():
            assert started.poll() is None, started.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            yield started, ready.read_text().splitlines()[0]
        finally:
            started.terminate()
            started.communicate()


def test_drills_are_off_in_a_service(here: Path) -> None:
    refusal = "this coordinator does not allow drills; start it with --allow-drills"
    with coordinator(here) as (_, address):
        inject = ("inject", "--job", "gpt", "--worker", "0", "--fault", "kill")
        assert unicorn(*inject, coordinator=address).problem == f"inject: {refusal}"
        run = ("run", "--name", "gpt", "--no-snapshot", "--drill", "0:kill:3", "--", "true")
        assert unicorn(*run, coordinator=address).problem == f"drills: {refusal}"
        assert json.loads(unicorn("jobs", "--json", coordinator=address).out) == []


def test_a_disk_that_fills_up(here: Path) -> None:
    """The coordinator ends with one line; what it has acknowledged is there when it starts again."""

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    (here / "large.bin").write_bytes(os.urandom(400_000))
    with coordinator(here, preexec_fn=small) as (full, address):
        run = ("run", "--name", "gpt", "--detach", "--", "true")
        problem = unicorn(*run, coordinator=address).problem
        assert problem.startswith(f"workdir: its files can't be kept in {here}/data of the coordinator (")
        assert json.loads(unicorn("jobs", "--json", coordinator=address).out) == []
        acknowledged = 0
        while unicorn("pause" if acknowledged % 2 == 0 else "resume", coordinator=address).code == 0:
            acknowledged += 1
        _, err = full.communicate()
        assert full.returncode == 2
        last = err.splitlines()[-1]
        assert last.startswith(f"unicorn: data: {here}/data: the journal can't be written (")
        assert last.endswith("; free space there and start again")
    with coordinator(here) as (_, address):
        status = json.loads(unicorn("status", "--json", coordinator=address).out)
        assert (status["term"], status["paused"]) == (2, acknowledged % 2 == 1)


def test_a_local_cluster_ends_cleanly_when_it_is_told_to(here: Path) -> None:
    words = ("--nodes", "1", "--listen", "127.0.0.1:0", "--data", str(here / "d"))
    with process("local", *words) as local:
        assert local.stdout is not None
        lines = [local.stdout.readline() for _ in range(4)]
        assert lines[0] == "1 node with 1 slot each run here until Ctrl-C\n"
        address = lines[3].removeprefix("export UNICORN_COORDINATOR=").strip()
        assert unicorn("nodes", coordinator=address).code == 0
        local.send_signal(signal.SIGTERM)
        assert local.stdout.read() == "stopping\n"
        assert local.wait() == 0
    assert unicorn("nodes", coordinator=address).problem.endswith("nobody answers there; is it running?")
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if _mentions(p, str(here / "d"))]
    assert not left


def _mentions(cmdline: Path, text: str) -> bool:
    with contextlib.suppress(OSError):
        return text in cmdline.read_text()
    return False
